//! A private key and its certificate chain in one PEM text, as penstock stores the certificates of an ACME authority.

use rustls::crypto::aws_lc_rs;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::ext::pkix::AuthorityKeyIdentifier;

use super::facts::Facts;

#[derive(Clone, Debug)]
pub struct Bundle {
    pub facts: Facts,
    pub leaf: Vec<u8>,
    /// Authority key identifier of the certificate (RFC 5280 section 4.2.1.1), if there is one.
    pub authority_key: Option<Vec<u8>>,
}

impl Bundle {
    /// Reads the DNS names of the first certificate in a PEM text, and all of its certificates in DER. A key is not needed. The
    /// error is a message for the operator.
    pub fn chain(text: &[u8]) -> Result<(Vec<String>, Vec<Vec<u8>>), String> {
        let chain: Result<Vec<CertificateDer<'static>>, _> = CertificateDer::pem_slice_iter(text).collect();
        let chain = chain.map_err(|error| error.to_string())?;
        let leaf = chain.first().ok_or("it holds no certificate")?;
        let names = Facts::of(leaf)?.names;
        Ok((names, chain.iter().map(|certificate| certificate.to_vec()).collect()))
    }

    /// Parses a PEM text whose first certificate belongs to its private key. The error is a message for the operator.
    pub fn read(text: &[u8]) -> Result<Self, String> {
        let words = |error: &dyn std::fmt::Display| error.to_string();
        let chain: Result<Vec<CertificateDer<'static>>, _> = CertificateDer::pem_slice_iter(text).collect();
        let chain = chain.map_err(|error| words(&error))?;
        let leaf = chain.first().cloned().ok_or("it holds no certificate")?;
        let key = PrivateKeyDer::from_pem_slice(text).map_err(|_| "it holds no key")?;
        let key = aws_lc_rs::sign::any_supported_type(&key).map_err(|error| words(&error))?;
        CertifiedKey::new(chain, key).keys_match().map_err(|_| "its first certificate is not for its key")?;
        let facts = Facts::of(&leaf)?;
        let parsed = Certificate::from_der(&leaf).map_err(|error| words(&error))?;
        let authority_key = parsed.tbs_certificate().get_extension::<AuthorityKeyIdentifier>();
        let authority_key = authority_key.ok().flatten().and_then(|(_, key)| key.key_identifier);
        Ok(Self {
            facts,
            leaf: leaf.to_vec(),
            authority_key: authority_key.map(|key| key.as_bytes().to_vec()),
        })
    }
}
