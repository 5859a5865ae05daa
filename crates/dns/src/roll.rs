//! The way of a new key through the gate of `crates/access/src/keys/gate.rs`: its record is pushed, and looked for at every
//! server until no cache can be without it; then the key may be used; then the record of the old key goes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use access::keys::{Gate, Glance, Kind, Others, Owner, Seen, Set, Shown, Step, fits};
use thiserror::Error;

use crate::authority::{Authorities, Server, ZoneKeys};
use crate::service::chain;
use crate::signed::SignedServer;
use crate::update::{Primary, Push, PushFault, Write};

/// A new key on its way.
pub struct Roll {
    server: SignedServer,
    /// The records of the new key.
    wanted: BTreeMap<(Owner, Kind), Set>,
    servers: BTreeMap<Owner, Vec<Server>>,
    zones: BTreeMap<Owner, Owner>,
    gate: Gate,
    limit: Duration,
}

/// Reason why the key is not used, or the old record is still there.
#[derive(Debug, Error)]
pub enum RollFault {
    #[error(transparent)]
    Push(#[from] PushFault),
    #[error("{0}")]
    Servers(String),
    #[error("after {} s the record was not visible at every server for {} s: {lacking}", .limit.as_secs(), .wait.as_secs())]
    NotVisible { limit: Duration, wait: Duration, lacking: String },
    #[error("after {} s the old key was still shown: {by}", .limit.as_secs())]
    NotLeft { limit: Duration, by: String },
}

/// What is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waiting {
    /// These servers lack the record or are silent.
    For(Vec<String>),
    /// It is everywhere, and this long is left.
    Until(Duration),
}

/// Pause between two looks at servers and services.
const PAUSE: Duration = Duration::from_millis(500);
/// Time limit of one handshake with a service.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// Time limit of one push.
const PUSH_LIMIT: Duration = Duration::from_secs(30);

impl Roll {
    /// Pushes the records of the new key beside those that are there. `limit` is for each wait after this.
    ///
    /// # Errors
    /// The servers of the zone are not found, or the primary does not take the records.
    pub async fn begin(
        server: SignedServer,
        wanted: BTreeMap<(Owner, Kind), Set>,
        authorities: &mut Authorities,
        limit: Duration,
    ) -> Result<Self, RollFault> {
        let (mut servers, mut zones) = (BTreeMap::new(), BTreeMap::new());
        let mut ttl_before = 0;
        for (owner, kind) in wanted.keys() {
            let zone = authorities.zone_of(owner).await.map_err(RollFault::Servers)?;
            let own = authorities.servers(&zone).await.map_err(RollFault::Servers)?;
            for server in &own {
                // Before the first push: what caches may remember, that there is an older set, or that there is none.
                ttl_before =
                    ttl_before.max(match server.see(&zone, owner, *kind, &ZoneKeys::Unproved).await {
                        Seen::Records { ttl, .. } => ttl,
                        Seen::NoData | Seen::NoName => {
                            let start = server.start_of_authority(&zone).await;
                            start.map_or(0, |(_, negative_ttl)| negative_ttl)
                        }
                        Seen::NotServed(_) | Seen::Silent(_) => 0,
                    });
            }
            servers.insert(zone.clone(), own);
            zones.insert(owner.clone(), zone);
        }
        let roll = Self { server, wanted, servers, zones, gate: Gate::new(ttl_before), limit };
        roll.push(Others::Keep).await?;
        Ok(roll)
    }

    async fn push(&self, others: Others) -> Result<(), PushFault> {
        let push = Push { wanted: &self.wanted, others, ttl: None, zone: None };
        Primary::new(self.server.clone(), PUSH_LIMIT).push(&push, Write::Yes).await.map(|_| ())
    }

