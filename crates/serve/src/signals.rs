//! The signals that a server acts on.

use std::io;

use nix::sys::signal::{self, SigSet};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Has SIGHUP and SIGUSR1 wait until the server catches signals. A start takes some 50 ms before that, in which they would
/// end the process: programs that watch a file send SIGHUP at any time. Call this while the process has one thread; programs
/// that it starts by [`std::process::Command`] have all signals again.
///
/// # Errors
/// The kernel refuses to change the mask.
pub fn hold() -> io::Result<()> {
    Ok(held().thread_block()?)
}

fn held() -> SigSet {
    SigSet::from_iter([signal::SIGHUP, signal::SIGUSR1])
}

pub(crate) struct Signals {
    /// SIGHUP: the server reads its configuration, and opens its log files, again.
    pub(crate) reload: Signal,
    /// SIGUSR1: the server opens its log files again.
    pub(crate) reopen: Signal,
    pub(crate) terminate: Signal,
    pub(crate) interrupt: Signal,
}

impl Signals {
    /// Catches the signals, also those that wait since [`hold`]. Call this on the thread that called `hold`.
    pub(crate) fn catch() -> io::Result<Self> {
        let signals = Self {
            reload: signal(SignalKind::hangup())?,
            reopen: signal(SignalKind::user_defined1())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        };
        held().thread_unblock()?;
        Ok(signals)
    }

    /// Completes when a signal asks the process to end.
    pub(crate) async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
