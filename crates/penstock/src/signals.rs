//! What ends a long-running command from outside.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Ctrl-C, SIGTERM, SIGHUP.
pub struct Signals([Signal; 3]);

impl Signals {
    /// From here on these signals are waited for instead of ending the program. Within a runtime.
    pub fn install() -> io::Result<Self> {
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [interrupt, terminate, hangup] = kinds.map(signal);
        Ok(Signals([interrupt?, terminate?, hangup?]))
    }

    /// Returns when one of them came.
    pub async fn any(&mut self) {
        self.next().await;
    }

    /// The next that comes.
    pub async fn next(&mut self) -> nix::sys::signal::Signal {
        use nix::sys::signal::Signal::{SIGHUP, SIGINT, SIGTERM};
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => SIGINT,
            _ = terminate.recv() => SIGTERM,
            _ = hangup.recv() => SIGHUP,
        }
    }
}
