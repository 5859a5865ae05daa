//! Asks OCSP responders for staples, on the slow side, and keeps what they say in the state directory. What may be sent and
//! when to ask is decided in `logic/src/ocsp`; handshakes take what is there (`staple.rs`) and never wait for this.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Once, Weak};
use std::time::{Duration, SystemTime};

use logic::ocsp::message::ResponseStatus;
use logic::ocsp::{Fault, Query};
use tokio::sync::{Notify, Semaphore};

use super::facts::Facts;
use super::staple::{Origin, Stapling};
use crate::account::Account;
use crate::lock::lock;
use crate::{file, state_directory};

mod fetch;

use fetch::{FetchError, Method};

/// The staples of all certificates, in all directories.
#[derive(Debug)]
pub struct Staples {
    /// Where responses are kept.
    directory: Option<PathBuf>,
    known: Mutex<HashMap<Key, Weak<Stapling>>>,
    /// There is a certificate that was not known, or an answer.
    news: Notify,
    /// Says once that there is no directory.
    homeless: Once,
    /// Answers that were taken, and attempts that failed.
    fetched: AtomicU64,
    failed: AtomicU64,
}

/// Fingerprint of the query, and where to ask.
type Key = ([u8; 32], Vec<String>);

/// Questions at once: to all responders, and to one, so that one that hangs does not hold up the others.
pub(crate) const MOST: usize = 32;
const MOST_OF_ONE: usize = 4;

/// Longest time between two looks at what is due, for clocks that jump.
const PERIOD: Duration = Duration::from_secs(60);

/// Shortest time between two looks.
const PAUSE: Duration = Duration::from_millis(100);

/// A file that was not renewed for so long is for a certificate that is gone.
const FORGOTTEN: Duration = Duration::from_secs(40 * 24 * 60 * 60);

impl Staples {
    /// Keeps responses in this directory, or nowhere.
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

    /// The stapling of a certificate. If it is new, with the response that was kept.
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
            && let Err(fault) = fresh.offer(response, Origin::Kept, now)
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

    /// Certificates for which an answer was taken since the start, and attempts that failed.
    pub fn counts(&self) -> (u64, u64) {
        (self.fetched.load(Relaxed), self.failed.load(Relaxed))
    }

    /// Asks whenever something is due, for ever. `changed` is called when people must be told something else than before.
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
            // Elapsed is as good a reason to look as news.
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
        // It is never closed.
        let _one = one.acquire().await;
        let result = self.ask_all(&stapling, &account).await;
        match &result {
            Ok(()) => self.fetched.fetch_add(1, Relaxed),
            Err(_) => self.failed.fetch_add(1, Relaxed),
        };
        stapling.end(result);
        self.news.notify_one();
    }

    /// Asks one responder after the other. An error says of each what was wrong.
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

    /// Asks by POST, and by GET what does not know that.
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

    /// Takes a response and keeps it.
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
                // What was kept is not true any more.
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
        // Without a responder there is nothing to keep: its file is beside the certificate.
        let directory = self.directory.as_ref().filter(|_| !stapling.responders.is_empty())?;
        Some(directory.join(format!("{name}.ocsp")))
    }

    /// Takes away what certificates left behind that are gone.
    fn forget_old(&self) {
        let entries = self.directory.iter().filter_map(|directory| fs::read_dir(directory).ok()).flatten();
        for entry in entries.flatten().filter(|entry| is_ours(&entry.file_name())) {
            let age = entry.metadata().ok().and_then(|of| of.modified().ok()?.elapsed().ok());
            if age.is_some_and(|age| age > FORGOTTEN) {
                // It is tried again at the next start.
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// Whether a file is called as [`Staples::path`] calls responses: the directory may hold others, which are not ours to remove.
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
