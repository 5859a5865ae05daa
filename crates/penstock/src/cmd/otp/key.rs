//! `penstock otp enrol challenge-response`.

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use access::otp::challenge::{self, Challenge, Exchange, Expected, Response, Slot};
use access::otp::token::{Kind, Token};
use clap::Args;
use credentials::{Store, random};

use super::change::changes;
use crate::output::{Failure, plain, print};

/// Permission bits of others than the owner that let them write.
const WRITE_OF_OTHERS: u32 = 0o022;

/// The user may have put a pipe or a terminal there.
const CAREFUL: i32 = nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY;

/// A key at this machine that responds to challenges (HMAC-SHA1, slot 2 of a YubiKey), for log-ins at this machine
///
/// The key is asked now, and must be there; its secret stays in it. With --state-file the file is read that ykpamcfg and pam_yubico
/// have made, so that the user enrols nothing anew. Challenges are used up in this store alone: enrol the key on each machine.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The user that the key belongs to
    #[arg(long, value_name = "USER")]
    user: String,
    /// Name of the token [default: USER-SERIAL, or USER-key]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Serial number of the key (ykinfo -s): needed where a user has several
    #[arg(long, value_name = "N")]
    serial: Option<u32>,
    /// Slot of the key that responds
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    slot: u8,
    /// Program that asks the key: it is given -SLOT, -x and a challenge, and prints the response
    #[arg(long, value_name = "FILE", default_value = "/usr/bin/ykchalresp")]
    program: PathBuf,
    /// State file of pam_yubico (~/.yubico/challenge-SERIAL, or USER-SERIAL below chalresp_path): no key is asked
    #[arg(long, value_name = "FILE", conflicts_with_all = ["slot", "program"])]
    state_file: Option<PathBuf>,
}

pub(super) fn run(store: &mut Store, arguments: &Arguments) -> Result<(), Failure> {
    let next = Challenge::new(random().map_err(Failure::runtime)?);
    let salt = random().map_err(Failure::runtime)?;
    let exchange = match &arguments.state_file {
        Some(path) => {
            let serial = arguments.serial.or_else(|| serial_of(path));
            challenge::read_file(&state(path, &arguments.user)?, serial, salt, next)
                .map_err(|why| Failure::runtime(format!("{}: {why}", plain(&path.display().to_string()))))?
        }
        None => {
            let slot = Slot::try_from(arguments.slot).map_err(Failure::usage)?;
            let challenge = Challenge::new(random().map_err(Failure::runtime)?);
            let expected = Expected::of(&ask(&arguments.program, slot, &challenge)?, salt);
            Exchange { slot, serial: arguments.serial, challenge, expected, next }
        }
    };
    let suffix = exchange.serial.map_or_else(|| "key".to_owned(), |serial| serial.to_string());
    let name = arguments.name.clone().unwrap_or_else(|| format!("{}-{suffix}", arguments.user));
    let said = plain(&name);
    let user = arguments.user.clone();
    changes(store, move |ledger, now| {
        let token = Token::new(name, Some(user), Kind::Challenge(exchange), String::new(), now);
        ledger.enrol(&token).map(|record| ((), record))
    })?;
    let old = match &arguments.state_file {
        Some(path) => format!(
            "remove {} and the line of pam_yubico: what the key responds there would be good here once more\n",
            plain(&path.display().to_string())
        ),
        None => String::new(),
    };
    print(&format!("enrolled {said}\n{old}"))
}

/// The serial number in the name of a state file.
fn serial_of(path: &Path) -> Option<u32> {
    path.file_name()?.to_str()?.rsplit_once('-')?.1.parse().ok()
}

/// Reads a state file, which no other user may be able to write.
fn state(path: &Path, user: &str) -> Result<String, Failure> {
    let name = || plain(&path.display().to_string());
    let failed = |error: std::io::Error| Failure::unreadable(path, error);
    let file: File = OpenOptions::new().read(true).custom_flags(CAREFUL).open(path).map_err(failed)?;
    let facts = file.metadata().map_err(failed)?;
    if !facts.is_file() || facts.len() > challenge::LONGEST_FILE {
        let most = challenge::LONGEST_FILE;
        return Err(Failure::runtime(format!("{} is no regular file of at most {most} bytes", name())));
    }
    let own = nix::unistd::User::from_name(user).ok().flatten().map(|user| user.uid.as_raw());
    if facts.uid() != 0 && Some(facts.uid()) != own {
        return Err(Failure::runtime(format!(
            "{0} belongs to user {1}, who could have made it: it must be of {2} or root (chown {2} {0}, if you know who made it)",
            name(),
            facts.uid(),
            plain(user)
        )));
    }
    if facts.mode() & WRITE_OF_OTHERS != 0 {
        return Err(Failure::runtime(format!(
            "others may write to {0} (mode {1:03o}): the key of another user could be in it (chmod go-w {0}, if you know who wrote it)",
            name(),
            facts.mode() & 0o777
        )));
    }
    let mut text = String::new();
    file.take(challenge::LONGEST_FILE).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

/// Asks the key.
fn ask(program: &Path, slot: Slot, challenge: &Challenge) -> Result<Response, Failure> {
    let name = plain(&program.display().to_string());
    let mut command = Command::new(program);
    command.args([&format!("-{}", u8::from(slot)), "-x", &challenge.text()]).stdin(Stdio::null());
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| {
        Failure::runtime(format!(
            "cannot run {name}: {error}\n  hint: Debian has it in yubikey-personalization; --program names another one"
        ))
    })?;
    let text = String::from_utf8_lossy(&output.stdout);
    let response = Response::read(text.trim_end()).filter(|_| output.status.success());
    response.ok_or_else(|| {
        Failure::runtime(format!(
            "{name} gives no response ({}): is the key there, and its slot {} set up? (ykman otp chalresp --generate {1})",
            output.status,
            u8::from(slot)
        ))
    })
}
