//! The thread of a worker: executes commands of the supervisor, runs the accept loops, and ends after the last session.

use std::collections::{HashMap, HashSet};
use std::os::fd::{OwnedFd, RawFd};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use state::State;
use state::access_log::AccessLog;
use state::listen::{BoundKey, Socket};
use state::lock::lock;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::Worker;
use crate::accept;
use crate::dsr;
use crate::front::Front;
use crate::given::{Answer, NextProcess, Standing};
use crate::question::Question;
use crate::snapshot::Snapshot;
use crate::tcp::ring::Engine;
use crate::udp;

/// Interval at which a worker writes its access-log lines and returns unused memory.
const TICK: Duration = Duration::from_millis(100);

/// How long the supervisor waits for the flows of UDP sockets that are being closed: other changes wait meanwhile. The
/// sockets go on without it (`crates/proxy/src/udp.rs`).
const CHANGE_WAITS: Duration = Duration::from_millis(200);

pub enum Command {
    /// Serve this snapshot from now on; open and close these sockets.
    Apply {
        snapshot: Arc<Snapshot>,
        open: Vec<(BoundKey, Socket)>,
        /// Sockets to close, after the connections in their queues were accepted.
        close: Vec<BoundKey>,
        /// Notified when every new session uses the new snapshot and the sockets of `close` are closed, but those of UDP
        /// that wait for replies for longer than a moment.
        done: oneshot::Sender<()>,
    },
    /// Give another process a descriptor of each socket; this one goes on with them.
    Share { answer: oneshot::Sender<Vec<(BoundKey, OwnedFd)>> },
    /// Take no new sessions, wait for the open ones, then end the thread.
    Drain,
    /// The same for an upgrade. The next process accepts from the sockets of `taken`, so their queues are left to it, and
    /// a client that is between two requests keeps its connection for the next one.
    HandOver { taken: Arc<HashSet<BoundKey>> },
    /// After [`Self::HandOver`]: give the next process the sessions that it can go on with.
    Give { next: Arc<dyn NextProcess> },
    /// What the next process says of a session that was offered.
    Answered { number: u64, answer: Answer },
    /// The next process has ended, and every answer of it was passed on.
    NextEnded,
    /// Says what is left of the sessions.
    Standing { answer: oneshot::Sender<Standing> },
    /// After [`Self::Drain`] or [`Self::HandOver`]: abort the open sessions; each writes its access-log record.
    Cut,
}

struct Accepting {
    close_signal: Rc<accept::CloseSignal>,
    task: JoinHandle<()>,
    ends: Ends,
    /// Number of the socket's descriptor, as long as the task runs.
    number: Option<RawFd>,
}

/// When the task of a closed socket ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    AtOnce,
    /// After the replies that are due, or some seconds.
    AfterReplies,
}

/// The loops that a change ends.
struct Ending {
    tasks: Vec<(JoinHandle<()>, Ends)>,
    /// Loops that an earlier change has closed and that wait for replies. Their sockets would take datagrams that are for the
    /// new sockets.
    cut: Vec<Rc<accept::CloseSignal>>,
}

impl Ending {
    /// Waits for their ends, but for replies no longer than [`CHANGE_WAITS`].
    async fn wait(self) {
        let until = tokio::time::Instant::now() + CHANGE_WAITS;
        for signal in self.cut {
            // A loop that panicked does not note its end, but its socket is closed.
            let _ = tokio::time::timeout_at(until, signal.has_ended()).await;
        }
        for (task, ends) in self.tasks {
            // A task that panicked has closed its socket too.
            let _ = match ends {
                Ends::AtOnce => Ok(task.await),
                Ends::AfterReplies => tokio::time::timeout_at(until, task).await,
            };
        }
    }
}

/// The accept loops of a worker by address. systemd may pass several sockets for one address.
#[derive(Default)]
struct Loops {
    open: HashMap<BoundKey, Vec<Accepting>>,
    /// Of closed sockets that may still wait for replies.
    ending: Vec<(BoundKey, Rc<accept::CloseSignal>)>,
    /// What serves the beginning of TCP sessions, if it is not the runtime.
    engine: Option<Rc<Engine>>,
}

