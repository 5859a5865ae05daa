//! What is wrong with the records of a name: as each authoritative server has them, as the signatures prove them, and as the
//! service shows its key.

use std::time::Duration;

use super::owner::Owner;
use super::record::{Kind, Set, data_text};
use super::revoked::Revoked;

/// What one authoritative server says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Records {
        data: Set,
        ttl: u32,
        signature: Signature,
    },
    /// The name exists, and has no records of the type.
    NoData,
    /// The name does not exist (NXDOMAIN).
    NoName,
    /// The name is an alias of another one (CNAME), which has the records.
    Alias {
        target: Owner,
        signature: Signature,
    },
    /// It does not serve the zone.
    NotServed(String),
    /// There is no answer, or none that can be read.
    Silent(String),
}

/// The signature of the records in an answer of an authoritative server. Times are seconds of Unix time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signature {
    /// There is none.
    Absent,
    /// There is one, and the keys of the zone are not proved, so it says nothing.
    Unproved,
    /// It holds.
    Until(u64),
    /// It holds, but its time is over.
    Expired(u64),
    /// It does not hold.
    Wrong,
}

/// What the validating path says: signatures from the trust anchor down, checked by this program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proved {
    /// No server was asked.
    NotAsked,
    Secure(Set),
    /// The zone is not signed, or not by its parent.
    Insecure(Set),
    /// It is proved that there are none.
    SecurelyNone,
    /// There are none, and that is not proved.
    None,
    Bogus(String),
    /// The trust anchor says nothing of the zone; with what to do.
    Unanchored(String),
    Failed(String),
}

/// What the service shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Live {
    /// It was not asked, or the record is not of a service.
    NotAsked,
    /// Its key fits the records in the DNS. With the address.
    Fits(String),
    /// It has another key.
    Differs {
        address: String,
        shown: String,
    },
    Silent {
        address: String,
        why: String,
    },
}

/// All that was seen of the records of a name and type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// Servers by name or address.
    pub servers: Vec<(String, Seen)>,
    /// Signatures of the aliases that led to the records, with the server.
    pub aliases: Vec<(String, Signature)>,
    pub proved: Proved,
    pub live: Vec<Live>,
}

/// Longest chain of aliases that is followed.
pub const MOST_ALIASES: usize = 8;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Clients that check refuse the service, or will soon, or a key that is not ours is believed.
    Bad,
    /// It works, and should be put right.
    Weak,
}

impl Severity {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Bad => "bad",
            Self::Weak => "weak",
        }
    }
}

/// Kind of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Problem {
    /// A wanted record is at no server.
    Missing,
    /// A wanted record is at some servers only.
    Behind,
    /// A record is of a key that is not used.
    Stale,
    /// A record is of a key that is revoked.
    Revoked,
    /// There are no signatures, or none that the parent vouches for.
    Unsigned,
    /// Signatures end soon.
    Expiring,
    /// Signatures have ended.
    Expired,
    /// A signature does not hold.
    Bogus,
    /// Aliases lead on and on.
    Alias,
    /// A server says nothing.
    Silent,
    /// A server does not serve the zone.
    NotServed,
    /// What is proved is not what the servers have.
    Differs,
    /// The service shows another key.
    Service,
}

impl Problem {
    /// Its name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Behind => "behind",
            Self::Stale => "stale",
            Self::Revoked => "revoked",
            Self::Unsigned => "unsigned",
            Self::Expiring => "expiring",
            Self::Expired => "expired",
            Self::Bogus => "bogus",
            Self::Alias => "alias",
            Self::Silent => "silent",
            Self::NotServed => "not-served",
            Self::Differs => "differs",
            Self::Service => "service",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub severity: Severity,
    pub owner: Owner,
    pub kind: Kind,
    pub problem: Problem,
    /// The server or service that it is about.
    pub place: Option<String>,
    pub text: String,
}

/// Judges the records of a name and type: those that are wanted, and those that must not be there. `now` is seconds of Unix time; signatures that end within `soon` are told.
pub fn judge(
    (owner, kind): (&Owner, Kind),
    (wanted, revoked): (&Set, &Revoked),
    seen: &Observation,
    now: u64,
    soon: Duration,
) -> Vec<Finding> {
    let mut judge = Judge { owner, kind, wanted, revoked, found: Vec::new() };
    judge.servers(&seen.servers, now, soon);
    for (server, signature) in &seen.aliases {
        judge.signature(Some(server), signature, now, soon);
    }
    judge.proved(&seen.proved);
    for live in &seen.live {
        judge.live(live);
    }
    judge.found.sort_by_key(|finding| finding.severity);
    judge.found
}

