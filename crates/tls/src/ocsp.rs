//! Fetches OCSP responses from responders, outside the workers, and stores them in the state directory.
//! `logic/src/ocsp` decides which response is valid and when to ask again; handshakes use the current response
//! (`staple.rs`) and never wait for a fetch.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Once, Weak};
use std::time::{Duration, SystemTime};

use logic::ocsp::message::ResponseStatus;
use logic::ocsp::{Fault, Query};
use state::account::Account;
use state::lock::lock;
use state::state_directory;
use sys::file;
use tokio::sync::{Notify, Semaphore};

use super::facts::Facts;
use super::staple::{Origin, Stapling};

mod fetch;

use fetch::{FetchError, Method};

/// OCSP responses of all certificates in all directories.
#[derive(Debug)]
pub struct Staples {
    /// Directory in which responses are stored.
    directory: Option<PathBuf>,
    known: Mutex<HashMap<Key, Weak<Stapling>>>,
    /// Notified when a new certificate or an answer arrives.
    news: Notify,
    /// Limits the warning about a missing directory to one.
    homeless: Once,
    /// Numbers of accepted answers and of failed attempts.
    fetched: AtomicU64,
    failed: AtomicU64,
}

/// Fingerprint of the OCSP request, and the URLs of the responders.
type Key = ([u8; 32], Vec<String>);

/// Largest number of concurrent requests, to all responders and to one: a responder that hangs does not delay the
/// others.
pub const MOST: usize = 32;
const MOST_OF_ONE: usize = 4;

/// Longest time between two checks for due requests, in case the system clock is changed.
const PERIOD: Duration = Duration::from_secs(60);

/// Shortest time between two checks for due requests.
const PAUSE: Duration = Duration::from_millis(100);

/// Age at which a stored response is deleted, because its certificate is no longer used.
const FORGOTTEN: Duration = Duration::from_secs(40 * 24 * 60 * 60);

