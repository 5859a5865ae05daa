use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use logic::acme::Next;

use super::challenges::Challenges;
use crate::lock::lock;

/// State of all certificate orders, for reports and workers.
#[derive(Debug, Default)]
pub struct Board {
    pub challenges: Arc<Challenges>,
    /// Certificates issued since the start.
    pub issued: AtomicU64,
    /// Failed orders since the start.
    pub failed: AtomicU64,
    pub standings: Mutex<BTreeMap<Key, RenewalState>>,
}

/// NAME of the section, and name of the certificate.
pub type Key = (Arc<str>, Arc<str>);

impl Board {
    /// Certificates of a section, by name.
    pub fn of_section(&self, section: &str) -> Vec<(Arc<str>, RenewalState)> {
        let all = lock(&self.standings);
        let of_section = all.iter().filter(|((its, _), _)| **its == *section);
        of_section.map(|((_, name), standing)| (name.clone(), standing.clone())).collect()
    }
}

#[derive(Clone, Debug)]
pub struct RenewalState {
    pub names: Vec<String>,
    pub phase: Phase,
    /// Time and reason of the next order.
    pub next: Next,
    pub failures: u32,
    /// Error of the last order.
    pub reason: Option<String>,
}

text::meanings! {
    /// State of a certificate's task.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Phase {
        /// The task waits until the certificate is due.
        Waiting = "waiting",
        /// It is being ordered.
        Ordering = "ordering",
        /// The last order failed; the task waits for the next attempt.
        Failed = "failed",
    }
}
