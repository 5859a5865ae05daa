//! Changes of a zone at its primary server (RFC 2136): read what is there, change what differs if it is still there, and ask
//! again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use access::keys::{Change, Kind, Others, Owner, PresentSet, Revoked, Set, difference};
use hickory_proto::op::{Message, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::NULL;
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use thiserror::Error;

use crate::name;
use crate::signed::{SignedFault, SignedServer};

/// The primary server of a zone, until a time.
pub struct Primary {
    server: SignedServer,
    deadline: Instant,
    limit: Duration,
}

/// What is wanted of a zone.
pub struct Push<'a> {
    pub wanted: &'a BTreeMap<(Owner, Kind), Set>,
    pub others: Others,
    /// Records that go in any case, also at names of which nothing is wanted.
    pub revoked: &'a Revoked,
    pub ttl: Option<u32>,
    /// Names outside are refused. `None`: the zones of the names.
    pub zone: Option<&'a Owner>,
}

impl Push<'_> {
    /// What is to be changed at a name and type.
    fn difference(&self, of: (&Owner, Kind), wanted: &Set, present: &PresentSet) -> Option<Change> {
        let mut revoked = self.revoked.among(of.0, of.1, &present.data);
        let others = match &self.others {
            Others::Remove if !wanted.is_empty() => Others::Remove,
            // Where nothing is wanted, records of other keys belong to others.
            Others::Remove | Others::Keep => Others::RemoveThese(revoked),
            Others::RemoveThese(these) => {
                revoked.extend(these.iter().cloned());
                Others::RemoveThese(revoked)
            }
        };
        let ttl = self.ttl.filter(|_| !wanted.is_empty());
        difference(of, wanted, present, &others, ttl)
    }
}

/// Whether the zone is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    Yes,
    /// Only tell what would be changed.
    DryRun,
}

/// Reason why a zone is not as it should be.
#[derive(Debug, Error)]
pub enum PushFault {
    #[error("{doing}: {source}")]
    Signed { doing: &'static str, source: SignedFault },
    #[error("{doing}: {why}")]
    Refused { doing: &'static str, why: String },
    #[error("find the zone: it is not authoritative for {owner} or a name above it")]
    NoZone { owner: Owner },
    #[error("the time limit of {} s is over", .0.as_secs())]
    TimedOut(Duration),
    #[error("{owner} is not in the zone {zone}: nothing is changed")]
    Outside { owner: Owner, zone: Owner },
    #[error(
        "{owner} is an alias (CNAME) of {target}, and cannot have other records: publish them at {target}"
    )]
    Alias { owner: Owner, target: String },
    #[error(
        "another program changes the same records at the same time: {TRIES} times the zone was not as it was read before"
    )]
    Raced,
    #[error("the server accepted the change, but answers with other records: {0}")]
    NotProved(String),
    #[error(
        "the {kind} records of {owner} would have {bytes} bytes together, and an update has at most 65,535: remove others there first"
    )]
    TooLarge { owner: Owner, kind: Kind, bytes: usize },
}

/// Tries of a change before changes of other programs at the same records are told.
const TRIES: usize = 3;
/// Size of an update at which a new one is begun. A message over TCP has at most 65,535 bytes.
const FULL: usize = 50_000;
/// Limit of the records in an update that replaces all of a name and type.
const MOST: usize = 64_000;

impl Primary {
    pub fn new(server: SignedServer, limit: Duration) -> Self {
        Self { server, deadline: Instant::now() + limit, limit }
    }

