//! Another Ethernet address of a backend. Neither ARP nor neighbour discovery proves who has an IP address, and the kernel
//! believes the last machine that claims it. So before packets go to another machine, the one that had them is asked by a
//! question to it alone, as a host defends its own address (RFC 5227 section 2.4): while it answers, it keeps them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::owner;
use super::packet::{self, Content, Mac};

/// Questions without an answer after which the earlier machine is gone, and the time between them: an answer takes less than
/// a millisecond, and each question or answer may be lost.
const QUESTIONS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(200);

/// Time between questions to a machine that has answered. The kernel hears its answers, too, and does not believe a claim
/// within a second of another one.
const PAUSE_OF_DEFENDED: Duration = Duration::from_secs(1);

/// Time without a claim of the other machine after which operators are no longer told of it.
const LASTS: Duration = Duration::from_secs(30);

/// What becomes of an Ethernet address that the kernel knows for a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Packets go to the address that the kernel has found.
    Take,
    /// The same, instead of to this earlier address, whose machine no longer answers.
    Replace(Mac),
    /// Packets still go to the earlier address.
    Keep,
    /// Packets still go to the earlier address, and its machine is asked by this frame.
    Ask(Vec<u8>),
}

/// Two machines that claim one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispute {
    /// The address of the backend, or of the router on the way to it.
    pub machine: IpAddr,
    /// It answers, and packets go to it.
    pub holder: Mac,
    pub other: Mac,
}

/// Changes of Ethernet addresses, by backend.
#[derive(Debug, Default)]
pub struct Changes {
    /// The address to which packets of each backend went last, with the machine that has it.
    used: HashMap<Box<str>, (IpAddr, Mac)>,
    open: HashMap<Box<str>, Change>,
}

#[derive(Debug)]
struct Change {
    dispute: Dispute,
    unanswered: u32,
    /// When the next question is due.
    next: Instant,
    /// When the kernel had the other address last.
    claimed: Instant,
    /// The holder has answered.
    is_defended: bool,
}

impl Changes {
    /// Decides about the address that the kernel has `found` for a machine, which is a backend or the router on the way to it,
    /// while packets go to `used`.
    pub fn see(
        &mut self,
        (backend, machine): (&str, IpAddr),
        used: Option<Mac>,
        (found, own): (Mac, Mac),
        now: Instant,
    ) -> Step {
        let last = self.used.get(backend).copied();
        let Some(holder) = used.filter(|holder| *holder != found) else {
            if self.open.get(backend).is_some_and(|open| !open.is_defended) {
                self.open.remove(backend);
            }
            self.used.insert(backend.into(), (machine, found));
            return match last {
                Some((_, before)) if before != found => Step::Replace(before),
                _ => Step::Take,
            };
        };
        // Another way to the backend has another machine on it.
        if last.is_some_and(|(before, _)| before != machine) {
            return self.replace(backend, (machine, found), holder);
        }
        let dispute = Dispute { machine, holder, other: found };
        let new = || Change { dispute, unanswered: 0, next: now, claimed: now, is_defended: false };
        let open = self.open.entry(backend.into()).or_insert_with(new);
        if (open.dispute.machine, open.dispute.holder) != (machine, holder) {
            *open = new();
        }
        (open.dispute.other, open.claimed) = (found, now);
        if now < open.next {
            return Step::Keep;
        }
        if open.unanswered >= QUESTIONS {
            return self.replace(backend, (machine, found), holder);
        }
        open.unanswered += 1;
        open.next = now + if open.is_defended { PAUSE_OF_DEFENDED } else { PAUSE };
        let mut question = owner::probe(machine, own);
        question[..holder.len()].copy_from_slice(&holder);
        Step::Ask(question)
    }

    fn replace(&mut self, backend: &str, now: (IpAddr, Mac), before: Mac) -> Step {
        self.open.remove(backend);
        self.used.insert(backend.into(), now);
        Step::Replace(before)
    }

    /// Takes a frame that may be the answer of a machine that was asked.
    pub fn take(&mut self, frame: &[u8]) {
        let Some(packet) = packet::parse(frame) else { return };
        let Content::Claim { address, mac } = packet.content else { return };
        let holds = |open: &&mut Change| {
            open.dispute.machine == address && [mac, packet.source] == [open.dispute.holder; 2]
        };
        for open in self.open.values_mut().filter(holds) {
            (open.unanswered, open.is_defended) = (0, true);
        }
    }

    /// Whether the address of a backend is looked at often.
    pub fn is_open(&self, backend: &str) -> bool {
        self.open.contains_key(backend)
    }

    /// Whether the machine that has a backend answers while another one claims its address.
    pub fn is_defended(&self, backend: &str) -> bool {
        self.open.get(backend).is_some_and(|open| open.is_defended)
    }

    /// The machines that are asked, each once, in order.
    pub fn holders(&self) -> Vec<Mac> {
        let mut all: Vec<_> = self.open.values().map(|open| open.dispute.holder).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Whether answers may come.
    pub fn is_asking(&self) -> bool {
        !self.open.is_empty()
    }

    /// Machines that claim the address of a backend while another one answers for it.
    pub fn disputes(&self) -> impl Iterator<Item = (&str, Dispute)> {
        let defended = self.open.iter().filter(|(_, open)| open.is_defended);
        defended.map(|(backend, open)| (&**backend, open.dispute))
    }

    /// Ends disputes without a claim for a while.
    pub fn expire(&mut self, now: Instant) {
        self.open.retain(|_, open| now.duration_since(open.claimed) < LASTS);
    }

    /// Forgets a backend.
    pub fn forget(&mut self, backend: &str) {
        self.used.remove(backend);
        self.open.remove(backend);
    }

    /// Forgets all: the network is another one.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests;
