//! Key and chain in one text, as an authority's answer is kept.

use rustls::crypto::aws_lc_rs;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::ext::pkix::AuthorityKeyIdentifier;

use super::facts::Facts;

/// What such a text holds.
#[derive(Clone, Debug)]
pub struct Bundle {
    /// What the leaf says.
    pub facts: Facts,
    /// The leaf as DER.
    pub leaf: Vec<u8>,
    /// Whose key signed it (RFC 5280 section 4.2.1.1), if it says so.
    pub authority_key: Option<Vec<u8>>,
}

impl Bundle {
    /// Reads a text whose first certificate belongs to its key. The error says what is wrong with it.
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
