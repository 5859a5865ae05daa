//! The way of a new key through the gate of `crates/access/src/keys/gate.rs`: its record is pushed, and looked for at every
//! server until no cache can be without it; then the key may be used; then the record of the old key goes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use access::keys::{Gate, Glance, Kind, Others, Owner, Revoked, Seen, Set, Shown, Step, fits};
use thiserror::Error;

use crate::authority::{Authorities, Server, ZoneKeys};
use crate::service::chains;
use crate::signed::SignedServer;
use crate::starttls::TlsStart;
use crate::turns::Turns;
use crate::update::{Primary, Push, PushFault, Write};

/// What is to be done.
pub struct Plan {
    /// The primary server of the zones.
    pub server: SignedServer,
    /// The records of the new key.
    pub wanted: BTreeMap<(Owner, Kind), Set>,
    /// The records that go at the end.
    pub leaving: Others,
    /// Time limit of each wait.
    pub limit: Duration,
    /// Asked before sockets are opened.
    pub turns: Arc<dyn Turns>,
}

/// A new key on its way.
pub struct Roll {
    plan: Plan,
    servers: BTreeMap<Owner, Vec<Server>>,
    zones: BTreeMap<Owner, Owner>,
    gate: Gate,
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
    #[error("after {} s not every address of the service shows the new key alone: {by}", .limit.as_secs())]
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

/// What one address of a service shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Looked {
    /// Address or name.
    pub place: String,
    pub shown: Shown,
    /// What is wrong, after the place: `shows the old key`.
    pub why: String,
}

/// A look at all addresses of a service.
pub trait Look: Sync {
    fn look(&self) -> Pin<Box<dyn Future<Output = Vec<Looked>> + Send + '_>>;
}

/// Pause between two looks at servers.
const PAUSE: Duration = Duration::from_millis(500);
/// Time limit of one push.
const PUSH_LIMIT: Duration = Duration::from_secs(30);
/// Limit of the addresses of one name that are looked at.
const MOST_ADDRESSES: usize = 64;

impl Roll {
    /// Pushes the records of the new key beside those that are there. The limit of the plan is for each wait after this.
    ///
    /// # Errors
    /// The servers of the zone are not found, or the primary does not take the records.
    pub async fn begin(plan: Plan, authorities: &mut Authorities) -> Result<Self, RollFault> {
        let (mut servers, mut zones) = (BTreeMap::new(), BTreeMap::new());
        let mut ttl_before = 0;
        for (owner, kind) in plan.wanted.keys() {
            let _turn = plan.turns.turn().await;
            let zone = authorities.zone_of(owner).await;
            let zone = zone.map_err(|why| RollFault::Servers(why.to_string()))?;
            let own = authorities.servers(&zone).await.map_err(RollFault::Servers)?;
            for server in &own {
                // Before the first push: what caches may remember, that there is an older set, or that there is none.
                let seen = server.see(&zone, owner, *kind, &ZoneKeys::Unproved).await;
                ttl_before = ttl_before.max(remembered(server, &zone, &seen).await);
            }
            servers.insert(zone.clone(), own);
            zones.insert(owner.clone(), zone);
        }
        let roll = Self { plan, servers, zones, gate: Gate::new(ttl_before) };
        roll.push(Others::Keep).await?;
        Ok(roll)
    }

