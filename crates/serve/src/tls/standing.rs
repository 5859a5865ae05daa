//! How a certificate of a directory stands, for those who show it.

use std::path::PathBuf;
use std::sync::Arc;

use super::pair::Pair;

/// A certificate as it stands.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// NAME of its files.
    pub name: String,
    /// Certificate, key, chain, staple, passphrase: those that there are.
    pub files: Vec<PathBuf>,
    /// What is served.
    pub pair: Option<Arc<Pair>>,
    /// How it stands.
    pub standing: Standing,
    /// Why it stands like this, unless it is well.
    pub reason: Option<String>,
    /// What could be better.
    pub notes: Vec<String>,
}

/// How a certificate stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// What its files say is served.
    Ok,
    /// Its files are broken; what they said before is served.
    KeptOld,
    /// Its files are broken, and nothing is served.
    Refused,
    /// It is served, though its time is over or has not come.
    Untimely,
    /// It is served, though its issuer says (OCSP, RFC 6960) that it is revoked.
    Revoked,
}

impl Standing {
    /// Every one.
    pub const ALL: [Self; 5] = [Self::Ok, Self::KeptOld, Self::Refused, Self::Untimely, Self::Revoked];

    /// Its word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::KeptOld => "kept-old",
            Self::Refused => "refused",
            Self::Untimely => "not-valid",
            Self::Revoked => "revoked",
        }
    }
}
