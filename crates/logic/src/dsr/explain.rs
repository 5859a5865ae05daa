//! What a service would do with the next packet of a flow, and why; nothing changes.

use std::time::{Duration, Instant};

use super::flows::Class;
use super::packet::{Flow, Mac, shown};
use super::ring::BackendId;
use super::{Director, Dropped};

pub use super::ring::BackendView;

/// The decision about the next packet of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// What is remembered of the flow.
    pub known: Option<KnownFlow>,
    /// Backend of the flow in the table, if every configured backend took new flows.
    pub home: Option<String>,
    /// Backend of the flow in the table as it is: that of a new flow.
    pub table: Option<String>,
    pub decision: Decision,
    /// Why no packet comes to that decision, in a sentence.
    pub no_packets: Option<String>,
    /// Backends that are configured or have flows.
    pub backends: Vec<BackendView>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownFlow {
    pub backend: String,
    pub phase: Phase,
    /// Time since its last packet.
    pub silent: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Open,
    /// The client has sent FIN or RST: a SYN begins a new flow.
    Closing,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Forward {
        backend: String,
        to: Mac,
        why: Why,
    },
    /// No backend takes it.
    Drop(Dropped),
    /// The flow has a backend whose Ethernet address is not known.
    NoEthernetAddress {
        backend: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The flow is remembered.
    Known,
    /// The flow is remembered, and its backend is down.
    Moved,
    /// The flow is not remembered.
    Table,
    /// The connection id of the packet has the number of the backend.
    Named,
    /// Whether the flow is remembered cannot be told.
    Unread,
}

/// The entry of a flow in the table of a program in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    Found(&'a [u8]),
    None,
    /// The kernel does not show it.
    Unreadable,
}

/// What is remembered of a flow.
pub(super) struct Found {
    pub(super) backend: BackendId,
    pub(super) class: Class,
    pub(super) silent: Duration,
}

impl Decision {
    /// What becomes of the packet, and why, in a sentence.
    pub fn sentence(&self) -> String {
        match self {
            Self::Forward { backend, to, why } => {
                let because = match why {
                    Why::Known => "the flow is remembered",
                    Why::Moved => "the flow is remembered, but its backend is down: the table has this one",
                    Why::Table => "the flow is new: the table has this one",
                    Why::Named => "the connection id of QUIC has the number of this backend",
                    Why::Unread => {
                        "whether the flow is remembered is not known (the kernel does not show it): of a new one the table has this one"
                    }
                };
                format!("forwarded to {backend} at {}: {because}", shown(*to))
            }
            Self::NoEthernetAddress { backend } => {
                format!(
                    "dropped: the flow belongs to {backend}, which answers no question for its Ethernet address"
                )
            }
            Self::Drop(_) => {
                "dropped: no backend takes new flows and has a known Ethernet address".to_owned()
            }
        }
    }
}

impl Director {
    /// Explains the next packet of a flow of this service.
    pub fn explain(&mut self, flow: &Flow, now: Instant) -> Explanation {
        let found = self.flows.lookup(flow);
        let silent = self.flows.silent(flow, now);
        self.explain_found(flow, found.map(|(backend, class)| Found { backend, class, silent }))
    }

    /// The same if a program in the kernel has the flows: by the value of the flow's entry there, and the program's clock.
    pub fn explain_in_kernel(&mut self, flow: &Flow, entry: Entry<'_>, now: u64) -> Explanation {
        let found = match entry {
            Entry::Found(entry) => self.remembered(entry, now),
            Entry::None | Entry::Unreadable => None,
        };
        let mut explained = self.explain_found(flow, found);
        if let (Entry::Unreadable, Decision::Forward { why, .. }) = (entry, &mut explained.decision) {
            *why = Why::Unread;
        }
        explained
    }

    fn explain_found(&mut self, flow: &Flow, found: Option<Found>) -> Explanation {
        let home = self.ring.home(flow).and_then(|id| self.ring.name(id)).map(str::to_owned);
        let from_table = self.ring.lookup(flow);
        let decision = self.decide(flow, None, found.as_ref());
        let name = |id| self.ring.name(id).unwrap_or_default().to_owned();
        let known = found.as_ref().map(|found| KnownFlow {
            backend: name(found.backend),
            phase: if found.class == Class::Closing { Phase::Closing } else { Phase::Open },
            silent: found.silent,
        });
        let (table, backends) = (from_table.map(name), self.views());
        Explanation { known, home, table, decision, no_packets: None, backends }
    }

    /// The decision about the next packet of a flow.
    pub(super) fn decide(
        &mut self,
        flow: &Flow,
        named: Option<BackendId>,
        found: Option<&Found>,
    ) -> Decision {
        let kept = found.map(|found| found.backend).filter(|backend| self.ring.keeps(*backend));
        let (chosen, why) = match (kept, found) {
            _ if named.is_some() => (named, Why::Named),
            (Some(kept), _) => (Some(kept), Why::Known),
            (None, Some(_)) => (self.ring.lookup(flow), Why::Moved),
            (None, None) => (self.ring.lookup(flow), Why::Table),
        };
        let name = |id| self.ring.name(id).unwrap_or_default().to_owned();
        match chosen {
            None => Decision::Drop(Dropped::NoBackend),
            Some(id) => match self.ring.mac(id) {
                Some(to) => Decision::Forward { backend: name(id), to, why },
                None => Decision::NoEthernetAddress { backend: name(id) },
            },
        }
    }

    /// All backends that are configured or have flows.
    pub fn views(&self) -> Vec<BackendView> {
        self.ring.views()
    }
}
