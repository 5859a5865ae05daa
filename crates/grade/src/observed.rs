//! What was seen of a listener: facts only, no opinion. `judge.rs` has the opinions.

use std::time::SystemTime;

use serde::{Serialize, Serializer};

use crate::certificate::Key;
use crate::group::Group;
use crate::suite::{Exchange, Mode, Suite};
use crate::version::Version;

/// All that was seen.
#[derive(Clone, Debug, Serialize)]
pub struct Observed {
    /// Accepted versions, newest first.
    pub versions: Vec<VersionSeen>,
    /// Groups that it accepts for the key exchange, in the order in which it prefers or was offered them.
    pub groups: Vec<GroupSeen>,
    /// Certificate chains: one for each kind of key.
    pub chains: Vec<ChainSeen>,
    /// Whether a handshake with a post-quantum group came to its end.
    pub post_quantum: Feature,
    /// Whether it compresses (CVE-2012-4929).
    pub compression: Feature,
    /// Whether renegotiation, if there is any, is bound to the connection (RFC 5746). For TLS 1.2 and older.
    pub secure_renegotiation: Feature,
    /// Whether a client that was made to try an older version is told so (RFC 7507).
    pub fallback_scsv: Feature,
    /// Whether session keys are bound to the handshake (RFC 7627). For TLS 1.2 and older.
    pub extended_master_secret: Feature,
    /// Whether it offers heartbeats (RFC 6520), which nothing on TCP needs.
    pub heartbeat: Feature,
    /// Whether a session is resumed in TLS 1.3.
    pub resumption_tls13: Feature,
    /// Whether a session is resumed in TLS 1.2, by ticket or by id.
    pub resumption_tls12: Feature,
    /// Protocols that it speaks in TLS (ALPN).
    pub alpn: Vec<String>,
    /// What it says of Strict-Transport-Security.
    pub hsts: Hsts,
    /// What could not be learnt, and why.
    pub incomplete: Vec<String>,
}

/// A version that is accepted.
#[derive(Clone, Debug, Serialize)]
pub struct VersionSeen {
    /// Which.
    pub version: Version,
    /// Its cipher suites. If the server has an order of its own, in that.
    pub suites: Vec<SuiteSeen>,
    /// Whose order counts.
    pub order: Order,
}

/// A suite that is accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SuiteSeen {
    /// IANA's name.
    #[serde(serialize_with = "suite_name")]
    pub suite: Suite,
    /// How keys come about.
    pub exchange: Exchange,
    /// How bytes are encrypted.
    pub mode: Mode,
    /// Strength of the cipher in bits.
    pub bits: u16,
    /// Prime of the key exchange in a finite field, in bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dh_bits: Option<u32>,
}

/// A group that is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct GroupSeen {
    /// Which.
    #[serde(serialize_with = "group_name")]
    pub group: Group,
}

/// Whose order of ciphers counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// The server's.
    Server,
    /// The client's.
    Client,
    /// There is only one suite, or it could not be learnt.
    #[default]
    Unknown,
}

/// Whether it has something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Feature {
    /// It has.
    Yes,
    /// It has not.
    No,
    /// It could not be learnt, or makes no sense here.
    Unknown,
}

impl Feature {
    /// Yes or no.
    pub fn of(has: bool) -> Self {
        if has { Self::Yes } else { Self::No }
    }
}

/// A certificate with what came along.
#[derive(Clone, Debug, Serialize)]
pub struct ChainSeen {
    /// Names of the leaf, as written in it.
    pub names: Vec<String>,
    /// Its key.
    pub key: Key,
    /// Its signature: `ECDSA with SHA-256`.
    pub signature: String,
    /// Whether a hash in the chain, the root's left out, can be forged.
    pub weakest_hash: Hash,
    /// Who issued it.
    pub issuer: String,
    /// First second at which it is valid.
    #[serde(serialize_with = "timestamp")]
    pub not_before: SystemTime,
    /// Last second at which it is valid.
    #[serde(serialize_with = "timestamp")]
    pub not_after: SystemTime,
    /// Certificates that were sent.
    pub length: usize,
    /// Whether each is followed by its issuer.
    pub order: ChainOrder,
    /// Whether it is for the name that was asked for.
    pub name: NameMatch,
    /// Whether it leads to a trusted authority, its time left aside.
    pub trust: Trusted,
    /// Whether it names an OCSP responder.
    pub responder: Feature,
    /// Whether clients may insist on a staple (RFC 7633).
    pub must_staple: Feature,
    /// The stapled OCSP response.
    pub staple: Staple,
}

/// A hash that signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hash {
    /// MD2 or MD5: forged since 2008.
    Md5,
    /// Forged since 2017.
    Sha1,
    /// SHA-2, or a signature scheme without a weak one.
    Strong,
}

/// How certificates follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChainOrder {
    /// Each is followed by its issuer.
    Right,
    /// All belong together, but not in this order.
    Wrong,
    /// Some issued none of the others.
    Unconnected,
}

/// Whether a certificate is for the name that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NameMatch {
    /// It is.
    Yes,
    /// It is for others.
    No,
}

/// Whether a chain leads to a trusted authority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trusted {
    /// It does.
    Yes,
    /// It signed itself, and nobody trusts it.
    SelfSigned,
    /// The last certificate's issuer is neither sent nor trusted. Its name.
    UnknownIssuer(String),
    /// Anything else, in words.
    Broken(String),
}

/// A stapled OCSP response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Staple {
    /// None was sent.
    None,
    /// One that says that the certificate is good, with its time. The signature is not checked.
    Good {
        /// Its nextUpdate.
        #[serde(serialize_with = "maybe_timestamp")]
        until: Option<SystemTime>,
    },
    /// One that says that the certificate was revoked.
    Revoked,
    /// One that says nothing of use.
    Useless(String),
}

/// What was learnt about Strict-Transport-Security (RFC 6797).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hsts {
    /// It is sent.
    Sent(Policy),
    /// It is sent, but not so that browsers take it.
    Malformed(String),
    /// It is not sent.
    Missing,
    /// It speaks no HTTP there, or not within our time.
    Unknown(String),
}

/// A policy of Strict-Transport-Security.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Policy {
    /// The header's value.
    pub value: String,
    /// Seconds.
    pub max_age: u64,
    /// Whether it is for all names below, too.
    pub include_sub_domains: Feature,
    /// Whether it asks for a place in the browsers' own lists.
    pub preload: Feature,
}

impl From<Suite> for SuiteSeen {
    fn from(suite: Suite) -> Self {
        Self { suite, exchange: suite.exchange(), mode: suite.mode(), bits: suite.bits(), dh_bits: None }
    }
}

fn suite_name<S: Serializer>(suite: &Suite, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&suite.name())
}

fn group_name<S: Serializer>(group: &Group, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&group.name())
}

fn timestamp<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    match jiff::Timestamp::try_from(*time) {
        Ok(time) => serializer.collect_str(&time),
        Err(_) => serializer.serialize_none(),
    }
}

fn maybe_timestamp<S: Serializer>(time: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => timestamp(time, serializer),
        None => serializer.serialize_none(),
    }
}
