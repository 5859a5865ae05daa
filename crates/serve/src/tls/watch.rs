//! Watches certificates, CAs and revocation lists (inotify(7)) on a thread of its own: what is renamed or written there is read as soon
//! as it is quiet for a moment. Directories that are links, replaced or gone for a while are found again by their
//! parents; what inotify cannot tell (other machines' changes of a network file system) is found once a minute.

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

use super::scan::Scan;
use crate::state::State;

/// What is read again when its files change.
pub(super) trait Watched: Send + Sync {
    /// Reads what has changed and puts it in service.
    fn scan(&self) -> Scan;
    /// The paths that the configuration names: what leads to them is watched as well.
    fn places(&self) -> Vec<PathBuf>;
    /// Says that changes are not noticed at once, and why; or that they are.
    fn set_blind(&self, why: Option<String>);
    /// Tells people what a look has changed, and what is wrong.
    fn announce(&self, scan: &Scan, state: &State);
}

/// A directory that is watched until this is dropped.
#[derive(Debug)]
pub(super) struct Watch {
    _stop: UnixStream,
}

/// Starts to watch.
pub(super) fn start(store: Arc<dyn Watched>, state: Arc<State>) -> io::Result<Watch> {
    let (stop, stopped) = UnixStream::pair()?;
    let watcher = Watcher { inotify: Err(Errno::EAGAIN), watched: HashMap::new(), stopped, store, state };
    std::thread::Builder::new().name("certificates".to_owned()).spawn(move || watcher.run())?;
    Ok(Watch { _stop: stop })
}

/// Longest time between two looks.
const PERIOD: Duration = Duration::from_secs(60);

/// The same where changes are not told: a new certificate is to be served within a second.
const BLIND_PERIOD: Duration = Duration::from_millis(900);

/// A burst of changes is over after so long without one,
const QUIET: Duration = Duration::from_millis(50);

/// or after so long.
const LONGEST_BURST: Duration = Duration::from_millis(400);

/// Everything but what our own reading causes.
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

/// Which names in a directory matter.
#[derive(Debug)]
enum Relevant {
    All,
    Only(BTreeSet<OsString>),
}

/// Why the thread wakes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Woken {
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
                Woken::Stop => return,
                Woken::Time => {}
                Woken::Change => {
                    let begun = Instant::now();
                    while begun.elapsed() < LONGEST_BURST {
                        match self.wait(QUIET) {
                            Woken::Stop => return,
                            Woken::Change => {}
                            Woken::Time => break,
                        }
                    }
                }
            }
        }
    }

    /// Looks at the directory, and until when to wait before the next look.
    fn look(&mut self) -> Duration {
        // Twice, if there is a new directory: it may have changed before it was watched.
        for _ in 0..3 {
            let scan = self.store.scan();
            let watched = self.watch(&scan.directories);
            let blind = watched.as_ref().err().map(|error| {
                format!("changes of the directory are found by looking every second: inotify: {error}")
            });
            let period = if blind.is_some() { BLIND_PERIOD } else { PERIOD };
            self.store.set_blind(blind);
            self.store.announce(&scan, &self.state);
            if watched != Ok(News::Some) {
                return scan.again.unwrap_or(period);
            }
        }
        QUIET
    }

    /// Watches these and what leads to the places. An error only says that not everything is watched.
    fn watch(&mut self, directories: &[PathBuf]) -> nix::Result<News> {
        let inotify = self.inotify.as_ref().map_err(|error| *error)?;
        let (mut watched, mut worst) = (HashMap::new(), Ok(News::None));
        let mut add = |path: &Path, name: Option<&OsString>| match inotify.add_watch(path, CHANGES) {
            Ok(descriptor) => {
                let relevant = watched.entry(descriptor).or_insert_with(|| Relevant::Only(BTreeSet::new()));
                match (name, &mut *relevant) {
                    (None, _) => *relevant = Relevant::All,
                    (Some(name), Relevant::Only(names)) => drop(names.insert(name.clone())),
                    (Some(_), Relevant::All) => {}
                }
            }
            // It is told when it comes (back).
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
            // A directory that is gone has taken its watch along.
            let _ = inotify.rm_watch(*gone);
        }
        let has_new = watched.keys().any(|descriptor| !self.watched.contains_key(descriptor));
        self.watched = watched;
        match worst {
            Ok(_) if has_new => Ok(News::Some),
            other => other,
        }
    }

    fn wait(&self, limit: Duration) -> Woken {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let stopped = PollFd::new(self.stopped.as_fd(), PollFlags::POLLIN);
            let mut descriptors = vec![stopped];
            descriptors.extend(self.inotify.iter().map(|it| PollFd::new(it.as_fd(), PollFlags::POLLIN)));
            // Rounded up: a timeout of zero would spin.
            let millis = u32::try_from(left.as_millis()).unwrap_or(u32::MAX).saturating_add(1);
            let timeout = PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX);
            let woken = poll(&mut descriptors, timeout);
            if descriptors[0].any() == Some(true) {
                return Woken::Stop;
            }
            if woken.is_ok_and(|count| count > 0) && self.has_changed() {
                return Woken::Change;
            }
            if Instant::now() >= deadline {
                return Woken::Time;
            }
        }
    }

    /// Takes what was told. Whether any of it matters.
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

/// Whether a directory is watched that was not before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    None,
    Some,
}
