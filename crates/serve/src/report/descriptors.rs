//! Report of the account of descriptors.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use serde::Serialize;
use state::State;

/// Current use of descriptors, and number of refusals.
#[derive(Clone, Debug, Serialize)]
pub struct Descriptors {
    /// Largest number of open descriptors of the process; `None` if unknown.
    pub limit: Option<usize>,
    /// Number of open descriptors of all kinds; `None` without /proc.
    pub open: Option<usize>,
    /// Descriptors reserved for listeners, admin, control, checks and logs.
    pub reserve: usize,
    pub traffic_limit: usize,
    pub used: usize,
    pub by_use: ByUse,
    /// Number of client addresses with connections, now or shortly before.
    pub sources: usize,
    /// Number of refused connections, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Idle backend connections closed to free their slots.
    pub idle_closed: u64,
}

/// Slots that traffic holds, by use.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ByUse {
    /// Client connections, each with one backend connection.
    pub clients: usize,
    /// Additional backend connections of clients that use several at the same time.
    pub additional: usize,
    pub idle: usize,
    /// Connections to HTTP/2 backends beyond the first of each worker to each backend.
    pub multiplexed: usize,
    /// Pipes of bulk flows.
    pub pipes: usize,
    /// Sockets of UDP flows.
    pub flows: usize,
    /// Slots that workers reserve for their next connections.
    pub spare: usize,
}

impl ByUse {
    pub fn kinds(&self) -> [(&'static str, usize); 7] {
        [
            ("clients", self.clients),
            ("additional", self.additional),
            ("idle", self.idle),
            ("multiplexed", self.multiplexed),
            ("pipes", self.pipes),
            ("flows", self.flows),
            ("spare", self.spare),
        ]
    }
}

impl Descriptors {
    /// Reads the current account.
    pub fn read(state: &State) -> Self {
        let account = &state.account;
        let standing = account.standing();
        let others = standing.additional
            + standing.idle
            + standing.lines
            + standing.pipes
            + standing.flows
            + standing.spare;
        Self {
            limit: standing.descriptors,
            open: sys::descriptors::open_count().ok(),
            reserve: standing.reserve,
            traffic_limit: standing.limit,
            used: standing.taken,
            by_use: ByUse {
                // Saturate: workers change the numbers during the read.
                clients: standing.taken.saturating_sub(others),
                additional: standing.additional,
                idle: standing.idle,
                multiplexed: standing.lines,
                pipes: standing.pipes,
                flows: standing.flows,
                spare: standing.spare,
            },
            sources: account.sources.count(),
            refused: account.refusals().into_iter().collect(),
            idle_closed: account.idle_closed.load(Relaxed),
        }
    }
}
