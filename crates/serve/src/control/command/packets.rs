//! Where the packets of an answer come from: sessions of a capture, or services of a trace.

use state::capture::Capturing;
use state::dsr::trace::Tracing;

/// Packets that are sent to a client until it ends.
pub(in crate::control) enum Source {
    Capture(Capturing),
    Trace(Tracing),
}

/// What a source has counted.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::control) struct Counts {
    /// `None` of a trace, which has no sessions.
    pub(in crate::control) sessions: Option<u64>,
    /// Bytes that the client took too slowly.
    pub(in crate::control) left_out: u64,
    /// Packets that were not looked at, as there were too many; `None` of a capture.
    pub(in crate::control) missed: Option<u64>,
}

impl Source {
    pub(in crate::control) async fn next(&mut self) -> Option<Vec<u8>> {
        match self {
            Self::Capture(capturing) => capturing.next().await,
            Self::Trace(tracing) => tracing.next().await,
        }
    }

    pub(in crate::control) fn close(&mut self) {
        match self {
            Self::Capture(capturing) => capturing.close(),
            Self::Trace(tracing) => tracing.close(),
        }
    }

    pub(in crate::control) fn counts(&self) -> Counts {
        match self {
            Self::Capture(capturing) => {
                let (sessions, left_out) = capturing.counts();
                Counts { sessions: Some(sessions), left_out, missed: None }
            }
            Self::Trace(tracing) => {
                Counts { sessions: None, left_out: tracing.left_out(), missed: Some(tracing.missed()) }
            }
        }
    }
}
