//! Files of users and keys that a server would not use: they are missing, others may read them, or a line is wrong.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use access::users::{LARGEST, Users};
use config::MachineFault;
use credentials::StoreError;
use text::shell;

use crate::output::plain;

/// Permission bits of other users than the owner.
const OF_OTHERS: u32 = 0o077;

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
        let (why, hint) = of_users(path?)?;
        Some(MachineFault { key: key.to_owned(), message: format!("{why}: {effect}"), hint: Some(hint) })
    });
    users.chain(seal(config)).collect()
}

/// Why a file of users cannot be used, and what to do.
fn of_users(path: &Path) -> Option<(String, String)> {
    let (shown, word) = (plain(&path.display().to_string()), shell::path(path));
    let about = match path.metadata() {
        Ok(about) => about,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let hint = format!("penstock user --file {word} add NAME makes it");
            return Some((format!("there is no file {shown}"), hint));
        }
        Err(_) => return None,
    };
    if about.mode() & OF_OTHERS != 0 {
        let mode = about.mode() & 0o7777;
        let why = format!("{shown} has mode {mode:04o}, and others than its owner can use it");
        return Some((why, format!("chmod 600 {word}")));
    }
    let text = String::from_utf8(sys::file::read(path, LARGEST).ok()?).ok()?;
    let error = Users::parse(&text).err()?;
    Some((format!("{shown}: {}", plain(&error.to_string())), "correct that line".to_owned()))
}

/// The key that seals the tokens.
fn seal(config: &config::Config) -> Option<MachineFault> {
    let path = &config.otp.as_ref()?.key_file;
    let error = credentials::read_key(path).err()?;
    let is_ours = matches!(error, StoreError::KeyOpen { .. } | StoreError::NotAKey { .. });
    let message = format!("{}: no one-time password would be good", plain(&error.to_string()));
    is_ours.then(|| MachineFault { key: "otp.key-file".to_owned(), message, hint: None })
}
