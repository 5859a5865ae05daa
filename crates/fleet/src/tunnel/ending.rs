//! Records how the last run of a tunnel ended, in a small file beside the undo list, which the next run removes. The
//! file is only a hint, so errors are ignored.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hosts::tunnel::ending::Ending;
use hosts::tunnel::plan::is_name;
use nix::fcntl::OFlag;

use super::journal;
use super::place::{Found, Places, look};

/// The ending of the last run of a tunnel, and its age. `None` if that is not known.
#[must_use]
pub fn last_run(places: &Places, tunnel: &str) -> Option<(Ending, Duration)> {
    if !is_name(tunnel) || look(&places.undo).ok()? == Found::Nothing {
        return None;
    }
    let (_, bytes) = journal::open(&path(places, tunnel), &mut OpenOptions::new()).ok()??;
    let ending = Ending::parse(&bytes)?;
    // The age is 0 if the clock was set back.
    let age = now().saturating_sub(ending.at);
    Some((ending, Duration::from_secs(age)))
}

pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Writes the ending. The caller holds the lock of the tunnel.
pub(crate) fn keep(places: &Places, tunnel: &str, ending: &Ending) {
    let next = places.undo.join(format!("{tunnel}.ended.next"));
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).custom_flags(OFlag::O_NOFOLLOW.bits());
    let written = options.open(&next).and_then(|mut file| file.write_all(ending.line().as_bytes()));
    if written.and_then(|()| fs::rename(&next, path(places, tunnel))).is_err() {
        let _ = fs::remove_file(&next);
    }
}

/// Removes the ending, when the next run begins.
pub(crate) fn forget(places: &Places, tunnel: &str) {
    let _ = fs::remove_file(path(places, tunnel));
}

fn path(places: &Places, tunnel: &str) -> PathBuf {
    places.undo.join(format!("{tunnel}.ended"))
}