    /// Makes the zone have what is wanted, and asks again. Returns what was changed, or would be.
    ///
    /// # Errors
    /// The zone is not as it should be, or that is not known.
    pub async fn push(&self, push: &Push<'_>, write: Write) -> Result<Vec<Change>, PushFault> {
        let mut zones: BTreeMap<Owner, Owner> = BTreeMap::new();
        for (owner, _) in push.wanted.keys() {
            if let Some(zone) = push.zone.filter(|zone| !owner.is_in(zone)) {
                return Err(PushFault::Outside { owner: owner.clone(), zone: zone.clone() });
            }
            if !zones.contains_key(owner) {
                zones.insert(owner.clone(), self.zone_of(owner).await?);
            }
        }
        let mut done: Vec<Change> = Vec::new();
        for attempt in 0..TRIES {
            let mut changes = Vec::new();
            for ((owner, kind), wanted) in push.wanted {
                let mut present = self.present(owner, *kind).await?;
                if attempt > 0 && self.is_of_wildcard(owner, *kind, &present).await? {
                    // The name itself has none, and what it had by the wildcard is as if it were removed.
                    present.data.clear();
                }
                match push.difference((owner, *kind), wanted, &present) {
                    Some(change) if size(&change) > FULL && write == Write::Yes => {
                        done.extend(self.replace(push, &zones, (owner, *kind), wanted).await?);
                    }
                    change => changes.extend(change),
                }
            }
            if write == Write::DryRun || changes.is_empty() {
                done.extend(changes);
                return Ok(done);
            }
            let mut raced = false;
            for (zone, batch) in batches(&zones, &changes) {
                match self.apply(update(zone, &batch)).await? {
                    Applied::Done => done.extend(batch.into_iter().cloned()),
                    Applied::Raced => raced = true,
                }
            }
            if !raced {
                self.prove(push, &changes).await?;
                return Ok(done);
            }
        }
        Err(PushFault::Raced)
    }

    /// Makes a change that is too large to name each record that is there and each that goes: all of the name and type are
    /// replaced, if the serial number of the zone is what it was before they were read.
    async fn replace(
        &self,
        push: &Push<'_>,
        zones: &BTreeMap<Owner, Owner>,
        (owner, kind): (&Owner, Kind),
        wanted: &Set,
    ) -> Result<Option<Change>, PushFault> {
        let Some(zone) = zones.get(owner) else { return Ok(None) };
        for _ in 0..TRIES {
            let start = self.start_of_authority(zone).await?;
            let present = self.present(owner, kind).await?;
            let change = push.difference((owner, kind), wanted, &present);
            let Some(change) = change else { return Ok(None) };
            let bytes = size_of(&change.after());
            if bytes > MOST {
                return Err(PushFault::TooLarge { owner: owner.clone(), kind, bytes });
            }
            if self.apply(replacement(zone, start, &change)).await? == Applied::Done {
                self.prove(push, std::slice::from_ref(&change)).await?;
                return Ok(Some(change));
            }
        }
        Err(PushFault::Raced)
    }

    /// Asks again.
    async fn prove(&self, push: &Push<'_>, changes: &[Change]) -> Result<(), PushFault> {
        for change in changes {
            let present = self.present(&change.owner, change.kind).await?;
            let wanted = push.wanted.get(&(change.owner.clone(), change.kind));
            let lacks = wanted.is_some_and(|wanted| !wanted.is_subset(&present.data));
            let after = change.after();
            let keeps = change.remove.iter().any(|data| !after.contains(data) && present.data.contains(data));
            if lacks || keeps {
                return Err(PushFault::NotProved(format!("{} {}", change.owner, change.kind)));
            }
        }
        Ok(())
    }

    /// Finds the zone of a name: the nearest name at or above it for which the server has an SOA record.
    async fn zone_of(&self, owner: &Owner) -> Result<Owner, PushFault> {
        const DOING: &str = "find the zone";
        let mut at = Some(owner.clone());
        while let Some(zone) = at {
            let name = name::name(&zone);
            let answer = self.query(DOING, &name, RecordType::SOA).await?;
            let has = name::matching(&answer.answers, &name, RecordType::SOA).next().is_some();
            if answer.metadata.authoritative && has {
                return Ok(zone);
            }
            at = zone.parent();
        }
        Err(PushFault::NoZone { owner: owner.clone() })
    }

