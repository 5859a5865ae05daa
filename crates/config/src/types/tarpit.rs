//! `tarpit` of a listener.

use std::time::Duration;

/// How long, and how many, clients are held open that the access list of a listener denies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tarpit {
    pub time: Duration,
    /// Largest number of clients that are held at the same time.
    pub clients: usize,
}