    /// Waits until every server of the zone shows the new record for twice its TTL: then the new key may be used. `tell` is called at the
    /// beginning, and when another server is waited for.
    ///
    /// # Errors
    /// A server does not show the record within the limit. The old key must stay in use.
    pub async fn visible(&mut self, mut tell: impl FnMut(&Waiting)) -> Result<(), RollFault> {
        let began = Instant::now();
        let mut lacking: Vec<String> = Vec::new();
        let mut told = None;
        // Since when it is not everywhere. The wait itself is no fault, though a TTL may be a day; records that come and go are.
        let mut missing_since = Some(began);
        let limit = self.limit;
        let is_late = |since: Option<Instant>| since.is_some_and(|since| since.elapsed() >= limit);
        while !is_late(missing_since) && began.elapsed() < 4 * (self.limit + self.gate.wait()) {
            let mut glances = Vec::new();
            lacking.clear();
            for ((owner, kind), records) in &self.wanted {
                let Some(zone) = self.zones.get(owner) else { continue };
                for server in self.servers.get(zone).into_iter().flatten() {
                    let glance = match server.see(zone, owner, *kind, &ZoneKeys::Unproved).await {
                        Seen::Records { data, ttl, .. } if records.is_subset(&data) => Glance::Visible(ttl),
                        Seen::Records { .. } | Seen::NoData | Seen::NoName => Glance::Lacking,
                        Seen::NotServed(_) | Seen::Silent(_) => Glance::Silent,
                    };
                    if !matches!(glance, Glance::Visible(_)) {
                        let how = if glance == Glance::Silent { " is silent" } else { " lacks it" };
                        let server = server.shown() + how;
                        if !lacking.contains(&server) {
                            lacking.push(server);
                        }
                    }
                    glances.push(glance);
                }
            }
            let (waiting, pause) = match self.gate.servers(&glances, Instant::now()) {
                Step::Go => return Ok(()),
                Step::Wait(rest) => {
                    missing_since = None;
                    (Waiting::Until(rest), rest.min(PAUSE))
                }
                Step::NotEverywhere => {
                    missing_since = missing_since.or(Some(Instant::now()));
                    (Waiting::For(lacking.clone()), PAUSE)
                }
            };
            let key = match &waiting {
                Waiting::For(servers) => Some(servers.clone()),
                Waiting::Until(_) => None,
            };
            if told.as_ref() != Some(&key) {
                tell(&waiting);
                told = Some(key);
            }
            tokio::time::sleep(pause).await;
        }
        let lacking = if lacking.is_empty() { "it came and went".to_owned() } else { lacking.join(", ") };
        Err(RollFault::NotVisible { limit: self.limit, wait: self.gate.wait(), lacking })
    }

    /// Waits until every address shows the new key, then removes the records of other keys.
    ///
    /// # Errors
    /// The old key is still shown at the limit: then its record stays.
    pub async fn left(&mut self, services: &Services<'_>) -> Result<(), RollFault> {
        let began = Instant::now();
        let mut by: Vec<String> = Vec::new();
        while began.elapsed() < self.limit {
            let shown = self.look(services).await;
            by = shown
                .iter()
                .filter(|(_, shown)| *shown != Shown::New)
                .map(|(at, _)| at.to_string())
                .collect();
            let shown: Vec<Shown> = shown.into_iter().map(|(_, shown)| shown).collect();
            if self.gate.services(&shown, Instant::now()) == Step::Go {
                self.push(Others::Remove).await?;
                return Ok(());
            }
            tokio::time::sleep(PAUSE / 2).await;
        }
        let by = if by.is_empty() { "no address is known".to_owned() } else { by.join(", ") };
        Err(RollFault::NotLeft { limit: self.limit, by })
    }

    /// Asks every address for its certificate.
    async fn look(&self, services: &Services<'_>) -> Vec<(SocketAddr, Shown)> {
        let mut found = Vec::new();
        for ((owner, _), records) in &self.wanted {
            let Some((port, host)) = owner.service() else { continue };
            let addresses: Vec<SocketAddr> = match services {
                Services::At(addresses) => addresses.to_vec(),
                Services::OfNames(authorities) => {
                    let addresses = authorities.addresses(&host).await;
                    addresses.into_iter().map(|ip| SocketAddr::new(ip, port)).collect()
                }
            };
            for address in addresses {
                let shown = match chain(address, &host.to_string(), HANDSHAKE_LIMIT).await {
                    Ok(chain) if fits(records, &chain) => Shown::New,
                    Ok(_) => Shown::Old,
                    Err(_) => Shown::Silent,
                };
                found.push((address, shown));
            }
        }
        found
    }
}

/// Where the service of a new certificate is.
pub enum Services<'a> {
    /// At these addresses, for all names.
    At(&'a [SocketAddr]),
    /// At the addresses of its names.
    OfNames(&'a Authorities),
}
