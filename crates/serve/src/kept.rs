//! Stores what outlives the process in the state directory, and reads it at the start.
//!
//! `crates/state/src/kept.rs` says what that is and how a file is made and read. Here is the rest: the directory, which
//! one process holds at a time, and the task that stores on a timer, after a command of an operator, before `/metrics` is
//! answered, and at the end. It runs on the slow runtime and writes on a thread of its own, in the background: no worker
//! takes part, and none has to wait for the core, or for a lock of a thread that waits for the core.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use logic::transaction::{Memory, Resumed};
use proxy::front::Front;
use state::State;
use state::events::{Events, Level, timestamp};
use state::kept::board::{Stored, StoredWithin};
use state::kept::changes::Changes;
use state::kept::clients::Clients;
use state::kept::traffic::Traffic;
use state::kept::{self, Clock, Kind};
use state::lock::lock;
use text::units::count;
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep_until, timeout};

use crate::transaction::Live;

mod files;
mod store;
mod writer;

pub(crate) use files::{Files, SUBJECT};
use store::{What, WithClients};
use writer::Writer;

/// Shortest and longest pause between two stores. Operators wait for theirs, so the pause is as long as the store was: a
/// large state, or a slow disk, is stored less often.
const GAP: std::ops::RangeInclusive<Duration> = Duration::from_millis(5)..=Duration::from_millis(250);

/// Shortest pause for each request that the last store answered, up to [`FOR_MANY`]. A script that sends one command after
/// the other waits no longer; operators who send thousands of commands a second share stores, and the disk stays free.
const FOR_EACH: Duration = Duration::from_micros(500);
const FOR_MANY: Duration = Duration::from_millis(25);

/// Subject of the list of degraded subjects: marks of operators that a damaged file had.
pub(crate) const MARKS_LOST: &str = "stored-state.marks";

/// Time that the end of the process waits for a slow disk.
const END_LIMIT: Duration = Duration::from_secs(5);

/// What the files of an earlier process say.
#[derive(Default)]
pub(crate) struct Found {
    traffic: Option<Traffic>,
    clients: Option<Clients>,
    changes: Option<Changes>,
}

impl Files {
    /// Reads the files of an earlier process. A file with a fault gets a message and is not used; the process starts all the same.
    pub(crate) fn open(directory: Option<&Path>, state: &State) -> (Self, Found) {
        let mut files = Self::new(directory);
        let mut lost = None;
        let found = match files.hold() {
            Ok(held) => held.map(|held| Found {
                traffic: held
                    .read_or_why(Kind::Traffic, &state.events)
                    .map_err(|why| lost = Some(why))
                    .unwrap_or_default(),
                clients: held.read(Kind::Clients, &state.events),
                changes: held.read(Kind::Changes, &state.events),
            }),
            Err(why) => {
                store::tell(state, &why);
                None
            }
        };
        files.lose_marks(lost);
        let found = found.unwrap_or_default();
        let restored = found.traffic.as_ref().map(|traffic| Clock::now(traffic.at).wall(traffic.at));
        let stored = |held: &files::Held| {
            let directory = held.path().to_owned();
            Stored { directory, at: None, bytes: 0, restored }
        };
        if let Some(held) = files.held() {
            state.kept.set(stored(held));
        }
        (files, found)
    }
}

impl Found {
    /// What the process before passes on at an upgrade. What is not understood gets a message.
    pub(crate) fn passed_on(all: &[(String, Vec<u8>)], events: &Events) -> Self {
        let mut found = Self::default();
        for (word, bytes) in all {
            let Some(kind) = Kind::ALL.into_iter().find(|kind| kind.word() == word) else { continue };
            let understood = match kind {
                Kind::Traffic => kept::unseal(kind, bytes).map(|traffic| found.traffic = Some(traffic)),
                Kind::Clients => kept::unseal(kind, bytes).map(|clients| found.clients = Some(clients)),
                Kind::Changes => kept::unseal(kind, bytes).map(|changes| found.changes = Some(changes)),
            };
            if let Err(why) = understood {
                let message =
                    format!("what the process before knew of {} is not used: it {why}", kind.word());
                events.record(Level::Warning, SUBJECT, message);
            }
        }
        found
    }

