//! Keeps how the last run of a tunnel ended, beside the list of what to undo: a small file, which the next run removes. It only
//! helps, so that nothing fails where it cannot be written or believed.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use logic::tunnel::ending::Ending;
use logic::tunnel::plan::is_name;
use nix::fcntl::OFlag;

use super::journal;
use super::place::{Found, Places, look};

/// How the last run of a tunnel ended, and how long ago; `None` where that is not known.
#[must_use]
pub fn last_run(places: &Places, tunnel: &str) -> Option<(Ending, Duration)> {
    if !is_name(tunnel) || look(&places.undo).ok()? == Found::Nothing {
        return None;
    }
    let (_, bytes) = journal::open(&path(places, tunnel), &mut OpenOptions::new()).ok()??;
    let ending = Ending::parse(&bytes)?;
    // A clock that was set back makes it just now.
    let age = now().saturating_sub(ending.at);
    Some((ending, Duration::from_secs(age)))
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// For whoever has the lock.
pub(crate) fn keep(places: &Places, tunnel: &str, ending: &Ending) {
    let next = places.undo.join(format!("{tunnel}.ended.next"));
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).custom_flags(OFlag::O_NOFOLLOW.bits());
    let written = options.open(&next).and_then(|mut file| file.write_all(ending.line().as_bytes()));
    if written.and_then(|()| fs::rename(&next, path(places, tunnel))).is_err() {
        let _ = fs::remove_file(&next);
    }
}

/// The next run has begun.
pub(crate) fn forget(places: &Places, tunnel: &str) {
    let _ = fs::remove_file(path(places, tunnel));
}

fn path(places: &Places, tunnel: &str) -> PathBuf {
    places.undo.join(format!("{tunnel}.ended"))
}
