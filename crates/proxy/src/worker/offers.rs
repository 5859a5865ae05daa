//! The sessions that a worker gives to the next process of an upgrade, and how far it has come:
//! `crates/proxy/src/worker/giving.rs` gives them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::given::NextProcess;
use crate::idle_sessions::IdleSession;

#[derive(Default)]
pub(super) struct Giving {
    pub(super) next: Option<Arc<dyn NextProcess>>,
    /// Sessions that relays have given up, with nothing buffered, and that wait to be offered. Idle ones are offered from where they
    /// are stored.
    pub(super) waiting: VecDeque<IdleSession>,
    pub(super) offered: HashMap<u64, IdleSession>,
    pub(super) last: u64,
    /// Where the idle sessions are looked at next.
    pub(super) from: usize,
    /// When relays stop trying to be empty, or begin again after a rest.
    pub(super) turn: Option<Instant>,
    pub(super) rest: Duration,
    /// When the next process has answered last.
    pub(super) heard: Option<Instant>,
}
