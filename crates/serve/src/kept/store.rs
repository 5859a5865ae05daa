//! One store: gathers what is written with the priority of traffic, and writes it with less.

use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use logic::transaction::Memory;
use state::State;
use state::events::Level;
use state::kept::Kind;
use state::kept::board::{Stored, StoredWithin, Waits};
use state::kept::changes::Changes;
use state::kept::clients::Clients;
use state::kept::traffic::Traffic;
use state::lock::lock;
use tokio::task::spawn_blocking;

use super::files::{Files, SUBJECT, Turn, Unheld};
use super::writer::Writer;

/// What a store writes beside counters, health and marks.
pub(super) struct What {
    pub(super) clients: WithClients,
    pub(super) changes: Option<Memory>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WithClients {
    Yes,
    No,
}

/// Gathers on a thread of the usual priority, and writes on that of `writer`, if there is one.
pub(super) async fn in_background(
    state: &Arc<State>,
    files: &Arc<Mutex<Files>>,
    what: What,
    writer: Option<&Writer>,
) -> StoredWithin {
    let end = end_of_one(state, files, what, writer).await;
    conclude(state, &end)
}

async fn end_of_one(
    state: &Arc<State>,
    files: &Arc<Mutex<Files>>,
    what: What,
    writer: Option<&Writer>,
) -> End {
    let (state, of) = (state.clone(), files.clone());
    let gathered = match spawn_blocking(move || gather(&state, &of, &what)).await {
        Ok(Ok(gathered)) => gathered,
        Ok(Err(end)) => return end,
        Err(_) => return End::Panicked,
    };
    let files = files.clone();
    let work = move || write(&files, &gathered, Turn::OneOfMany);
    let end = match writer {
        Some(writer) => writer.run(work).await,
        None => spawn_blocking(work).await.ok(),
    };
    end.unwrap_or(End::Panicked)
}

/// What a store writes, as it is now.
struct Gathered {
    traffic: Traffic,
    clients: Option<Clients>,
    changes: Option<Changes>,
}

impl Gathered {
    /// Takes locks that workers take. So it never runs with less priority than theirs: a thread that holds such a lock and
    /// has to wait for the core would hold up all workers.
    fn of(state: &State, what: &What) -> Self {
        let changes = what.changes.as_ref();
        Self {
            traffic: Traffic::gather(state),
            clients: (what.clients == WithClients::Yes).then(|| Clients::gather(state)),
            changes: changes.map(|memory| Changes::of(memory, state::kept::millis(SystemTime::now()))),
        }
    }
}

/// How a store ended.
enum End {
    /// The files have this size.
    Written {
        bytes: u64,
    },
    /// No state is kept.
    NoDirectory,
    /// The last store of the process was before it.
    Outrun,
    Unheld(Unheld),
    Failed(String),
    Panicked,
}

/// Holds the directory, if one is wanted and free, and returns it if it was not held before. The error is the end of a store.
fn held(files: &Mutex<Files>) -> Result<Option<PathBuf>, End> {
    let files = &mut *lock(files);
    let new = files.held().is_none();
    match files.hold() {
        Ok(Some(held)) => Ok(new.then(|| held.path().to_owned())),
        Ok(None) => Err(End::NoDirectory),
        Err(why) => Err(End::Unheld(why)),
    }
}

/// Holds the directory and reads what is to be written.
fn gather(state: &State, files: &Mutex<Files>, what: &What) -> Result<Gathered, End> {
    if let Some(directory) = held(files)? {
        state.kept.set(Stored { directory, at: None, bytes: 0, restored: None });
    }
    Ok(Gathered::of(state, what))
}

/// Writes files. Blocks on the disk, and has nothing of the state: see [`Gathered::of`].
fn write(files: &Mutex<Files>, gathered: &Gathered, turn: Turn) -> End {
    let files = &mut *lock(files);
    // A store that waited behind the last one of the process has an older state.
    if std::mem::replace(&mut files.turn, turn) == Turn::Last {
        return End::Outrun;
    }
    let Some(held) = files.held() else { return End::NoDirectory };
    let written = || {
        held.write(Kind::Traffic, &gathered.traffic)?;
        if let Some(clients) = &gathered.clients {
            held.write(Kind::Clients, clients)?;
        }
        if let Some(changes) = &gathered.changes {
            held.write(Kind::Changes, changes)?;
        }
        Ok(())
    };
    match written() {
        Ok(()) => End::Written { bytes: held.bytes() },
        Err(why) => End::Failed(why),
    }
}

/// Stores everything for the last time, on this thread.
pub(super) fn the_last(state: &State, files: &Mutex<Files>, changes: Option<Memory>) {
    let what = What { clients: WithClients::Yes, changes };
    let end = match gather(state, files, &what) {
        Ok(gathered) => write(files, &gathered, Turn::Last),
        Err(end) => end,
    };
    conclude(state, &end);
}

/// Tells the end of a store; a failure is degraded, counted, and tried again at the next time.
fn conclude(state: &State, end: &End) -> StoredWithin {
    let fails = |why: &str| {
        state.kept.failures.fetch_add(1, Relaxed);
        state.degrade(SUBJECT, why);
    };
    match end {
        End::Written { bytes } => {
            state.kept.stores.fetch_add(1, Relaxed);
            state.kept.note(SystemTime::now(), *bytes);
            state.restore(SUBJECT);
            return StoredWithin::Yes;
        }
        End::NoDirectory => return StoredWithin::Yes,
        End::Outrun => {}
        End::Unheld(why) => tell(state, why),
        End::Failed(why) => {
            let stays = "what was stored before stays whole, and it is tried again";
            fails(&format!("{why}; {stays}"));
        }
        End::Panicked => fails("a store panicked, which is a fault of penstock: it is tried again"),
    }
    StoredWithin::No
}

/// Says why nothing is stored.
pub(super) fn tell(state: &State, why: &Unheld) {
    match why {
        Unheld::Fault(why) => state.degrade(SUBJECT, why),
        Unheld::Busy(why) => {
            if state.kept.wait_for_another(why) == Waits::New {
                state.events.record(Level::Warning, SUBJECT, why.as_str());
            }
        }
    }
}
