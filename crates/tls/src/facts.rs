//! Facts that a certificate states: names, validity period, issuer, key.

use std::time::{Duration, SystemTime};

use der::asn1::Uint;
use der::{Decode, Sequence};
use rustls_pki_types::CertificateDer;
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::ext::pkix::{AuthorityInfoAccessSyntax, SubjectAltName};
use x509_cert::spki::SubjectPublicKeyInfoOwned;
use x509_cert::{Certificate, TbsCertificate};

/// Facts of a certificate that penstock shows to operators and uses to choose a certificate.
#[derive(Clone, Debug)]
pub struct Facts {
    /// DNS names of the subjectAltName extension, in lower case. The common name is ignored (RFC 9525 section 2).
    pub names: Vec<String>,
    /// Type and size of the key, such as `ECDSA P-256` or `RSA 2048`.
    pub key: String,
    /// Distinguished name of the issuer (RFC 4514).
    pub issuer: String,
    /// Serial number, big endian.
    pub serial: Vec<u8>,
    pub not_before: SystemTime,
    /// Last moment of the validity period (inclusive).
    pub not_after: SystemTime,
    /// URLs of the OCSP responders (RFC 5280 section 4.2.2.1). Empty if the certificate names none: then it gets no
    /// staple.
    pub responders: Vec<String>,
    pub must_staple: MustStaple,
}

/// Tells whether a certificate carries the TLS feature `status_request` (RFC 7633).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MustStaple {
    /// Clients that support RFC 7633 refuse the certificate without a staple.
    Yes,
    No,
}

impl Facts {
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Result<Self, String> {
        let parsed = Certificate::from_der(certificate).map_err(|error| error.to_string())?;
        let tbs = parsed.tbs_certificate();
        let alternatives = tbs.get_extension::<SubjectAltName>().map_err(|error| error.to_string())?;
        let names = alternatives.map(|(_, names)| names.0).unwrap_or_default();
        let names = names.iter().filter_map(|name| match name {
            GeneralName::DnsName(name) => Some(name.as_str().to_ascii_lowercase()),
            _ => None,
        });
        let extension = |oid: ObjectIdentifier| {
            let found = tbs.extensions().into_iter().flatten().find(|extension| extension.extn_id == oid);
            found.map(|extension| extension.extn_value.as_bytes())
        };
        let holds = |bytes: Option<&[u8]>, part: &[u8]| {
            bytes.is_some_and(|bytes| bytes.windows(part.len()).any(|window| window == part))
        };
        let time = |seconds: Duration| SystemTime::UNIX_EPOCH + seconds;
        Ok(Self {
            names: names.collect(),
            key: key_kind(tbs.subject_public_key_info()),
            issuer: tbs.issuer().to_string(),
            serial: tbs.serial_number().as_bytes().to_vec(),
            not_before: time(tbs.validity().not_before.to_unix_duration()),
            not_after: time(tbs.validity().not_after.to_unix_duration()),
            responders: responders(tbs),
            must_staple: match holds(extension(TLS_FEATURE), STATUS_REQUEST) {
                true => MustStaple::Yes,
                false => MustStaple::No,
            },
        })
    }

    /// Compares the validity period with `now`.
    pub(super) fn validity(&self, now: SystemTime) -> Validity {
        if now > self.not_after {
            Validity::Expired
        } else if now < self.not_before {
            Validity::NotYet
        } else {
            Validity::Valid
        }
    }
}

/// Returns the OCSP responders. Empty if the certificate names none or the extension cannot be parsed.
fn responders(tbs: &TbsCertificate) -> Vec<String> {
    let access = tbs.get_extension::<AuthorityInfoAccessSyntax>().ok().flatten();
    let access = access.map(|(_, access)| access.0).unwrap_or_default();
    let responders = access.into_iter().filter(|it| it.access_method == OCSP_METHOD);
    responders
        .filter_map(|it| match it.access_location {
            GeneralName::UniformResourceIdentifier(uri) => Some(uri.as_str().to_owned()),
            _ => None,
        })
        .take(MOST_RESPONDERS)
        .collect()
}

/// Position of a moment relative to the validity period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Validity {
    /// Before the validity period.
    NotYet,
    Valid,
    Expired,
}

/// Puts a chain into the order that TLS requires: the leaf, then the issuer of each. Unconnected certificates stay at
/// the end in their order. The leaf is `of_key` if `of_key` is in the chain, otherwise the first certificate.
pub(super) fn order(
    chain: Vec<CertificateDer<'static>>,
    of_key: Option<usize>,
) -> (Vec<CertificateDer<'static>>, Order) {
    let parsed: Option<Vec<Certificate>> =
        chain.iter().map(|certificate| Certificate::from_der(certificate).ok()).collect();
    let Some(parsed) = parsed else { return (chain, Order::Kept) };
    let mut next = of_key.unwrap_or(0);
    let mut left: Vec<usize> = (0..chain.len()).filter(|at| *at != next).collect();
    let mut ordered = vec![next];
    loop {
        let issuer = parsed[next].tbs_certificate().issuer();
        let Some(at) = left.iter().position(|at| parsed[*at].tbs_certificate().subject() == issuer) else {
            break;
        };
        next = left.remove(at);
        ordered.push(next);
    }
    let order = match (left.is_empty(), ordered.is_sorted()) {
        (false, _) => Order::Unconnected(left.len()),
        (true, true) => Order::Kept,
        (true, false) => Order::Changed,
    };
    ordered.extend(left);
    let mut places: Vec<Option<CertificateDer<'static>>> = chain.into_iter().map(Some).collect();
    (ordered.into_iter().filter_map(|at| places[at].take()).collect(), order)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Kept,
    Changed,
    /// Number of certificates that do not belong to the chain.
    Unconnected(usize),
}

fn key_kind(key: &SubjectPublicKeyInfoOwned) -> String {
    let parameter =
        key.algorithm.parameters.as_ref().and_then(|any| any.decode_as::<ObjectIdentifier>().ok());
    match (key.algorithm.oid, parameter) {
        (RSA, _) => {
            let modulus = RsaKey::from_der(key.subject_public_key.raw_bytes()).map(|key| key.modulus);
            modulus.map_or("RSA".to_owned(), |modulus| format!("RSA {}", modulus.as_bytes().len() * 8))
        }
        (EC, Some(P256)) => "ECDSA P-256".to_owned(),
        (EC, Some(P384)) => "ECDSA P-384".to_owned(),
        (EC, Some(P521)) => "ECDSA P-521".to_owned(),
        (ED25519, _) => "Ed25519".to_owned(),
        (other, _) => other.to_string(),
    }
}

/// RSAPublicKey (RFC 8017 appendix A.1.1).
#[derive(Sequence)]
struct RsaKey {
    modulus: Uint,
    _exponent: Uint,
}

const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
const EC: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");
const P256: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.3.1.7");
const P384: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.132.0.34");
const P521: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.132.0.35");
const ED25519: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.101.112");
const TLS_FEATURE: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.1.24");

const OCSP_METHOD: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.48.1");

/// Largest number of responders used of one certificate. Most certificates name one.
const MOST_RESPONDERS: usize = 4;

/// The feature `status_request` (RFC 7633): INTEGER 5 in DER.
const STATUS_REQUEST: &[u8] = &[0x02, 0x01, 0x05];