impl Staples {
    /// Makes the store. Without `directory`, responses are not kept on disk.
    pub(super) fn new(directory: Option<PathBuf>) -> Self {
        Self {
            directory,
            known: Mutex::default(),
            news: Notify::new(),
            homeless: Once::new(),
            fetched: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    /// Returns the entry of a certificate. A new entry starts with the stored response.
    pub(super) fn of(
        &self,
        query: Query,
        facts: &Facts,
        responders: Vec<String>,
        now: SystemTime,
    ) -> Arc<Stapling> {
        let key = (query.fingerprint(), responders.clone());
        let find = || lock(&self.known).get(&key).and_then(Weak::upgrade);
        if let Some(known) = find() {
            return known;
        }
        let fresh = Arc::new(Stapling::new(query, responders, facts.must_staple, facts.not_after));
        if let Some(path) = self.path(&fresh)
            && let Ok(response) = file::read(&path, logic::ocsp::LARGEST as u64)
            && let Err(fault) = fresh.offer(response, Origin::Stored, now)
        {
            tracing::debug!("{} {fault}", path.display());
        }
        let mut known = lock(&self.known);
        if let Some(other) = known.get(&key).and_then(Weak::upgrade) {
            return other;
        }
        known.insert(key, Arc::downgrade(&fresh));
        self.news.notify_one();
        fresh
    }

    /// Returns the numbers of accepted answers and of failed attempts since the start.
    pub fn counts(&self) -> (u64, u64) {
        (self.fetched.load(Relaxed), self.failed.load(Relaxed))
    }

    /// Sends requests when they are due; never returns. Calls `changed` when the messages for operators have changed.
    pub(super) async fn refresh(self: Arc<Self>, account: &Arc<Account>, changed: impl Fn()) {
        self.forget_old();
        let mut of_one: HashMap<String, Arc<Semaphore>> = HashMap::new();
        loop {
            let now = SystemTime::now();
            let staplings: Vec<Arc<Stapling>> = {
                let mut known = lock(&self.known);
                known.retain(|_, stapling| stapling.strong_count() > 0);
                known.values().filter_map(Weak::upgrade).collect()
            };
            of_one.retain(|_, semaphore| Arc::strong_count(semaphore) > 1);
            let mut wait = PERIOD;
            let mut has_changed = false;
            for stapling in staplings {
                has_changed |= stapling.complaint_has_changed(now);
                match stapling.due(now) {
                    None => {}
                    Some(left) if !left.is_zero() => wait = wait.min(left),
                    Some(_) => {
                        stapling.begin();
                        let host = stapling.responders.first().map(|it| fetch::host(it)).unwrap_or_default();
                        let one = of_one.entry(host).or_insert_with(|| Arc::new(Semaphore::new(MOST_OF_ONE)));
                        tokio::spawn(self.clone().ask_in_turn(stapling, one.clone(), account.clone()));
                    }
                }
            }
            if has_changed {
                changed();
            }
            // A timeout and a notification both lead to the next check.
            let _ = tokio::time::timeout(wait, self.news.notified()).await;
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn ask_in_turn(
        self: Arc<Self>,
        stapling: Arc<Stapling>,
        one: Arc<Semaphore>,
        account: Arc<Account>,
    ) {
        // The semaphore is never closed.
        let _one = one.acquire().await;
        let result = self.ask_all(&stapling, &account).await;
        match &result {
            Ok(()) => self.fetched.fetch_add(1, Relaxed),
            Err(_) => self.failed.fetch_add(1, Relaxed),
        };
        stapling.end(result);
        self.news.notify_one();
    }

    /// Asks one responder after the other. The error holds the reason for each responder.
    async fn ask_all(&self, stapling: &Arc<Stapling>, account: &Arc<Account>) -> Result<(), String> {
        let mut faults: Vec<String> = Vec::new();
        for responder in &stapling.responders {
            match self.ask(stapling, responder, account).await {
                Ok(()) => return Ok(()),
                Err(why) => faults.push(format!("{responder}: {why}")),
            }
        }
        Err(faults.join("; "))
    }

    /// Sends the request by POST. Sends it again by GET to responders that do not support POST.
    async fn ask(
        &self,
        stapling: &Arc<Stapling>,
        responder: &str,
        account: &Arc<Account>,
    ) -> Result<(), String> {
        let mut first = None;
        for method in [Method::Post, Method::Get] {
            let fault = match fetch::fetch(responder, method, &stapling.query, account).await {
                Ok(response) => match self.take(stapling, response).await {
                    Ok(()) => return Ok(()),
                    Err(fault) => {
                        let is_last = !matches!(
                            fault,
                            Fault::Malformed | Fault::NoAnswer(ResponseStatus::MalformedRequest)
                        );
                        if is_last {
                            return Err(format!("what it sent {fault}"));
                        }
                        format!("what it sent {fault}")
                    }
                },
                Err(error @ FetchError::Status(_)) => error.to_string(),
                Err(error) => return Err(first.unwrap_or_else(|| error.to_string())),
            };
            first.get_or_insert(fault);
        }
        Err(first.unwrap_or_default())
    }

    /// Verifies a response and stores it.
    async fn take(&self, stapling: &Arc<Stapling>, response: Vec<u8>) -> Result<(), Fault> {
        let result = stapling.offer(response.clone(), Origin::Responder, SystemTime::now()).map(drop);
        let path = self.path(stapling);
        if path.is_none() && result.is_ok() {
            self.homeless.call_once(|| {
                tracing::info!("OCSP responses are kept in memory only: there is no process.state-directory");
            });
        }
        if let Some(path) = path {
            let written = match &result {
                Ok(()) => Some(tokio::task::spawn_blocking(move || keep(&path, &response))),
                // The certificate is revoked: the stored response is outdated.
                Err(Fault::Revoked(_)) => Some(tokio::task::spawn_blocking(move || forget(&path))),
                Err(_) => None,
            };
            if let Some(written) = written
                && let Err(error) = written.await.map_err(io::Error::other).and_then(|written| written)
            {
                tracing::warn!("an OCSP response cannot be kept for the next start: {error}");
            }
        }
        result
    }

    fn path(&self, stapling: &Stapling) -> Option<PathBuf> {
        let fingerprint = stapling.query.fingerprint();
        let name: String = fingerprint.iter().map(|byte| format!("{byte:02x}")).collect();
        // A certificate without a responder gets its staple from a file beside it, so nothing is stored.
        let directory = self.directory.as_ref().filter(|_| !stapling.responders.is_empty())?;
        Some(directory.join(format!("{name}.ocsp")))
    }

    /// Deletes stored responses of certificates that are no longer used.
    fn forget_old(&self) {
        let entries = self.directory.iter().filter_map(|directory| fs::read_dir(directory).ok()).flatten();
        for entry in entries.flatten().filter(|entry| is_ours(&entry.file_name())) {
            let age = entry.metadata().ok().and_then(|of| of.modified().ok()?.elapsed().ok());
            if age.is_some_and(|age| age > FORGOTTEN) {
                // Deletion is retried at the next start.
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// Returns true if the file name has the form of [`Staples::path`]. The directory may hold other programs' files.
fn is_ours(name: &std::ffi::OsStr) -> bool {
    let digits = name.to_str().and_then(|name| name.strip_suffix(".ocsp")).unwrap_or_default();
    digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn keep(path: &Path, response: &[u8]) -> io::Result<()> {
    state_directory::write(path, response)
}

fn forget(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
