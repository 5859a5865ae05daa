//! Undoes what a run left that was killed, or lost its power: its job, its mount, its sockets, in this order.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use logic::tunnel::plan::{Listen, MountPoint, Tunnel, Values, Way, is_name};
use logic::tunnel::sequence::{Act, Manner, Mounting, Sequence};
use logic::tunnel::undo::{self, Entry, Kind, Record};

use super::journal::{self, Journal};
use super::place::{PlaceError, Places, boot};
use super::processes::{self, Step};
use super::run::{Say, still};
use super::{command, mount};

/// What was to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unwound {
    /// Nothing was left.
    Nothing,
    /// Everything is undone now.
    Undone,
}

/// Why something is left.
#[derive(Debug, thiserror::Error)]
pub enum UnwindError {
    /// It runs, or there is no place to work in.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The list.
    #[error("cannot read or write {}", .path.display())]
    List {
        /// The list.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Steps that could not be undone; they stay on the list.
    #[error("{}", .0.join("; "))]
    Left(Vec<String>),
}

/// Undoes what an earlier run left. `tunnel` helps where the list is damaged.
pub async fn unwind(
    places: &Places,
    name: &str,
    tunnel: Option<&Tunnel>,
    say: &Say,
) -> Result<Unwound, UnwindError> {
    let _lock = places.lock(name)?;
    unwind_locked(places, name, tunnel, say).await
}

/// Whether a run left something, or is at work.
#[must_use]
pub fn is_left(places: &Places, name: &str) -> bool {
    is_name(name) && places.list(name).exists()
}

/// The same for whoever has the lock.
pub(crate) async fn unwind_locked(
    places: &Places,
    name: &str,
    tunnel: Option<&Tunnel>,
    say: &Say,
) -> Result<Unwound, UnwindError> {
    let path = places.list(name);
    let list = |source| UnwindError::List { path: path.clone(), source };
    let Some(record) = journal::found(&path).map_err(list)? else { return Ok(Unwound::Nothing) };
    let mut journal = Journal::reopen(&path).map_err(list)?;
    let mut left = record.left_on(&boot());
    if !record.damaged.is_empty() {
        say(&format!(
            "the list of what to undo is damaged (lines {:?}): undoing what the configuration has, too",
            record.damaged
        ));
        left.extend(tunnel.into_iter().flat_map(of_configuration));
    }
    let mut problems = Vec::new();
    for entry in left {
        let (kind, undone) = match &entry {
            Entry::Job => (Kind::Job, end_job(&record, say).await),
            Entry::Mount { .. } => (Kind::Mount, unmount(&record, &entry, say).await),
            Entry::Forwards { sockets } => {
                if let Some(run) = &record.run {
                    processes::kill_left(run, Step::Engine).await;
                    let _ = std::fs::remove_dir_all(places.own(run));
                }
                for socket in sockets {
                    // A live one has been taken over by somebody.
                    let _ = sys::socket::remove_stale_unix(socket);
                }
                (Kind::Forwards, Ok(()))
            }
        };
        match undone {
            Ok(()) if record.damaged.is_empty() => journal.write(&undo::undone(kind)).map_err(list)?,
            Ok(()) => {}
            Err(why) => problems.push(why),
        }
    }
    let _ = sys::socket::remove_stale_unix(&places.control(name));
    if !problems.is_empty() {
        return Err(UnwindError::Left(problems));
    }
    if record.damaged.is_empty() {
        journal.finish().map_err(list)?;
    } else {
        let aside = journal.set_aside().map_err(list)?;
        say(&format!("the damaged list is kept as {}", aside.display()));
    }
    say("what an earlier run left is undone");
    Ok(Unwound::Undone)
}

/// What a run of this tunnel could have begun.
fn of_configuration(tunnel: &Tunnel) -> Vec<Entry> {
    let mut entries = Vec::new();
    if let Some(mount) = &tunnel.mount {
        let values = Values::new(std::iter::empty(), MountPoint::At(&mount.point));
        let fill = |words: &[logic::tunnel::template::Template]| {
            words.iter().map(|word| word.fill(&values)).collect::<Vec<_>>()
        };
        entries.push(Entry::Mount {
            point: mount.point.clone(),
            unmount: fill(&mount.unmount),
            lazy: fill(&mount.unmount_lazy),
        });
    }
    let here = tunnel.forwards.iter().filter(|forward| !matches!(forward.way, Way::Remote { .. }));
    let sockets = here.filter_map(|forward| match forward.way.listen() {
        Listen::Unix(path) => Some(path.clone()),
        Listen::Tcp(_) => None,
    });
    entries.push(Entry::Forwards { sockets: sockets.collect() });
    entries
}

/// The job of the killed run may still be at work, and write to what is mounted.
async fn end_job(record: &Record, say: &Say) -> Result<(), String> {
    let Some(run) = &record.run else { return Ok(()) };
    if processes::of(run, Step::Job).is_empty() {
        return Ok(());
    }
    say("the job of the earlier run still works: it is asked to end");
    let left = processes::end(run, Step::Job, Duration::from_secs(30)).await;
    if left.is_empty() {
        return Ok(());
    }
    let left: Vec<_> = left.iter().map(ToString::to_string).collect();
    Err(format!("the job of the earlier run does not end: process {}", left.join(", ")))
}

async fn unmount(record: &Record, entry: &Entry, say: &Say) -> Result<(), String> {
    let Entry::Mount { point, unmount, lazy } = entry else { return Ok(()) };
    let run = record.run.as_deref().unwrap_or_default();
    if mount::mounted(point)?.is_none() && !run.is_empty() {
        // A mount command that was still at work could mount in a moment.
        processes::end(run, Step::Mount, Duration::from_secs(10)).await;
    }
    if let (Some(now), Some(then)) = (mount::mounted(point)?, &record.mounted)
        && (&now.kind, &now.source) != (&then.kind, &then.source)
    {
        say(&format!(
            "{} has something else mounted now ({} of {}): it is not ours, so it stays",
            point.display(),
            now.kind,
            now.source
        ));
        return Ok(());
    }
    let mut sequence = Sequence::unwind(Mounting::Wanted);
    let limit = Duration::from_secs(60);
    while let Some(act) = sequence.act() {
        let outcome = match act {
            Act::VerifyUnmounted => still(point),
            Act::Unmount(manner) => {
                let words = if manner == Manner::Lazy { lazy } else { unmount };
                say(&format!("{act}: {}", words.join(" ")));
                command::run(words, run, Step::Mount, &[], limit).await
            }
            Act::Wait(wait) => {
                tokio::time::sleep(wait).await;
                Ok(())
            }
            _ => Ok(()),
        };
        sequence.handle_done(outcome);
    }
    if !run.is_empty() {
        processes::kill_left(run, Step::Mount).await;
    }
    match sequence.verdict().problems.first() {
        None => Ok(()),
        Some(problem) => Err(problem.text.clone()),
    }
}