    /// The data of the SOA record of a zone: its serial number changes with every change of the zone.
    async fn start_of_authority(&self, zone: &Owner) -> Result<RData, PushFault> {
        const DOING: &str = "read the serial number of the zone";
        let name = name::name(zone);
        let answer = self.query(DOING, &name, RecordType::SOA).await?;
        let found = name::matching(&answer.answers, &name, RecordType::SOA).next();
        let none = || PushFault::Refused { doing: DOING, why: "it has no SOA record".to_owned() };
        found.map(|record| record.data.clone()).ok_or_else(none)
    }

    /// The records of a name and type that the server has.
    async fn present(&self, owner: &Owner, kind: Kind) -> Result<PresentSet, PushFault> {
        const DOING: &str = "read the records";
        let (name, kind) = (name::name(owner), name::record_type(kind));
        let answer = self.query(DOING, &name, kind).await?;
        if !matches!(answer.metadata.response_code, ResponseCode::NoError | ResponseCode::NXDomain) {
            return Err(refusal(DOING, &answer));
        }
        let alias =
            name::matching(&answer.answers, &name, RecordType::CNAME).find_map(|record| match &record.data {
                RData::CNAME(target) => Some(target.0.to_ascii().trim_end_matches('.').to_owned()),
                _ => None,
            });
        if let Some(target) = alias {
            return Err(PushFault::Alias { owner: owner.clone(), target });
        }
        let records: Vec<&Record> = name::matching(&answer.answers, &name, kind).collect();
        let ttl = records.iter().map(|record| record.ttl).max();
        Ok(PresentSet { data: name::data(records), ttl })
    }

    /// Whether a wildcard of the zone gives the records: then another name beside this one has them too.
    async fn is_of_wildcard(
        &self,
        owner: &Owner,
        kind: Kind,
        present: &PresentSet,
    ) -> Result<bool, PushFault> {
        let Some(parent) = owner.parent().filter(|_| !present.data.is_empty()) else { return Ok(false) };
        let beside = Owner::parse(&format!("penstock-{}.{parent}", std::process::id()));
        let Ok(beside) = beside else { return Ok(false) };
        Ok(self.present(&beside, kind).await?.data == present.data)
    }

    async fn apply(&self, update: Message) -> Result<Applied, PushFault> {
        const DOING: &str = "change the zone";
        let answer = self.transfer(DOING, update).await?;
        match answer.metadata.response_code {
            ResponseCode::NoError => Ok(Applied::Done),
            // RFC 2136 section 3.2.5: a prerequisite does not hold.
            ResponseCode::NXRRSet | ResponseCode::YXRRSet | ResponseCode::NXDomain => Ok(Applied::Raced),
            _ => Err(refusal(DOING, &answer)),
        }
    }

    async fn query(&self, doing: &'static str, name: &Name, kind: RecordType) -> Result<Message, PushFault> {
        let mut message = Message::query();
        message.add_query(Query::query(name.clone(), kind));
        let answer = self.transfer(doing, message).await?;
        match answer.metadata.response_code {
            // A refusal is an answer: the server may have no zone for this name.
            ResponseCode::NoError
            | ResponseCode::NXDomain
            | ResponseCode::Refused
            | ResponseCode::NotAuth => Ok(answer),
            _ => Err(refusal(doing, &answer)),
        }
    }

    async fn transfer(&self, doing: &'static str, message: Message) -> Result<Message, PushFault> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(PushFault::TimedOut(self.limit));
        }
        let answer = self.server.transfer(message, left).await;
        answer.map_err(|source| match source {
            SignedFault::TimedOut(_) => PushFault::TimedOut(self.limit),
            source => PushFault::Signed { doing, source },
        })
    }
}

/// Result of one update.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Applied {
    Done,
    /// The records were not as they were read before.
    Raced,
}

