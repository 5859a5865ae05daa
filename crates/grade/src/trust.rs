//! Trusted CAs: the system's, or those of a file.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error, RootCertStore};
use x509_cert::Certificate;

use crate::observed::Trusted;

#[derive(Clone, Debug)]
pub struct Trust {
    roots: Arc<RootCertStore>,
    certificates: Vec<CertificateDer<'static>>,
    /// Origin of the CAs, in words.
    pub source: String,
}

/// Reason why there are no CAs.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("cannot read the certificates of authorities in {file}: {why}")]
    File { file: String, why: String },
    /// The file contains no certificate.
    #[error("{0} holds no certificate of an authority in PEM form")]
    Empty(String),
}

impl Trust {
    /// Returns the CAs of the operating system. If it has none, no certificate is trusted.
    pub fn system() -> Self {
        let certificates = rustls_native_certs::load_native_certs().certs;
        let count = certificates.len();
        Self::of(certificates, format!("the {count} authorities that this system trusts"))
    }

    /// Reads the CAs of a PEM file; no others are trusted.
    pub fn from_file(file: &Path) -> Result<Self, TrustError> {
        let name = file.display().to_string();
        let failed = |why: String| TrustError::File { file: name.clone(), why };
        let certificates = CertificateDer::pem_file_iter(file)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| failed(error.to_string()))?;
        if certificates.is_empty() {
            return Err(TrustError::Empty(name));
        }
        Ok(Self::of(certificates, format!("the authorities in {name}")))
    }

    fn of(certificates: Vec<CertificateDer<'static>>, source: String) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates.iter().cloned());
        Self { roots: Arc::new(roots), certificates, source }
    }

    /// Decides whether a chain leads to a trusted CA. `parsed` are the certificates of `chain` that could be parsed.
    pub(crate) fn judge(
        &self,
        chain: &[CertificateDer<'_>],
        parsed: &[Certificate],
        moment: SystemTime,
    ) -> Trusted {
        // The operator listed this certificate itself among the CAs, so it is trusted.
        if self.certificates.iter().any(|known| known.as_ref() == chain[0].as_ref()) {
            return Trusted::Yes;
        }
        let now = moment.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let verified = ParsedCertificate::try_from(&chain[0]).and_then(|leaf| {
            verify_server_cert_signed_by_trust_anchor(
                &leaf,
                &self.roots,
                &chain[1..],
                UnixTime::since_unix_epoch(now),
                aws_lc_rs::default_provider().signature_verification_algorithms.all,
            )
        });
        match verified {
            Ok(()) => Trusted::Yes,
            Err(_) if is_self_issued(&parsed[0]) => Trusted::SelfSigned,
            Err(Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
                let last = parsed.iter().rfind(|one| !is_self_issued(one)).unwrap_or(&parsed[0]);
                Trusted::UnknownIssuer(last.tbs_certificate().issuer().to_string())
            }
            Err(Error::InvalidCertificate(error)) => Trusted::Untrusted(words(&error)),
            Err(error) => Trusted::Untrusted(error.to_string()),
        }
    }
}

/// Returns true if subject and issuer are equal: a root or a self-signed certificate.
pub(crate) fn is_self_issued(certificate: &Certificate) -> bool {
    certificate.tbs_certificate().issuer() == certificate.tbs_certificate().subject()
}

fn words(error: &CertificateError) -> String {
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "an intermediate certificate has expired".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "an intermediate certificate is not valid yet".to_owned()
        }
        CertificateError::BadSignature => "a signature in the chain is wrong".to_owned(),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "the certificate is not for servers".to_owned()
        }
        CertificateError::Other(other) => format!("the certificate breaks a rule: {other}"),
        other => format!("the certificate breaks a rule: {other}"),
    }
}
