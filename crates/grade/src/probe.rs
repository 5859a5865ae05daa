//! Finds what a listener accepts by sending one ClientHello after the other.
//!
//! The method is always the same: offer everything, note the server's choice, offer the rest, until the server refuses.

use std::thread;

use logic::tls_alert;

use crate::ask::{Answer, Asker, Silence};
use crate::group::Group;
use crate::hello::{self, Compression, FALLBACK_SCSV, Hello, RENEGOTIATION_SCSV};
use crate::observed::{Feature, Order, SuiteSeen, VersionSeen};
use crate::reply::{ServerHello, Shown};
use crate::suite::{Exchange, Suite};
use crate::version::Version;

/// Result of the ClientHellos.
#[derive(Clone, Debug)]
pub(crate) struct Probed {
    pub(crate) versions: Vec<VersionSeen>,
    pub(crate) groups: Vec<Group>,
    /// Certificates and staples that were sent unencrypted.
    pub(crate) shown: Vec<Shown>,
    pub(crate) compression: Feature,
    pub(crate) secure_renegotiation: Feature,
    pub(crate) fallback_scsv: Feature,
    pub(crate) extended_master_secret: Feature,
    pub(crate) heartbeat: Feature,
    pub(crate) incomplete: Vec<String>,
}

/// Reason why there is no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Nothing {
    /// No connection, or no answer.
    Silent(Silence),
    /// The server answers, but does not speak TLS.
    NotTls,
    /// The server refuses every handshake; with its alert, if it sent one.
    Refused(Option<u8>),
}

pub(crate) fn probe(asker: &Asker) -> Result<Probed, Nothing> {
    let first = first_contact(asker)?;
    let scans: Vec<Scan> = thread::scope(|scope| {
        let start = |version| thread::Builder::new().spawn_scoped(scope, move || scan(asker, version));
        let started = Version::RECORDS.map(start);
        let lost = |why: String| Scan { failure: Some(why), ..Scan::default() };
        let ended = started.into_iter().map(|scan| match scan.map(thread::ScopedJoinHandle::join) {
            Ok(Ok(scan)) => scan,
            // A panic of a scan is a bug in Penstock; its version counts as not observed.
            Ok(Err(_)) => lost("an error of this program".to_owned()),
            Err(error) => lost(format!("no thread for it: {error}")),
        });
        ended.collect()
    });
    let mut probed = Probed {
        versions: Vec::new(),
        groups: Vec::new(),
        shown: Vec::new(),
        compression: Feature::Unknown,
        secure_renegotiation: Feature::Unknown,
        fallback_scsv: Feature::Unknown,
        extended_master_secret: Feature::Unknown,
        heartbeat: Feature::Unknown,
        incomplete: Vec::new(),
    };
    for (version, scan) in Version::RECORDS.into_iter().zip(scans) {
        if let Some(failure) = scan.failure {
            probed.incomplete.push(format!("the cipher suites of {}: {failure}", version.name()));
        }
        for group in scan.groups {
            if !probed.groups.contains(&group) {
                probed.groups.push(group);
            }
        }
        probed.shown.extend(scan.shown);
        if let Some(seen) = &scan.first
            && version <= Version::Tls12
            && probed.secure_renegotiation == Feature::Unknown
        {
            probed.secure_renegotiation = Feature::of(seen.has(hello::RENEGOTIATION_INFO));
            if version != Version::Ssl3 {
                probed.extended_master_secret = Feature::of(seen.has(hello::EXTENDED_MASTER_SECRET));
                probed.heartbeat = Feature::of(seen.has(hello::HEARTBEAT));
            }
        }
        if !scan.suites.is_empty() {
            probed.versions.push(VersionSeen { version, suites: scan.suites, order: scan.order });
        }
    }
    match asker.speaks_ssl2() {
        Ok(true) => probed.versions.push(VersionSeen {
            version: Version::Ssl2,
            suites: Vec::new(),
            order: Order::Unknown,
        }),
        Ok(false) => {}
        Err(silence) => probed.incomplete.push(format!("SSL 2.0: {}", silence.reason())),
    }
    probed.compression = compresses(asker, &probed);
    probed.fallback_scsv = minds_fallback(asker, &probed);
    // A server that now limits our connections looks like one that accepts nothing: repeat the first successful
    // ClientHello.
    if !matches!(first.again(asker), Answer::Hello(_)) {
        let why = "it stopped answering while we asked; it may limit connections: wait and try again";
        probed.incomplete.push(why.to_owned());
    }
    Ok(probed)
}

impl Silence {
    pub(crate) fn reason(self) -> String {
        match self {
            Self::Timeout => "no answer in time".to_owned(),
            Self::Unreachable(kind) => format!("no connection: {kind}"),
        }
    }
}

/// A ClientHello that the server accepted.
struct First {
    version: Version,
    suite: u16,
}

impl First {
    fn again(&self, asker: &Asker) -> Answer {
        say(asker, self.version, &[self.suite], &groups_of(self.version), Compression::Not)
    }
}

/// Finds the newest accepted version, or the reason why the server refuses all versions.
fn first_contact(asker: &Asker) -> Result<First, Nothing> {
    let mut nothing = None;
    for version in Version::RECORDS {
        match say(asker, version, &Suite::all_of(version), &groups_of(version), Compression::Not) {
            Answer::Hello(hello) if hello.version == version.number() => {
                return Ok(First { version, suite: hello.suite });
            }
            Answer::Hello(hello) => {
                // An older server answers with its own version, which is offered next.
                nothing.get_or_insert(Nothing::Refused(None));
                let _ = hello;
            }
            Answer::Refused(alert) => {
                // unrecognized_name is more precise than the later alerts about versions.
                if alert == Some(tls_alert::UNRECOGNIZED_NAME) {
                    return Err(Nothing::Refused(alert));
                }
                nothing.get_or_insert(Nothing::Refused(alert));
            }
            Answer::Garbage => return Err(Nothing::NotTls),
            Answer::Silent(silence) => return Err(Nothing::Silent(silence)),
        }
    }
    Err(nothing.unwrap_or(Nothing::Refused(None)))
}