/// Divides changes by zone, and so that each update fits into a message.
fn batches<'c>(
    zones: &'c BTreeMap<Owner, Owner>,
    changes: &'c [Change],
) -> Vec<(&'c Owner, Vec<&'c Change>)> {
    let mut batches: Vec<(&Owner, Vec<&Change>, usize)> = Vec::new();
    for change in changes {
        let Some(zone) = zones.get(&change.owner) else { continue };
        let size = size(change);
        match batches.iter_mut().find(|(known, _, full)| *known == zone && full + size <= FULL) {
            Some((_, batch, full)) => {
                batch.push(change);
                *full += size;
            }
            None => batches.push((zone, vec![change], size)),
        }
    }
    batches.into_iter().map(|(zone, batch, _)| (zone, batch)).collect()
}

/// Size of a change in an update that names each record that is there, and each that goes.
fn size(change: &Change) -> usize {
    size_of(&change.before) + size_of(&change.remove) + size_of(&change.add)
}

/// Size of records in an update, each with the longest name.
fn size_of(set: &Set) -> usize {
    set.iter().map(|data| data.len() + 300).sum()
}

/// An update without changes (RFC 2136 section 2).
fn no_change(zone: &Owner) -> Message {
    let mut message = Message::query();
    message.metadata.op_code = OpCode::Update;
    message.metadata.recursion_desired = false;
    message.add_query(Query::query(name::name(zone), RecordType::SOA));
    message
}

/// A record of a change, with the class that says what it is for.
fn record(change: &Change, data: &[u8], ttl: u32, class: DNSClass) -> Record {
    let (owner, code) = (name::name(&change.owner), name::record_type(change.kind));
    let mut record =
        Record::from_rdata(owner, ttl, RData::Unknown { code, rdata: NULL::with(data.to_vec()) });
    record.dns_class = class;
    record
}

/// The update that replaces all records of a name and type, if the SOA record of the zone is `start`.
fn replacement(zone: &Owner, start: RData, change: &Change) -> Message {
    let (owner, kind) = (name::name(&change.owner), name::record_type(change.kind));
    let mut message = no_change(zone);
    // Section 2.4.2: the zone is as it was.
    message.add_answer(Record::from_rdata(name::name(zone), 0, start));
    // Section 2.5.2: all of this type go.
    let mut all = Record::update0(owner, 0, kind).into_record_of_rdata();
    all.dns_class = DNSClass::ANY;
    message.add_authority(all);
    let after = change.after();
    message.add_authorities(after.iter().map(|data| record(change, data, change.ttl, DNSClass::IN)));
    message
}

/// The update that names each record that is there, and each that goes or comes.
fn update(zone: &Owner, changes: &[&Change]) -> Message {
    let mut message = no_change(zone);
    for change in changes {
        let (owner, kind) = (name::name(&change.owner), name::record_type(change.kind));
        let record = |data: &Vec<u8>, ttl: u32, class: DNSClass| record(change, data, ttl, class);
        if change.before.is_empty() {
            // Section 2.4.3: there are none of this type.
            let mut none = Record::update0(owner.clone(), 0, kind).into_record_of_rdata();
            none.dns_class = DNSClass::NONE;
            message.add_answer(none);
        }
        // Section 2.4.2: there are exactly these.
        message.add_answers(change.before.iter().map(|data| record(data, 0, DNSClass::IN)));
        // Section 2.5.4.
        message.add_authorities(change.remove.iter().map(|data| record(data, 0, DNSClass::NONE)));
        // Section 2.5.1.
        message.add_authorities(change.add.iter().map(|data| record(data, change.ttl, DNSClass::IN)));
    }
    message
}

fn refusal(doing: &'static str, answer: &Message) -> PushFault {
    let why = match answer.metadata.response_code {
        ResponseCode::Refused => {
            "it refuses: allow this key to update the records of these names and types in the zone".to_owned()
        }
        ResponseCode::NotAuth => {
            "it is not the primary server of the zone, or does not know the key".to_owned()
        }
        ResponseCode::NotZone => "a name is not in the zone".to_owned(),
        ResponseCode::ServFail => "it failed (SERVFAIL): its log says why".to_owned(),
        ResponseCode::NotImp => "it takes no updates (NOTIMP)".to_owned(),
        code => format!("it answers {code}"),
    };
    PushFault::Refused { doing, why }
}