struct Judge<'a> {
    owner: &'a Owner,
    kind: Kind,
    wanted: &'a Set,
    revoked: &'a Revoked,
    found: Vec<Finding>,
}

impl Judge<'_> {
    fn tell(&mut self, severity: Severity, problem: Problem, place: Option<&str>, text: String) {
        let (owner, kind, place) = (self.owner.clone(), self.kind, place.map(str::to_owned));
        self.found.push(Finding { severity, owner, kind, problem, place, text });
    }

    fn servers(&mut self, servers: &[(String, Seen)], now: u64, soon: Duration) {
        let has = |seen: &Seen, record: &Vec<u8>| matches!(seen, Seen::Records { data, .. } if data.contains(record));
        let somewhere: Set = self
            .wanted
            .iter()
            .filter(|record| servers.iter().any(|(_, seen)| has(seen, record)))
            .cloned()
            .collect();
        for (server, seen) in servers {
            let place = Some(server.as_str());
            match seen {
                Seen::Silent(why) => {
                    self.tell(Severity::Bad, Problem::Silent, place, format!("no answer: {why}"))
                }
                Seen::NotServed(why) => {
                    self.tell(
                        Severity::Bad,
                        Problem::NotServed,
                        place,
                        format!("it does not serve the zone: {why}"),
                    );
                }
                Seen::Alias { target, .. } => {
                    let text = format!(
                        "aliases lead on (CNAME of {target}): there are more than {MOST_ALIASES} in a row, they lead in a circle, or the servers do not agree"
                    );
                    self.tell(Severity::Bad, Problem::Alias, place, text);
                }
                Seen::NoName | Seen::NoData => {
                    let none = if *seen == Seen::NoName {
                        "the name does not exist (NXDOMAIN)".to_owned()
                    } else {
                        format!("the name exists, and has no {} record", self.kind)
                    };
                    self.lacks(place, &somewhere, self.wanted.clone(), &none);
                }
                Seen::Records { data, signature, .. } => {
                    let lacking: Set = self.wanted.difference(data).cloned().collect();
                    let says = format!(
                        "it has {} of the {} records",
                        self.wanted.len() - lacking.len(),
                        self.wanted.len()
                    );
                    self.lacks(place, &somewhere, lacking, &says);
                    let revoked = self.believes(place, data, "`penstock dns push` removes it");
                    if self.wanted.is_empty() && revoked.is_empty() {
                        // The records are of keys that are not asked about.
                        continue;
                    }
                    let (kind, wanted) = (self.kind, self.wanted);
                    let is_stale = |record: &&Vec<u8>| {
                        !wanted.is_empty() && kind.is_ours(record) && !revoked.contains(*record)
                    };
                    for record in data.difference(wanted).filter(is_stale) {
                        let text = format!("of a key that is not used: {}", short(self.kind, record));
                        self.tell(Severity::Weak, Problem::Stale, place, text);
                    }
                    self.signature(place, signature, now, soon);
                }
            }
        }
    }

    /// Tells of the records of revoked keys, and returns them.
    fn believes(&mut self, place: Option<&str>, data: &Set, then: &str) -> Set {
        let revoked = self.revoked.among(self.owner, self.kind, data);
        for record in &revoked {
            let text = format!(
                "of a key that is revoked, and clients that go by the DNS believe it: {}: {then}",
                short(self.kind, record)
            );
            self.tell(Severity::Bad, Problem::Revoked, place, text);
        }
        revoked
    }

    /// Tells which wanted records a server lacks: those that others have, and those that none has.
    fn lacks(&mut self, place: Option<&str>, somewhere: &Set, lacking: Set, says: &str) {
        let (behind, missing): (Set, Set) =
            lacking.into_iter().partition(|record| somewhere.contains(record));
        for (problem, records, then) in [
            (Problem::Missing, missing, "penstock dns push adds it"),
            (Problem::Behind, behind, "other servers have it: does the transfer of the zone work?"),
        ] {
            if let Some(record) = records.first() {
                let more = match records.len() {
                    1 => String::new(),
                    count => format!(" and {} more", count - 1),
                };
                let text = format!("{says}; {}{more} is missing: {then}", short(self.kind, record));
                self.tell(Severity::Bad, problem, place, text);
            }
        }
    }

    fn signature(&mut self, place: Option<&str>, signature: &Signature, now: u64, soon: Duration) {
        let hours = |seconds: u64| match seconds / 3600 {
            0 => format!("{} min", seconds / 60),
            hours @ 1..48 => format!("{hours} h"),
            hours => format!("{} d", hours / 24),
        };
        match signature {
            Signature::Absent => {
                let text = "its answer has no signature (RRSIG): sign the zone with DNSSEC, or no validator believes it";
                self.tell(Severity::Bad, Problem::Unsigned, place, text.to_owned());
            }
            Signature::Unproved => {}
            Signature::Wrong => {
                let text = "the signature in its answer does not hold: the server or a machine on the path lies, or it has an old zone";
                self.tell(Severity::Bad, Problem::Bogus, place, text.to_owned());
            }
            Signature::Expired(end) => {
                let text = format!(
                    "its signature ended {} ago: is the zone still signed anew?",
                    hours(now.saturating_sub(*end))
                );
                self.tell(Severity::Bad, Problem::Expired, place, text);
            }
            Signature::Until(end) => {
                let left = end.saturating_sub(now);
                if left < soon.as_secs() {
                    let text =
                        format!("its signature ends in {}: is the zone still signed anew?", hours(left));
                    self.tell(Severity::Bad, Problem::Expiring, place, text);
                }
            }
        }
    }

    fn proved(&mut self, proved: &Proved) {
        let (bad, here) = (Severity::Bad, None);
        let anew = "caches may have it for one TTL after a change";
        if let Proved::Secure(data) | Proved::Insecure(data) = proved {
            self.believes(Some("the validating path"), data, anew);
        }
        if self.wanted.is_empty() {
            return;
        }
        match proved {
            Proved::NotAsked => {}
            Proved::Secure(data) => {
                let lacking = self.wanted.difference(data).count();
                if lacking > 0 {
                    let text = format!(
                        "the validating path lacks {lacking} of the {} records ({anew})",
                        self.wanted.len()
                    );
                    self.tell(bad, Problem::Differs, here, text);
                }
            }
            Proved::Insecure(_) => {
                let text = "not proved: no chain of signatures leads from the trust anchor to the zone (is there a DS record in its parent?)";
                self.tell(bad, Problem::Unsigned, here, text.to_owned());
            }
            Proved::SecurelyNone => {
                let text = format!("the validating path proves that there are none ({anew})");
                self.tell(bad, Problem::Differs, here, text);
            }
            Proved::None => {
                let text = format!("the validating path has none, without a proof ({anew})");
                self.tell(bad, Problem::Differs, here, text);
            }
            Proved::Bogus(why) => self.tell(bad, Problem::Bogus, here, format!("validation fails: {why}")),
            Proved::Unanchored(text) => self.tell(bad, Problem::Unsigned, here, text.clone()),
            Proved::Failed(why) => {
                self.tell(bad, Problem::Silent, here, format!("the validating path gives no answer: {why}"));
            }
        }
    }

    fn live(&mut self, live: &Live) {
        match live {
            Live::NotAsked | Live::Fits(_) => {}
            Live::Differs { address, shown } => {
                let text = format!(
                    "it shows a key that none of the wanted records is of ({shown}): clients that check refuse it"
                );
                self.tell(Severity::Bad, Problem::Service, Some(address), text);
            }
            Live::Silent { address, why } => {
                self.tell(
                    Severity::Weak,
                    Problem::Silent,
                    Some(address),
                    format!("the service cannot be asked: {why}"),
                );
            }
        }
    }
}

