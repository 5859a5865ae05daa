//! The old process of an upgrade: gives the new one the sessions that it can go on with. The workers offer them
//! (`crates/proxy/src/worker/giving.rs`), a thread here hears the answers.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use proxy::given::{Answer, Carried, NextProcess, OfferId, Offered};
use proxy::worker::Command;
use tokio::sync::mpsc::UnboundedSender;

use super::hand_over::Newer;
use super::protocol::{FromNew, FromOld, Link, LinkError, REQUESTS};

/// How long one wait for an answer takes at most.
const LOOK: Duration = Duration::from_secs(3600);

/// The new process, for workers.
struct Next {
    link: Arc<Link>,
    /// Version of the hand-over of sessions that it knows.
    version: u32,
}

impl NextProcess for Next {
    fn offer(&self, id: OfferId, session: &Carried, connections: [BorrowedFd<'_>; 2]) -> Offered {
        let session = FromOld::Session { id, session: Box::new(session.clone()) };
        match self.link.give_now(&session, &connections) {
            Ok(()) => Offered::Sent,
            Err(LinkError::Closed) => Offered::Gone,
            // The buffer is full, or too many descriptors are on their way (ETOOMANYREFS).
            Err(LinkError::Io(_) | LinkError::Silent(_) | LinkError::Foreign(_)) => Offered::Later,
        }
    }

    fn takes_requests(&self) -> bool {
        self.version >= REQUESTS
    }
}

/// Lets the workers give their sessions to the new process. Counts those that it has taken.
pub(crate) fn give(
    newer: &Newer,
    version: u32,
    workers: &[UnboundedSender<Command>],
) -> io::Result<Arc<AtomicUsize>> {
    let taken = Arc::new(AtomicUsize::new(0));
    let (link, told, count) = (newer.link().clone(), workers.to_vec(), taken.clone());
    thread::Builder::new().name("answers".to_owned()).spawn(move || hear(&link, &told, &count))?;
    for worker in workers {
        // A worker that has ended has no sessions.
        let next = Next { link: newer.link().clone(), version };
        let _ = worker.send(Command::Give { next: Arc::new(next) });
    }
    Ok(taken)
}

/// Passes the answers on, until the new process has ended.
fn hear(link: &Link, workers: &[UnboundedSender<Command>], taken: &AtomicUsize) {
    let mut closed = 0;
    // What it has said before its end comes after the news of it, if it had not read all of ours.
    while closed < 2 {
        match link.hear::<FromNew>(LOOK) {
            Ok((FromNew::Answered { id, answer }, _)) => {
                if answer == Answer::Taken {
                    taken.fetch_add(1, Relaxed);
                }
                let answered = Command::Answered { number: id.number, answer };
                let _ = workers.get(id.worker).map(|worker| worker.send(answered));
            }
            Ok(_) | Err(LinkError::Silent(_) | LinkError::Foreign(_)) => {}
            Err(_) => closed += 1,
        }
    }
    for worker in workers {
        let _ = worker.send(Command::NextEnded);
    }
}
