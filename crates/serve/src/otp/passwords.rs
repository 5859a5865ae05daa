//! Passwords that PAM modules ask about: those of the file of users that operators have, too.
//!
//! A check costs some tens of milliseconds, so that guessing costs much: few run at once, on threads that may block, and those who
//! guess must wait.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use access::backoff::{Backoff, Wait};
use access::sasl::Credential;
use state::lock::lock;
use tokio::sync::Semaphore;
use zeroize::Zeroizing;

use crate::users_file::UsersFile;

/// Checks at once.
const AT_ONCE: usize = 2;

pub(super) struct Passwords {
    file: UsersFile,
    backoff: Mutex<Backoff<String>>,
    slots: Semaphore,
    /// Key of the credentials of users that do not exist, if the file has none.
    secret: Option<[u8; 32]>,
}

impl Default for Passwords {
    fn default() -> Self {
        let (file, backoff) = (UsersFile::default(), Mutex::default());
        Self { file, backoff, slots: Semaphore::new(AT_ONCE), secret: access::random() }
    }
}

/// What became of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Password {
    Right,
    Wrong(String),
    /// The user has none.
    None,
    /// It cannot be told.
    Unable(String),
}

impl Passwords {
    /// Checks the password of a user. `source` is where the user comes from.
    pub(super) async fn check(
        self: &Arc<Self>,
        file: Option<PathBuf>,
        user: &str,
        password: Zeroizing<String>,
        source: &str,
    ) -> Password {
        let Some(file) = file else {
            let why = "[otp] names no users, so no password is good (users = \"/etc/penstock/users\")";
            return Password::Unable(why.to_owned());
        };
        let (source, now) = (source.to_owned(), Instant::now());
        let wait = {
            let backoff = lock(&self.backoff);
            backoff.source(&source, now).or_else(|| backoff.name(&source, user, now))
        };
        if let Some(Wait::OfSource(wait) | Wait::OfName(wait)) = wait {
            return Password::Wrong(format!(
                "after wrong passwords the next one must wait {} s",
                wait.as_secs() + 1
            ));
        }
        let Ok(_slot) = self.slots.acquire().await else {
            return Password::Unable("the server ends".to_owned());
        };
        let (all, name) = (self.clone(), user.to_owned());
        let checked = tokio::task::spawn_blocking(move || all.compare(&file, &name, &password)).await;
        let checked = checked.unwrap_or_else(|error| Password::Unable(error.to_string()));
        match &checked {
            Password::Right => lock(&self.backoff).right(&source, user, now),
            Password::Wrong(_) | Password::None => lock(&self.backoff).wrong(&source, Some(user), now),
            Password::Unable(_) => {}
        }
        checked
    }

    /// Blocks on the disk and on the processor.
    fn compare(&self, file: &std::path::Path, name: &str, password: &str) -> Password {
        let users = match self.file.users(file) {
            Ok(users) => users,
            Err(why) => return Password::Unable(why),
        };
        match users.find(name).and_then(|user| user.scram.as_ref()) {
            Some(credential) if credential.is_of(password) => Password::Right,
            Some(_) => Password::Wrong("the password is wrong".to_owned()),
            None => {
                // It takes as long, so that the time does not tell who has a password.
                let secret = users.key().or(self.secret.as_ref());
                let fake =
                    secret.map(|secret| Credential::fake(secret, name, users.credentials().into_iter()));
                let _ = fake.is_some_and(|fake| fake.is_of(password));
                Password::None
            }
        }
    }
}
