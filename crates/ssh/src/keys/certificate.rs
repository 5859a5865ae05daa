//! User certificates: parses the file, and finds reasons why a server will refuse the certificate.

use std::path::Path;

use jiff::Timestamp;
use russh::keys::ssh_key::certificate::CertType;
use russh::keys::ssh_key::{Algorithm, Certificate};

use super::fault::{Fault, KeyFault};
use super::file::read_text;
use text::terminal::escaped;

/// Reads a certificate file of ssh-keygen: one line.
///
/// # Errors
/// The file does not exist, or is not a certificate.
pub(crate) fn read(path: &Path) -> Result<Certificate, KeyFault> {
    let (text, _) = read_text(path, LONGEST)?;
    let line = text
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty() && !line.starts_with('#'))
        .unwrap_or_default();
    let words: Option<hosts::ssh::key::PublicKey> = line.parse().ok();
    let blob = words.as_ref().map(hosts::ssh::key::PublicKey::blob);
    blob.and_then(from_blob).ok_or_else(|| Fault::NoCertificate.at(path))
}

/// Parses a certificate blob.
pub(crate) fn from_blob(blob: &[u8]) -> Option<Certificate> {
    // The signing key of a certificate may itself claim to be a certificate, and so on, and the library recurses: a
    // forged blob could overflow the stack.
    let marker = b"-cert-v01@";
    if blob.windows(marker.len()).filter(|window| window == marker).count() > 2 {
        return None;
    }
    let certificate = Certificate::from_bytes(blob).ok()?;
    // The library encodes the certificate again before sending it: the result must equal the input.
    (certificate.to_bytes().ok()?.as_slice() == blob).then_some(certificate)
}

/// Expected answer of a server to a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CertificateOutlook {
    /// This program sees no reason for a refusal.
    Good,
    /// Reason why the server may refuse the certificate.
    Doubtful(String),
    /// Reason why the server will refuse the certificate, which is therefore not offered.
    Hopeless(String),
}

/// Judges a certificate before it is offered to a server for a log-in as `user`.
pub(crate) fn outlook(certificate: &Certificate, user: &str, now: Timestamp) -> CertificateOutlook {
    if certificate.cert_type() != CertType::User {
        return CertificateOutlook::Hopeless("it certifies a host, not a user".to_owned());
    }
    if matches!(certificate.algorithm(), Algorithm::Dsa) {
        return CertificateOutlook::Hopeless("it is for a DSA key".to_owned());
    }
    let second = now.as_second();
    let moment = |at: u64| i64::try_from(at).unwrap_or(i64::MAX);
    let (after, before) = (moment(certificate.valid_after()), moment(certificate.valid_before()));
    let said =
        |at: i64| Timestamp::from_second(at).map_or_else(|_| "for ever".to_owned(), |at| at.to_string());
    if before.saturating_add(CLOCKS_DIFFER) <= second {
        return CertificateOutlook::Hopeless(format!("it expired at {}", said(before)));
    }
    if after.saturating_sub(CLOCKS_DIFFER) > second {
        return CertificateOutlook::Hopeless(format!("it is not valid before {}", said(after)));
    }
    let principals = certificate.valid_principals();
    if principals.is_empty() {
        return CertificateOutlook::Doubtful(
            "it names no principal, which sshd refuses unless told otherwise".to_owned(),
        );
    }
    if !principals.iter().any(|name| name == user) {
        let names = escaped(&principals.join(", "), 120);
        return CertificateOutlook::Doubtful(format!(
            "it is for {names}, not for {user}: refused unless the server maps these names to {user}"
        ));
    }
    CertificateOutlook::Good
}

/// Maximum size of a certificate file in bytes.
const LONGEST: u64 = 128 * 1024;
/// Tolerated difference of the clocks in seconds: the server's clock decides about the validity.
const CLOCKS_DIFFER: i64 = 300;
