//! The DNS names that a certificate is for.

use rustls_pki_types::CertificateDer;
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// The DNS names of the subjectAltName extension, lower case. The common name is not looked at (RFC 9525 section 2).
pub(super) fn of(certificate: &CertificateDer<'_>) -> Result<Vec<String>, String> {
    let parsed = Certificate::from_der(certificate).map_err(|error| error.to_string())?;
    let extension =
        parsed.tbs_certificate().get_extension::<SubjectAltName>().map_err(|error| error.to_string())?;
    let Some((_, names)) = extension else { return Ok(Vec::new()) };
    Ok(names
        .0
        .iter()
        .filter_map(|name| match name {
            GeneralName::DnsName(name) => Some(name.as_str().to_ascii_lowercase()),
            _ => None,
        })
        .collect())
}
