//! Files to copy, and the limit of requests in flight.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ssh::{Allowance, Moved, Tree};

#[derive(Debug, Clone)]
pub struct Order {
    pub(in crate::run) what: What,
    /// Time limit of each phase before the copying starts.
    pub(super) connect_timeout: Duration,
    pub(super) timeout: Option<Duration>,
    /// Limit of the requests of one host that wait for an answer.
    pub(super) in_flight: usize,
    pub(super) total: Arc<Total>,
}

#[derive(Debug, Clone)]
pub enum What {
    /// Copies the same files to every host.
    Put { tree: Arc<Tree>, destination: String },
    /// Copies files from every host.
    Get {
        /// Path on the host, and the local name.
        sources: Vec<(String, String)>,
        /// Local directory, with one subdirectory for each host.
        directory: PathBuf,
        /// Limits of the size and number of files from each host.
        allowance: Allowance,
    },
}

#[derive(Debug, Default)]
pub(super) struct Total {
    pub(super) files: AtomicU64,
    pub(super) bytes: AtomicU64,
}

impl Order {
    /// Creates an order for at most `hosts` hosts at once. Time limits: `connect_timeout` for each phase before the
    /// copying, `timeout` for the copying.
    #[must_use]
    pub fn new(what: What, hosts: usize, connect_timeout: Duration, timeout: Option<Duration>) -> Self {
        let in_flight = in_flight(hosts);
        Self { what, connect_timeout, timeout, in_flight, total: Arc::default() }
    }

    /// Total of all hosts so far.
    pub(in crate::run) fn moved(&self) -> Moved {
        Moved {
            files: self.total.files.load(Ordering::Relaxed),
            bytes: self.total.bytes.load(Ordering::Relaxed),
        }
    }
}

/// Requests in flight for each host. Up to 1,024 hosts at once hold 128 MiB of file content together; each further host
/// adds 128 KiB, since a host with fewer requests would mostly be idle.
#[must_use]
pub fn in_flight(hosts: usize) -> usize {
    (MOST_IN_FLIGHT / hosts.max(1)).clamp(LEAST_EACH, MOST_EACH)
}

/// Limit of the requests in flight of all hosts together, 32 KiB each.
const MOST_IN_FLIGHT: usize = 4096;
const LEAST_EACH: usize = 4;
const MOST_EACH: usize = 128;
