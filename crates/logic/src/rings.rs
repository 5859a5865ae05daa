//! Which processes make an io_uring(7) for each worker: decided by the configuration (`config::types::engine`), told by
//! `penstock doctor`.

/// Whether a process makes rings when it begins. It could have none later: it gives up the call before it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantedRings {
    /// No listener can use one, or epoll was chosen.
    None,
    /// Where they are allowed.
    IfAllowed,
    /// They were asked for: it is a fault if they cannot be had.
    Asked,
}
