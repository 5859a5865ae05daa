//! What a new flow may cost others.

use std::time::Instant;

use super::{FlowId, FlowTable};

/// The place of a new flow. However many limits it meets (of the table, of a backend, of descriptors, of ports), one
/// flow at most ends for it: a flood cannot end two flows with each datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The table has room.
    Free,
    /// This flow must end for it.
    InPlaceOf(FlowId),
    /// A flow has ended for it.
    Paid,
}

impl Place {
    /// The flow that ends because something ran out; `None` if the new flow has to do without it.
    pub fn claim<T>(&mut self, table: &FlowTable<T>, now: Instant) -> Option<FlowId> {
        let claimed = match *self {
            Self::Free => table.first_to_yield(now),
            Self::InPlaceOf(id) => Some(id),
            Self::Paid => None,
        };
        if claimed.is_some() {
            *self = Self::Paid;
        }
        claimed
    }

    /// The flow that must end before the new one is inserted, if it has not ended yet.
    pub fn owed(&mut self) -> Option<FlowId> {
        match *self {
            Self::InPlaceOf(id) => {
                *self = Self::Paid;
                Some(id)
            }
            Self::Free | Self::Paid => None,
        }
    }
}