impl Loops {
    /// Starts and stops accept loops. Returns those that are ending; each closes its socket at its end.
    fn change(&mut self, worker: &Rc<Worker>, open: Vec<(BoundKey, Socket)>, close: Vec<BoundKey>) -> Ending {
        let (mut ending, mut cut) = (Vec::new(), Vec::new());
        // A task that has ended has dropped its signal.
        self.ending.retain(|(_, signal)| Rc::strong_count(signal) > 1);
        let earlier = self.ending.len();
        for key in close {
            for Accepting { close_signal, task, ends, .. } in self.open.remove(&key).unwrap_or_default() {
                close_signal.close();
                ending.push((task, ends));
                if ends == Ends::AfterReplies {
                    self.ending.push((key.clone(), close_signal));
                }
            }
        }
        for (key, socket) in open {
            // A listener that is put back has its new socket alone: the earlier one would take a part of the datagrams, or,
            // bound to one address only, all that go there.
            let same = self.ending[..earlier]
                .iter()
                .filter(|(closed, _)| closed.transport == key.transport && closed.bind.may_share(&key.bind));
            for (_, signal) in same {
                signal.cut();
                cut.push(signal.clone());
            }
            let close_signal = Rc::new(accept::CloseSignal::default());
            let (worker, signal) = (worker.clone(), close_signal.clone());
            let ends = if matches!(socket, Socket::Udp(_)) { Ends::AfterReplies } else { Ends::AtOnce };
            let number = socket.number();
            let task = match socket {
                Socket::Udp(socket) => {
                    let served = udp::run(worker, key.clone(), socket, signal.clone());
                    tokio::task::spawn_local(async move {
                        served.await;
                        signal.note_end();
                    })
                }
                Socket::Packet(socket, path) => {
                    tokio::task::spawn_local(dsr::run(worker, key.clone(), socket, *path, signal))
                }
                Socket::Proxied(path) => {
                    tokio::task::spawn_local(dsr::proxied::run(worker, key.clone(), *path, signal))
                }
                socket => {
                    let engine = self.engine.clone();
                    tokio::task::spawn_local(accept::run(worker, key.clone(), socket, signal, engine))
                }
            };
            self.open.entry(key).or_default().push(Accepting { close_signal, task, ends, number });
        }
        Ending { tasks: ending, cut }
    }

    /// Descriptors for another process. A task closes its socket at its end, so the number of one that runs is still that
    /// of its socket.
    fn share(&self) -> Vec<(BoundKey, OwnedFd)> {
        let all = self.open.iter().flat_map(|(key, all)| all.iter().map(move |one| (key, one)));
        let running = all.filter(|(_, accepting)| !accepting.task.is_finished());
        let shared = running.filter_map(|(key, accepting)| {
            let descriptor = sys::descriptors::duplicate(accepting.number?).ok()?;
            Some((key.clone(), descriptor))
        });
        shared.collect()
    }

    /// Leaves the queues of `taken` to another process, and serves those of the other sockets to their ends.
    fn hand_over(&mut self, taken: &HashSet<BoundKey>) {
        for (key, all) in self.open.drain() {
            let is_taken = taken.contains(&key);
            for Accepting { close_signal, .. } in all {
                if is_taken { close_signal.leave() } else { close_signal.close() }
            }
        }
    }

    fn close(&mut self) {
        for accepting in self.open.drain().flat_map(|(_, all)| all) {
            accepting.close_signal.close();
        }
    }
}

/// Shortest time between two looks at changes of health and of marks. Operators may make thousands a second, each of which would
/// wake every worker.
const CALM: Duration = Duration::from_millis(5);

/// Tells a worker that the health or the marks of backends have changed.
struct HealthChanges {
    changes: watch::Receiver<()>,
    from: tokio::time::Instant,
}

impl HealthChanges {
    fn of(state: &State) -> Self {
        Self { changes: state.health_changes.subscribe(), from: tokio::time::Instant::now() }
    }

    /// Completes after a change, and not before [`CALM`] is over since the last one. Nothing is lost if it is dropped before.
    async fn next(&mut self) {
        if self.from > tokio::time::Instant::now() {
            tokio::time::sleep_until(self.from).await;
        }
        // The sender lives as long as the state.
        let _ = self.changes.changed().await;
        self.from = tokio::time::Instant::now() + CALM;
    }
}

