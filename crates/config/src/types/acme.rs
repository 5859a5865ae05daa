//! `[acme.NAME]`: certificates that an authority issues automatically.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// `[acme.NAME]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acme {
    /// NAME of the section.
    pub name: Arc<str>,
    /// URL of the directory (RFC 8555 section 7.1.1), with `https`.
    pub directory: Box<str>,
    /// `mailto` URLs.
    pub contacts: Vec<String>,
    /// Kind of validation.
    pub challenge: AcmeChallenge,
    /// TLSA records of the certificates, and the gate before a new one; `None`: it is used at once.
    pub tlsa: Option<AcmeTlsa>,
    /// File with the CAs of the authority's own certificate; `None`: the CAs of the system.
    pub ca: Option<PathBuf>,
    /// Profile of the certificates.
    pub profile: Option<Box<str>>,
    /// External account that the ACME account is bound to.
    pub external_account: Option<ExternalAccount>,
    /// Certificates to order, at least one. No two have the same first name.
    pub certificates: Vec<AcmeCertificate>,
    /// Directory of account and certificates.
    pub state: PathBuf,
}

impl Acme {
    /// Directory of certificates: `NAME.pem` each, with key and chain.
    pub fn certificates_directory(&self) -> PathBuf {
        certificates_directory(&self.state)
    }
}

/// Directory of certificates below the directory of a section.
pub(crate) fn certificates_directory(state: &std::path::Path) -> PathBuf {
    state.join("certificates")
}

/// Names of one certificate: lower case, at least one, without repetitions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AcmeCertificate {
    /// First name, used for files and messages.
    pub name: Arc<str>,
    /// All names.
    pub names: Vec<String>,
}

/// Validation that a name is ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcmeChallenge {
    /// RFC 8555 section 8.3: a file on port 80.
    Http01,
    /// RFC 8737: a handshake on port 443.
    TlsAlpn01,
    /// RFC 8555 section 8.4: a record in the DNS. The only one for wildcards.
    Dns01(DnsUpdates),
    /// The same, by a program.
    DnsCommand(DnsCommand),
}

/// Program that adds and removes records of a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsCommand {
    /// Absolute path and arguments.
    pub words: Vec<String>,
    /// Time limit of one run.
    pub limit: Duration,
    /// Time from a run until the authority is told: the zone's servers get the record later.
    pub wait: Duration,
}

/// Name server that takes signed updates of a zone (RFC 2136, RFC 8945).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsUpdates {
    /// Primary server of the zone.
    pub server: SocketAddr,
    /// File with the TSIG key.
    pub key_file: PathBuf,
    /// Time from an update until the authority is told: the zone's other servers get it later.
    pub wait: Duration,
}

/// TLSA records of the certificates of a section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeTlsa {
    /// Primary server of the zone.
    pub server: SocketAddr,
    /// File with the TSIG key.
    pub key_file: PathBuf,
    /// Addresses of the service, at least one.
    pub services: Vec<SocketAddr>,
    /// Servers of the zone to look at; empty: those of its NS records.
    pub servers: Vec<SocketAddr>,
    /// Time limit of the wait, beyond twice the TTL.
    pub limit: Duration,
}

impl AcmeChallenge {
    /// Word in the configuration.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Http01 => "http-01",
            Self::TlsAlpn01 => "tls-alpn-01",
            Self::Dns01(_) | Self::DnsCommand(_) => "dns-01",
        }
    }
}

/// Existing account with the same authority (RFC 8555 section 7.3.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalAccount {
    /// Identifier of the account.
    pub id: String,
    /// File with the HMAC key in base64url.
    pub key_file: PathBuf,
}
