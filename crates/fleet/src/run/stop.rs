//! Stops a run before its end: after a signal, or when output or input is lost.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    No,
    /// No further host is started, and running commands are ended.
    Gently(Why),
    /// The program exits at once.
    AtOnce(Why),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    Interrupted,
    /// The reader closed standard output (EPIPE).
    ReaderGone,
    /// Standard output cannot be written to, for example because the disk is full.
    OutputLost,
    /// The input for all hosts could not be read.
    NoInput,
}

/// Stops a run. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Brake(Arc<watch::Sender<Stop>>);

impl Default for Brake {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Stop::No)))
    }
}

impl Brake {
    /// Stops the run gently. If the run was stopped before, the first reason stays.
    pub fn pull(&self, why: Why) {
        self.0.send_if_modified(|stop| match stop {
            Stop::No => {
                *stop = Stop::Gently(why);
                true
            }
            _ => false,
        });
    }

    /// Stops the run at once.
    pub fn cut(&self) {
        self.0.send_if_modified(|stop| match *stop {
            Stop::No => {
                *stop = Stop::AtOnce(Why::Interrupted);
                true
            }
            Stop::Gently(why) => {
                *stop = Stop::AtOnce(why);
                true
            }
            Stop::AtOnce(_) => false,
        });
    }

    #[must_use]
    pub fn now(&self) -> Stop {
        *self.0.borrow()
    }

    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Stop> {
        self.0.subscribe()
    }

    /// Handles signals from now on: the first stops the run gently, the second at once. `said` is called for each of
    /// the two.
    ///
    /// # Errors
    /// No signal handler can be installed.
    pub fn obey_signals(&self, said: impl Fn(Stop) + Send + 'static) -> io::Result<()> {
        let mut kinds = Kinds {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        };
        let brake = self.clone();
        tokio::spawn(async move {
            loop {
                kinds.next().await;
                let before = brake.now();
                if before == Stop::No {
                    brake.pull(Why::Interrupted);
                } else {
                    brake.cut();
                }
                if brake.now() != before {
                    said(brake.now());
                }
            }
        });
        Ok(())
    }
}

struct Kinds {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Kinds {
    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}

/// Waits until the run is stopped. Never returns if it is not.
pub async fn stopped(watch: &mut watch::Receiver<Stop>) -> Stop {
    // The `map` ends the borrow of the watch before the next wait.
    let seen = watch.wait_for(|stop| *stop != Stop::No).await.map(|stop| *stop);
    match seen {
        Ok(stop) => stop,
        Err(_) => std::future::pending().await,
    }
}

/// Waits until the run is stopped at once.
pub async fn cut(watch: &mut watch::Receiver<Stop>) {
    let seen = watch.wait_for(|stop| matches!(stop, Stop::AtOnce(_))).await.map(|_| ());
    if seen.is_err() {
        std::future::pending().await
    }
}

/// Waits until the run is stopped, then for `patience`.
pub(super) async fn impatient(brake: &Brake, patience: Duration) {
    stopped(&mut brake.watch()).await;
    tokio::time::sleep(patience).await;
}

/// Waits until the time `at`. Never returns for `None`.
pub(super) async fn until(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

pub(super) fn why(stop: Stop) -> &'static str {
    match stop {
        Stop::No => "stopped",
        Stop::Gently(why) | Stop::AtOnce(why) => match why {
            Why::Interrupted => "interrupted",
            Why::ReaderGone => "the reader of our output is gone",
            Why::OutputLost => "standard output cannot be written to",
            Why::NoInput => "the input for all hosts could not be read",
        },
    }
}
