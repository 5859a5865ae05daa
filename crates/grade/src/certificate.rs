//! Reads from a chain of certificates: names, keys, validity, signatures, and order.

use std::time::{Duration, SystemTime};

use rustls::pki_types::{CertificateDer, ServerName};
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::der::asn1::Uint;
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::spki::SubjectPublicKeyInfoOwned;

use crate::observed::{ChainOrder, ChainSeen, Feature, Hash, Key, NameMatch};
use crate::reply::bits_of;
use crate::staple;
use crate::trust::{Trust, is_self_issued};

/// Parses a chain, leaf first. `Err` if the leaf is not a certificate.
pub(crate) fn read(
    chain: &[Vec<u8>],
    stapled: Option<&[u8]>,
    name: &ServerName<'_>,
    trust: &Trust,
    now: SystemTime,
) -> Result<ChainSeen, String> {
    chain.first().ok_or("the server sent no certificate")?;
    let parsed: Vec<Certificate> = chain.iter().map_while(|der| Certificate::from_der(der).ok()).collect();
    let leaf = parsed.first().ok_or("the certificate cannot be read")?;
    let tbs = leaf.tbs_certificate();
    let time = |after: Duration| SystemTime::UNIX_EPOCH + after;
    let der: Vec<CertificateDer<'_>> = chain.iter().map(|der| CertificateDer::from(der.as_slice())).collect();
    let (not_before, not_after) = (
        time(tbs.validity().not_before.to_unix_duration()),
        time(tbs.validity().not_after.to_unix_duration()),
    );
    // The leaf's validity is checked separately: an expired certificate may otherwise be trusted.
    let moment = now.clamp(not_before, not_before.max(not_after));
    let own_roots = parsed.iter().filter(|one| !is_self_issued(one) || std::ptr::eq(*one, leaf));
    Ok(ChainSeen {
        names: names(leaf),
        key: key(tbs.subject_public_key_info()),
        signature: signature(leaf).0,
        weakest_hash: own_roots.map(|one| signature(one).1).min().unwrap_or(Hash::Strong),
        issuer: tbs.issuer().to_string(),
        not_before,
        not_after,
        length: chain.len(),
        order: if parsed.len() < chain.len() { ChainOrder::Unrelated } else { order(&parsed) },
        name: match rustls::server::ParsedCertificate::try_from(&der[0])
            .and_then(|leaf| rustls::client::verify_server_name(&leaf, name))
        {
            Ok(()) => NameMatch::Yes,
            Err(_) => NameMatch::No,
        },
        trust: trust.judge(&der, &parsed, moment),
        responder: Feature::of(holds(leaf, AUTHORITY_INFO_ACCESS, OCSP_METHOD)),
        must_staple: Feature::of(holds(leaf, TLS_FEATURE, STATUS_REQUEST)),
        staple: staple::read(stapled.unwrap_or_default(), now),
    })
}

fn names(leaf: &Certificate) -> Vec<String> {
    let alternatives = leaf.tbs_certificate().get_extension::<SubjectAltName>().ok().flatten();
    let names = alternatives.map(|(_, names)| names.0).unwrap_or_default();
    let name = |name: &GeneralName| match name {
        GeneralName::DnsName(name) => Some(name.as_str().to_owned()),
        GeneralName::IpAddress(bytes) => match bytes.as_bytes() {
            &[a, b, c, d] => Some(std::net::Ipv4Addr::new(a, b, c, d).to_string()),
            bytes => <[u8; 16]>::try_from(bytes).ok().map(|ip| std::net::Ipv6Addr::from(ip).to_string()),
        },
        _ => None,
    };
    names.iter().filter_map(name).take(MAX_NAMES).collect()
}

fn order(chain: &[Certificate]) -> ChainOrder {
    let issued = |issuer: &Certificate, subject: &Certificate| {
        subject.tbs_certificate().issuer() == issuer.tbs_certificate().subject()
    };
    if chain.windows(2).all(|pair| issued(&pair[1], &pair[0])) {
        return ChainOrder::InOrder;
    }
    // From the leaf to its issuer as far as the chain goes; the remaining certificates do not belong to it.
    let mut left: Vec<&Certificate> = chain.iter().skip(1).collect();
    let mut at = &chain[0];
    while let Some(next) = left.iter().position(|other| issued(other, at)) {
        at = left.remove(next);
    }
    if left.is_empty() { ChainOrder::OutOfOrder } else { ChainOrder::Unrelated }
}

fn holds(leaf: &Certificate, extension: ObjectIdentifier, part: &[u8]) -> bool {
    let extensions = leaf.tbs_certificate().extensions().into_iter().flatten();
    extensions
        .filter(|found| found.extn_id == extension)
        .any(|found| found.extn_value.as_bytes().windows(part.len()).any(|window| window == part))
}

