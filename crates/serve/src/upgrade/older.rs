//! The new process after an upgrade: follows what the old one says about the sessions that it still has, and goes on with those
//! that it offers.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::SystemTime;

use proxy::front::Front;
use proxy::given::place::Finder;
use proxy::given::{Adoption, Answer, Carried, OfferId, PreviousProcess, Reply};
use proxy::question::Question;
use state::events::Level;
use state::lock::lock;
use state::upgrade::Older;
use text::units;
use tokio::sync::mpsc::error::SendError;

use super::take_over::{OfSessions, TakeOver};

/// Follows the old process on a thread, until it has ended.
pub(crate) fn follow(take_over: Arc<TakeOver>, front: Arc<Front>) -> io::Result<()> {
    let state = front.state.clone();
    let Some(older) = take_over.older() else { return Ok(()) };
    let older = Older { since: SystemTime::now(), ..older };
    state.upgrade.set_older(Some(older.clone()));
    let Older { pid, version, .. } = older;
    let message = format!("taken over from version {version} (pid {pid}), which ends with its last session");
    state.events.record(Level::Info, "upgrade", message);
    let unfollowed = state.clone();
    let follow = move || {
        let mut last = None;
        let mut sessions = Sessions::new(&take_over, front.clone());
        while let Some(said) = take_over.next() {
            match said {
                OfSessions::Offered { id, session, connections } => {
                    sessions.pass_on(id, *session, connections);
                }
                OfSessions::Left(left, counts) => {
                    last = Some(left);
                    state.upgrade.note_left(left);
                    // The first worker alone writes its counters, until it has ended.
                    if let (Some(counts), Some(worker)) = (counts, front.questions.first())
                        && let Err(SendError(Question::Count(counts))) =
                            worker.blocking_send(Question::Count(Box::new(counts)))
                    {
                        let _adding = lock(&state.upgrade.late_counts);
                        counts.add(&state);
                    }
                    sessions.tell();
                }
            }
        }
        sessions.tell();
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
    let started = thread::Builder::new().name("older".to_owned()).spawn(follow);
    if started.is_err() {
        // Its end would never be known.
        unfollowed.upgrade.set_older(None);
    }
    started.map(drop)
}

/// The sessions that the old process offers.
struct Sessions {
    front: Arc<Front>,
    finder: Finder,
    answers: Arc<Answers>,
    /// Worker that gets the next one.
    next: usize,
    told: usize,
}

/// Tells the old process what becomes of its sessions.
struct Answers {
    take_over: Arc<TakeOver>,
    taken: AtomicUsize,
}

impl Sessions {
    fn new(take_over: &Arc<TakeOver>, front: Arc<Front>) -> Self {
        let answers = Answers { take_over: take_over.clone(), taken: AtomicUsize::new(0) };
        Self { finder: Finder::default(), front, answers: Arc::new(answers), next: 0, told: 0 }
    }

    /// Gives a session to a worker.
    fn pass_on(&mut self, id: OfferId, session: Carried, connections: Option<[OwnedFd; 2]>) {
        // It declines the session when it is dropped without an answer.
        let reply = Reply::new(id, self.answers.clone());
        let workers = &self.front.questions;
        let (Some(connections), Some(worker)) = (connections, workers.get(self.next)) else { return };
        self.next = (self.next + 1) % workers.len();
        let place = self.finder.find(&session, self.front.snapshot.load_full(), &self.front.state);
        let adoption = Adoption { session, place, connections, reply };
        // A worker that has ended declines it.
        let _ = worker.blocking_send(Question::Adopt(Box::new(adoption)));
    }

    /// Records how many sessions go on here.
    fn tell(&mut self) {
        let taken = self.answers.taken.load(Relaxed);
        if taken > self.told {
            let message =
                format!("{} of the process before go on here", units::count(taken - self.told, "session"));
            self.front.state.events.record(Level::Info, "upgrade", message);
            self.told = taken;
        }
    }
}

impl PreviousProcess for Answers {
    fn answer(&self, id: OfferId, answer: Answer) -> bool {
        let is_heard = self.take_over.answer(id, answer);
        if is_heard && answer == Answer::Taken {
            self.taken.fetch_add(1, Relaxed);
        }
        is_heard
    }
}
