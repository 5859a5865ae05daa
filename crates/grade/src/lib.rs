//! Tests by real handshakes what a TLS listener accepts, and grades it like SSL Labs.
//!
//! Sees servers from outside only: the crate depends on none of the crates that serve. Everything that a server sends
//! is limited in size and time; no answer can cause a panic or exceed the time limit.
//!
//! - `target.rs` parses the server's address, `ask.rs` sends one ClientHello, `wire.rs` is the connection
//! - `hello.rs` and `reply.rs` are the messages
//! - `probe.rs` finds versions, ciphers and groups by handshakes that end after the first answer
//! - `session.rs` completes handshakes for certificates, resumption, ALPN and HTTP
//! - `certificate.rs`, `trust.rs`, `staple.rs` and `hsts.rs` parse the answers into an `observed.rs`
//! - `score.rs` and `judge.rs` are pure functions of the observations and the time; `finding.rs` holds their messages
//! - `report.rs` prints the report

use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use logic::tls_alert;
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

pub use finding::{Effect, Finding};
pub use group::Group;
pub use judge::{Verdict, judge};
pub use letter::Letter;
pub use observed::Key;
pub use score::{SHARES, Score, score};
pub use suite::{Exchange, Mode, Suite};
pub use target::{Target, TargetError};
pub use trust::{Trust, TrustError};
pub use version::Version;

use ask::{Asker, Silence};
use observed::{ChainSeen, GroupSeen, Observed};
use probe::Nothing;
use reply::Shown;

/// Time limits.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub connection: Duration,
    pub whole: Duration,
}

/// Observations, score and grade of a listener.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub address: SocketAddr,
    /// Server name sent in the handshakes.
    pub name: String,
    pub trust: String,
    /// Grade, points and findings.
    #[serde(flatten)]
    pub verdict: Verdict,
    pub observed: Observed,
}

/// Reason why a listener could not be tested.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// DNS does not know the name.
    #[error("the address of {host} was not found: {why}")]
    Unknown { host: String, why: String },
    #[error("nothing answers at {address}: {why}")]
    Unreachable { address: SocketAddr, why: String },
    /// The server accepted the connection and sent nothing.
    #[error("{address} accepts connections but does not answer a TLS handshake")]
    Silent { address: SocketAddr },
    /// The server does not speak TLS.
    #[error("{address} does not speak TLS")]
    NotTls { address: SocketAddr },
    /// The server does not serve the name.
    #[error("{address} has no certificate for {name}: name one that it serves with --name")]
    UnknownName { address: SocketAddr, name: String },
    /// The server refuses every handshake.
    #[error("{address} refuses every handshake{}", alert_words(*.alert))]
    Refused {
        address: SocketAddr,
        /// Alert that the server sent (RFC 8446 section 6).
        alert: Option<u8>,
    },
}

/// Tests a listener and grades it.
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
        incomplete.push("not everything was asked in time: raise --timeout".to_owned());
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
        Nothing::Refused(Some(tls_alert::UNRECOGNIZED_NAME)) => {
            AskError::UnknownName { address, name: target.name.to_str().into_owned() }
        }
        Nothing::Refused(alert) => AskError::Refused { address, alert },
    }
}

fn alert_words(alert: Option<u8>) -> String {
    match alert {
        // missing_extension (RFC 8446 section 9.2): the server requires a server name.
        Some(109) => " without a name: give one that it serves with --name".to_owned(),
        Some(alert) => format!(", with alert {alert}"),
        None => " by closing the connection".to_owned(),
    }
}

/// Largest number of addresses tried for one name.
const MAX_ADDRESSES: usize = 4;
/// Largest number of different certificates examined.
const MAX_CHAINS: usize = 8;