/// The data of a record, cut to what people compare.
fn short(kind: Kind, data: &[u8]) -> String {
    let text = data_text(kind, data);
    match text.char_indices().nth(40) {
        Some((at, _)) => format!("{kind} {}...", &text[..at]),
        None => format!("{kind} {text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000_000;
    const SOON: Duration = Duration::from_secs(3 * 24 * 3600);

    fn records(data: &[u8], signature: Signature) -> Seen {
        Seen::Records { data: set(data), ttl: 60, signature }
    }

    fn set(data: &[u8]) -> Set {
        data.iter().map(|byte| vec![3, 1, 1, *byte]).collect()
    }

    fn judged(
        wanted: &[u8],
        servers: Vec<Seen>,
        proved: Proved,
        live: Vec<Live>,
    ) -> Vec<(Severity, Problem, String)> {
        let owner = Owner::parse("_443._tcp.a.example").unwrap();
        let servers = servers.into_iter().enumerate().map(|(at, seen)| (format!("ns{at}"), seen)).collect();
        let seen = Observation { servers, aliases: Vec::new(), proved, live };
        let found = judge((&owner, Kind::Tlsa), (&set(wanted), &Revoked::default()), &seen, NOW, SOON);
        found
            .into_iter()
            .map(|finding| (finding.severity, finding.problem, finding.place.unwrap_or_default()))
            .collect()
    }

    const GOOD: Signature = Signature::Until(NOW + 10 * 24 * 3600);

    #[test]
    fn what_is_as_wanted_everywhere_is_no_finding() {
        let good = judged(
            &[1],
            vec![records(&[1], GOOD), records(&[1], GOOD)],
            Proved::Secure(set(&[1])),
            vec![Live::Fits("192.0.2.1:443".into())],
        );
        assert_eq!(good, []);
    }

    #[test]
    fn each_fault_has_its_own_name() {
        use Problem::*;
        let bad = Severity::Bad;
        let of_server = |seen: Seen| judged(&[1], vec![seen], Proved::NotAsked, Vec::new());
        let one = |problem| vec![(bad, problem, "ns0".to_owned())];
        assert_eq!(of_server(Seen::NoName), one(Missing));
        let target = Owner::parse("b.example").unwrap();
        assert_eq!(of_server(Seen::Alias { target, signature: GOOD }), one(Alias));
        assert_eq!(of_server(Seen::NoData), one(Missing));
        assert_eq!(of_server(Seen::Silent("time".into())), one(Silent));
        assert_eq!(of_server(Seen::NotServed("REFUSED".into())), one(NotServed));
        assert_eq!(of_server(records(&[1], Signature::Absent)), one(Unsigned));
        assert_eq!(of_server(records(&[1], Signature::Wrong)), one(Bogus));
        assert_eq!(of_server(records(&[1], Signature::Expired(NOW - 1))), one(Expired));
        assert_eq!(of_server(records(&[1], Signature::Until(NOW + 3600))), one(Expiring));
        assert_eq!(of_server(records(&[1, 2], GOOD)), [(Severity::Weak, Stale, "ns0".to_owned())]);
        let of_path = |proved| judged(&[1], vec![records(&[1], GOOD)], proved, Vec::new());
        let path = |problem| vec![(bad, problem, String::new())];
        assert_eq!(of_path(Proved::Secure(set(&[2]))), path(Differs));
        assert_eq!(of_path(Proved::Insecure(set(&[1]))), path(Unsigned));
        assert_eq!(of_path(Proved::SecurelyNone), path(Differs));
        assert_eq!(of_path(Proved::None), path(Differs));
        assert_eq!(of_path(Proved::Bogus("why".into())), path(Bogus));
        assert_eq!(of_path(Proved::Unanchored("why".into())), path(Unsigned));
        assert_eq!(of_path(Proved::Failed("why".into())), path(Silent));
        let live = Live::Differs { address: "192.0.2.1:443".into(), shown: "3 1 1 09".into() };
        let found = judged(&[1], vec![records(&[1], GOOD)], Proved::NotAsked, vec![live]);
        assert_eq!(found, [(bad, Service, "192.0.2.1:443".to_owned())]);
    }

    #[test]
    fn server_that_is_not_updated_is_behind_and_the_others_are_good() {
        let found = judged(
            &[1, 2],
            vec![records(&[1, 2], GOOD), records(&[1], GOOD), Seen::NoData],
            Proved::NotAsked,
            Vec::new(),
        );
        let behind = |server: &str| (Severity::Bad, Problem::Behind, server.to_owned());
        assert_eq!(found, [behind("ns1"), behind("ns2")]);
    }
}
