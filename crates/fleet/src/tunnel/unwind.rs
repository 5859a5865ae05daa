//! Undoes what a run left that was killed, or lost its power: its job, its mount, its sockets, in this order.

use std::fs::OpenOptions;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use logic::tunnel::ending::{Ending, How};
use logic::tunnel::mounts::Claim;
use logic::tunnel::plan::{MountPoint, Tunnel, Values, is_name};
use logic::tunnel::sequence::{Act, Manner, Mounting, Sequence};
use logic::tunnel::undo::{self, Entry, Kind, Record};

use super::ending;
use super::journal::{self, FoundError, Journal, Odd};
use super::mount::Remains;
use super::place::{BOOT_ID, PlaceError, Places, boot};
use super::processes::{RunProcesses, Step, named};
use super::run::Say;
use super::{command, left, mount};

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
    /// What is there in place of the list was not written by a run of this user: nothing in it is run.
    #[error("{} {how}: it is not the list of a run of ours, and nothing was done; look at it, and remove it", .path.display())]
    NotOurs {
        /// Where the list would be.
        path: PathBuf,
        /// What is wrong with it.
        how: Odd,
    },
    /// The list is a copy of that of another tunnel, which may be running.
    #[error("{} is the list of tunnel {tunnel}, and nothing was done; look at it, and remove it", .path.display())]
    OtherTunnel {
        /// The list.
        path: PathBuf,
        /// Whose it is.
        tunnel: String,
    },
    /// Without `/proc` nothing can be told of what is left.
    #[error(
        "cannot tell what is left of an earlier run, nor whether the machine was started anew since: {BOOT_ID} cannot be read; nothing \
         was done: mount /proc, and unwind again"
    )]
    NoProc,
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
    let unwound = unwind_locked(places, name, tunnel, say).await;
    if let Ok(Unwound::Undone) = unwound {
        ending::keep(places, name, &Ending { at: ending::now(), how: How::Undone });
    }
    unwound
}

/// Whether a run left something, or is at work.
#[must_use]
pub fn is_left(places: &Places, name: &str) -> bool {
    // A link that leads nowhere is in the way of the next run, too.
    is_name(name) && std::fs::symlink_metadata(places.list(name)).is_ok()
}

/// What a run left, in the order in which it is undone; nothing where the list says nothing of it, or cannot be believed.
#[must_use]
pub fn left_over(places: &Places, name: &str) -> Vec<Entry> {
    if !is_name(name) {
        return Vec::new();
    }
    match journal::open(&places.list(name), &mut OpenOptions::new()) {
        Ok(Some((_, bytes))) => Record::parse(&bytes).left_on(boot().as_deref()),
        Ok(None) | Err(_) => Vec::new(),
    }
}

/// The same as [`unwind`] for whoever has the lock.
pub(crate) async fn unwind_locked(
    places: &Places,
    name: &str,
    tunnel: Option<&Tunnel>,
    say: &Say,
) -> Result<Unwound, UnwindError> {
    let path = places.list(name);
    let list = |source| UnwindError::List { path: path.clone(), source };
    let found = Journal::found(&path).map_err(|error| match error {
        FoundError::NotOurs(how) => UnwindError::NotOurs { path: path.clone(), how },
        FoundError::Io(source) => list(source),
    })?;
    let Some((mut journal, record)) = found else { return Ok(Unwound::Nothing) };
    if let Some(other) = record.tunnel.as_ref().filter(|tunnel| **tunnel != name) {
        return Err(UnwindError::OtherTunnel { path, tunnel: other.clone() });
    }
    // The sockets of that run are where it had its own directory.
    let there =
        Places { runtime: record.runtime.clone().unwrap_or(places.runtime.clone()), ..places.clone() };
    let started = record.run.as_ref().map(|run| RunProcesses::new(&there.own(run), run));
    // Without it neither the processes of the run nor what is mounted can be seen.
    let boot = boot().ok_or(UnwindError::NoProc)?;
    let mut left = record.left_on(Some(&boot));
    let mut done = Vec::new();
    let mut problems = Vec::new();
    match (record.damaged.as_slice(), tunnel) {
        ([], _) => {}
        ([first, ..], Some(tunnel)) => {
            say(&format!(
                "the list of what to undo is damaged from line {first} on: undoing what the configuration has, too"
            ));
            left.extend(of_configuration(tunnel));
        }
        ([first, ..], None) => problems.push(format!(
            "the list of what to undo, {}, is damaged from line {first} on, and no configuration tells what else it may have \
             begun: name the one that has this tunnel with --config, or look at what is mounted, and remove the list",
            path.display()
        )),
    }
    for entry in left {
        let named = entry.to_string();
        let (kind, undone) = match &entry {
            Entry::Job => (Kind::Job, end_job(started.as_ref(), say).await),
            Entry::Mount { .. } => (Kind::Mount, unmount(&record, started.as_ref(), &entry, say).await),
            Entry::Forwards { sockets } => {
                if let Some(started) = &started {
                    started.kill_left(Step::Engine).await.tell(Step::Engine, say);
                }
                for socket in sockets {
                    // It is kept where a process listens on it: another program has taken the path.
                    let _ = sys::socket::remove_stale_unix(socket);
                }
                (Kind::Forwards, Ok("are closed".to_owned()))
            }
        };
        match undone {
            Ok(how) if record.damaged.is_empty() => {
                done.push(format!("{named} {how}"));
                // On a disk that is full: what is undone once more does no harm, and what is not undone does.
                if let Err(error) = journal.write(&undo::undone(kind)) {
                    say(&format!("cannot write the list of what to undo: {error}"));
                }
            }
            Ok(how) => done.push(format!("{named} {how}")),
            Err(why) => problems.push(why),
        }
    }
    let _ = sys::socket::remove_stale_unix(&there.control(name));
    let done = done.join("; ");
    if !problems.is_empty() {
        if !done.is_empty() {
            say(&format!("of what an earlier run left is undone: {done}"));
        }
        return Err(UnwindError::Left(problems));
    }
    // Not before: a step that is still to be undone is undone by what was noted there.
    if let Some(run) = &record.run {
        let _ = std::fs::remove_dir_all(there.own(run));
    }
    if record.damaged.is_empty() {
        journal.finish().map_err(list)?;
    } else {
        let aside = journal.set_aside().map_err(list)?;
        say(&format!("the damaged list is kept as {}", aside.display()));
    }
    match done.as_str() {
        "" => say("what an earlier run left is undone: it had begun nothing that is still there"),
        done => say(&format!("what an earlier run left is undone: {done}")),
    }
    Ok(Unwound::Undone)
}

