//! Questions of an operator to the workers. A worker answers between two sessions; nothing changes for it. An upgrade uses the same way.

use std::sync::Arc;

use logic::balance::Balancer;
use logic::route::PoolId;
use state::kept::traffic::Traffic;
use tokio::sync::oneshot;

use crate::given::Adoption;
use crate::listing::{Asked, EndedSession, Place, Scanned, Sockets, Target, Whence};
use crate::past::PastSession;
use crate::snapshot::Snapshot;

/// Questions that may wait for one worker.
pub const WAITING: usize = 16;

pub enum Question {
    /// Asks for a copy of the balancer that a session under this snapshot would use.
    Balancer { snapshot: Arc<Snapshot>, pool: PoolId, answer: oneshot::Sender<Balancer> },
    /// Asks for a part of the open sessions.
    Sessions { asked: Arc<Asked>, from: Whence, answer: oneshot::Sender<Scanned> },
    /// Asks what the kernel knows of the connections of these sessions: of the client's, and of the one to its backend.
    Tcp { places: Vec<Place>, answer: oneshot::Sender<Vec<Sockets>> },
    /// Ends these sessions, or requests of them. Either all are flows of one socket, or all are connections. The answer has
    /// those that were open.
    Kill { targets: Vec<Target>, answer: oneshot::Sender<Vec<EndedSession>> },
    /// Adds to the counters of this worker what the process before an upgrade has counted.
    Count(Box<Traffic>),
    /// Goes on with a session of the process before an upgrade.
    Adopt(Box<Adoption>),
    /// Asks for the last session with this request id or client address.
    Past { id: Arc<str>, answer: oneshot::Sender<Option<Box<PastSession>>> },
}
