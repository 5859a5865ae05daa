//! Passwords that PAM modules ask about: those of the file of users that operators have, too.
//!
//! A check costs some tens of milliseconds, so that guessing costs much: few run at once, on threads that may block, and those who
//! guess must wait.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use access::backoff::{Backoff, Wait};
use access::policy::Subject;
use state::lock::lock;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use zeroize::Zeroizing;

use crate::logins::Logins;

/// Checks at once.
const AT_ONCE: usize = 2;

/// Characters of the remote host that a PAM module names, by which wrong passwords are counted. The rest is cut off.
const LONGEST: usize = 256;

pub(super) struct Passwords {
    logins: Arc<Logins>,
    /// By where the user comes from, which a module says.
    backoff: Mutex<Backoff<String>>,
    slots: Semaphore,
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
    pub(super) fn new(logins: Arc<Logins>) -> Self {
        Self { logins, backoff: Mutex::default(), slots: Semaphore::new(AT_ONCE) }
    }

    /// When a user of the file was revoked. The error says why that cannot be told.
    pub(super) async fn revoked(&self, file: Option<&Path>, user: &str) -> Result<Option<String>, String> {
        let users = self.logins.users(file).await?;
        Ok(users.find(user).and_then(|user| user.revoked.clone()))
    }

    /// Checks the password of a user. `source` is where the user comes from.
    pub(super) async fn check(
        &self,
        file: Option<PathBuf>,
        user: &str,
        password: Zeroizing<String>,
        source: &str,
    ) -> Password {
        let Some(file) = file else {
            let why = "[otp] names no users, so no password is good (users = \"/etc/penstock/users\")";
            return Password::Unable(why.to_owned());
        };
        let guess = (source.chars().take(LONGEST).collect(), Subject::User(user.to_owned()));
        if let Some(wait) = self.wait(&guess) {
            return wait;
        }
        let Ok(_slot) = self.slots.acquire().await else {
            return Password::Unable("the server ends".to_owned());
        };
        // Other questions may have been answered while this one waited.
        if let Some(wait) = self.wait(&guess) {
            return wait;
        }
        let checked = self.compare(&file, user, password).await;
        let ((source, subject), now) = (&guess, Instant::now());
        match &checked {
            Password::Right => lock(&self.backoff).right(source, subject, now),
            // The module tells its system of each refusal.
            Password::Wrong(_) | Password::None => {
                lock(&self.backoff).wrong(source, Some(subject), now);
            }
            Password::Unable(_) => {}
        }
        checked
    }

    /// Returns the refusal of a guess that comes too soon after wrong ones. `None` if the password may be judged now.
    fn wait(&self, (source, subject): &(String, Subject)) -> Option<Password> {
        let (backoff, now) = (lock(&self.backoff), Instant::now());
        let wait = backoff.source(source, now).or_else(|| backoff.subject(source, subject, now));
        let (Wait::OfSource(wait) | Wait::OfName(wait)) = wait?;
        let why = format!("after wrong passwords the next one must wait {} s", wait.as_secs() + 1);
        Some(Password::Wrong(why))
    }

    async fn compare(&self, file: &Path, name: &str, password: Zeroizing<String>) -> Password {
        let users = match self.logins.users(Some(file)).await {
            Ok(users) => users,
            Err(why) => return Password::Unable(why),
        };
        // Another one is computed for a user without a password, so that the time does not tell who has one.
        let credential = self.logins.credential(&users, name);
        let has_password = credential.is_ok();
        let (Ok(credential) | Err(credential)) = credential;
        match spawn_blocking(move || credential.is_of(&password)).await {
            Ok(true) if has_password => Password::Right,
            Ok(_) if has_password => Password::Wrong("the password is wrong".to_owned()),
            Ok(_) => Password::None,
            Err(error) => Password::Unable(error.to_string()),
        }
    }
}
