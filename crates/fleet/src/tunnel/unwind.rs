//! Undoes the traces of a run after a crash or a power failure: its job, its mount and its sockets, in this order.

use std::fs::OpenOptions;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use hosts::tunnel::ending::{Ending, How};
use hosts::tunnel::mounts::Claim;
use hosts::tunnel::plan::{MountPoint, Tunnel, Values, is_name};
use hosts::tunnel::sequence::{Act, Mounting, Sequence, UnmountMode};
use hosts::tunnel::undo::{self, Entry, Kind, Record};

use super::ending;
use super::journal::{self, FoundError, Journal, UntrustedFile};
use super::mount::MountState;
use super::place::{BOOT_ID, PlaceError, Places, boot};
use super::processes::{RunProcesses, Step, named};
use super::say::Say;
use super::{command, left, mount};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unwound {
    Nothing,
    Undone,
}

/// Reason why traces remain.
#[derive(Debug, thiserror::Error)]
pub enum UnwindError {
    /// The lock is held, or a directory cannot be used.
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error("cannot read or write {}", .path.display())]
    List { path: PathBuf, source: io::Error },
    /// Another user may have written the list, so no command in it is run.
    #[error("{} {how}: it is not an undo list of penstock, and nothing was done; look at it, then remove it", .path.display())]
    NotOurs { path: PathBuf, how: UntrustedFile },
    /// The list is a copy of the list of another tunnel, which may be running.
    #[error("{} is the undo list of tunnel {tunnel}, and nothing was done; look at it, then remove it", .path.display())]
    OtherTunnel { path: PathBuf, tunnel: String },
    /// Without `/proc` the processes and mounts of a run cannot be found.
    #[error(
        "cannot find the leftovers of an earlier run, nor whether the machine was rebooted since: {BOOT_ID} cannot be read; nothing \
         was done: mount /proc, and unwind again"
    )]
    NoProc,
    /// Steps that could not be undone. They stay on the list.
    #[error("{}", .0.join("; "))]
    Left(Vec<String>),
}

/// Undoes the traces of an earlier run. `tunnel` gives the configuration, which is used if the list is damaged.
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

/// Whether a run has left traces, or is running.
#[must_use]
pub fn is_left(places: &Places, name: &str) -> bool {
    // A symbolic link without a target counts too, since it would block the next run.
    is_name(name) && std::fs::symlink_metadata(places.list(name)).is_ok()
}

/// The traces of a run, in the order of their removal. Empty if the list has none or cannot be trusted.
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

/// [`unwind`] for a caller that holds the lock.
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
    // The sockets of the run are in the runtime directory that the run used.
    let there =
        Places { runtime: record.runtime.clone().unwrap_or(places.runtime.clone()), ..places.clone() };
    let started = record.run.as_ref().map(|run| RunProcesses::new(&there.own(run), run));
    // Without `/proc` neither the processes of the run nor its mounts can be found.
    let boot = boot().ok_or(UnwindError::NoProc)?;
    let mut left = record.left_on(Some(&boot));
    let mut done = Vec::new();
    let mut problems = Vec::new();
    match (record.damaged.as_slice(), tunnel) {
        ([], _) => {}
        ([first, ..], Some(tunnel)) => {
            say(&format!(
                "the undo list is damaged from line {first} on: also undoing what the configuration names"
            ));
            left.extend(of_configuration(tunnel));
        }
        ([first, ..], None) => problems.push(format!(
            "the undo list {} is damaged from line {first} on, and no configuration names what else may have been begun: give the configuration of this tunnel with --config, or check what is mounted, and remove the list",
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
                    // `remove_stale_unix` keeps a socket on which a process listens: another program uses the path now.
                    let _ = sys::socket::remove_stale_unix(socket);
                }
                (Kind::Forwards, Ok("are closed".to_owned()))
            }
        };
        match undone {
            Ok(how) if record.damaged.is_empty() => {
                done.push(format!("{named} {how}"));
                // An error, as on a full disk, is ignored: undoing an entry twice is harmless.
                if let Err(error) = journal.write(&undo::undone(kind)) {
                    say(&format!("cannot write the undo list: {error}"));
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
            say(&format!("leftovers of an earlier run are partly undone: {done}"));
        }
        return Err(UnwindError::Left(problems));
    }
    // Last, since the steps above need the notes of processes.
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
        "" => say("the leftovers of an earlier run are undone: nothing of it was left"),
        done => say(&format!("the leftovers of an earlier run are undone: {done}")),
    }
    Ok(Unwound::Undone)
}