    /// Gives a state that no worker uses yet what the files say of it. Returns the history of live changes.
    pub(crate) fn restore(self, state: &State) -> Option<Changes> {
        let traffic =
            self.traffic.map(|traffic| (traffic.restore(state, &Clock::now(traffic.at)), traffic.at));
        let clients = self.clients.map(|clients| clients.restore(state, &Clock::now(clients.at)));
        if let Some((restored, at)) = traffic {
            let at = timestamp(Clock::now(at).wall(at));
            let mut parts = vec!["counters".to_owned()];
            let mut add = |number: usize, what: &str| {
                if number > 0 {
                    parts.push(count(number, what));
                }
            };
            add(clients.unwrap_or(0), "sticky client");
            add(restored.drained, "drained backend");
            add(restored.weights, "weight of an operator");
            add(restored.out, "backend that is down or ejected");
            let message = format!("taken over as of {at}: {}", parts.join(", "));
            state.events.record(Level::Info, SUBJECT, message);
        }
        self.changes
    }
}

/// What the next process of an upgrade gets.
pub(crate) struct Passed {
    pub(crate) files: Vec<(&'static str, File)>,
    /// The counters as they are in it.
    pub(crate) counted: Traffic,
}

/// The task that stores, and what it is told.
pub(crate) struct Keeper {
    front: Arc<Front>,
    files: Arc<std::sync::Mutex<Files>>,
    told: Option<Memory>,
    changes: watch::Sender<Option<Memory>>,
    task: JoinHandle<()>,
    /// Whether the state is another process's by now.
    owner: Owner,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    ThisProcess,
    /// After an upgrade.
    TheNext,
}

impl Keeper {
    /// Gives `live` the history of the process before, and starts to store. Must be called on a tokio runtime.
    pub(crate) fn start(files: Files, front: Arc<Front>, changes: Option<Changes>, live: &mut Live) -> Self {
        if let Some(lost) = files.marks_lost() {
            front.state.degrade(MARKS_LOST, &lost);
        }
        if let Some(changes) = changes {
            let clock = Clock::now(changes.at);
            resume(&front.state, live, changes.memory(&clock));
        }
        let files = Arc::new(std::sync::Mutex::new(files));
        let (sender, receiver) = watch::channel(None);
        let task = tokio::spawn(run(front.clone(), files.clone(), receiver));
        Self { front, files, told: None, changes: sender, task, owner: Owner::ThisProcess }
    }

    /// Has the history stored, if it has changed.
    pub(crate) fn follow(&mut self, live: &Live) {
        if let Some(memory) = live.memory_since(self.told.as_ref()) {
            self.told = Some(memory.clone());
            self.changes.send_replace(Some(memory));
        }
    }

    /// Stores nothing until [`Self::go_on`], and returns what would be stored: the next process takes it over.
    pub(crate) fn pause(&mut self, live: &Live) -> io::Result<Passed> {
        self.task.abort();
        self.follow(live);
        let state = &self.front.state;
        let counted = Traffic::gather(state);
        let traffic = kept::seal(Kind::Traffic, &counted);
        let clients = kept::seal(Kind::Clients, &Clients::gather(state));
        let changes = self
            .told
            .as_ref()
            .map(|memory| kept::seal(Kind::Changes, &Changes::of(memory, kept::millis(SystemTime::now()))));
        let mut all = vec![(Kind::Traffic, traffic), (Kind::Clients, clients)];
        all.extend(changes.map(|changes| (Kind::Changes, changes)));
        let in_memory = |(kind, bytes): (Kind, Result<Vec<u8>, String>)| {
            let file = sys::file::in_memory(c"penstock-state", &bytes.map_err(io::Error::other)?)?;
            Ok((kind.word(), file))
        };
        let files = all.into_iter().map(in_memory).collect::<io::Result<_>>()?;
        Ok(Passed { files, counted })
    }

    /// Stores again.
    pub(crate) fn go_on(&mut self) {
        let receiver = self.changes.subscribe();
        self.task = tokio::spawn(run(self.front.clone(), self.files.clone(), receiver));
        // The task before may have taken a request with it.
        self.front.state.kept.want();
    }

    /// Leaves the directory to the next process, which has the state.
    pub(crate) async fn release(&mut self) {
        self.owner = Owner::TheNext;
        // The next process has what answers wait for.
        let board = &self.front.state.kept;
        board.finished(board.asked(), StoredWithin::Yes);
        let files = self.files.clone();
        // A store that runs ends first.
        let released = timeout(END_LIMIT, spawn_blocking(move || lock(&files).release())).await;
        if released.is_err() {
            let message = "a store of the state takes long: the next process waits for its end";
            self.front.state.events.record(Level::Warning, SUBJECT, message);
        }
    }