/// What a run of this tunnel could have begun.
fn of_configuration(tunnel: &Tunnel) -> Vec<Entry> {
    let mount = tunnel.mount.as_ref().map(|mount| {
        let values = Values::new(std::iter::empty(), MountPoint::At(&mount.point));
        left::mount(mount, &values)
    });
    mount.into_iter().chain([left::forwards(tunnel)]).collect()
}

/// The job of the killed run may still be at work, and write to what is mounted. What became of it.
async fn end_job(started: Option<&RunProcesses>, say: &Say) -> Result<String, String> {
    let Some(started) = started else { return Ok("cannot be found".to_owned()) };
    let mut left = started.left(Step::Job);
    let worked = !left.proved.is_empty();
    if worked {
        say("the job of the earlier run is still running: asking it to end");
        left = started.end(Step::Job, Duration::from_secs(30)).await;
    }
    let listed =
        |processes: &mut dyn Iterator<Item = i32>| processes.map(named).collect::<Vec<_>>().join(", ");
    match (left.proved.as_slice(), left.unproved.as_slice()) {
        ([], []) if worked => Ok("was at work, and has ended".to_owned()),
        ([], []) => Ok("had ended".to_owned()),
        // It may be a part of the job that writes to what is mounted, or a program that was only started from there.
        ([], unproved) => Err(format!(
            "the job of the earlier run may not have ended. Not signalled: {}, with this tunnel's TUNNEL_RUN in the environment; \
             nothing proves that the job started them. End them yourself, then unwind again",
            listed(&mut unproved.iter().copied())
        )),
        (proved, _) => Err(format!(
            "the job of the earlier run does not end: {}",
            listed(&mut proved.iter().map(|one| one.process))
        )),
    }
}

/// What became of the mount.
async fn unmount(
    record: &Record,
    started: Option<&RunProcesses>,
    entry: &Entry,
    say: &Say,
) -> Result<String, String> {
    let Entry::Mount { point, unmount, lazy, command } = entry else {
        return Err(format!("{entry} is no mount"));
    };
    let claim = record.mounted.as_ref().map_or(Claim::Command(command), Claim::Seen);
    if let (Remains::Nothing | Remains::Other(_) | Remains::Left(_), Some(started)) =
        (mount::remains(point, claim)?, started)
    {
        // A mount command that was still at work could mount in a moment.
        let left = started.end(Step::Mount, Duration::from_secs(10)).await;
        left.tell(Step::Mount, say);
        if let Some(one) = left.proved.first() {
            return Err(format!(
                "the mount command of the earlier run does not end, and may still mount: {}",
                named(one.process)
            ));
        }
    }
    let mut how = match mount::remains(point, claim)? {
        Remains::Nothing => "was gone",
        Remains::Ours(_) => "is taken away",
        Remains::Other(what) => {
            say(&what);
            return Ok("was gone, and something else is there".to_owned());
        }
        Remains::Left(why) => return Err(why),
    };
    let mut sequence = Sequence::unwind(Mounting::Wanted);
    let limit = Duration::from_secs(60);
    while let Some(act) = sequence.act() {
        let outcome = match act {
            Act::VerifyUnmounted => match mount::remains(point, claim) {
                Ok(Remains::Nothing) => Ok(()),
                Ok(Remains::Other(what)) => {
                    say(&what);
                    how = "is taken away, and something else is there";
                    Ok(())
                }
                Ok(Remains::Left(why)) => {
                    sequence.handle_left(why);
                    continue;
                }
                Ok(Remains::Ours(why)) | Err(why) => Err(why),
            },
            Act::Unmount(manner) => match mount::is_ours(point, claim) {
                Ok(()) => {
                    let manner = mount::manner(claim, manner);
                    let words = if manner == Manner::Lazy { lazy } else { unmount };
                    say(&format!("{}: {}", Act::Unmount(manner), words.join(" ")));
                    command::run(words, started, &[], limit).await
                }
                Err(why) => Err(why),
            },
            Act::Wait(wait) => {
                tokio::time::sleep(wait).await;
                Ok(())
            }
            _ => Ok(()),
        };
        sequence.handle_done(outcome);
    }
    if let Some(started) = started {
        started.kill_left(Step::Mount).await.tell(Step::Mount, say);
    }
    match sequence.verdict().problems.first() {
        None => Ok(how.to_owned()),
        Some(problem) => Err(problem.text.clone()),
    }
}
