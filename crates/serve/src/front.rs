//! The running front door as the slow side sees it: state, the current snapshot, and a way to ask for a reload.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::{mpsc, oneshot};

use crate::snapshot::Snapshot;
use crate::state::State;

/// Shared by the control socket, the admin listener, health checks and the supervisor.
pub struct Front {
    /// What survives reloads.
    pub state: Arc<State>,
    /// What is served now.
    pub snapshot: ArcSwap<Snapshot>,
    /// Requests to the supervisor in `start.rs`.
    pub requests: mpsc::Sender<Request>,
}

/// What others may ask of the supervisor.
#[derive(Debug)]
pub enum Request {
    /// Read the configuration again. The answer is a line for people; an error is the rendered faults.
    Reload(oneshot::Sender<Result<String, String>>),
    /// Drain and end, as SIGTERM does.
    Stop,
}
