//! Signals that end a long-running command.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Ctrl-C, SIGTERM, SIGHUP.
pub(crate) struct Signals([Signal; 3]);

impl Signals {
    /// Installs handlers: from now on these signals do not end the program. Must be called on a runtime.
    pub(crate) fn install() -> io::Result<Self> {
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [interrupt, terminate, hangup] = kinds.map(signal);
        Ok(Signals([interrupt?, terminate?, hangup?]))
    }

    /// Waits for one of the signals.
    pub(crate) async fn any(&mut self) {
        self.next().await;
    }

    /// Waits for the next signal and returns it.
    pub(crate) async fn next(&mut self) -> nix::sys::signal::Signal {
        use nix::sys::signal::Signal::{SIGHUP, SIGINT, SIGTERM};
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => SIGINT,
            _ = terminate.recv() => SIGTERM,
            _ = hangup.recv() => SIGHUP,
        }
    }
}