    async fn push(&self, others: Others) -> Result<(), PushFault> {
        let _turn = self.plan.turns.turn().await;
        let revoked = Revoked::default();
        let push = Push { wanted: &self.plan.wanted, others, revoked: &revoked, ttl: None, zone: None };
        Primary::new(self.plan.server.clone(), PUSH_LIMIT).push(&push, Write::Yes).await.map(|_| ())
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
        let limit = self.plan.limit;
        let is_late = |since: Option<Instant>| since.is_some_and(|since| since.elapsed() >= limit);
        while !is_late(missing_since) && began.elapsed() < 4 * (limit + self.gate.wait()) {
            let glances = self.glances(&mut lacking).await;
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
        Err(RollFault::NotVisible { limit, wait: self.gate.wait(), lacking })
    }

    /// Asks every server once. `lacking` gets those without the record.
    async fn glances(&mut self, lacking: &mut Vec<String>) -> Vec<Glance> {
        let mut glances = Vec::new();
        lacking.clear();
        for ((owner, kind), records) in &self.plan.wanted {
            let Some(zone) = self.zones.get(owner) else { continue };
            for server in self.servers.get(zone).into_iter().flatten() {
                let _turn = self.plan.turns.turn().await;
                let seen = server.see(zone, owner, *kind, &ZoneKeys::Unproved).await;
                let (glance, how) = match &seen {
                    Seen::Records { data, ttl, .. } if records.is_subset(data) => {
                        glances.push(Glance::Visible(*ttl));
                        continue;
                    }
                    Seen::Records { .. } | Seen::NoData | Seen::NoName => {
                        (Glance::Lacking, "lacks it".to_owned())
                    }
                    Seen::Alias { target, .. } => {
                        (Glance::Lacking, format!("has an alias (CNAME) of {target} there"))
                    }
                    Seen::NotServed(why) => (Glance::Silent, format!("does not serve the zone: {why}")),
                    Seen::Silent(why) => (Glance::Silent, format!("is silent: {why}")),
                };
                // A server that was silent before the first push had told what it had before that.
                self.gate.remember(remembered(server, zone, &seen).await);
                let server = format!("{} {how}", server.shown());
                if !lacking.contains(&server) {
                    lacking.push(server);
                }
                glances.push(glance);
            }
        }
        glances
    }

    /// Waits until every address shows the new key alone, then removes the records that leave. `look` asks all addresses
    /// once, and `pause` passes before the next look. Where the primary server does not take that, it is asked again until the limit.
    ///
    /// # Errors
    /// The old key is still shown at the limit: then its record stays.
    pub async fn left(&mut self, pause: Duration, look: &dyn Look) -> Result<(), RollFault> {
        let began = Instant::now();
        let (mut by, mut refused): (Vec<String>, Option<PushFault>) = (Vec::new(), None);
        while began.elapsed() < self.plan.limit {
            let looked = look.look().await;
            by = looked
                .iter()
                .filter(|one| one.shown != Shown::New)
                .map(|one| format!("{} {}", one.place, one.why))
                .collect();
            let shown: Vec<Shown> = looked.into_iter().map(|one| one.shown).collect();
            if self.gate.services(&shown, Instant::now()) == Step::Go {
                match self.push(self.plan.leaving.clone()).await {
                    Ok(()) => return Ok(()),
                    Err(fault) => refused = Some(fault),
                }
            }
            tokio::time::sleep(pause).await;
        }
        match refused {
            Some(fault) if by.is_empty() => Err(fault.into()),
            _ => {
                let by = if by.is_empty() { "no address is known".to_owned() } else { by.join(", ") };
                Err(RollFault::NotLeft { limit: self.plan.limit, by })
            }
        }
    }
}

/// For how long caches may remember what a server said, in seconds.
async fn remembered(server: &Server, zone: &Owner, seen: &Seen) -> u32 {
    match seen {
        Seen::Records { ttl, .. } => *ttl,
        Seen::NoData | Seen::NoName | Seen::Alias { .. } => {
            let start = server.start_of_authority(zone).await;
            start.map_or(0, |(_, negative_ttl)| negative_ttl)
        }
        Seen::NotServed(_) | Seen::Silent(_) => 0,
    }
}

/// Where the service of a new certificate is.
pub enum Services<'a> {
    /// At these addresses, for all names.
    At(&'a [SocketAddr]),
    /// At the addresses of its names.
    OfNames(&'a Authorities),
}

/// A look at the certificates of TLS services.
pub struct TlsLook<'a> {
    pub wanted: BTreeMap<(Owner, Kind), Set>,
    pub services: Services<'a>,
    /// How TLS begins; `None`: as is usual at the port.
    pub start: Option<TlsStart>,
    pub turns: Arc<dyn Turns>,
}

impl Look for TlsLook<'_> {
    fn look(&self) -> Pin<Box<dyn Future<Output = Vec<Looked>> + Send + '_>> {
        Box::pin(self.look_once())
    }
}

impl TlsLook<'_> {
    /// Asks every address for its certificate.
    async fn look_once(&self) -> Vec<Looked> {
        let mut found = Vec::new();
        for ((owner, _), records) in &self.wanted {
            let Some((port, host)) = owner.service() else { continue };
            let addresses: Vec<SocketAddr> = match &self.services {
                Services::At(addresses) => {
                    let own: Vec<SocketAddr> =
                        addresses.iter().copied().filter(|at| at.port() == port).collect();
                    // None has the port: they are behind a machine that leads it elsewhere.
                    if own.is_empty() { addresses.to_vec() } else { own }
                }
                Services::OfNames(authorities) => {
                    let _turn = self.turns.turn().await;
                    match authorities.addresses(&host).await {
                        Ok(addresses) => addresses.into_iter().map(|ip| SocketAddr::new(ip, port)).collect(),
                        Err(why) => {
                            let why = format!("has no address: {why}");
                            found.push(Looked { place: host.to_string(), shown: Shown::Silent, why });
                            continue;
                        }
                    }
                }
            };
            if let Some(fault) = too_many(&host, addresses.len()) {
                found.push(fault);
                continue;
            }
            for (address, chain) in chains(&host, &addresses, self.start, &*self.turns).await {
                let (shown, why) = match chain {
                    Ok(chain) if fits(records, &chain) => (Shown::New, "shows the new key".to_owned()),
                    Ok(_) => (Shown::Old, "shows the old key".to_owned()),
                    Err(why) => (Shown::Silent, format!("cannot be asked: {why}")),
                };
                found.push(Looked { place: address.to_string(), shown, why });
            }
        }
        found
    }
}

/// The fault of a name with more addresses than are looked at: that no old key is left there is not known.
pub fn too_many(host: &Owner, count: usize) -> Option<Looked> {
    (count > MOST_ADDRESSES).then(|| Looked {
        place: host.to_string(),
        shown: Shown::Silent,
        why: format!(
            "has {count} addresses, and at most {MOST_ADDRESSES} are asked: name those that count (--service)"
        ),
    })
}
