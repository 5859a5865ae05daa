//! The store as those who ask it see it: opened in the background, and again as long as that fails. Until then, and whenever it
//! takes no change, each question is answered with a refusal: no other program is asked instead.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use access::otp::ledger::{Ledger, Record};
use arc_swap::ArcSwapOption;
use credentials::{Busy, GroupCommit, Job, Place, Store, StoreError, client_keys, job};
use state::State;
use state::events::{Level, RateLimitedEvent};
use state::lock::lock;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;
use zeroize::Zeroizing;

/// Subject of events, and of what is degraded.
pub(super) const SUBJECT: &str = "otp";

/// Time between two attempts to open a store, and the longest such time.
const AGAIN: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

/// A store that may not be open yet.
pub(super) struct Tokens {
    pub(super) place: Place,
    state: Arc<State>,
    commits: ArcSwapOption<GroupCommit>,
    /// Keys of API clients as they were seen last: what the store cannot answer is signed all the same.
    keys: Mutex<BTreeMap<u32, Zeroizing<Vec<u8>>>>,
    /// Whether the first attempt to open it has ended.
    tried: watch::Sender<Tried>,
    busy_told: RateLimitedEvent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tried {
    NotYet,
    Once,
}

impl Tokens {
    pub(super) fn new(place: Place, state: Arc<State>) -> Self {
        let tried = watch::channel(Tried::NotYet).0;
        let (commits, keys) = (ArcSwapOption::empty(), Mutex::default());
        Self { place, state, commits, keys, tried, busy_told: RateLimitedEvent::default() }
    }

    pub(super) fn is_open(&self) -> bool {
        self.commits.load().is_some()
    }

    /// Closes the store for another process.
    pub(super) fn close(&self) {
        self.commits.store(None);
    }

    /// Opens the store, however often that takes.
    pub(super) async fn open(self: Arc<Self>) {
        let mut pause = AGAIN;
        loop {
            let (tell, told) = oneshot::channel();
            let place = self.place.clone();
            // A thread of its own: on a disk that hangs it may wait for ever, and the end of the process must not wait for it.
            let thread = std::thread::Builder::new().name("otp-open".to_owned());
            let started = thread.spawn(move || drop(tell.send(open(place))));
            let opened = match (started, told.await) {
                (Ok(_), Ok(opened)) => opened,
                (Err(error), _) => Err((format!("cannot start a thread: {error}"), BTreeMap::new())),
                (Ok(_), Err(_)) => Err(("the thread that opens it has ended".to_owned(), BTreeMap::new())),
            };
            match opened {
                Ok(Opened { commits, keys, count }) => {
                    lock(&self.keys).extend(keys);
                    self.commits.store(Some(Arc::new(commits)));
                    let store = self.place.directory.display();
                    let message = format!("store {store} with {}", text::units::count(count, "token"));
                    self.state.events.record(Level::Info, SUBJECT, message);
                    self.state.restore(SUBJECT);
                    self.tried.send_replace(Tried::Once);
                    return;
                }
                Err((why, keys)) => {
                    lock(&self.keys).extend(keys);
                    self.state.degrade(SUBJECT, &why);
                    self.tried.send_replace(Tried::Once);
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Waits until the store was tried once, at most for a time.
    pub(super) async fn tried(&self, limit: Duration) {
        let mut tried = self.tried.subscribe();
        let waited = timeout(limit, tried.wait_for(|tried| *tried == Tried::Once)).await;
        if waited.is_err() && !self.is_open() {
            self.state.degrade(SUBJECT, &self.not_open().to_string());
        }
    }

    fn not_open(&self) -> StoreError {
        StoreError::NotOpen { path: self.place.directory.clone() }
    }

    /// Hands a job in. One that the store does not take is finished with the reason at once.
    pub(super) fn submit(&self, job: Box<dyn Job>) {
        match &*self.commits.load() {
            None => job.finish(Err(Arc::new(self.not_open()))),
            Some(commits) => {
                if let Err(Busy { job }) = commits.submit(job) {
                    if self.busy_told.may(self.state.started.elapsed()) {
                        let message = StoreError::Busy.to_string();
                        self.state.events.record(Level::Warning, SUBJECT, message);
                    }
                    job.finish(Err(Arc::new(StoreError::Busy)));
                }
            }
        }
    }

    /// Lets the store decide, and returns what it decided when that is durable.
    pub(super) async fn decide<T: Send + 'static>(
        &self,
        decide: impl FnOnce(&mut Ledger, u64) -> (T, Vec<Record>) + Send + 'static,
    ) -> Result<T, Arc<StoreError>> {
        let (tell, told) = oneshot::channel();
        self.submit(job(decide, move |result| drop(tell.send(result))));
        told.await.unwrap_or_else(|_| Err(Arc::new(StoreError::Busy)))
    }

    /// The store took a change.
    pub(super) fn works(&self) {
        self.state.restore(SUBJECT);
    }

    /// The store took no change: its state says why, unless it does so already.
    pub(super) fn failed(&self, error: &StoreError) {
        match error {
            StoreError::Busy | StoreError::NotOpen { .. } => {}
            other => self.state.degrade(SUBJECT, &other.to_string()),
        }
    }

    /// Remembers the key of an API client.
    pub(super) fn learn(&self, client: u32, key: &Zeroizing<Vec<u8>>) {
        let mut keys = lock(&self.keys);
        if keys.get(&client).is_none_or(|known| known != key) {
            keys.insert(client, key.clone());
        }
    }

    /// The key of an API client, as it was seen last.
    pub(super) fn key(&self, client: u32) -> Option<Zeroizing<Vec<u8>>> {
        lock(&self.keys).get(&client).cloned()
    }
}

/// Keys of API clients.
type Keys = BTreeMap<u32, Zeroizing<Vec<u8>>>;

struct Opened {
    commits: GroupCommit,
    keys: Keys,
    count: usize,
}

/// Blocks on the disk, and on the lock.
fn open(place: Place) -> Result<Opened, (String, Keys)> {
    let opened = Store::open(place.clone()).map_err(|error| error.to_string()).and_then(|store| {
        let ledger = store.ledger();
        let clients = ledger.clients();
        let keys = clients.filter_map(|client| Some((client.id, ledger.client_key(client)?))).collect();
        let count = ledger.tokens().count();
        let commits = GroupCommit::start(store).map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Opened { commits, keys, count })
    });
    opened.map_err(|why| (why, client_keys(&place)))
}
