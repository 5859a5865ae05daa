//! Why and how a run is stopped before its end: signals, a reader that left, output or input that is lost.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// Whether a run goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// It does.
    No,
    /// Nothing new is started, and what runs on the hosts is ended.
    Gently(Why),
    /// Everything is let go.
    AtOnce(Why),
}

/// Why a run stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// Ctrl-C, SIGTERM or SIGHUP.
    Interrupted,
    /// Nobody reads our output any more.
    ReaderGone,
    /// Standard output cannot be written to: a full disk.
    OutputLost,
    /// Input for all hosts could not be read.
    NoInput,
}

/// The one place where a run is stopped. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Brake(Arc<watch::Sender<Stop>>);

impl Default for Brake {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Stop::No)))
    }
}

impl Brake {
    /// Stops gently; the first reason stays.
    pub fn pull(&self, why: Why) {
        self.0.send_if_modified(|stop| match stop {
            Stop::No => {
                *stop = Stop::Gently(why);
                true
            }
            _ => false,
        });
    }

    /// Lets go of everything.
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

    /// How it stands.
    #[must_use]
    pub fn now(&self) -> Stop {
        *self.0.borrow()
    }

    /// To wait for it.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Stop> {
        self.0.subscribe()
    }

    /// Obeys signals from now on: the first stops gently, the second at once. `said` is told of these two.
    ///
    /// # Errors
    /// The signals cannot be taken.
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

/// Waits until a run is stopped, and never returns if it is not.
pub async fn stopped(watch: &mut watch::Receiver<Stop>) -> Stop {
    // The borrow must not live over the next wait.
    let seen = watch.wait_for(|stop| *stop != Stop::No).await.map(|stop| *stop);
    match seen {
        Ok(stop) => stop,
        Err(_) => std::future::pending().await,
    }
}

/// Waits until everything has to be let go.
pub async fn cut(watch: &mut watch::Receiver<Stop>) {
    let seen = watch.wait_for(|stop| matches!(stop, Stop::AtOnce(_))).await.map(|_| ());
    if seen.is_err() {
        std::future::pending().await
    }
}

/// Waits until a run is stopped, and for `patience` more.
pub(super) async fn impatient(brake: &Brake, patience: Duration) {
    stopped(&mut brake.watch()).await;
    tokio::time::sleep(patience).await;
}
