//! User certificates: reads the file, and says beforehand why a server will refuse one.

use std::path::Path;

use jiff::Timestamp;
use russh::keys::ssh_key::certificate::CertType;
use russh::keys::ssh_key::{Algorithm, Certificate};

use super::fault::{Fault, KeyFault};
use super::file::read_text;
use crate::harmless::harmless;

/// Reads a file as ssh-keygen writes it: one line.
///
/// # Errors
/// There is none, or it is none.
pub(crate) fn read(path: &Path) -> Result<Certificate, KeyFault> {
    let (text, _) = read_text(path, LONGEST)?;
    let line = text
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty() && !line.starts_with('#'))
        .unwrap_or_default();
    let words: Option<logic::ssh::key::PublicKey> = line.parse().ok();
    let blob = words.as_ref().map(logic::ssh::key::PublicKey::blob);
    blob.and_then(from_blob).ok_or_else(|| Fault::NoCertificate.at(path))
}

/// A certificate as the wire carries it.
pub(crate) fn from_blob(blob: &[u8]) -> Option<Certificate> {
    // A certificate may claim to be signed by a certificate, that one by another, and the library follows: no stack
    // overflow for the sake of a forged blob
    let marker = b"-cert-v01@";
    if blob.windows(marker.len()).filter(|window| window == marker).count() > 2 {
        return None;
    }
    let certificate = Certificate::from_bytes(blob).ok()?;
    // What we send is written anew: it must be what we read
    (certificate.to_bytes().ok()?.as_slice() == blob).then_some(certificate)
}

/// What will become of a certificate when it is offered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outlook {
    /// Nothing speaks against it.
    Good,
    /// It may be refused: why.
    Doubtful(String),
    /// It will be refused, so it is not offered: why.
    Hopeless(String),
}

/// Judges a certificate before it is offered to a server as `user`.
pub(crate) fn outlook(certificate: &Certificate, user: &str, now: Timestamp) -> Outlook {
    if certificate.cert_type() != CertType::User {
        return Outlook::Hopeless("it certifies a host, not a user".to_owned());
    }
    if matches!(certificate.algorithm(), Algorithm::Dsa) {
        return Outlook::Hopeless("it is for a DSA key".to_owned());
    }
    let second = now.as_second();
    let moment = |at: u64| i64::try_from(at).unwrap_or(i64::MAX);
    let (after, before) = (moment(certificate.valid_after()), moment(certificate.valid_before()));
    let said =
        |at: i64| Timestamp::from_second(at).map_or_else(|_| "for ever".to_owned(), |at| at.to_string());
    if before.saturating_add(CLOCKS_DIFFER) <= second {
        return Outlook::Hopeless(format!("it expired at {}", said(before)));
    }
    if after.saturating_sub(CLOCKS_DIFFER) > second {
        return Outlook::Hopeless(format!("it is not valid before {}", said(after)));
    }
    let principals = certificate.valid_principals();
    if principals.is_empty() {
        return Outlook::Doubtful(
            "it names no principal, which sshd refuses unless told otherwise".to_owned(),
        );
    }
    if !principals.iter().any(|name| name == user) {
        let names = harmless(&principals.join(", "), 120);
        return Outlook::Doubtful(format!(
            "it is for {names}, not for {user}: refused unless the server maps these names to {user}"
        ));
    }
    Outlook::Good
}

/// The longest file that is read as a certificate.
const LONGEST: u64 = 128 * 1024;
/// How far two clocks may differ, in seconds: the server's clock decides, not ours.
const CLOCKS_DIFFER: i64 = 300;
