//! Which backends a name in the DNS stands for, as its answers change: who is added, who leaves, who is forgotten.
//! `crates/serve/src/discovery.rs` asks the questions and serves the result.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

mod services;

pub use services::{MOST_WEIGHT, Rank, Service, ranks};

/// Largest number of backends that one name stands for.
pub const MOST: usize = 256;

/// Largest number of addresses that an event names.
const SHOWN: usize = 8;

/// Whether the answers have an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Here,
    /// It was in none of the last answers: it gets no new sessions, and is forgotten when it has none.
    Leaving,
}

/// An address of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub address: SocketAddr,
    pub rank: Rank,
    /// Target of the SRV record that led here; `None` for an address of the name itself.
    pub target: Option<Box<str>>,
}

/// What a look-up found. It is never empty: a name without any address is a failed look-up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    pub found: Vec<Found>,
    /// Targets of SRV records whose own look-up failed: nothing is known about their addresses.
    pub unknown: Vec<Box<str>>,
    /// Number of addresses that are not in `found`, because there are too many.
    pub left_out: usize,
}

/// A backend that a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub address: SocketAddr,
    pub rank: Rank,
    pub standing: Standing,
    target: Option<Box<str>>,
    /// Number of consecutive answers without it.
    misses: u32,
}

/// The backends that a name stands for, in the order in which they came.
#[derive(Clone, Debug, Default)]
pub struct Members(Vec<Member>);

/// What an answer changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub added: Vec<SocketAddr>,
    /// Those that were leaving.
    pub returned: Vec<SocketAddr>,
    pub leaving: Vec<SocketAddr>,
    /// Those that left although they have sessions, because too many are leaving.
    pub forgotten: Vec<SocketAddr>,
    /// Those with another weight or priority.
    pub ranked: Vec<SocketAddr>,
    /// Number of addresses of the answer for which there was no room.
    pub left_out: usize,
}

/// Whether a server can be at this address. `0.0.0.0`, with which some name servers block a name, would be this machine.
pub fn is_usable(address: SocketAddr) -> bool {
    let ip = address.ip();
    address.port() != 0 && !ip.is_unspecified() && !ip.is_multicast() && ip != IpAddr::V4(Ipv4Addr::BROADCAST)
}

impl Members {
    pub fn iter(&self) -> impl Iterator<Item = &Member> {
        self.0.iter()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether one is leaving.
    pub fn has_leaving(&self) -> bool {
        self.0.iter().any(|member| member.standing == Standing::Leaving)
    }

    /// Returns only those of which `has` has the address.
    #[must_use]
    pub fn only(&self, has: impl Fn(SocketAddr) -> bool) -> Self {
        Self(self.0.iter().filter(|member| has(member.address)).cloned().collect())
    }

    /// Takes in an answer. A member leaves after `misses` consecutive answers without it.
    pub fn answered(&mut self, answer: &Answer, misses: u32) -> Changes {
        let mut changes = Changes::default();
        let mut found = merge(&answer.found);
        for member in &mut self.0 {
            match found.iter().position(|found| found.address == member.address) {
                Some(at) => member.seen(&found.swap_remove(at), &mut changes),
                None if member.target.as_ref().is_some_and(|target| answer.unknown.contains(target)) => {}
                None => member.missed(misses, &mut changes),
            }
        }
        // The same order on every node, also of those that are left out.
        found.sort_by_key(|found| (found.rank.priority, found.address));
        let here = self.0.iter().filter(|member| member.standing == Standing::Here).count();
        let room = MOST.saturating_sub(here);
        changes.left_out = found.len().saturating_sub(room) + answer.left_out;
        for new in found.into_iter().take(room) {
            changes.added.push(new.address);
            let Found { address, rank, target } = new;
            self.0.push(Member { address, rank, standing: Standing::Here, target, misses: 0 });
        }
        self.limit_leaving(&mut changes);
        changes
    }

    /// Forgets those that are leaving and for which `is_idle` returns true. Returns their addresses.
    pub fn forget_idle(&mut self, is_idle: impl Fn(SocketAddr) -> bool) -> Vec<SocketAddr> {
        let mut gone = Vec::new();
        self.0.retain(|member| {
            let goes = member.standing == Standing::Leaving && is_idle(member.address);
            if goes {
                gone.push(member.address);
            }
            !goes
        });
        gone
    }

    /// A name with an other address in each answer, and sessions that do not end, must not make the list grow.
    fn limit_leaving(&mut self, changes: &mut Changes) {
        let leaving = self.0.iter().filter(|member| member.standing == Standing::Leaving).count();
        let mut excess = leaving.saturating_sub(MOST);
        self.0.retain(|member| {
            let goes = excess > 0 && member.standing == Standing::Leaving;
            if goes {
                excess -= 1;
                changes.forgotten.push(member.address);
            }
            !goes
        });
    }
}

impl Member {
    fn seen(&mut self, found: &Found, changes: &mut Changes) {
        self.misses = 0;
        self.target.clone_from(&found.target);
        if self.standing == Standing::Leaving {
            self.standing = Standing::Here;
            changes.returned.push(self.address);
        } else if self.rank != found.rank {
            changes.ranked.push(self.address);
        }
        self.rank = found.rank;
    }

    fn missed(&mut self, misses: u32, changes: &mut Changes) {
        self.misses = self.misses.saturating_add(1);
        if self.misses >= misses && self.standing == Standing::Here {
            self.standing = Standing::Leaving;
            changes.leaving.push(self.address);
        }
    }
}

/// Makes one entry of an address that several targets have: of the lowest priority, with the sum of its weights there.
fn merge(found: &[Found]) -> Vec<Found> {
    let mut merged: Vec<Found> = Vec::with_capacity(found.len());
    let mut at = std::collections::HashMap::with_capacity(found.len());
    for found in found {
        let place = *at.entry(found.address).or_insert(merged.len());
        match merged.get_mut(place) {
            None => merged.push(found.clone()),
            Some(known) if found.target == known.target => {}
            Some(known) if found.rank.priority < known.rank.priority => *known = found.clone(),
            Some(known) if found.rank.priority == known.rank.priority => {
                known.rank.weight = (known.rank.weight + found.rank.weight).min(MOST_WEIGHT);
            }
            Some(_) => {}
        }
    }
    merged
}

impl Changes {
    /// Whether the backends are other ones than before.
    pub fn any(&self) -> bool {
        let Self { added, returned, leaving, forgotten, ranked, left_out: _ } = self;
        [added, returned, leaving, forgotten, ranked].iter().any(|list| !list.is_empty())
    }
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("added", &self.added),
            ("back again", &self.returned),
            ("gets no new sessions, because the last answers do not have it", &self.leaving),
            ("removed with open sessions", &self.forgotten),
            ("other weight or priority", &self.ranked),
        ];
        let parts = parts.iter().filter(|(_, list)| !list.is_empty());
        let parts: Vec<String> = parts.map(|(what, list)| format!("{what}: {}", listed(list))).collect();
        f.write_str(&parts.join("; "))
    }
}

/// Addresses for an event, not more than fit into a line.
pub fn listed(addresses: &[SocketAddr]) -> String {
    let shown: Vec<String> = addresses.iter().take(SHOWN).map(ToString::to_string).collect();
    match addresses.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests;
