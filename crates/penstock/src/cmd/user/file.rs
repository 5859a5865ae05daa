//! The file of users as the commands read and write it. `crates/access/src/users.rs` has its form.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use access::users::{Exposed, FIRST_PERSON, LARGEST, Users};

use crate::cmd::ctl::save::Replacement;
use crate::output::{Failure, complain, plain};

/// The usual file of users.
pub(super) const FILE: &str = "/etc/penstock/users";

/// The option that names the file of users, if it is not the usual one, with a blank before it.
pub(super) fn named(file: &Path) -> String {
    match file == Path::new(FILE) {
        true => String::new(),
        false => format!(" --file {}", text::shell::word(&file.display().to_string())),
    }
}

pub(super) fn unknown(file: &Path, name: &str) -> Failure {
    let (file, name) = (plain(&file.display().to_string()), plain(name));
    Failure::usage(format_args!(
        "{file} has no user {name}\n  hint: penstock user add {name} --no-password; penstock user list"
    ))
}

/// Reads the file; without one there are no users.
pub(super) fn read(file: &Path) -> Result<(Option<String>, Users), Failure> {
    let shown = plain(&file.display().to_string());
    let bytes = match sys::file::read_owned(file, LARGEST) {
        Ok((of, bytes)) => {
            refuse_exposed(file, &of, &shown)?;
            if bytes.len() as u64 > LARGEST {
                return Err(Failure::usage(format_args!("{shown} is larger than {} MiB", LARGEST >> 20)));
            }
            bytes
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((None, Users::default())),
        Err(error) => return Err(Failure::usage(format_args!("cannot read {shown}: {error}"))),
    };
    let text =
        String::from_utf8(bytes).map_err(|_| Failure::usage(format_args!("{shown} is not UTF-8 text")))?;
    let users = Users::parse(&text).map_err(|error| Failure::usage(format_args!("{shown}: {error}")))?;
    Ok((Some(text), users))
}

/// Refuses a file that other users can read, which then know what checks passwords, or could have written: then they decide
/// whose keys go to which hosts. A server refuses it, too.
fn refuse_exposed(file: &Path, of: &fs::Metadata, shown: &str) -> Result<(), Failure> {
    let own = nix::unistd::geteuid().as_raw();
    let Some(exposed) = Exposed::of(of.uid(), of.mode(), own).filter(|_| of.is_file()) else { return Ok(()) };
    let owner = nix::unistd::User::from_uid(of.uid().into()).ok().flatten();
    let why = exposed.why(owner.map(|owner| plain(&owner.name)).as_deref());
    let (more, behind) = match exposed {
        Exposed::Foreign { .. } => {
            ("", format!("; a server that runs as a user of its own needs a number below {FIRST_PERSON}"))
        }
        Exposed::Open { .. } => {
            (", and it has what checks passwords and whose keys are whose", String::new())
        }
    };
    let remedy = exposed.remedy(&text::shell::path(file), own);
    Err(Failure::usage(format_args!("{shown} {why}{more}\n  hint: {remedy}{behind}")))
}

/// Reads the file for a look at keys. That there is none is said: then no key has an owner.
pub(super) fn read_owners(file: &Path) -> Result<Users, Failure> {
    let (text, users) = read(file)?;
    if text.is_none() {
        let file = plain(&file.display().to_string());
        complain(&format!("note: there is no file {file}, so no key has an owner\n"));
    }
    Ok(users)
}

/// Replaces the file, with the owner that it has: the server runs as another user than root.
pub(super) fn write(file: &Path, text: &str, before: Option<&str>) -> Result<(), Failure> {
    let written = Replacement::make(file, text.as_bytes(), before.map(str::as_bytes)).and_then(|new| {
        fs::set_permissions(new.beside(), fs::Permissions::from_mode(0o600))?;
        new.take_place()
    });
    written.map_err(|error| {
        let shown = plain(&file.display().to_string());
        Failure::runtime(format_args!("{shown} cannot be written: {error}\n  hint: nothing has changed"))
    })?;
    if before.is_none() && nix::unistd::geteuid().is_root() {
        let shown = plain(&file.display().to_string());
        complain(&format!(
            "note: {shown} belongs to root; if the server runs as another user: chown penstock {shown}\n"
        ));
    }
    Ok(())
}

pub(super) fn random<const N: usize>() -> Result<[u8; N], Failure> {
    access::random().ok_or_else(|| Failure::runtime("the system gives no random bytes"))
}