/// Runs a worker on the calling thread until it is drained.
pub fn run(
    index: usize,
    front: Arc<Front>,
    snapshot: Arc<Snapshot>,
    log: AccessLog,
    mut commands: mpsc::UnboundedReceiver<Command>,
    mut questions: mpsc::Receiver<Question>,
) -> std::io::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default())?;
    let worker = Worker::new(index, front, snapshot, log)?;
    let mut loops = Loops::default();
    let result = runtime.block_on(async {
        // Polled here, so that its error ends the worker: idle sessions would never be woken again.
        let mut keeping = pin!(worker.idle_sessions.run());
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut health = HealthChanges::of(&worker.front.state);
        loops.engine = Engine::start(&worker);
        let engine = loops.engine.clone();
        let engine = engine.as_deref();
        let tick_all = |now| {
            worker.tick(now);
            if let Some(engine) = engine {
                engine.sweep(now);
            }
        };
        let answer = |question| {
            worker.answer(question);
            // It may have ended sessions.
            if let Some(engine) = engine {
                engine.end_killed();
            }
        };
        let handed_over = loop {
            tokio::select! {
                () = health.next() => worker.handle_health_change(),
                _ = tick.tick() => tick_all(Instant::now()),
                () = worker.slot_cache.account().wanted(index) => worker.give_up_unused(),
                () = worker.slot_cache.account().wished(index) => worker.grant_wishes(),
                error = &mut keeping => return Err(error),
                // The sender lives as long as the front door.
                Some(question) = questions.recv() => answer(question),
                command = commands.recv() => match command {
                    Some(Command::Apply { snapshot, open, close, done }) => {
                        worker.adopt(snapshot);
                        let ending = loops.change(&worker, open, close);
                        tokio::task::spawn_local(async move {
                            ending.wait().await;
                            // The send fails if the supervisor has stopped waiting.
                            let _ = done.send(());
                        });
                    }
                    // The supervisor may have given up.
                    Some(Command::Share { answer }) => drop(answer.send(loops.share())),
                    Some(Command::HandOver { taken }) => break Some(taken),
                    // They come after a hand-over.
                    Some(
                        Command::Give { .. } | Command::Answered { .. } | Command::NextEnded | Command::Standing { .. },
                    ) => {}
                    Some(Command::Drain | Command::Cut) | None => break None,
                },
            }
        };
        match handed_over {
            Some(taken) => {
                loops.hand_over(&taken);
                worker.hand_over();
            }
            None => {
                loops.close();
                worker.drain();
            }
        }
        if let Some(engine) = engine {
            engine.leave_all();
        }
        loop {
            let emptied = worker.emptied.notified();
            let is_empty = worker.connections.borrow().is_empty() && worker.accepting.get() == 0;
            // In this order: what the process before has counted comes before the news of its end.
            let is_told = !worker.counts_for_the_process_before() && (index > 0 || questions.is_empty());
            if is_empty && is_told {
                break;
            }
            tokio::select! {
                () = emptied => {}
                () = health.next() => worker.handle_health_change(),
                _ = tick.tick() => tick_all(Instant::now()),
                error = &mut keeping => return Err(error),
                Some(question) = questions.recv() => answer(question),
                command = commands.recv() => match command {
                    Some(Command::Cut) | None => {
                        worker.cutting.set(true);
                        break;
                    }
                    Some(Command::Give { next }) => worker.begin_giving(next),
                    Some(Command::Answered { number, answer }) => worker.settle(number, answer),
                    Some(Command::NextEnded) => worker.end_giving(),
                    // The supervisor may have given up.
                    Some(Command::Standing { answer }) => drop(answer.send(worker.standing())),
                    Some(
                        Command::Apply { .. } | Command::Share { .. } | Command::Drain | Command::HandOver { .. },
                    ) => {}
                },
            }
        }
        Ok(())
    });
    // Aborts the remaining sessions; each writes its access-log record.
    if let Some(engine) = &loops.engine {
        engine.clear();
    }
    worker.idle_sessions.clear();
    worker.forget_offered();
    drop(runtime);
    worker.batch.borrow_mut().flush();
    // What comes later is added up by its sender, and not while this thread still adds.
    let adding = lock(&worker.front.state.upgrade.late_counts);
    questions.close();
    while let Some(question) = questions.blocking_recv() {
        if matches!(question, Question::Count(_)) {
            worker.answer(question);
        }
    }
    drop(adding);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_health_are_looked_at_once_in_a_while_and_the_last_is_not_lost() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.unwrap().block_on(async {
            let state = State::new(1);
            let mut health = HealthChanges::of(&state);
            state.health_changes.send_replace(());
            let began = tokio::time::Instant::now();
            health.next().await;
            for _ in 0..1000 {
                state.health_changes.send_replace(());
            }
            health.next().await;
            assert!(began.elapsed() >= CALM, "{:?}", began.elapsed());
            let third = tokio::time::timeout(CALM * 3, health.next()).await;
            assert!(third.is_err(), "a thousand changes are one");
        });
    }
}