/// All traces that a run with this configuration can have left.
fn of_configuration(tunnel: &Tunnel) -> Vec<Entry> {
    let mount = tunnel.mount.as_ref().map(|mount| {
        let values = Values::new(std::iter::empty(), MountPoint::At(&mount.point));
        left::mount(mount, &values)
    });
    mount.into_iter().chain([left::forwards(tunnel)]).collect()
}

/// Ends the job of a killed run, which may still write to the mount. Returns what was done.
async fn end_job(started: Option<&RunProcesses>, say: &Say) -> Result<String, String> {
    let Some(started) = started else { return Ok("cannot be found".to_owned()) };
    let mut left = started.left(Step::Job);
    let worked = !left.proved.is_empty();
    if worked {
        say("the earlier job is still running; asking it to stop");
        left = started.end(Step::Job, Duration::from_secs(30)).await;
    }
    let listed =
        |processes: &mut dyn Iterator<Item = i32>| processes.map(named).collect::<Vec<_>>().join(", ");
    match (left.proved.as_slice(), left.unproved.as_slice()) {
        ([], []) if worked => Ok("was running, and has ended".to_owned()),
        ([], []) => Ok("had ended".to_owned()),
        // An unproved process may be a part of the job that writes to the mount, or a program that was only started
        // there.
        ([], unproved) => Err(format!(
            "the earlier job may still be running. Not signalled: {}, with this tunnel's TUNNEL_RUN in the environment; it is not proved that the job started them. End them yourself, then unwind again",
            listed(&mut unproved.iter().copied())
        )),
        (proved, _) => Err(format!(
            "the earlier job does not end: {}",
            listed(&mut proved.iter().map(|one| one.process))
        )),
    }
}

/// Unmounts. Returns what was done.
async fn unmount(
    record: &Record,
    started: Option<&RunProcesses>,
    entry: &Entry,
    say: &Say,
) -> Result<String, String> {
    let Entry::Mount { point, unmount, lazy, command } = entry else {
        return Err(format!("{entry} is not a mount"));
    };
    let claim = record.mounted.as_ref().map_or(Claim::Command(command), Claim::Seen);
    if let (MountState::Nothing | MountState::Other(_) | MountState::Left(_), Some(started)) =
        (mount::remains(point, claim)?, started)
    {
        // A mount command that still runs could mount after this check.
        let left = started.end(Step::Mount, Duration::from_secs(10)).await;
        left.tell(Step::Mount, say);
        if let Some(one) = left.proved.first() {
            return Err(format!(
                "the earlier mount command does not end, and may still mount: {}",
                named(one.process)
            ));
        }
    }
    let mut how = match mount::remains(point, claim)? {
        MountState::Nothing => "was gone",
        MountState::Ours(_) => "is taken away",
        MountState::Other(what) => {
            say(&what);
            return Ok("was gone, and something else is there".to_owned());
        }
        MountState::Left(why) => return Err(why),
    };
    let mut sequence = Sequence::unwind(Mounting::Wanted);
    let limit = Duration::from_secs(60);
    while let Some(act) = sequence.act() {
        let outcome = match act {
            Act::VerifyUnmounted => match mount::remains(point, claim) {
                Ok(MountState::Nothing) => Ok(()),
                Ok(MountState::Other(what)) => {
                    say(&what);
                    how = "is unmounted, and something else is mounted there";
                    Ok(())
                }
                Ok(MountState::Left(why)) => {
                    sequence.handle_left(why);
                    continue;
                }
                Ok(MountState::Ours(why)) | Err(why) => Err(why),
            },
            Act::Unmount(manner) => match mount::is_ours(point, claim) {
                Ok(()) => {
                    let manner = mount::manner(claim, manner);
                    let words = if manner == UnmountMode::Lazy { lazy } else { unmount };
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
