//! The account of descriptors as the report has it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use serde::Serialize;

use crate::state::State;

/// What holds descriptors, and how often they were refused.
#[derive(Clone, Debug, Serialize)]
pub struct Descriptors {
    /// How many the process may open; `None` if it is not known.
    pub limit: Option<usize>,
    /// Open now, of all kinds.
    pub open: Option<usize>,
    /// Kept from traffic: listeners, admin, control, checks, logs.
    pub reserve: usize,
    /// For traffic.
    pub traffic: usize,
    /// Taken of these.
    pub taken: usize,
    /// Taken, by use.
    pub places: Places,
    /// Addresses from which clients are connected, or were a moment ago.
    pub sources: usize,
    /// Refused so far, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Idle backend connections that were closed because others needed their places.
    pub given_up: u64,
}

/// Places that traffic has taken.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Places {
    /// Client connections, each with one backend.
    pub clients: usize,
    /// Backend connections of clients that use several at once.
    pub further: usize,
    /// Idle backend connections.
    pub idle: usize,
    /// Connections to HTTP/2 backends, beyond the first of each worker to each backend.
    pub multiplexed: usize,
    /// Pipes of bulk flows.
    pub pipes: usize,
    /// Taken by workers ahead of their next connections.
    pub spare: usize,
}

impl Places {
    /// Each kind with its name.
    pub fn kinds(&self) -> [(&'static str, usize); 6] {
        [
            ("clients", self.clients),
            ("further", self.further),
            ("idle", self.idle),
            ("multiplexed", self.multiplexed),
            ("pipes", self.pipes),
            ("spare", self.spare),
        ]
    }
}

impl Descriptors {
    /// How the account is now.
    pub fn read(state: &State) -> Self {
        let account = &state.account;
        let standing = account.standing();
        let others = standing.further + standing.idle + standing.lines + standing.pipes + standing.spare;
        Self {
            limit: standing.descriptors,
            // It is not known without /proc.
            open: sys::descriptors::open_count().ok(),
            reserve: standing.reserve,
            traffic: standing.limit,
            taken: standing.taken,
            places: Places {
                // The workers change the numbers while they are read.
                clients: standing.taken.saturating_sub(others),
                further: standing.further,
                idle: standing.idle,
                multiplexed: standing.lines,
                pipes: standing.pipes,
                spare: standing.spare,
            },
            sources: account.sources.count(),
            refused: account.refusals().into_iter().collect(),
            given_up: account.given_up.load(Relaxed),
        }
    }
}
