//! Identifies a certificate and builds the OCSP request for it.

use base64ct::{Base64, Encoding};
use der::asn1::{Any, AnyRef, BitString, Int, Null, ObjectIdentifier, OctetString};
use der::{Decode, Encode};
use sha1::{Digest, Sha1};
use sha2::{Sha256, Sha384, Sha512};
use x509_cert::Certificate;
use x509_cert::spki::AlgorithmIdentifierOwned;

use super::message::{CertId, OcspRequest, Request, ResponderId, TbsRequest};

/// Certificate to ask about, with the issuer's data that is needed to verify responses.
#[derive(Clone, Debug)]
pub struct Query {
    serial: Int,
    /// DER of the issuer's name.
    issuer_name: Vec<u8>,
    pub(super) issuer_key: PublicKey,
    fingerprint: [u8; 32],
}

#[derive(Clone, Debug)]
pub(super) struct PublicKey {
    /// Content of the `AlgorithmIdentifier`.
    pub(super) algorithm: Vec<u8>,
    pub(super) bits: BitString,
}

/// Why no request can be built for a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The certificate or its issuer's certificate cannot be parsed.
    #[error("certificate or issuer cannot be understood")]
    Malformed,
    /// The name in the other certificate is not the issuer's name.
    #[error("the issuer's certificate is another one")]
    OtherIssuer,
}

impl Query {
    /// Creates a query about `leaf`, issued by the subject of `issuer`; both are DER.
    pub fn new(leaf: &[u8], issuer: &[u8]) -> Result<Self, QueryError> {
        let read = |der| Certificate::from_der(der).map_err(|_| QueryError::Malformed);
        let (of_leaf, of_issuer) = (read(leaf)?, read(issuer)?);
        if of_leaf.tbs_certificate().issuer() != of_issuer.tbs_certificate().subject() {
            return Err(QueryError::OtherIssuer);
        }
        let whole = || -> der::Result<Self> {
            Ok(Self {
                serial: Int::new(of_leaf.tbs_certificate().serial_number().as_bytes())?,
                issuer_name: of_issuer.tbs_certificate().subject().to_der()?,
                issuer_key: PublicKey::of(&of_issuer)?,
                fingerprint: Sha256::new().chain_update(leaf).chain_update(issuer).finalize().into(),
            })
        };
        whole().map_err(|_| QueryError::Malformed)
    }

    /// SHA-256 over both certificates: unique even among certificates with the same serial number.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    /// Request as DER. SHA-1 is used only to identify the issuer; every responder supports it (RFC 5019 section 2.1.1).
    /// No nonce: responses are signed in advance and sent to many clients.
    pub fn request(&self) -> Vec<u8> {
        let whole = || -> der::Result<Vec<u8>> {
            let cert_id = CertId {
                hash_algorithm: AlgorithmIdentifierOwned { oid: SHA1, parameters: Some(Any::from(Null)) },
                issuer_name_hash: OctetString::new(Sha1::digest(&self.issuer_name).as_slice())?,
                issuer_key_hash: OctetString::new(Sha1::digest(self.issuer_key.bits.raw_bytes()).as_slice())?,
                serial_number: self.serial.clone(),
            };
            OcspRequest { tbs_request: TbsRequest { request_list: vec![Request { cert_id }] } }.to_der()
        };
        whole().expect("a hundred bytes fit into DER")
    }

    /// Part after the responder's path in a GET (RFC 6960 appendix A.1): the request in Base64, escaped.
    pub fn request_path(&self) -> String {
        let text = Base64::encode_string(&self.request());
        text.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D")
    }

    /// Tells whether `id` identifies this certificate.
    pub(super) fn is_meant(&self, id: &CertId) -> bool {
        let key = self.issuer_key.bits.raw_bytes();
        let hashes = |name: &[u8], of_key: &[u8]| {
            id.issuer_name_hash.as_bytes() == name && id.issuer_key_hash.as_bytes() == of_key
        };
        let name = &self.issuer_name;
        id.serial_number == self.serial
            && match id.hash_algorithm.oid {
                SHA1 => hashes(&Sha1::digest(name), &Sha1::digest(key)),
                SHA256 => hashes(&Sha256::digest(name), &Sha256::digest(key)),
                SHA384 => hashes(&Sha384::digest(name), &Sha384::digest(key)),
                SHA512 => hashes(&Sha512::digest(name), &Sha512::digest(key)),
                _ => false,
            }
    }

    /// Tells whether the issuer itself is the signer.
    pub(super) fn is_issuer(&self, responder: &ResponderId) -> bool {
        is_named(responder, &self.issuer_name, &self.issuer_key)
    }

    /// Tells whether the certificate's issuer name is that of this issuer.
    pub(super) fn has_issued(&self, certificate: &Certificate) -> bool {
        certificate.tbs_certificate().issuer().to_der().is_ok_and(|name| name == self.issuer_name)
    }
}

impl PublicKey {
    pub(super) fn of(certificate: &Certificate) -> der::Result<Self> {
        let info = certificate.tbs_certificate().subject_public_key_info();
        Ok(Self { algorithm: contents(&info.algorithm)?, bits: info.subject_public_key.clone() })
    }
}

/// Tells whether a responder's id is this name or the hash of this key.
pub(super) fn is_named(responder: &ResponderId, name: &[u8], key: &PublicKey) -> bool {
    match responder {
        ResponderId::ByName(given) => given.to_der().is_ok_and(|given| given == name),
        ResponderId::ByKey(given) => given.as_bytes() == Sha1::digest(key.bits.raw_bytes()).as_slice(),
    }
}

/// DER content without tag and length.
pub(super) fn contents(of: &impl Encode) -> der::Result<Vec<u8>> {
    let whole = of.to_der()?;
    Ok(AnyRef::from_der(&whole)?.value().to_vec())
}

const SHA1: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.14.3.2.26");
const SHA256: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.2.1");
const SHA384: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.2.2");
const SHA512: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.2.3");
