//! Keep-alive messages to a silent server.

use std::time::Duration;

/// Rule for the time after which a silent connection counts as broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeepAlive {
    /// Silence before each keep-alive message; `None` sends none.
    pub interval: Option<Duration>,
    /// Number of unanswered messages after which the connection counts as broken.
    pub count: usize,
}

impl Default for KeepAlive {
    fn default() -> Self {
        Self { interval: Some(Duration::from_secs(15)), count: 3 }
    }
}
