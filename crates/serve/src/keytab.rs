//! The file with the keys of the Kerberos service: the one that the configuration names, or that of the system. It is looked at
//! before the first ticket comes: at a start, at a reload, by `penstock check` and `penstock doctor`.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use config::types::RemoteControl;
use state::State;
use sys::gssapi::Library;

/// A keytab in a file.
#[derive(Clone, Debug)]
pub struct Keytab {
    pub path: PathBuf,
    pub named_by: NamedBy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedBy {
    /// `control.kerberos.keytab`
    Configuration,
    /// KRB5_KTNAME, krb5.conf, or the library of Kerberos.
    System,
}

impl Keytab {
    /// Subject of the list of degraded subjects.
    pub(crate) const SUBJECT: &str = "control.kerberos.keytab";

    /// The keytab of a configuration with Kerberos. `None` also if it is in no file, or the library does not say where.
    pub fn of(remote: Option<&RemoteControl>) -> Option<Self> {
        match &remote?.kerberos.as_ref()?.keytab {
            Some(path) => Some(Self { path: path.clone(), named_by: NamedBy::Configuration }),
            None => Some(Self { path: of_system()?.to_owned(), named_by: NamedBy::System }),
        }
    }

    /// Looks whether it can be read, and tells the state. Blocks.
    pub(crate) fn tell(&self, state: &State) {
        match self.fault() {
            None => state.restore(Self::SUBJECT),
            Some(why) => state.degrade(Self::SUBJECT, &format!("no ticket can be judged: {why}")),
        }
    }

    /// Why this process cannot read it, and what to do.
    pub(crate) fn fault(&self) -> Option<String> {
        let error = File::open(&self.path).err()?;
        let way = match error.kind() {
            io::ErrorKind::PermissionDenied => self.open_to("penstock"),
            _ => self.made(),
        };
        Some(format!("{}; {way}", self.unreadable(&error)))
    }

    /// What is wrong if there is no such file, with what to do.
    pub fn missing(&self) -> Option<(String, String)> {
        let error = std::fs::metadata(&self.path).err()?;
        let is_missing = error.kind() == io::ErrorKind::NotFound;
        is_missing.then(|| (self.unreadable(&error), self.made()))
    }

    fn unreadable(&self, error: &io::Error) -> String {
        let of = match self.named_by {
            NamedBy::Configuration => "",
            NamedBy::System => " of the system",
        };
        format!("the keytab{of} {} cannot be read: {error}", self.path.display())
    }

    fn made(&self) -> String {
        let other = match self.named_by {
            NamedBy::Configuration => "",
            NamedBy::System => ", and control.kerberos.keytab names another one",
        };
        let restart = match self.named_by {
            NamedBy::Configuration => "",
            NamedBy::System => {
                "; a server that runs needs a restart then: it may open what it found at its start alone"
            }
        };
        format!("ktutil or kadmin ktadd makes it{other}{restart}")
    }

    /// How a user gets the right to read it.
    pub(crate) fn open_to(&self, user: &str) -> String {
        let word = text::shell::path(&self.path);
        let group = format!("chown root:{user} {word}; chmod 640 {word}");
        match self.named_by {
            NamedBy::Configuration => {
                format!("the user that the server runs as must be able to read it: {group}")
            }
            // It has the keys of other services of this machine too.
            NamedBy::System => format!(
                "the user that the server runs as must be able to read it: put the keys of this service alone into a file for it, \
                 which control.kerberos.keytab names, or {group}"
            ),
        }
    }
}

/// The keytab of the system, if it is a file. The library is asked once, before files are restricted.
pub(crate) fn of_system() -> Option<&'static Path> {
    static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();
    FILE.get_or_init(|| file(&Library::load().ok()?.default_keytab()?)).as_deref()
}

/// The file of a keytab in the words of the library. Other kinds are in no file, or in files whose names it chooses.
fn file(name: &str) -> Option<PathBuf> {
    let path = name.strip_prefix("FILE:").or_else(|| name.strip_prefix("WRFILE:")).unwrap_or(name);
    path.starts_with('/').then(|| PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_keytab_in_a_file_is_looked_at() {
        let at = |path: &str| Some(PathBuf::from(path));
        assert_eq!(file("FILE:/etc/krb5.keytab"), at("/etc/krb5.keytab"));
        assert_eq!(file("WRFILE:/etc/krb5.keytab"), at("/etc/krb5.keytab"));
        assert_eq!(file("/srv/keys"), at("/srv/keys"));
        for other in ["MEMORY:x", "DIR:/etc/keys", "KDB:", "FILE:keys", ""] {
            assert_eq!(file(other), None, "{other}");
        }
    }
}
