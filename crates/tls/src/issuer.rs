//! Whether this system trusts the issuer of a certificate: the default of `hsts` depends on it.

use std::time::SystemTime;

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::aws_lc_rs;
use rustls::server::ParsedCertificate;
use rustls_pki_types::{CertificateDer, UnixTime};

use super::backend::Authorities;
use super::facts::Facts;

/// Tells whether a chain leads to a CA that the operating system trusts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Issuer {
    Trusted,
    /// The certificate is self-signed, or its CA is not among those of the operating system.
    Unknown,
}

impl Issuer {
    /// Verifies the chain at a time when its leaf is valid: an expired certificate of a trusted CA counts as well.
    pub(super) fn of(
        chain: &[CertificateDer<'_>],
        facts: &Facts,
        authorities: &Authorities,
        now: SystemTime,
    ) -> Self {
        let Ok(trusted) = authorities.system() else { return Self::Unknown };
        let at = now.min(facts.not_after).max(facts.not_before);
        let at = UnixTime::since_unix_epoch(at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
        let verified = chain.split_first().map(|(leaf, rest)| {
            let leaf = ParsedCertificate::try_from(leaf)?;
            let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&leaf, &trusted.roots, rest, at, algorithms)
        });
        match verified {
            Some(Ok(())) => Self::Trusted,
            Some(Err(_)) | None => Self::Unknown,
        }
    }
}
