//! The requests that end a run: SIGINT, SIGTERM, SIGHUP, and `penstock tunnel down`.

use std::io;
use std::sync::Arc;

use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

pub(crate) struct Stop {
    wanted: watch::Sender<Option<Signal>>,
    seen: watch::Receiver<Option<Signal>>,
}

impl Stop {
    pub(crate) fn install() -> io::Result<Self> {
        let wanted = watch::Sender::new(None);
        for (kind, name) in [
            (SignalKind::interrupt(), Signal::SIGINT),
            (SignalKind::terminate(), Signal::SIGTERM),
            (SignalKind::hangup(), Signal::SIGHUP),
        ] {
            let mut arrives = signal(kind)?;
            let wanted = wanted.clone();
            tokio::spawn(async move {
                while arrives.recv().await.is_some() {
                    wanted.send_replace(Some(name));
                }
            });
        }
        let seen = wanted.subscribe();
        Ok(Self { wanted, seen })
    }

    /// A function that requests the end, as SIGTERM does.
    pub(crate) fn trigger(&self) -> Arc<dyn Fn() + Send + Sync> {
        let wanted = self.wanted.clone();
        Arc::new(move || {
            wanted.send_replace(Some(Signal::SIGTERM));
        })
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.borrow().is_some()
    }

    /// Waits until the end is requested. Returns at once if it was requested before.
    pub(crate) async fn wanted(&self) {
        let mut seen = self.wanted.subscribe();
        // `wait_for` cannot fail, since `self` holds the sender.
        let _ = seen.wait_for(Option::is_some).await;
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) -> Signal {
        loop {
            if self.seen.changed().await.is_err() {
                return std::future::pending().await;
            }
            if let Some(signal) = *self.seen.borrow_and_update() {
                return signal;
            }
        }
    }
}

/// Whether Ctrl-C on the terminal signals every process of our process group.
pub(crate) fn is_foreground() -> bool {
    nix::unistd::tcgetpgrp(std::io::stdin()).is_ok_and(|group| group == nix::unistd::getpgrp())
}