/// Results for one version.
#[derive(Default)]
struct Scan {
    suites: Vec<SuiteSeen>,
    order: Order,
    groups: Vec<Group>,
    shown: Vec<Shown>,
    first: Option<Box<ServerHello>>,
    failure: Option<String>,
}

fn scan(asker: &Asker, version: Version) -> Scan {
    let mut scan = Scan::default();
    let mut left = Suite::all_of(version);
    let groups = groups_of(version);
    while !left.is_empty() {
        match say(asker, version, &left, &groups, Compression::Not) {
            Answer::Hello(hello) if hello.version == version.number() => {
                let suite = hello.suite;
                let Some(at) = left.iter().position(|offered| *offered == suite) else {
                    scan.failure = Some("it chose a suite that was not offered".to_owned());
                    break;
                };
                left.remove(at);
                let mut seen = SuiteSeen::from(Suite(suite));
                seen.dh_bits = hello.dh_bits;
                scan.suites.push(seen);
                let is_known = scan.shown.iter().any(|known| known.chain == hello.shown.chain);
                if !hello.shown.chain.is_empty() && !is_known {
                    scan.shown.push(hello.shown.clone());
                }
                scan.first.get_or_insert(hello);
            }
            Answer::Silent(silence) => {
                // Some servers do not answer an obsolete version at all; a timeout counts only after an answer.
                if scan.first.is_some() || version >= Version::Tls12 {
                    scan.failure = Some(silence.reason());
                }
                break;
            }
            Answer::Hello(_) | Answer::Refused(_) | Answer::Garbage => break,
        }
    }
    if scan.first.is_none() {
        return scan;
    }
    scan.order = order(asker, version, &scan.suites);
    if version >= Version::Tls12 {
        scan.groups = accepted_groups(asker, version, &scan.suites);
    }
    scan
}

/// Finds whose order counts: the server's choice is first in `suites`, so it is offered last.
fn order(asker: &Asker, version: Version, suites: &[SuiteSeen]) -> Order {
    let mut turned: Vec<u16> = suites.iter().map(|seen| seen.suite.0).collect();
    if turned.len() < 2 {
        return Order::Unknown;
    }
    turned.reverse();
    match say(asker, version, &turned, &groups_of(version), Compression::Not).hello() {
        Some(hello) if hello.suite == suites[0].suite.0 => Order::Server,
        Some(hello) if hello.suite == turned[0] => Order::Client,
        _ => Order::Unknown,
    }
}

fn accepted_groups(asker: &Asker, version: Version, suites: &[SuiteSeen]) -> Vec<Group> {
    let fitting: Vec<u16> =
        suites.iter().filter(|seen| seen.exchange == Exchange::Ecdhe).map(|seen| seen.suite.0).collect();
    let mut left = groups_of(version);
    let mut found = Vec::new();
    while !left.is_empty() && !fitting.is_empty() {
        let Some(hello) = say(asker, version, &fitting, &left, Compression::Not).hello() else { break };
        let Some(at) = left.iter().position(|offered| Some(*offered) == hello.group) else { break };
        found.push(Group(left.remove(at)));
    }
    found
}

fn compresses(asker: &Asker, probed: &Probed) -> Feature {
    let Some(seen) = probed.versions.iter().find(|seen| seen.version <= Version::Tls12) else {
        // TLS 1.3 has no compression.
        return Feature::No;
    };
    let suites: Vec<u16> = seen.suites.iter().map(|seen| seen.suite.0).collect();
    match say(asker, seen.version, &suites, &groups_of(seen.version), Compression::Offered) {
        Answer::Hello(hello) => Feature::of(hello.compression != 0),
        Answer::Silent(_) => Feature::Unknown,
        _ => Feature::No,
    }
}

/// Offers the second version with TLS_FALLBACK_SCSV, like a client whose first attempt was disturbed.
fn minds_fallback(asker: &Asker, probed: &Probed) -> Feature {
    let Some(seen) = probed.versions.iter().skip(1).find(|seen| seen.version != Version::Ssl2) else {
        return Feature::Unknown;
    };
    let mut suites: Vec<u16> = seen.suites.iter().map(|seen| seen.suite.0).collect();
    suites.push(FALLBACK_SCSV);
    match say(asker, seen.version, &suites, &groups_of(seen.version), Compression::Not) {
        Answer::Hello(_) => Feature::No,
        Answer::Refused(Some(tls_alert::INAPPROPRIATE_FALLBACK)) => Feature::Yes,
        // The server ended the handshake, which is the expected reaction.
        Answer::Refused(_) | Answer::Garbage => Feature::Yes,
        Answer::Silent(_) => Feature::Unknown,
    }
}

fn say(asker: &Asker, version: Version, suites: &[u16], groups: &[u16], compression: Compression) -> Answer {
    let mut suites = suites.to_vec();
    if version == Version::Ssl3 {
        suites.push(RENEGOTIATION_SCSV);
    }
    asker.say(&Hello { version, suites: &suites, groups, name: asker.name.as_deref(), compression })
}

fn groups_of(version: Version) -> Vec<u16> {
    Group::all().filter(|group| version == Version::Tls13 || !Group(*group).is_tls13_only()).collect()
}
