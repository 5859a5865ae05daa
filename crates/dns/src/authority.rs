//! The servers of a zone, and what each of them says, with the signatures checked by the keys that the trust anchor proves.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::SystemTime;

use access::keys::{Kind, Owner, Seen, Signature};
use hickory_proto::dnssec::Verifier;
use hickory_proto::dnssec::rdata::{DNSKEY, DNSSECRData, RRSIG};
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};

use crate::ask::{Silence, ask};
use crate::name;
use crate::resolver::{Answer, Resolver, ResolverFault, Validation};

/// A server of a zone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Server {
    /// Where it is, or why that is not known: such a server counts as one that does not answer.
    pub address: Result<SocketAddr, String>,
    /// Its name in the NS record, if it was found by that.
    pub name: Option<String>,
}

impl Server {
    /// `ns1.example.org (192.0.2.1)`, or the address.
    pub fn shown(&self) -> String {
        let address = match &self.address {
            Ok(address) if address.port() == 53 => address.ip().to_string(),
            Ok(address) => address.to_string(),
            Err(_) => "no address".to_owned(),
        };
        self.name.as_ref().map_or(address.clone(), |name| format!("{name} ({address})"))
    }

    async fn ask(&self, name: &Name, kind: RecordType) -> Result<Message, Silence> {
        match &self.address {
            Ok(address) => ask(*address, name, kind).await,
            Err(why) => Err(Silence::NoAddress(why.clone())),
        }
    }
}

/// Keys of a zone (DNSKEY).
#[derive(Debug, Clone)]
pub enum ZoneKeys {
    /// They are proved from the trust anchor down.
    Proved(Vec<DNSKEY>),
    /// There are none that are proved.
    Unproved,
}

/// Reason why no zone is found for a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no zone is found for {owner}{why}")]
pub struct NoZone {
    owner: Owner,
    why: NoZoneWhy,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum NoZoneWhy {
    #[error("")]
    NotThere,
    /// What the last of them said.
    #[error(" ({0})")]
    Refused(String),
    /// None of those that are asked answers.
    #[error(": there is no answer ({0})")]
    Silent(String),
}

impl NoZone {
    /// Whether none of those that were asked has answered: then it says nothing of the name.
    pub fn is_silence(&self) -> bool {
        matches!(self.why, NoZoneWhy::Silent(_))
    }
}

/// Limit of the servers of a zone that are asked.
const MOST_SERVERS: usize = 32;
/// Limits of what one answer makes us verify: a lying server must not keep us busy (CVE-2023-50387).
const MOST_KEYS: usize = 8;
const MOST_SIGNATURES: usize = 8;
/// Longest time between the inception of a signature and our clock being behind it, in seconds.
const SKEW: u64 = 300;

/// Finds servers of zones, and asks them.
pub struct Authorities {
    /// Finds servers. What it says is not believed: a wrong server has no good signatures.
    finder: Resolver,
    /// Servers that were named: they are asked instead.
    named: Vec<Server>,
    zones: HashMap<Owner, Vec<Server>>,
}

impl Authorities {
    /// `named` are asked instead of those that the zone has. `resolver` is asked instead of the system's.
    ///
    /// # Errors
    /// The system's configuration cannot be read.
    pub fn new(named: &[SocketAddr], resolver: Option<SocketAddr>) -> Result<Self, ResolverFault> {
        let finder = Resolver::with(&Validation::Off, resolver)?;
        let named = named.iter().map(|address| Server { address: Ok(*address), name: None }).collect();
        Ok(Self { finder, named, zones: HashMap::new() })
    }

