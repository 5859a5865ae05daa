//! The files of all hosts: read together; changed one by one, each under a lock and after it was read again.

use std::fs;
use std::io;

use hosts::identity::{AuthorityFile, Date, Found, HostFile, Index, Name};
use hosts::ssh::key::PublicKey;

use super::IdentityError;
use super::files::{self, Lock, Places};
use super::listing::{self, Listing};
use super::load::{self, Read};

#[derive(Debug, Clone)]
pub struct Store {
    places: Places,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Change {
    Written,
    /// The file has this content already.
    #[default]
    Nothing,
}

impl Store {
    #[must_use]
    pub fn new(places: Places) -> Self {
        Self { places }
    }

    #[must_use]
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// Reads all identities.
    ///
    /// # Errors
    /// The directory cannot be read, or other users can write to it. A damaged file is an entry of the index, not an
    /// error.
    pub fn load(&self) -> Result<Index, IdentityError> {
        load::index(&self.places)
    }

    /// Reads what a list of all hosts shows. A kept list spares reading the files that did not change since: no decision may
    /// depend on the result.
    ///
    /// # Errors
    /// The errors of [`Self::load`].
    pub fn list(&self) -> Result<Listing, IdentityError> {
        listing::read(&self.places)
    }

    /// Changes the file of one host. `change` gets the current content, which was read under the lock, and returns the
    /// new one.
    ///
    /// # Errors
    /// The file is damaged, cannot be written, or `change` refuses.
    pub fn change(
        &self,
        name: &Name,
        change: impl FnOnce(Option<HostFile>) -> Result<HostFile, IdentityError>,
    ) -> Result<Change, IdentityError> {
        let lock = Lock::of(&self.places.hosts())?;
        self.change_locked(name, change, &lock)
    }

    /// Changes the file of one host, where `change` also needs the other hosts: all are read under the lock. So of two
    /// processes that give one key or name to two hosts at the same time, only one succeeds.
    ///
    /// # Errors
    /// The errors of [`Self::change`] and [`Self::load`].
    pub fn change_among(
        &self,
        name: &Name,
        change: impl FnOnce(&Index, Option<HostFile>) -> Result<HostFile, IdentityError>,
    ) -> Result<Change, IdentityError> {
        let lock = self.lock()?;
        let index = self.load()?;
        self.change_locked(name, |host| change(&index, host), &lock)
    }

    pub(super) fn lock(&self) -> Result<Lock, IdentityError> {
        Lock::of(&self.places.hosts())
    }

    pub(super) fn change_locked(
        &self,
        name: &Name,
        change: impl FnOnce(Option<HostFile>) -> Result<HostFile, IdentityError>,
        lock: &Lock,
    ) -> Result<Change, IdentityError> {
        let before = self.read(name)?;
        let after = change(before.clone())?;
        if before.as_ref() == Some(&after) {
            return Ok(Change::Nothing);
        }
        files::replace(&self.places.hosts(), &[file_of(&after)], lock)?;
        Ok(Change::Written)
    }

    /// Writes the files of several hosts at once, if the existing files have the content that `index` has.
    ///
    /// # Errors
    /// The errors of [`Self::change`]; also if another process has changed one of the files.
    pub fn write_all(&self, hosts: &[HostFile], index: &Index) -> Result<(), IdentityError> {
        let lock = self.lock()?;
        for host in hosts {
            let known = match index.find(host.name().as_str(), 22) {
                Found::Host(known) if known.name() == host.name() => Some(known),
                _ => None,
            };
            if self.read(host.name())?.as_ref() != known {
                let name = host.name();
                return Err(IdentityError::Refused(format!(
                    "the file of {name} changed meanwhile: run the command again"
                )));
            }
        }
        let files: Vec<_> = hosts.iter().map(file_of).collect();
        files::replace(&self.places.hosts(), &files, &lock)
    }

    /// Removes the file of a host.
    ///
    /// # Errors
    /// The file does not exist or cannot be removed.
    pub fn remove(&self, name: &Name) -> Result<(), IdentityError> {
        let _lock = self.lock()?;
        self.unlink(name)
    }

