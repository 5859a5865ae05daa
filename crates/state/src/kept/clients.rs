//! Sticky clients, each with its backend by name.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Instant, SystemTime};

use config::types::Sticky;
use logic::balance::StickyKey;
use logic::balance::sticky::{Place, Seen};
use serde::{Deserialize, Serialize};

use super::{Clock, Millis, millis};
use crate::lock::lock;
use crate::{SharedTable, State};

/// Most clients that are kept, those seen last: of each pool an equal part.
pub const MOST: usize = 262_144;

/// Clients that are read while the lock of a table is held: workers wait for it.
const PAGE: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clients {
    pub at: Millis,
    pools: BTreeMap<String, OfPool>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OfPool {
    ipv6_prefix: u8,
    backends: Vec<String>,
    /// Address, place in `backends`, and time at which it was seen; the latest first.
    clients: Vec<(IpAddr, usize, Millis)>,
}

impl Clients {
    /// Reads all tables, each in many short steps.
    pub fn gather(state: &State) -> Self {
        let (wall, now) = (SystemTime::now(), Instant::now());
        let tables: Vec<_> =
            lock(&state.sticky).iter().map(|(name, entry)| (name.clone(), entry.clone())).collect();
        let part = MOST / tables.len().max(1);
        let names = |pool: &str| {
            let all = lock(&state.backends);
            let of_pool = all.values().filter(|backend| *backend.pool == *pool);
            of_pool.map(|backend| (backend.identity, backend.name.to_string())).collect::<Vec<_>>()
        };
        let pools = tables
            .iter()
            .map(|(name, (settings, table))| {
                (name.to_string(), OfPool::gather(*settings, table, names(name), part, (wall, now)))
            })
            .collect();
        Self { at: millis(wall), pools }
    }

    /// Fills the tables of the pools that are configured. Clients of other backends are dropped. Returns their number.
    pub fn restore(&self, state: &State, clock: &Clock) -> usize {
        let mut restored = 0;
        for (name, (settings, table)) in &*lock(&state.sticky) {
            let Some(kept) = self.pools.get(&**name) else { continue };
            let known: Vec<_> = kept
                .backends
                .iter()
                .map(|backend| {
                    let all = lock(&state.backends);
                    all.get(&(name.clone(), backend.clone())).map(|backend| backend.identity)
                })
                .collect();
            restored += kept.restore(*settings, table, &known, clock);
        }
        restored
    }
}

impl OfPool {
    fn gather(
        settings: Sticky,
        table: &SharedTable,
        names: Vec<(u64, String)>,
        most: usize,
        (wall, now): (SystemTime, Instant),
    ) -> Self {
        let (identities, backends): (Vec<_>, Vec<_>) = names.into_iter().unzip();
        let place: BTreeMap<u64, usize> = identities.into_iter().zip(0..).collect();
        let mut clients = Vec::new();
        let mut rows: Vec<(Seen, Place)> = Vec::new();
        let mut read = 0;
        while read < most {
            // A client that was seen again has left its place: go on from the one before it.
            let page = std::iter::from_fn(|| {
                let after = rows.pop().map(|(_, place)| place);
                Some((after, lock(table).page(after, PAGE.min(most - read), now)))
            })
            .find_map(|(after, page)| page.or(after.is_none().then(Vec::new)));
            let Some(page) = page.filter(|page| !page.is_empty()) else { break };
            read += page.len();
            for (seen, _) in &page {
                if let Some(backend) = place.get(&seen.backend) {
                    let at = millis(wall.checked_sub(seen.ago).unwrap_or(wall));
                    clients.push((seen.client.address(), *backend, at));
                }
            }
            rows = page;
        }
        Self { ipv6_prefix: settings.ipv6_prefix, backends, clients }
    }

    fn restore(&self, settings: Sticky, table: &SharedTable, known: &[Option<u64>], clock: &Clock) -> usize {
        let mut clients: Vec<_> = self
            .clients
            .iter()
            .filter(|(address, ..)| address.is_ipv4() || self.ipv6_prefix == settings.ipv6_prefix)
            .filter_map(|(address, backend, at)| {
                let ago = clock.ago(*at);
                let backend = known.get(*backend).copied().flatten()?;
                (ago < settings.ttl).then_some((ago, *address, backend))
            })
            .collect();
        clients.sort_unstable_by_key(|(ago, ..)| std::cmp::Reverse(*ago));
        let skipped = clients.len().saturating_sub(settings.entries);
        let mut table = lock(table);
        for (ago, address, backend) in &clients[skipped..] {
            let seen = clock.monotonic.checked_sub(*ago).unwrap_or(clock.monotonic);
            table.remember(StickyKey::new(*address, settings.ipv6_prefix), *backend, seen);
        }
        clients.len() - skipped
    }
}