    /// Finds the zone of a name: the nearest name at or above it with an SOA record.
    ///
    /// # Errors
    /// No server knows a zone, or none answers.
    pub async fn zone_of(&self, owner: &Owner) -> Result<Owner, NoZone> {
        let mut at = Some(owner.clone());
        let mut why = None;
        while let Some(zone) = at {
            let name = name::name(&zone);
            let found = match self.named.first() {
                None => match self.finder.answer(name.clone(), RecordType::SOA).await {
                    Answer::Secure(records) | Answer::Insecure(records) => {
                        name::matching(&records, &name, RecordType::SOA).next().is_some()
                    }
                    // Names above would have no answer either, each after the same time.
                    Answer::Silent(error) => {
                        return Err(NoZone { owner: owner.clone(), why: NoZoneWhy::Silent(error) });
                    }
                    Answer::Failed(error) => {
                        why = Some(error);
                        false
                    }
                    _ => false,
                },
                Some(_) => {
                    let (mut found, mut silent) = (false, Vec::new());
                    for server in &self.named {
                        match server.ask(&name, RecordType::SOA).await {
                            Ok(answer) => {
                                let has =
                                    name::matching(&answer.answers, &name, RecordType::SOA).next().is_some();
                                found |= answer.metadata.authoritative && has;
                                let code = answer.metadata.response_code;
                                if !matches!(code, ResponseCode::NoError | ResponseCode::NXDomain) {
                                    why = Some(format!("{}: it answers {}", server.shown(), code.to_str()));
                                }
                            }
                            Err(error) => {
                                let error = format!("{}: {error}", server.shown());
                                silent.push(error.clone());
                                why = Some(error);
                            }
                        }
                        if found {
                            break;
                        }
                    }
                    if silent.len() == self.named.len() {
                        return Err(NoZone {
                            owner: owner.clone(),
                            why: NoZoneWhy::Silent(silent.join("; ")),
                        });
                    }
                    found
                }
            };
            if found {
                return Ok(zone);
            }
            at = zone.parent();
        }
        let why = why.map_or(NoZoneWhy::NotThere, NoZoneWhy::Refused);
        Err(NoZone { owner: owner.clone(), why })
    }

    /// The servers of a zone, by its NS records, with all of their addresses. One whose name does not resolve is among them: what
    /// it tells others is not known.
    ///
    /// # Errors
    /// There are none; with the reason.
    pub async fn servers(&mut self, zone: &Owner) -> Result<Vec<Server>, String> {
        if !self.named.is_empty() {
            return Ok(self.named.clone());
        }
        if let Some(known) = self.zones.get(zone) {
            return Ok(known.clone());
        }
        let name = name::name(zone);
        let records = match self.finder.answer(name.clone(), RecordType::NS).await {
            Answer::Secure(records) | Answer::Insecure(records) => records,
            Answer::Silent(why) | Answer::Failed(why) | Answer::Bogus(why) => {
                return Err(format!("the servers of {zone}: {why}"));
            }
            Answer::None | Answer::SecurelyNone => return Err(format!("{zone} has no NS records")),
        };
        let mut servers = Vec::new();
        for record in name::matching(&records, &name, RecordType::NS) {
            let RData::NS(host) = &record.data else { continue };
            let shown = host.0.to_ascii().trim_end_matches('.').to_owned();
            let server = |address| Server { address, name: Some(shown.clone()) };
            match self.finder.addresses(&host.0).await {
                Ok(addresses) => {
                    servers.extend(addresses.into_iter().map(|ip| server(Ok(SocketAddr::new(ip, 53)))));
                }
                Err(why) => servers.push(server(Err(why))),
            }
        }
        servers.sort();
        servers.dedup();
        if servers.len() > MOST_SERVERS {
            let count = servers.len();
            return Err(format!(
                "{zone} has {count} addresses of servers, and at most {MOST_SERVERS} are asked: name those that count"
            ));
        }
        if servers.iter().all(|server| server.address.is_err()) {
            let names: Vec<String> = servers.iter().map(Server::shown).collect();
            return Err(format!("no server of {zone} has an address: {}", names.join(", ")));
        }
        self.zones.insert(zone.clone(), servers.clone());
        Ok(servers)
    }

    /// Addresses of a host, for the service there: at least one.
    ///
    /// # Errors
    /// There are none, or that is not known; with the reason.
    pub async fn addresses(&self, host: &Owner) -> Result<Vec<IpAddr>, String> {
        self.finder.addresses(&name::name(host)).await
    }
}

impl ZoneKeys {
    /// Asks the validating path for the keys of a zone.
    pub async fn of(resolver: &Resolver, zone: &Owner) -> Self {
        match resolver.answer(name::name(zone), RecordType::DNSKEY).await {
            Answer::Secure(records) => {
                let keys = records.iter().filter_map(|record| match &record.data {
                    RData::DNSSEC(DNSSECRData::DNSKEY(key)) if key.zone_key() && !key.revoke() => {
                        Some(key.clone())
                    }
                    _ => None,
                });
                Self::Proved(keys.take(MOST_KEYS).collect())
            }
            _ => Self::Unproved,
        }
    }
}

impl Server {
    /// Asks the server for the records of a name. Its signatures are checked with the keys of the zone.
    pub async fn see(&self, zone: &Owner, owner: &Owner, kind: Kind, keys: &ZoneKeys) -> Seen {
        let (owner, kind) = (name::name(owner), name::record_type(kind));
        match self.ask(&owner, kind).await {
            Ok(answer) => seen(&answer, &name::name(zone), &owner, kind, keys),
            Err(silence) => Seen::Silent(silence.to_string()),
        }
    }