    /// Gives a host another name; the old name becomes an alias.
    ///
    /// # Errors
    /// The old file does not exist or is damaged; or the new name exists or belongs to another host.
    pub fn rename(&self, from: &Name, to: &Name) -> Result<(), IdentityError> {
        let lock = self.lock()?;
        if self.path(to).exists() {
            return Err(IdentityError::Exists(to.clone()));
        }
        check_free(&self.load()?, to, from)?;
        let mut host = self.read(from)?.ok_or_else(|| IdentityError::Unknown(from.to_string()))?;
        host.rename(to.clone());
        files::replace(&self.places.hosts(), &[file_of(&host)], &lock)?;
        self.unlink(from)
    }

    /// Writes the file of an authority.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_authority(&self, file: &AuthorityFile) -> Result<(), IdentityError> {
        let directory = self.places.authorities();
        let lock = Lock::of(&directory)?;
        files::replace(&directory, &[(format!("{}.ca", file.authority.name), file.to_string())], &lock)
    }

    /// Adds keys that are refused from every host.
    ///
    /// # Errors
    /// The list is damaged or cannot be written.
    pub fn revoke(&self, keys: &[PublicKey], today: Date) -> Result<(), IdentityError> {
        let lock = Lock::of(&self.places.configuration)?;
        let known = load::revoked(&self.places)?;
        let path = self.places.revoked();
        let mut text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(fault) if fault.kind() == io::ErrorKind::NotFound => String::new(),
            Err(fault) => return Err(IdentityError::io("cannot read", &path)(fault)),
        };
        // People edit the file: its last line may lack a newline, and a key must not become part of a comment there.
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        for key in keys.iter().filter(|key| !known.contains(key)) {
            text.push_str(&format!("{key} {} {today}\n", key.fingerprint()));
        }
        // After this function has reported success, no revoked key may be accepted.
        let after = load::revoked_in(&text, &path)?;
        if let Some(key) = known.iter().chain(keys).find(|key| !after.contains(key)) {
            let (path, key) = (path.display(), key.fingerprint());
            return Err(IdentityError::Refused(format!(
                "{path} would not revoke {key}: repair its last line"
            )));
        }
        files::replace(&self.places.configuration, &[("revoked".into(), text)], &lock)
    }

    /// Reads the file of one host.
    ///
    /// # Errors
    /// The file is damaged.
    pub fn read(&self, name: &Name) -> Result<Option<HostFile>, IdentityError> {
        match load::one(&self.places.hosts(), name, ".host", HostFile::parse) {
            None => Ok(None),
            Some(Read::Well(host)) => Ok(Some(host)),
            Some(Read::Damaged(_, mut damage)) => {
                Err(IdentityError::Damaged { path: self.path(name), fault: damage.faults.swap_remove(0) })
            }
        }
    }

    /// Returns the path of a host's file.
    #[must_use]
    pub fn path(&self, name: &Name) -> std::path::PathBuf {
        self.places.hosts().join(format!("{name}.host"))
    }

    fn unlink(&self, name: &Name) -> Result<(), IdentityError> {
        let path = self.path(name);
        match fs::remove_file(&path) {
            Err(fault) if fault.kind() == io::ErrorKind::NotFound => {
                Err(IdentityError::Unknown(name.to_string()))
            }
            result => result.map_err(IdentityError::io("cannot remove", &path)),
        }
    }
}

/// Checks that `name` may become a name of `host`.
///
/// # Errors
/// Another host has the name.
pub fn check_free(index: &Index, name: &Name, host: &Name) -> Result<(), IdentityError> {
    match index.find(name.as_str(), 22) {
        Found::Host(other) if other.name() != host => {
            Err(IdentityError::Refused(format!("{name} is a name of {} already", other.name())))
        }
        _ => Ok(()),
    }
}

fn file_of(host: &HostFile) -> (String, String) {
    (format!("{}.host", host.name()), host.to_string())
}

#[cfg(test)]
mod tests;
