//! Files of users and keys that a server would not use: they are missing, others may read them, or a line is wrong.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use access::users::{Exposed, LARGEST, Users};
use config::MachineFault;
use credentials::StoreError;
use serve::confinement::DEFAULT_USER;
use serve::keytab::{Keytab, NamedBy};
use text::shell;

use crate::output::plain;

/// Returns the faults of the files of users and of the key file. A file that this user may not look at is left out: the check
/// of paths reports it.
pub(super) fn unusable(config: &config::Config) -> Vec<MachineFault> {
    let control = config.remote_control().and_then(|remote| remote.users.as_deref());
    let admin = config.admin.as_ref().and_then(|admin| admin.users.as_deref());
    let modules = config.otp.as_ref().and_then(|otp| otp.users.as_deref());
    let files = [
        ("control.users", control, "no operator of it would be let in"),
        ("admin.users", admin, "no client of it would be let in"),
        ("otp.users", modules, "no user would be let in by PAM"),
    ];
    let users = files.into_iter().filter_map(|(key, path, effect)| {
        let (why, hint) = of_users(path?, &readers(config))?;
        Some(MachineFault { key: key.to_owned(), message: format!("{why}: {effect}"), hint: Some(hint) })
    });
    users.chain(seal(config)).chain(keytab(config)).collect()
}

/// Numbers of the users as one of which the process would read the files. Whether root stays is not asked here.
fn readers(config: &config::Config) -> Vec<u32> {
    let number = |name: &str| Some(sys::privilege::user(name).ok()??.uid.as_raw());
    let own = nix::unistd::geteuid();
    match config.process.user.as_deref().and_then(number) {
        Some(user) => vec![user],
        None if own.is_root() => number(DEFAULT_USER).into_iter().chain([own.as_raw()]).collect(),
        None => vec![own.as_raw()],
    }
}

/// Why a file of users cannot be used, and what to do.
fn of_users(path: &Path, readers: &[u32]) -> Option<(String, String)> {
    let (shown, word) = (plain(&path.display().to_string()), shell::path(path));
    let (of, bytes) = match sys::file::read_owned(path, LARGEST) {
        Ok((of, bytes)) => (of, Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let hint = format!("penstock user --file {word} add NAME makes it");
            return Some((format!("there is no file {shown}"), hint));
        }
        // This user may not read it, and sees its mode all the same.
        Err(_) => (path.metadata().ok()?, None),
    };
    let mut judged = readers.iter().map(|own| (Exposed::of(of.uid(), of.mode(), *own), *own));
    let judgement = judged.clone().find(|(exposed, _)| exposed.is_none()).or_else(|| judged.next());
    match (judgement?, &bytes) {
        ((Some(exposed @ Exposed::Open { mode }), own), _) => {
            let why = format!("{shown} has mode {mode:04o}, and others than its owner can use it");
            return Some((why, exposed.remedy(&word, own)));
        }
        ((Some(exposed @ Exposed::Foreign { .. }), own), Some(_)) => {
            return Some((format!("{shown} {}", exposed.why(None)), exposed.remedy(&word, own)));
        }
        _ => {}
    }
    let error = Users::parse(&String::from_utf8(bytes?).ok()?).err()?;
    Some((format!("{shown}: {}", plain(&error.to_string())), "correct that line".to_owned()))
}

/// The keys of the Kerberos service. Whether the user of the process may read them, the check of paths reports.
fn keytab(config: &config::Config) -> Option<MachineFault> {
    let keytab = Keytab::of(config.remote_control())?;
    let (why, hint) = keytab.missing()?;
    let key = match keytab.named_by {
        NamedBy::Configuration => "control.kerberos.keytab",
        NamedBy::System => "control.kerberos",
    };
    let message = format!("{}: no ticket could be judged", plain(&why));
    Some(MachineFault { key: key.to_owned(), message, hint: Some(plain(&hint)) })
}

/// The key that seals the tokens.
fn seal(config: &config::Config) -> Option<MachineFault> {
    let path = &config.otp.as_ref()?.key_file;
    let error = credentials::read_key(path).err()?;
    let is_ours = matches!(error, StoreError::KeyOpen { .. } | StoreError::NotAKey { .. });
    let message = format!("{}: no one-time password would be good", plain(&error.to_string()));
    is_ours.then(|| MachineFault { key: "otp.key-file".to_owned(), message, hint: None })
}
