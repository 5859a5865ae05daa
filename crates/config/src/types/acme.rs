//! `[acme.NAME]`: certificates that an authority issues by itself.

use std::path::PathBuf;
use std::sync::Arc;

/// `[acme.NAME]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acme {
    /// NAME.
    pub name: Arc<str>,
    /// URL of the directory (RFC 8555 section 7.1.1), with `https`.
    pub directory: Box<str>,
    /// URLs with `mailto`.
    pub contacts: Vec<String>,
    /// How the names are validated.
    pub challenge: AcmeChallenge,
    /// Who may have signed the authority's own certificate; `None`: whom the system trusts.
    pub ca: Option<PathBuf>,
    /// Profile of the certificates.
    pub profile: Option<Box<str>>,
    /// Account that the new one is bound to.
    pub external_account: Option<ExternalAccount>,
    /// What is ordered, at least one. No two begin with the same name.
    pub certificates: Vec<AcmeCertificate>,
    /// Where account and certificates are kept.
    pub state: PathBuf,
}

impl Acme {
    /// The directory of certificates: `NAME.pem` each, with key and chain.
    pub fn certificates_directory(&self) -> PathBuf {
        certificates_directory(&self.state)
    }
}

/// The directory of certificates below the one that everything is kept in.
pub(crate) fn certificates_directory(state: &std::path::Path) -> PathBuf {
    state.join("certificates")
}

/// The names of one certificate: lower case, at least one, none twice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AcmeCertificate {
    /// What it is called by: the first.
    pub name: Arc<str>,
    /// All of them.
    pub names: Vec<String>,
}

/// How the authority sees that a name is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcmeChallenge {
    /// RFC 8555 section 8.3: a file on port 80.
    Http01,
    /// RFC 8737: a handshake on port 443.
    TlsAlpn01,
}

impl AcmeChallenge {
    /// Its word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Http01 => "http-01",
            Self::TlsAlpn01 => "tls-alpn-01",
        }
    }
}

/// An account elsewhere with the same authority (RFC 8555 section 7.3.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalAccount {
    /// Its identifier.
    pub id: String,
    /// File with its HMAC key in base64url.
    pub key_file: PathBuf,
}
