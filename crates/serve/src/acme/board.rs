//! How the orders stand, for reports, and what workers need of them.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use logic::acme::Next;

use super::challenges::Challenges;
use crate::lock::lock;

/// What is known of all orders, for reports, and what workers need.
#[derive(Debug, Default)]
pub struct Board {
    /// The challenges that are pending.
    pub challenges: Arc<Challenges>,
    /// Certificates issued since the start.
    pub issued: AtomicU64,
    /// Orders that failed since the start.
    pub failed: AtomicU64,
    pub(super) standings: Mutex<BTreeMap<Key, Standing>>,
}

/// NAME of the section, and what the certificate is called by.
pub(super) type Key = (Arc<str>, Arc<str>);

impl Board {
    /// The certificates of a section, by name.
    pub fn of_section(&self, section: &str) -> Vec<(Arc<str>, Standing)> {
        let all = lock(&self.standings);
        let of_section = all.iter().filter(|((its, _), _)| **its == *section);
        of_section.map(|((_, name), standing)| (name.clone(), standing.clone())).collect()
    }
}

/// How the renewal of a certificate stands.
#[derive(Clone, Debug)]
pub struct Standing {
    /// What it is for.
    pub names: Vec<String>,
    /// What its task does.
    pub phase: Phase,
    /// When it orders next, and why then.
    pub next: Next,
    /// Failures since the last success.
    pub failures: u32,
    /// Why the last order failed.
    pub reason: Option<String>,
}

/// What a certificate's task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It waits until the certificate is due.
    Waiting,
    /// It orders.
    Ordering,
    /// The last order failed; it waits to try again.
    Failed,
}

impl Phase {
    /// Its word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Ordering => "ordering",
            Self::Failed => "failed",
        }
    }
}
