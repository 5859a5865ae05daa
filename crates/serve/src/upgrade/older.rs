//! The new process after an upgrade: follows what the old one says about the sessions that it still has.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::SystemTime;

use proxy::front::Front;
use proxy::question::Question;
use state::events::Level;
use state::upgrade::Older;
use text::units;

use super::take_over::TakeOver;

/// Follows the old process on a thread, until it has ended.
pub(crate) fn follow(take_over: Arc<TakeOver>, front: Arc<Front>) -> io::Result<()> {
    let state = front.state.clone();
    let Some(older) = take_over.older() else { return Ok(()) };
    let older = Older { since: SystemTime::now(), ..older };
    state.upgrade.set_older(Some(older.clone()));
    let Older { pid, version, .. } = older;
    let message = format!("taken over from version {version} (pid {pid}), which ends with its last session");
    state.events.record(Level::Info, "upgrade", message);
    let follow = move || {
        let mut last = None;
        while let Some((sessions, counts)) = take_over.left() {
            last = Some(sessions);
            state.upgrade.note_left(sessions);
            // The first worker alone writes its counters. One that has ended ends the process.
            if let (Some(counts), Some(worker)) = (counts, front.questions.first()) {
                let _ = worker.blocking_send(Question::Count(Box::new(counts)));
            }
        }
        state.upgrade.set_older(None);
        let message = match last.filter(|left| *left > 0) {
            None => {
                format!("the process before this one (pid {pid}) has ended: every session of it was over")
            }
            Some(left) => format!(
                "the process before this one (pid {pid}) has ended: it had {} a second before",
                units::count(left, "session")
            ),
        };
        state.events.record(Level::Info, "upgrade", message);
    };
    thread::Builder::new().name("older".to_owned()).spawn(follow).map(drop)
}
