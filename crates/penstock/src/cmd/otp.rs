//! `penstock otp`: tokens that make one-time passwords. Decisions: `access::otp`; the store on the disk: `credentials`.

use std::path::PathBuf;

use access::otp::token::{Refusal, Standing};
use clap::{Args, Subcommand};
use credentials::{Place, Store};

use change::{change, judge};

use crate::load;
use crate::output::{Failure, plain, print};

mod change;
mod client;
mod enrol;
mod import;
mod input;
mod key;
mod list;
mod qr;

/// One-time passwords: YubiKeys and authenticator apps
///
/// A store on this machine holds the tokens; their secrets are sealed with a key file. A running server (`[otp]` of its
/// configuration) uses the same store, and sees each change at once. Secrets and codes are read from standard input or files,
/// never from arguments.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Arguments {
    /// Directory of the store
    #[arg(long, value_name = "DIRECTORY", global = true, default_value = credentials::USUAL_DIRECTORY)]
    store: PathBuf,
    /// File with the key that seals the secrets
    #[arg(long, value_name = "FILE", global = true, default_value = credentials::USUAL_KEY_FILE)]
    key_file: PathBuf,
    /// Take both from `[otp]` of this configuration file
    #[arg(long, value_name = "FILE", global = true, conflicts_with_all = ["store", "key_file"])]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Init(Init),
    #[command(visible_alias = "add")]
    Enrol(enrol::Arguments),
    List(list::Arguments),
    /// Let a token be used no more, from now on and by every server that uses this store
    Revoke(Named),
    /// Let a revoked token be used again
    Restore(Named),
    /// Remove a token with its counters: enrolled again, it would accept old OTPs, so prefer to revoke it
    Remove(Named),
    Give(Give),
    /// Bring a token back into step, with two of its codes in a row
    Resync(Named),
    Import(import::Arguments),
    Verify(Verify),
    Client(client::Arguments),
}

