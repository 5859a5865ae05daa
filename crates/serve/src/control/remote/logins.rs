//! The users of a configuration, and how long those who guess must wait.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use access::backoff::{Backoff, Wait};
use access::policy::{Granted, Subject};
use access::sasl::Credential;
use access::users::{User, Users};
use config::types::RemoteControl;
use logic::client_slots::Party;
use state::lock::lock;

use crate::users_file::UsersFile;

#[derive(Debug)]
pub(in crate::control) struct Logins {
    /// Key of the credentials of users that do not exist, if the file has none.
    secret: [u8; 32],
    backoff: Mutex<Backoff<Party>>,
    file: UsersFile,
}

impl Logins {
    pub(in crate::control) fn new() -> io::Result<Self> {
        let secret = access::random().ok_or_else(|| io::Error::other("the system gives no random bytes"))?;
        Ok(Self { secret, backoff: Mutex::default(), file: UsersFile::default() })
    }

    /// Returns the users, or why there are none: then no operator logs in with a password.
    pub(in crate::control) fn users(&self, remote: &RemoteControl) -> Result<Arc<Users>, String> {
        match &remote.users {
            Some(path) => self.file.users(path),
            None => Ok(Arc::default()),
        }
    }

    /// Decides what a client may do.
    pub(in crate::control) fn role(&self, remote: &RemoteControl, subject: &Subject) -> Granted {
        let users = match self.users(remote) {
            Ok(users) => users,
            Err(reason) => return Granted { role: None, reason },
        };
        let user = match subject {
            Subject::User(name) => match users.find(name) {
                // A rule of the configuration may still name this user.
                Some(user) if user.revoked.is_some() => {
                    return Granted { role: None, reason: format!("the user {name} is revoked") };
                }
                Some(user) => Some(user),
                None => return Granted { role: None, reason: format!("there is no user {name} any more") },
            },
            Subject::Principal(name) => users.of_principal(name),
            Subject::Certificate(name) => users.of_certificate(name),
            Subject::Token(_) | Subject::Group(_) => None,
        };
        let groups = user.map_or(&[][..], |user| &user.groups);
        remote.policy.role(subject, groups, user.and_then(|user| user.role))
    }

    /// Returns the credential of a user, or as the error one that looks like it.
    pub(super) fn credential(&self, users: &Users, name: &str) -> Result<Credential, Credential> {
        let known = users.find(name).and_then(|user: &User| user.scram.clone());
        let fake = || {
            let secret = users.key().unwrap_or(&self.secret);
            Credential::fake(secret, name, users.credentials().into_iter())
        };
        // Both are computed, so that the time tells nothing.
        let fake = fake();
        known.ok_or(fake)
    }

    /// Whether a source must wait before it may try again.
    pub(super) fn is_held_off(&self, source: IpAddr) -> bool {
        lock(&self.backoff).source(&Party::source(source), Instant::now()).is_some()
    }

    pub(super) fn wait(&self, source: IpAddr, name: &str) -> Option<Wait> {
        let (source, now) = (Party::source(source), Instant::now());
        let backoff = lock(&self.backoff);
        backoff.source(&source, now).or_else(|| backoff.name(&source, name, now))
    }

    pub(super) fn wrong(&self, source: IpAddr, name: Option<&str>) {
        lock(&self.backoff).wrong(&Party::source(source), name, Instant::now());
    }

    pub(super) fn right(&self, source: IpAddr, name: &str) {
        lock(&self.backoff).right(&Party::source(source), name, Instant::now());
    }
}