fn signature(certificate: &Certificate) -> (String, Hash) {
    let oid = certificate.signature_algorithm().oid.to_string();
    let known = SIGNATURES.iter().find(|(number, _, _)| *number == oid);
    known.map_or((oid, Hash::Strong), |(_, name, hash)| ((*name).to_owned(), *hash))
}

fn key(key: &SubjectPublicKeyInfoOwned) -> Key {
    let parameter =
        key.algorithm.parameters.as_ref().and_then(|any| any.decode_as::<ObjectIdentifier>().ok());
    let named = |kind: &str, rsa_bits| Key { kind: kind.to_owned(), rsa_bits };
    let oid = key.algorithm.oid.to_string();
    match (oid.as_str(), parameter.map(|curve| curve.to_string()).as_deref()) {
        ("1.2.840.113549.1.1.1" | "1.2.840.113549.1.1.10", _) => {
            let bits = modulus_bits(key.subject_public_key.raw_bytes()).unwrap_or(0);
            Key { kind: format!("RSA {bits}"), rsa_bits: bits }
        }
        ("1.2.840.10045.2.1", Some("1.2.840.10045.3.1.7")) => named("ECDSA P-256", 3072),
        ("1.2.840.10045.2.1", Some("1.3.132.0.34")) => named("ECDSA P-384", 7680),
        ("1.2.840.10045.2.1", Some("1.3.132.0.35")) => named("ECDSA P-521", 15360),
        ("1.2.840.10045.2.1", Some("1.3.132.0.33")) => named("ECDSA P-224", 2048),
        ("1.2.840.10045.2.1", Some("1.3.132.0.10")) => named("ECDSA secp256k1", 3072),
        ("1.2.840.10045.2.1", _) => {
            // A curve without a name here: its field is half as long as its point.
            let bits = key.subject_public_key.raw_bytes().len() as u32 / 2 * 8;
            Key { kind: format!("ECDSA, {bits} bits"), rsa_bits: rsa_bits_of_curve(bits) }
        }
        ("1.3.101.112", _) => named("Ed25519", 3072),
        ("1.3.101.113", _) => named("Ed448", 7680),
        ("1.2.840.10040.4.1", _) => named("DSA", 1024),
        (other, _) => named(other, 0),
    }
}

/// NIST SP 800-57 part 1, table 2.
fn rsa_bits_of_curve(bits: u32) -> u32 {
    match bits {
        512.. => 15360,
        384.. => 7680,
        256.. => 3072,
        224.. => 2048,
        160.. => 1024,
        _ => 512,
    }
}

/// RSAPublicKey is a SEQUENCE of modulus and exponent (RFC 8017 appendix A.1.1).
fn modulus_bits(key: &[u8]) -> Option<u32> {
    let numbers = Vec::<Uint>::from_der(key).ok()?;
    Some(bits_of(numbers.first()?.as_bytes()))
}

/// Largest number of names kept of a certificate.
const MAX_NAMES: usize = 100;

const AUTHORITY_INFO_ACCESS: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.1.1");
const TLS_FEATURE: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.1.24");

/// id-ad-ocsp, 1.3.6.1.5.5.7.48.1, in DER.
const OCSP_METHOD: &[u8] = &[0x06, 0x08, 0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, 0x01];

/// The feature `status_request` (RFC 7633): INTEGER 5 in DER.
const STATUS_REQUEST: &[u8] = &[0x02, 0x01, 0x05];

/// Signature algorithms (RFC 3279, RFC 4055, RFC 5758, RFC 8410).
const SIGNATURES: &[(&str, &str, Hash)] = &[
    ("1.2.840.113549.1.1.2", "RSA with MD2", Hash::Md5),
    ("1.2.840.113549.1.1.4", "RSA with MD5", Hash::Md5),
    ("1.2.840.113549.1.1.5", "RSA with SHA-1", Hash::Sha1),
    ("1.3.14.3.2.29", "RSA with SHA-1", Hash::Sha1),
    ("1.2.840.113549.1.1.11", "RSA with SHA-256", Hash::Strong),
    ("1.2.840.113549.1.1.12", "RSA with SHA-384", Hash::Strong),
    ("1.2.840.113549.1.1.13", "RSA with SHA-512", Hash::Strong),
    ("1.2.840.113549.1.1.14", "RSA with SHA-224", Hash::Strong),
    ("1.2.840.113549.1.1.10", "RSA-PSS", Hash::Strong),
    ("1.2.840.10045.4.1", "ECDSA with SHA-1", Hash::Sha1),
    ("1.2.840.10045.4.3.2", "ECDSA with SHA-256", Hash::Strong),
    ("1.2.840.10045.4.3.3", "ECDSA with SHA-384", Hash::Strong),
    ("1.2.840.10045.4.3.4", "ECDSA with SHA-512", Hash::Strong),
    ("1.2.840.10040.4.3", "DSA with SHA-1", Hash::Sha1),
    ("1.3.101.112", "Ed25519", Hash::Strong),
    ("1.3.101.113", "Ed448", Hash::Strong),
];
