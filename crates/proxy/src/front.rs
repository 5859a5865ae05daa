//! The running server as all its threads see it: state, current snapshot, and requests for a reload.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use logic::transaction::{Ask, Changes, Operator};
use state::State;
use tokio::sync::{mpsc, oneshot};

use crate::question::Question;
use crate::snapshot::Snapshot;

/// State that the workers, the control socket, the admin listener and the supervisor share.
pub struct Front {
    pub state: Arc<State>,
    pub snapshot: ArcSwap<Snapshot>,
    /// Requests to the supervisor in `crates/serve/src/start.rs`.
    pub requests: mpsc::Sender<Request>,
    /// To each worker, in the order of their numbers.
    pub questions: Vec<mpsc::Sender<Question>>,
}

/// Requests to the supervisor.
#[derive(Debug)]
pub enum Request {
    /// Reload the configuration. The answer is a message for the operator; the error is the rendered faults.
    Reload { by: Operator, answer: oneshot::Sender<Result<String, String>> },
    /// Show or change the configuration that is served.
    Change { by: Operator, ask: Ask, answer: oneshot::Sender<(Result<Said, Denied>, Changes)> },
    /// Compile the configuration of the open transaction, for a question about it; nothing of it is served.
    Compile { answer: oneshot::Sender<Result<Arc<Snapshot>, Denied>> },
    /// Let another process take over, then drain and exit.
    Upgrade {
        upgrade: Upgrade,
        answer: oneshot::Sender<Result<Said, Denied>>,
        /// Closed when the operator has the answer: this process ends no sooner.
        told: oneshot::Receiver<()>,
    },
    /// Drain and exit, like SIGTERM.
    Stop,
}

/// An upgrade that an operator asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upgrade {
    pub by: Operator,
    /// Path of the program; `None`: the one that was started.
    pub program: Option<String>,
    /// Time for the sessions of this process; `None`: the default.
    pub drain: Option<Duration>,
    pub extent: Extent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Until the new process is ready, which is then ended.
    Check,
    Whole,
}

/// An answer to an operator, for people and for programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    pub text: String,
    /// One line of JSON.
    pub json: String,
}

/// Why something was not done: nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    pub message: String,
    /// Lines after the message: a hint, or the faults of a configuration.
    pub details: String,
}