    /// Stores everything for the last time.
    pub(crate) async fn finish(mut self, live: &Live) {
        self.follow(live);
        self.task.abort();
        if self.owner == Owner::TheNext {
            return;
        }
        let (front, files, changes) = (self.front.clone(), self.files, self.told);
        let last = spawn_blocking(move || store::the_last(&front.state, &files, changes));
        if timeout(END_LIMIT, last).await.is_err() {
            let message = format!(
                "the last state was not stored within {} s: the one before stays",
                END_LIMIT.as_secs()
            );
            self.front.state.events.record(Level::Warning, SUBJECT, message);
        }
    }
}

fn resume(state: &State, live: &mut Live, memory: Memory) {
    match live.resume(memory) {
        Resumed::Same | Resumed::FileChanged => {}
        Resumed::Dropped { changes, number } => {
            let (are, them) = if changes == 1 { ("is", "it") } else { ("are", "them") };
            let message = format!(
                "{} not saved when the process ended {are} not served: `penstock ctl history {number}` shows {them}, `penstock ctl undo {number}` brings {them} back",
                count(changes, "live change")
            );
            state.events.record(Level::Warning, "control", message);
        }
        Resumed::Unusable => {
            let message = "the stored history of live changes contradicts itself: it begins anew";
            state.events.record(Level::Warning, SUBJECT, message);
        }
    }
}

async fn run(
    front: Arc<Front>,
    files: Arc<std::sync::Mutex<Files>>,
    mut changes: watch::Receiver<Option<Memory>>,
) {
    let board = &front.state.kept;
    let writer = Writer::start();
    if let Err(error) = &writer {
        let message = format!("state is written with the priority of traffic: no thread for it: {error}");
        front.state.events.record(Level::Warning, SUBJECT, message);
    }
    let (mut last, mut whole) = (Instant::now(), Instant::now());
    let mut gap = *GAP.end();
    let mut served = board.asked();
    // Whether the history has changed since it was stored last. It may be large: a store without a change leaves it out.
    let mut unsaved = changes.borrow().is_some();
    loop {
        let due = whole + front.snapshot.load().config.process.state_interval.max(*GAP.end());
        tokio::select! {
            () = sleep_until(due) => {}
            () = board.wanted() => {}
            changed = changes.changed() => match changed {
                Ok(()) => unsaved = true,
                Err(_) => return,
            },
        }
        sleep_until(last + gap).await;
        // Before anything is read: what is asked for from now on may not be in it.
        let asked = board.asked();
        unsaved |= changes.has_changed().is_ok_and(|changed| changed);
        let history = if unsaved { changes.borrow_and_update().clone() } else { None };
        let began = Instant::now();
        let clients = if began >= due { WithClients::Yes } else { WithClients::No };
        if clients == WithClients::Yes {
            whole = began;
        }
        let what = What { clients, changes: history };
        let stored = store::in_background(&front.state, &files, what, writer.as_ref().ok()).await;
        // A full disk may have room later.
        if stored == StoredWithin::Yes {
            unsaved = false;
        }
        board.finished(asked, stored);
        last = Instant::now();
        gap = pause_after(last - began, asked - served);
        served = asked;
    }
}

/// The pause after a store that took the time `took` and answered this number of requests.
fn pause_after(took: Duration, requests: u64) -> Duration {
    let requests = u32::try_from(requests).unwrap_or(u32::MAX);
    took.max(FOR_EACH.saturating_mul(requests).min(FOR_MANY)).clamp(*GAP.start(), *GAP.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_requests_share_a_store_and_one_after_the_other_hardly_waits() {
        let millis = Duration::from_millis;
        assert_eq!(pause_after(millis(1), 0), millis(5));
        assert_eq!(pause_after(millis(1), 1), millis(5));
        assert_eq!(pause_after(millis(1), 20), millis(10));
        assert_eq!(pause_after(millis(1), u64::MAX), millis(25));
        assert_eq!(pause_after(millis(80), 1000), millis(80), "a slow disk");
        assert_eq!(pause_after(millis(2000), 1), millis(250));
    }
}
