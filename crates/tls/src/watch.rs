//! Watches certificates, CAs and revocation lists with inotify(7) on a thread of its own: changed files are read as
//! soon as no more changes follow for a moment. Directories that are symbolic links, replaced or missing for a while
//! are found through their parents. Changes that inotify does not report (by other machines on a network file system)
//! are found once a minute.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use state::State;

use super::scan::Scan;

/// Files that are read again when they change.
pub(super) trait Watched: Send + Sync {
    /// Reads the files that have changed and puts their contents into use.
    fn scan(&self) -> Scan;
    /// Returns the paths in the configuration. The directories on the way to them are watched as well.
    fn places(&self) -> Vec<PathBuf>;
    /// Records the reason why changes are not noticed immediately. `None` if they are.
    fn set_blind(&self, why: Option<String>);
    /// Reports the changes and errors of a scan to operators.
    fn announce(&self, scan: &Scan, state: &State);
}

/// Watches a directory until it is dropped.
#[derive(Debug)]
pub(super) struct Watch {
    _stop: UnixStream,
}

pub(super) fn start(store: Arc<dyn Watched>, state: Arc<State>) -> io::Result<Watch> {
    let (stop, stopped) = UnixStream::pair()?;
    let watcher = Watcher { inotify: Err(Errno::EAGAIN), watched: HashMap::new(), stopped, store, state };
    std::thread::Builder::new().name("certificates".to_owned()).spawn(move || watcher.run())?;
    Ok(Watch { _stop: stop })
}

/// Longest time between two scans.
const PERIOD: Duration = Duration::from_secs(60);

/// Time between two scans if inotify does not work: a new certificate must be in use within a second.
const BLIND_PERIOD: Duration = Duration::from_millis(900);

/// A burst of changes ends after this time without a change.
const QUIET: Duration = Duration::from_millis(50);

/// Longest duration of a burst of changes; the files are read after it in any case.
const LONGEST_BURST: Duration = Duration::from_millis(400);

/// All inotify events except those that reading the files causes.
const CHANGES: AddWatchFlags = AddWatchFlags::IN_CLOSE_WRITE
    .union(AddWatchFlags::IN_MOVED_TO)
    .union(AddWatchFlags::IN_MOVED_FROM)
    .union(AddWatchFlags::IN_CREATE)
    .union(AddWatchFlags::IN_DELETE)
    .union(AddWatchFlags::IN_ATTRIB)
    .union(AddWatchFlags::IN_DELETE_SELF)
    .union(AddWatchFlags::IN_MOVE_SELF)
    .union(AddWatchFlags::IN_ONLYDIR);

struct Watcher {
    inotify: nix::Result<Inotify>,
    watched: HashMap<WatchDescriptor, Relevant>,
    stopped: UnixStream,
    store: Arc<dyn Watched>,
    state: Arc<State>,
}

