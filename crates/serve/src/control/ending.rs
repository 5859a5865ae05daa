//! The end of the control thread: each command that a client has sent before is answered.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

/// Time for all clients to get their answers.
const LIMIT: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct Ending {
    /// Set at the end: time for the command of a client that has just connected, or has sent a part of one.
    last_line: watch::Sender<Option<Duration>>,
    /// Clients that wait for an answer, or may be about to send a command.
    open: watch::Sender<usize>,
}

/// A client of the control socket: the end of the control thread waits until this is dropped.
#[derive(Debug)]
pub(super) struct Open(Arc<Ending>);

impl Ending {
    pub(super) fn client(self: &Arc<Self>) -> Open {
        self.open.send_modify(|open| *open += 1);
        Open(self.clone())
    }

    /// Completes when clients are to be answered for the last time. Returns the time for the last command.
    pub(super) async fn begun(&self) -> Duration {
        let mut last_line = self.last_line.subscribe();
        // The sender lives as long as this.
        last_line.wait_for(Option::is_some).await.ok().and_then(|time| *time).unwrap_or_default()
    }

    /// Waits until each client has its last answer, but not for one that does not read.
    pub(super) async fn run(&self, last_line: Duration) {
        self.last_line.send_replace(Some(last_line));
        let mut open = self.open.subscribe();
        let _ = timeout(LIMIT, open.wait_for(|open| *open == 0)).await;
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.send_modify(|open| *open -= 1);
    }
}
