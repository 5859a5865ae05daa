//! The thread of a worker: it obeys the supervisor, keeps the accept loops, and ends when they and all sessions have ended.

use std::collections::HashMap;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::Worker;
use crate::accept;
use crate::access_log::AccessLog;
use crate::front::Front;
use crate::listen::{BoundKey, Socket};
use crate::snapshot::Snapshot;

/// How often a worker hands on its log lines, and memory that it no longer needs.
const TICK: Duration = Duration::from_millis(100);

/// What the supervisor tells a worker.
pub enum Command {
    /// Serve this snapshot from now on; open and close these sockets.
    Apply {
        /// The new snapshot.
        snapshot: Arc<Snapshot>,
        /// Sockets to accept from.
        open: Vec<(BoundKey, Socket)>,
        /// Sockets to give up, after what waits in their queues was accepted.
        close: Vec<BoundKey>,
        /// Told when every new session sees the new snapshot and the sockets of `close` are closed.
        done: oneshot::Sender<()>,
    },
    /// Take no new sessions, let the open ones end, then end the thread.
    Drain,
    /// After [`Self::Drain`]: end the open sessions too, each with its record.
    Cut,
}

/// An accept loop: how to end it, and its end.
struct Accepting {
    gate: Rc<accept::Gate>,
    task: JoinHandle<()>,
}

/// The accept loops of a worker by address; systemd may pass several sockets for one.
#[derive(Default)]
struct Loops(HashMap<BoundKey, Vec<Accepting>>);

impl Loops {
    /// The accept loops that end are given back: with each end a socket is closed.
    fn change(
        &mut self,
        worker: &Rc<Worker>,
        open: Vec<(BoundKey, Socket)>,
        close: Vec<BoundKey>,
    ) -> Vec<JoinHandle<()>> {
        let mut ending = Vec::new();
        for key in close {
            for Accepting { gate, task } in self.0.remove(&key).unwrap_or_default() {
                gate.close();
                ending.push(task);
            }
        }
        for (key, socket) in open {
            let gate = Rc::new(accept::Gate::default());
            let accepting = accept::run(worker.clone(), key.clone(), socket, gate.clone());
            let task = tokio::task::spawn_local(accepting);
            self.0.entry(key).or_default().push(Accepting { gate, task });
        }
        ending
    }

    fn close(&mut self) {
        for accepting in self.0.drain().flat_map(|(_, all)| all) {
            accepting.gate.close();
        }
    }
}

/// The worker's thread: serves commands until it is drained. Runs on the calling thread.
pub fn run(
    index: usize,
    front: Arc<Front>,
    snapshot: Arc<Snapshot>,
    log: AccessLog,
    mut commands: mpsc::UnboundedReceiver<Command>,
) -> std::io::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default())?;
    let worker = Worker::new(index, front, snapshot, log)?;
    let mut loops = Loops::default();
    let result = runtime.block_on(async {
        // In the task of the worker itself: were it to end, sessions would sleep for ever.
        let mut keeping = pin!(worker.dormitory.keep());
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = tick.tick() => worker.tick(Instant::now()),
                () = worker.place_cache.account().wanted(index) => worker.give_up_unused(),
                () = worker.place_cache.account().wished(index) => worker.grant_wishes(),
                error = &mut keeping => return Err(error),
                command = commands.recv() => match command {
                    Some(Command::Apply { snapshot, open, close, done }) => {
                        worker.adopt(snapshot);
                        let ending = loops.change(&worker, open, close);
                        tokio::task::spawn_local(async move {
                            for task in ending {
                                // One that panicked has closed its socket as well.
                                let _ = task.await;
                            }
                            // The supervisor may have given up waiting.
                            let _ = done.send(());
                        });
                    }
                    Some(Command::Drain | Command::Cut) | None => break,
                },
            }
        }
        loops.close();
        worker.drain();
        loop {
            let emptied = worker.emptied.notified();
            if worker.connections.borrow().is_empty() && worker.accepting.get() == 0 {
                break;
            }
            tokio::select! {
                () = emptied => {}
                _ = tick.tick() => worker.tick(Instant::now()),
                error = &mut keeping => return Err(error),
                command = commands.recv() => if matches!(command, Some(Command::Cut) | None) {
                    worker.cutting.set(true);
                    break;
                },
            }
        }
        Ok(())
    });
    // Ends every session that is left; each writes its record as it goes.
    worker.dormitory.clear();
    drop(runtime);
    worker.batch.borrow_mut().flush();
    result
}