    /// Serial number and negative TTL of the zone (RFC 2308 section 5).
    ///
    /// # Errors
    /// The server does not answer, or not for this zone.
    pub async fn start_of_authority(&self, zone: &Owner) -> Result<(u32, u32), Silence> {
        let zone = name::name(zone);
        let answer = self.ask(&zone, RecordType::SOA).await?;
        let found =
            name::matching(&answer.answers, &zone, RecordType::SOA).find_map(|record| match &record.data {
                RData::SOA(soa) => Some((soa.serial, soa.minimum.min(record.ttl))),
                _ => None,
            });
        found.ok_or_else(|| Silence::Malformed("it has no SOA record".to_owned()))
    }
}

fn seen(answer: &Message, zone: &Name, owner: &Name, kind: RecordType, keys: &ZoneKeys) -> Seen {
    let code = answer.metadata.response_code;
    match code {
        ResponseCode::NoError | ResponseCode::NXDomain => {}
        other => return Seen::NotServed(other.to_str().to_owned()),
    }
    if !answer.metadata.authoritative {
        return Seen::NotServed("its answer is not authoritative".to_owned());
    }
    let records: Vec<&Record> = name::matching(&answer.answers, owner, kind).collect();
    match (code, records.is_empty()) {
        (_, true) if let Some((target, records)) = alias(&answer.answers, owner) => {
            Seen::Alias { target, signature: signature(&answer.answers, &records, zone, owner, keys) }
        }
        (ResponseCode::NXDomain, true) => Seen::NoName,
        (_, true) => Seen::NoData,
        (_, false) => Seen::Records {
            data: name::data(records.iter().copied()),
            ttl: records.iter().map(|record| record.ttl).max().unwrap_or_default(),
            signature: signature(&answer.answers, &records, zone, owner, keys),
        },
    }
}

/// The name that a name is an alias of, if it is one.
fn alias<'a>(answers: &'a [Record], owner: &'a Name) -> Option<(Owner, Vec<&'a Record>)> {
    let records: Vec<&Record> = name::matching(answers, owner, RecordType::CNAME).collect();
    let target = records.first().and_then(|record| match &record.data {
        RData::CNAME(target) => Owner::parse(&target.0.to_ascii()).ok(),
        _ => None,
    })?;
    Some((target, records))
}

/// Judges the signatures of records: the best one counts.
fn signature(
    answers: &[Record],
    records: &[&Record],
    zone: &Name,
    owner: &Name,
    keys: &ZoneKeys,
) -> Signature {
    let covered = records.first().map(|record| record.record_type());
    let signatures: Vec<&RRSIG> = answers
        .iter()
        .filter(|record| record.name == *owner)
        .filter_map(|record| match &record.data {
            RData::DNSSEC(DNSSECRData::RRSIG(signature)) => Some(signature),
            _ => None,
        })
        .filter(|signature| Some(signature.input().type_covered) == covered)
        .take(MOST_SIGNATURES)
        .collect();
    if signatures.is_empty() {
        return Signature::Absent;
    }
    let ZoneKeys::Proved(keys) = keys else { return Signature::Unproved };
    let holds = |signature: &RRSIG| {
        let input = signature.input();
        input.signer_name == *zone
            && keys
                .iter()
                .filter(|key| key.algorithm() == input.algorithm)
                .any(|key| key.verify_rrsig(owner, DNSClass::IN, signature, records.iter().copied()).is_ok())
    };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut best = Signature::Wrong;
    for signature in signatures.into_iter().filter(|signature| holds(signature)) {
        let (begin, end) = (signature.input().sig_inception.get(), signature.input().sig_expiration.get());
        let end = u64::from(end);
        if u64::from(begin) > now + SKEW {
            continue;
        }
        best = match best {
            Signature::Until(best) => Signature::Until(best.max(end)),
            _ if end > now => Signature::Until(end),
            Signature::Expired(best) => Signature::Expired(best.max(end)),
            _ => Signature::Expired(end),
        };
    }
    best
}
