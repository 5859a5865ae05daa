//! One flow: its socket to a backend, its permits, and its outcome.

use std::net::UdpSocket;
use std::rc::Rc;
use std::sync::Arc;

use logic::udp::{Answerability, Ended, Progress, Replies};
use state::account::{Kind, SlotCache};
use state::ending::Ending;

use crate::admission::ListenerPermit;
use crate::outcome::Outcome;
use crate::snapshot::PoolPlan;
use crate::upstream::InFlight;

pub(super) struct Flow {
    /// Connected to the backend.
    pub(super) socket: UdpSocket,
    pub(super) outcome: Outcome,
    pub(super) answers: Answerability,
    pub(super) _in_flight: InFlight,
    pub(super) replies: Replies,
    // Given back after the socket is closed.
    pub(super) _slot: FlowSlot,
    pub(super) _permit: ListenerPermit,
}

impl Flow {
    /// The pool of the flow, and the index of its backend there.
    pub(super) fn backend(&self) -> Option<(&Arc<PoolPlan>, usize)> {
        self.outcome.pool.as_ref().zip(self.outcome.backend)
    }
}

/// One slot of the account of descriptors, for the socket of a flow.
pub(super) struct FlowSlot(Rc<SlotCache>);

impl FlowSlot {
    /// Wraps a slot of [`Kind::Flows`] that was taken.
    pub(super) fn taken(slot_cache: Rc<SlotCache>) -> Self {
        Self(slot_cache)
    }
}

impl Drop for FlowSlot {
    fn drop(&mut self) {
        self.0.give_of(Kind::Flows, 1);
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
}

/// Finishes the outcome of a flow, and closes its socket.
pub(super) fn end(ended: Ended<Flow>, why: End) {
    let mut flow = ended.value;
    let is_reply_missing = match flow.replies {
        Replies::Any => ended.progress == Progress::Unanswered,
        Replies::Exactly(_) => ended.due > 0,
    };
    flow.outcome.end(match why {
        End::Complete => Ending::Ok,
        End::Evicted => Ending::FlowEvicted,
        End::Timeout | End::Closing if !is_reply_missing => Ending::Ok,
        End::Closing => Ending::DrainTimeout,
        End::Timeout if flow.answers == Answerability::RefusedUs => Ending::ConnectFailed,
        End::Timeout => Ending::NoReply,
    });
}