/// File names in a directory whose changes matter.
#[derive(Debug)]
enum Relevant {
    All,
    Only(BTreeSet<OsString>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WakeReason {
    Stop,
    Change,
    Time,
}

impl Watcher {
    fn run(mut self) {
        self.inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC);
        loop {
            let wait = self.look();
            match self.wait(wait) {
                WakeReason::Stop => return,
                WakeReason::Time => {}
                WakeReason::Change => {
                    let begun = Instant::now();
                    while begun.elapsed() < LONGEST_BURST {
                        match self.wait(QUIET) {
                            WakeReason::Stop => return,
                            WakeReason::Change => {}
                            WakeReason::Time => break,
                        }
                    }
                }
            }
        }
    }

    /// Scans the directory. Returns the time to wait before the next scan.
    fn look(&mut self) -> Duration {
        // Scans again if a directory is newly watched: it may have changed before the watch began.
        for _ in 0..3 {
            let scan = self.store.scan();
            let watched = self.watch(&scan.directories);
            let blind = watched.as_ref().err().map(|error| {
                format!("changes of the directory are found by looking every second: inotify: {error}")
            });
            let period = if blind.is_some() { BLIND_PERIOD } else { PERIOD };
            self.store.set_blind(blind);
            self.store.announce(&scan, &self.state);
            if watched != Ok(NewWatch::Some) {
                return scan.again.unwrap_or(period);
            }
        }
        QUIET
    }

    /// Watches `directories` and the directories on the way to the configured paths. An error means that some are not
    /// watched.
    fn watch(&mut self, directories: &[PathBuf]) -> nix::Result<NewWatch> {
        let inotify = self.inotify.as_ref().map_err(|error| *error)?;
        let (mut watched, mut worst) = (HashMap::new(), Ok(NewWatch::None));
        let mut add = |path: &Path, name: Option<&OsString>| match inotify.add_watch(path, CHANGES) {
            Ok(descriptor) => {
                let relevant = watched.entry(descriptor).or_insert_with(|| Relevant::Only(BTreeSet::new()));
                match (name, &mut *relevant) {
                    (None, _) => *relevant = Relevant::All,
                    (Some(name), Relevant::Only(names)) => drop(names.insert(name.clone())),
                    (Some(_), Relevant::All) => {}
                }
            }
            // The parent directory's watch reports when the missing directory appears.
            Err(Errno::ENOENT | Errno::ENOTDIR) => {}
            Err(error) => worst = Err(error),
        };
        for directory in directories {
            add(directory, None);
        }
        for place in self.store.places() {
            let mut inner = place.as_path();
            while let (Some(outer), Some(name)) = (inner.parent(), inner.file_name()) {
                add(outer, Some(&name.to_owned()));
                inner = outer;
            }
        }
        for gone in self.watched.keys().filter(|descriptor| !watched.contains_key(descriptor)) {
            // The kernel has already removed the watch of a deleted directory.
            let _ = inotify.rm_watch(*gone);
        }
        let has_new = watched.keys().any(|descriptor| !self.watched.contains_key(descriptor));
        self.watched = watched;
        match worst {
            Ok(_) if has_new => Ok(NewWatch::Some),
            other => other,
        }
    }

    fn wait(&self, limit: Duration) -> WakeReason {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let stopped = PollFd::new(self.stopped.as_fd(), PollFlags::POLLIN);
            let mut descriptors = vec![stopped];
            descriptors.extend(self.inotify.iter().map(|it| PollFd::new(it.as_fd(), PollFlags::POLLIN)));
            // Rounded up: with a timeout of zero the loop would spin.
            let millis = u32::try_from(left.as_millis()).unwrap_or(u32::MAX).saturating_add(1);
            let timeout = PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX);
            let woken = poll(&mut descriptors, timeout);
            if descriptors[0].any() == Some(true) {
                return WakeReason::Stop;
            }
            if woken.is_ok_and(|count| count > 0) && self.has_changed() {
                return WakeReason::Change;
            }
            if Instant::now() >= deadline {
                return WakeReason::Time;
            }
        }
    }

    /// Reads the pending inotify events. Returns true if one of them matters.
    fn has_changed(&self) -> bool {
        let Ok(inotify) = &self.inotify else { return false };
        let mut matters = false;
        while let Ok(events) = inotify.read_events() {
            matters |= events.iter().any(|event| {
                let overflow = event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW);
                let itself = event.name.is_none() && !event.mask.contains(AddWatchFlags::IN_IGNORED);
                overflow
                    || match (self.watched.get(&event.wd), &event.name) {
                        (Some(Relevant::All), _) => true,
                        (Some(Relevant::Only(names)), Some(name)) => names.contains(name),
                        (Some(Relevant::Only(_)), None) => {
                            itself && !event.mask.contains(AddWatchFlags::IN_ATTRIB)
                        }
                        (None, _) => false,
                    }
            });
        }
        matters
    }
}

/// Tells whether a directory is newly watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NewWatch {
    None,
    Some,
}
