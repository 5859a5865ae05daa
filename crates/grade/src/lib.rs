//! Asks a listener what it accepts, by real handshakes, and rates it as SSL Labs does.
//!
//! Sees servers from outside only: it depends on none of the crates that serve. Everything that a server sends is bounded
//! in size and time; none of it can make this panic or wait for longer than it was told.
//!
//! - `target.rs` says whom to ask, `ask.rs` asks one thing, `wire.rs` is the connection, `hello.rs` and `reply.rs` are
//!   the messages
//! - `probe.rs` finds out versions, ciphers and groups with handshakes that end after the first answer; `session.rs`
//!   makes whole ones for certificates, resumption, ALPN and HTTP
//! - `certificate.rs`, `trust.rs`, `staple.rs` and `hsts.rs` read what was shown; all of it becomes an `observed.rs`
//! - `score.rs` and `judge.rs` decide: pure functions of what was observed and the time. `finding.rs` is what they say
//! - `report.rs` prints it

use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;

mod ask;
mod certificate;
mod finding;
mod group;
mod hello;
mod hsts;
mod judge;
mod letter;
pub mod observed;
mod probe;
mod reply;
pub mod report;
mod score;
mod session;
mod staple;
mod suite;
mod target;
mod trust;
mod version;
mod wire;

pub use certificate::Key;
pub use finding::{Effect, Finding};
pub use group::Group;
pub use judge::{Verdict, judge};
pub use letter::Letter;
pub use score::{SHARES, Score, score};
pub use suite::{Exchange, Mode, Suite};
pub use target::{Target, TargetError};
pub use trust::{Trust, TrustError};
pub use version::Version;

use ask::{Asker, Silence};
use observed::{ChainSeen, GroupSeen, Observed};
use probe::{Nothing, UNRECOGNIZED_NAME};
use reply::Shown;

/// How long to ask.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For one connection.
    pub connection: Duration,
    /// For everything.
    pub whole: Duration,
}

/// What there is to tell of a listener.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The address that was asked.
    pub address: SocketAddr,
    /// The name that certificates were asked for.
    pub name: String,
    /// Who is believed.
    pub trust: String,
    /// The letter, the points, and why.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// What was seen.
    pub observed: Observed,
}

/// Why a listener could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The name was not found.
    #[error("the address of {host} was not found: {why}")]
    Unknown {
        /// Whose.
        host: String,
        /// Why.
        why: String,
    },
    /// No connection.
    #[error("nothing answers at {address}: {why}")]
    Unreachable {
        /// Where.
        address: SocketAddr,
        /// Why.
        why: String,
    },
    /// A connection, and then nothing.
    #[error("{address} takes connections and does not answer a handshake of TLS")]
    Silent {
        /// Where.
        address: SocketAddr,
    },
    /// Something else is spoken there.
    #[error("{address} does not speak TLS")]
    NotTls {
        /// Where.
        address: SocketAddr,
    },
    /// It knows nothing of that name.
    #[error("{address} has no certificate for {name}: name one that it serves with --name")]
    UnknownName {
        /// Where.
        address: SocketAddr,
        /// Which.
        name: String,
    },
    /// Every handshake is refused.
    #[error("{address} refuses every handshake{}", alert_words(*.alert))]
    Refused {
        /// Where.
        address: SocketAddr,
        /// With this alert (RFC 8446 section 6).
        alert: Option<u8>,
    },
}

/// Asks, looks and judges.
pub fn grade(target: &Target, trust: &Trust, limits: Limits) -> Result<Report, AskError> {
    let end = Instant::now() + limits.whole;
    let host = || target.host.clone();
    let addresses =
        target.addresses(limits.connection).map_err(|why| AskError::Unknown { host: host(), why })?;
    let mut failure = AskError::Unknown { host: host(), why: "it has no address".to_owned() };
    for address in addresses.into_iter().take(MAX_ADDRESSES) {
        let name = target.sni().map(str::to_owned);
        let asker = Asker { address, name, end, patience: limits.connection };
        match probe::probe(&asker) {
            Ok(probed) => return Ok(report(target, trust, &asker, probed)),
            Err(Nothing::Silent(Silence::Unreachable(kind))) => {
                failure = AskError::Unreachable { address, why: kind.to_string() };
            }
            Err(nothing) => return Err(error_of(target, address, &nothing)),
        }
    }
    Err(failure)
}

fn report(target: &Target, trust: &Trust, asker: &Asker, probed: probe::Probed) -> Report {
    let now = SystemTime::now();
    let sessions = session::meet(asker, &target.name, &target.authority());
    let mut chains: Vec<ChainSeen> = Vec::new();
    let mut known: Vec<Vec<u8>> = Vec::new();
    let mut incomplete = probed.incomplete;
    for Shown { chain, staple } in sessions.shown.into_iter().chain(probed.shown) {
        let Some(leaf) = chain.first() else { continue };
        if known.contains(leaf) || known.len() == MAX_CHAINS {
            continue;
        }
        known.push(leaf.clone());
        match certificate::read(&chain, staple.as_deref(), &target.name, trust, now) {
            Ok(seen) => chains.push(seen),
            Err(why) => incomplete.push(format!("the certificate: {why}")),
        }
    }
    if chains.is_empty() && incomplete.is_empty() {
        incomplete.push("the certificate: no handshake came far enough to see one".to_owned());
    }
    if Instant::now() >= asker.end {
        incomplete.push("the time was over before everything was asked: give more with --timeout".to_owned());
    }
    let observed = Observed {
        versions: probed.versions,
        groups: probed.groups.into_iter().map(|group| GroupSeen { group }).collect(),
        chains,
        post_quantum: sessions.post_quantum,
        compression: probed.compression,
        secure_renegotiation: probed.secure_renegotiation,
        fallback_scsv: probed.fallback_scsv,
        extended_master_secret: probed.extended_master_secret,
        heartbeat: probed.heartbeat,
        resumption_tls13: sessions.resumption_tls13,
        resumption_tls12: sessions.resumption_tls12,
        alpn: sessions.alpn,
        hsts: sessions.hsts,
        incomplete,
    };
    Report {
        address: asker.address,
        name: target.name.to_str().into_owned(),
        trust: trust.source.clone(),
        verdict: judge(&observed, now),
        observed,
    }
}

fn error_of(target: &Target, address: SocketAddr, nothing: &Nothing) -> AskError {
    match *nothing {
        Nothing::Silent(Silence::Unreachable(kind)) => {
            AskError::Unreachable { address, why: kind.to_string() }
        }
        Nothing::Silent(Silence::Timeout) => AskError::Silent { address },
        Nothing::NotTls => AskError::NotTls { address },
        Nothing::Refused(Some(UNRECOGNIZED_NAME)) => {
            AskError::UnknownName { address, name: target.name.to_str().into_owned() }
        }
        Nothing::Refused(alert) => AskError::Refused { address, alert },
    }
}

fn alert_words(alert: Option<u8>) -> String {
    match alert {
        // missing_extension (RFC 8446 section 9.2): that is how a server asks for a name.
        Some(109) => " without a name: give one that it serves with --name".to_owned(),
        Some(alert) => format!(", with alert {alert}"),
        None => " by closing the connection".to_owned(),
    }
}

/// Addresses of one name that are tried.
const MAX_ADDRESSES: usize = 4;
/// Different certificates that are looked at.
const MAX_CHAINS: usize = 8;
