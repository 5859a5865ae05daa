//! Observations of a listener: facts only. `judge.rs` rates them.

use std::time::SystemTime;

use serde::{Serialize, Serializer};

use crate::group::Group;
use crate::suite::{Exchange, Mode, Suite};
use crate::version::Version;

#[derive(Clone, Debug, Serialize)]
pub struct Observed {
    /// Accepted versions, newest first.
    pub versions: Vec<VersionSeen>,
    /// Groups accepted for the key exchange, in the server's order of preference or in the order offered.
    pub groups: Vec<GroupSeen>,
    /// Certificate chains: one for each key type.
    pub chains: Vec<ChainSeen>,
    /// Whether a handshake with a post-quantum group succeeded.
    pub post_quantum: Feature,
    /// Whether the server compresses (CVE-2012-4929).
    pub compression: Feature,
    /// Whether renegotiation is bound to the connection (RFC 5746). For TLS 1.2 and older.
    pub secure_renegotiation: Feature,
    /// Whether the server refuses an unneeded retry with an older version (RFC 7507).
    pub fallback_scsv: Feature,
    /// Whether session keys are bound to the handshake (RFC 7627). For TLS 1.2 and older.
    pub extended_master_secret: Feature,
    /// Whether the server offers heartbeats (RFC 6520), which TCP does not need.
    pub heartbeat: Feature,
    pub resumption_tls13: Feature,
    /// Whether a session is resumed in TLS 1.2, by ticket or by session id.
    pub resumption_tls12: Feature,
    /// Protocols accepted by ALPN.
    pub alpn: Vec<String>,
    pub hsts: Hsts,
    /// Facts that could not be observed, and why.
    pub incomplete: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct VersionSeen {
    pub version: Version,
    /// Accepted cipher suites, in the server's order if it has one.
    pub suites: Vec<SuiteSeen>,
    pub order: Order,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SuiteSeen {
    #[serde(serialize_with = "suite_name")]
    pub suite: Suite,
    pub exchange: Exchange,
    pub mode: Mode,
    /// Strength of the cipher in bits.
    pub bits: u16,
    /// Size of the Diffie-Hellman prime in bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dh_bits: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct GroupSeen {
    #[serde(serialize_with = "group_name")]
    pub group: Group,
}

/// Whose order of cipher suites counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    Server,
    Client,
    /// There is only one suite, or the order could not be observed.
    #[default]
    Unknown,
}

/// Whether the server has a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Feature {
    Yes,
    No,
    /// The feature could not be observed, or does not apply.
    Unknown,
}

impl Feature {
    pub fn of(has: bool) -> Self {
        if has { Self::Yes } else { Self::No }
    }
}

/// A certificate chain and its staple.
#[derive(Clone, Debug, Serialize)]
pub struct ChainSeen {
    /// Names of the leaf, as written in it.
    pub names: Vec<String>,
    pub key: Key,
    /// Signature of the leaf, such as `ECDSA with SHA-256`.
    pub signature: String,
    /// Weakest hash in the chain, the root excluded.
    pub weakest_hash: Hash,
    pub issuer: String,
    #[serde(serialize_with = "timestamp")]
    pub not_before: SystemTime,
    /// Last second of the validity period (inclusive).
    #[serde(serialize_with = "timestamp")]
    pub not_after: SystemTime,
    /// Number of certificates that the server sent.
    pub length: usize,
    pub order: ChainOrder,
    pub name: NameMatch,
    /// Whether the chain leads to a trusted CA; the validity period is not checked.
    pub trust: Trusted,
    /// Whether the certificate names an OCSP responder.
    pub responder: Feature,
    /// Whether the certificate requires a staple (RFC 7633).
    pub must_staple: Feature,
    pub staple: Staple,
}

/// Type and size of a public key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Key {
    /// Such as `ECDSA P-256` or `RSA 2048`.
    pub kind: String,
    /// Length in bits of an RSA key of the same strength (NIST SP 800-57 part 1, table 2).
    pub rsa_bits: u32,
}

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

/// Order of the certificates in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChainOrder {
    /// Each certificate is followed by its issuer.
    InOrder,
    /// All certificates belong together, but in another order.
    OutOfOrder,
    /// Some certificates do not belong to the chain.
    Unrelated,
}

/// Whether a certificate is valid for the name asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NameMatch {
    Yes,
    No,
}

/// Whether a chain leads to a trusted CA.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trusted {
    Yes,
    /// The certificate is self-signed and not trusted.
    SelfSigned,
    /// The issuer of the last certificate was not sent and is not trusted. Holds the issuer's name.
    UnknownIssuer(String),
    /// Any other reason, in words.
    Untrusted(String),
}

/// A stapled OCSP response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Staple {
    None,
    /// The response says that the certificate is good; with its times. The signature is not checked.
    Good {
        #[serde(serialize_with = "maybe_timestamp")]
        until: Option<SystemTime>,
    },
    /// The response says that the certificate is revoked.
    Revoked,
    /// Clients cannot use the response.
    Unusable(String),
}

/// Observed Strict-Transport-Security field (RFC 6797).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hsts {
    Sent(Policy),
    /// The field is sent, but browsers ignore it.
    Malformed(String),
    /// The field is not sent.
    Missing,
    /// The server speaks no HTTP, or did not answer in time.
    Unknown(String),
}

/// A policy of Strict-Transport-Security.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Policy {
    /// Value of the field.
    pub value: String,
    /// Lifetime in seconds.
    pub max_age: u64,
    /// Whether the policy applies to all subdomains.
    pub include_sub_domains: Feature,
    /// Whether the policy asks for an entry in the browsers' preload lists.
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
