//! What an HTTP/1.1 connection keeps between two requests, beside its stream.

use std::sync::Arc;
use std::time::{Duration, Instant};

use config::types::HttpSettings;

use crate::arrival::Arrival;
use crate::snapshot::{ListenerPlan, http_settings};
use crate::worker::Current;

pub(super) struct Waiting {
    /// Newest snapshot with the listener.
    pub(super) current: Current,
    pub(super) plan: Arc<ListenerPlan>,
    pub(super) arrival: Arrival,
    /// Requests that were answered or are being answered.
    pub(super) served: u64,
    /// End of the last request, or the start of the connection.
    pub(super) since: Instant,
}

impl Waiting {
    pub(super) fn new(current: Current, plan: Arc<ListenerPlan>, arrival: Arrival) -> Self {
        Self { current, plan, arrival, served: 0, since: Instant::now() }
    }

    /// Settings of the listener; `None` if it does not speak HTTP any more.
    pub(super) fn settings(&self) -> Option<&HttpSettings> {
        http_settings(&self.plan)
    }

    /// How long the client may send nothing, from the end of its last request.
    pub(super) fn patience(&self) -> Duration {
        match (self.settings(), self.served) {
            (None, _) => Duration::ZERO,
            (Some(settings), 0) => settings.timeouts.head,
            (Some(settings), _) => settings.timeouts.idle,
        }
    }
}