/// Make an empty store and its key file
///
/// The directory gets mode 0700, and the key file 0600. A key file that is there already is used. Keep a copy of it apart from
/// copies of the store: without it no secret can be read. When root makes the store, --owner is the user of the server.
#[derive(Debug, Args)]
struct Init {
    /// User that the store and the key file shall belong to: the one that the server runs as
    #[arg(long, value_name = "USER")]
    owner: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct Named {
    /// Name of the token, as in `penstock otp list`
    name: String,
}

/// Give a token to another user, or to none
#[derive(Debug, Args)]
struct Give {
    /// Name of the token, as in `penstock otp list`
    name: String,
    /// The user
    #[arg(required_unless_present = "nobody", conflicts_with = "nobody")]
    user: Option<String>,
    /// No user: only API clients of the validation server know it
    #[arg(long)]
    nobody: bool,
}

/// Check an OTP of a user, which is used up by that
///
/// The OTP is read from standard input, one line. The exit code is 0 if it is good, and 1 if it is not.
#[derive(Debug, Args)]
struct Verify {
    /// The user; without it the name in the OTP of a YubiKey says which token it is
    #[arg(long, value_name = "USER")]
    user: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  penstock otp init --owner penstock
  penstock otp enrol totp --user alice                  shows a QR code for an authenticator app
  penstock otp enrol yubikey --user bob                 makes a secret, and says how to write it to the key
  penstock otp import ksm export.csv                    keys of a YK-KSM
  penstock otp verify --user alice                      reads the code from standard input
  penstock otp client add vpn                           a client of /wsapi/2.0/verify";

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let place = place(arguments)?;
    if let Command::Init(init) = &arguments.command {
        return initialise(place, init);
    }
    let mut store = Store::open(place).map_err(Failure::runtime)?;
    match &arguments.command {
        Command::Init(_) => Ok(()),
        Command::Enrol(arguments) => enrol::run(&mut store, arguments),
        Command::List(arguments) => list::run(&store, arguments),
        Command::Revoke(named) => {
            let name = named.name.clone();
            change(&mut store, move |ledger| ledger.set_standing(&name, Standing::Revoked))?;
            print(&format!("{} is revoked\n", plain(&named.name)))
        }
        Command::Restore(named) => {
            let name = named.name.clone();
            change(&mut store, move |ledger| ledger.set_standing(&name, Standing::Active))?;
            print(&format!("{} may be used again\n", plain(&named.name)))
        }
        Command::Remove(named) => {
            let name = named.name.clone();
            change(&mut store, move |ledger| ledger.removal(&name))?;
            print(&format!("{} is removed\n", plain(&named.name)))
        }
        Command::Give(give) => {
            let (name, user) = (give.name.clone(), give.user.clone());
            change(&mut store, move |ledger| ledger.give(&name, user.as_deref()))?;
            let user = give.user.as_deref().map_or("nobody".to_owned(), plain);
            print(&format!("{} belongs to {user}\n", plain(&give.name)))
        }
        Command::Resync(named) => resync(&mut store, &named.name),
        Command::Import(arguments) => import::run(&mut store, arguments),
        Command::Verify(arguments) => verify(&mut store, arguments),
        Command::Client(arguments) => client::run(&mut store, arguments),
    }
}

fn place(arguments: &Arguments) -> Result<Place, Failure> {
    let Some(file) = &arguments.config else {
        return Ok(Place { directory: arguments.store.clone(), key_file: arguments.key_file.clone() });
    };
    match load::file(file, &load::environment())?.config.otp {
        Some(otp) => Ok(Place { directory: otp.store, key_file: otp.key_file }),
        None => {
            let name = plain(&file.display().to_string());
            Err(Failure::usage(format_args!(
                "{name} has no [otp]\n  hint: --store and --key-file name a store"
            )))
        }
    }
}

fn initialise(place: Place, init: &Init) -> Result<(), Failure> {
    let (directory, key_file) = (place.directory.clone(), place.key_file.clone());
    Store::create(place, init.owner.as_deref()).map_err(Failure::runtime)?;
    print(&format!(
        "made the store {}\nits key is in {}: keep a copy of it, apart from copies of the store\n",
        plain(&directory.display().to_string()),
        plain(&key_file.display().to_string())
    ))
}

fn verify(store: &mut Store, arguments: &Verify) -> Result<(), Failure> {
    let typed = input::line("OTP: ")?;
    let (user, nonce) = (arguments.user.clone(), nonce()?);
    let otp = access::otp::yubico::Otp::read(&typed);
    let typed_as = otp.as_ref().ok().map(|otp| otp.typed);
    let judged = judge(store, move |ledger, now| match (user, otp) {
        (Some(user), _) => ledger.prove(&user, &typed, &nonce, now),
        (None, Ok(otp)) => ledger.press(&otp, &nonce, now),
        (None, Err(_)) => Err(Refusal::NotAnOtp),
    })?;
    match judged {
        Ok(accepted) => {
            let whose = accepted.owner.map_or_else(String::new, |owner| format!(" of {}", plain(&owner)));
            let typed = match typed_as {
                Some(typed) if typed != access::otp::modhex::Typed::Plainly => format!(" ({typed})"),
                _ => String::new(),
            };
            print(&format!("good: token {}{whose}{typed}\n", plain(&accepted.id)))
        }
        Err(why) => Err(Failure::runtime(why)),
    }
}

/// A word that no other request has.
fn nonce() -> Result<String, Failure> {
    let bytes: [u8; 16] = credentials::random().map_err(Failure::runtime)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Brings a HOTP or TOTP token back in step: two codes in a row are read from standard input
fn resync(store: &mut Store, name: &str) -> Result<(), Failure> {
    let mut codes = Vec::new();
    for ask in ["first code: ", "next code: "] {
        let text = input::line(ask)?;
        let code = access::otp::oath::Code::read(&text);
        codes.push(code.ok_or_else(|| Failure::usage("a code has 6 to 8 digits"))?);
    }
    let name = name.to_owned();
    let told = plain(&name);
    let judged = judge(store, move |ledger, now| match <[_; 2]>::try_from(codes) {
        Ok(codes) => ledger.resync(&name, &codes, now),
        Err(_) => Err(Refusal::NotAnOtp),
    })?;
    judged.map_err(Failure::runtime)?;
    print(&format!("{told} is in step again\n"))
}
