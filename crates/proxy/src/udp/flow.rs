//! One flow: its socket to a backend, its permits, and its outcome.

use std::sync::Arc;
use std::time::Instant;

use logic::attempts::Fault;
use logic::udp::{Ended, Hearing, Progress, Replies};
use state::ending::Ending;

use super::sockets::BackendSocket;
use super::tap::Tapping;
use crate::admission::ListenerPermit;
use crate::ejection;
use crate::outcome::Outcome;
use crate::snapshot::PoolPlan;
use crate::upstream::{InFlight, Trial};
use crate::worker::Worker;

pub(super) struct Flow {
    /// Number of the flow among all of its worker.
    pub(super) serial: u64,
    /// Connected to the backend.
    pub(super) socket: BackendSocket,
    pub(super) outcome: Outcome,
    pub(super) hearing: Hearing,
    /// When its backend refused a datagram last.
    pub(super) refused: Option<Instant>,
    pub(super) memory: Memory,
    /// PROXY header before each datagram to the backend; empty for none.
    pub(super) header: Box<[u8]>,
    pub(super) _in_flight: InFlight,
    pub(super) trial: Option<Trial>,
    pub(super) replies: Replies,
    pub(super) tapping: Tapping,
    pub(super) _permit: ListenerPermit,
}

/// Whether the sticky table knows where the flow is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    /// With the first reply of its backend.
    Due,
    Told,
}

impl Flow {
    /// The pool of the flow, and the index of its backend there.
    pub(super) fn backend(&self) -> Option<(&Arc<PoolPlan>, usize)> {
        self.outcome.pool.as_ref().zip(self.outcome.backend)
    }

    /// Where no reply is due, a flow that ends without a refusal tells that a half-open backend works.
    pub(super) fn note_trial(&self, worker: &Worker) {
        let is_well = self.replies == Replies::Exactly(0) && self.hearing != Hearing::Refused;
        if self.trial.is_some()
            && is_well
            && let Some((pool, index)) = self.backend()
        {
            ejection::note_trial(worker, pool, index, None);
        }
    }
}

/// Why a flow ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// All replies have come.
    Complete,
    Timeout,
    /// Another flow takes its place.
    Evicted,
    /// The listening socket is being closed.
    Closing,
    /// An operator has ended it.
    Killed,
}

/// Finishes the outcome of a flow, and gives its permits back. Returns its socket.
pub(super) fn end(ended: Ended<Flow>, why: End) -> BackendSocket {
    let mut flow = ended.value;
    let is_reply_missing = match flow.replies {
        Replies::Any => ended.progress == Progress::Unanswered,
        Replies::Exactly(_) => ended.missing > 0,
    };
    let is_refused = flow.hearing == Hearing::Refused;
    if let Some(refused) = flow.refused.filter(|_| is_refused && why == End::Timeout) {
        // Then it was over; what followed was a wait for the client.
        flow.outcome.stop_clock_at(refused);
    }
    if let Some(backend) = flow.outcome.backend.filter(|_| is_refused) {
        flow.outcome.failed.note(backend, Fault::Refused);
    }
    flow.outcome.end(match why {
        End::Complete if !is_reply_missing => Ending::Ok,
        // One was lost, and later ones have come.
        End::Complete => Ending::NoReply,
        End::Evicted => Ending::FlowEvicted,
        End::Killed => Ending::Killed,
        // Where no reply is due, a refusal is all that tells of lost datagrams.
        End::Timeout | End::Closing if is_refused => Ending::ConnectFailed,
        End::Timeout | End::Closing if !is_reply_missing => Ending::Ok,
        End::Closing => Ending::DrainTimeout,
        End::Timeout => Ending::NoReply,
    });
    flow.socket
}
