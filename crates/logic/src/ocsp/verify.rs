//! Verifies that a response may be stapled: it is for the certificate, says "good", is signed by the issuer or by a
//! responder that the issuer authorized, and is valid now (RFC 6960 section 3.2).

use std::time::{Duration, SystemTime};

use der::asn1::{Any, ObjectIdentifier};
use der::{Decode, Encode, Tag, Tagged};
use rustls_pki_types::SignatureVerificationAlgorithm;
use x509_cert::Certificate;
use x509_cert::ext::Extensions;
use x509_cert::ext::pkix::ExtendedKeyUsage;

use super::fault::{Fault, Revocation};
use super::message::{
    BASIC, BasicResponse, CertStatus, OcspResponse, ResponderId, ResponseData, ResponseStatus, Signed,
    SingleResponse,
};
use super::query::{self, PublicKey, Query};

/// Response that may be stapled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Good {
    pub this_update: SystemTime,
    /// Time after which the response must not be stapled.
    pub until: SystemTime,
}

/// Signature algorithms, passed in because this crate has none.
pub type Algorithms<'a> = &'a [&'a dyn SignatureVerificationAlgorithm];

/// Tolerated difference between clocks.
const SKEW: Duration = Duration::from_secs(5 * 60);

/// Validity of a response without `nextUpdate`.
const UNDATED: Duration = Duration::from_secs(24 * 60 * 60);

/// Maximum number of included certificates that are checked; one is usual.
const MOST_CERTIFICATES: usize = 8;

/// Verifies that a response may be stapled now. The signature is verified before the certificate's status is used.
pub fn verify(
    response: &[u8],
    query: &Query,
    now: SystemTime,
    algorithms: Algorithms<'_>,
) -> Result<Good, Fault> {
    if response.len() > super::LARGEST {
        return Err(Fault::Malformed);
    }
    let whole = OcspResponse::from_der(response).map_err(malformed)?;
    let bytes = match (whole.status, whole.bytes) {
        (ResponseStatus::Successful, Some(bytes)) => bytes,
        (status, _) => return Err(Fault::NoAnswer(status)),
    };
    if bytes.kind != BASIC {
        return Err(Fault::Malformed);
    }
    let basic = BasicResponse::from_der(bytes.response.as_bytes()).map_err(malformed)?;
    let signed = basic.data.to_der().map_err(malformed)?;
    let data = ResponseData::from_der(&signed).map_err(malformed)?;
    // Checked first: a response for another certificate is the most frequent fault, and clearer than an unknown signer.
    let meant = data.responses.iter().filter(|single| query.is_meant(&single.cert_id));
    let newest = meant.max_by_key(|single| single.this_update.to_unix_duration());
    let single = newest.ok_or(Fault::OtherCertificate)?;
    check_signature(&basic, &signed, &data.responder, query, now, algorithms)?;
    refuse_critical(data.extensions.as_ref())?;
    judge(single, now)
}

/// Checks validity and status in the response.
fn judge(single: &SingleResponse, now: SystemTime) -> Result<Good, Fault> {
    refuse_critical(single.extensions.as_ref())?;
    let this_update = single.this_update.to_system_time();
    let until = match single.next_update {
        Some(next) => next.to_system_time(),
        None => this_update + UNDATED,
    };
    if this_update > now + SKEW {
        return Err(Fault::NotYet(this_update));
    }
    if until <= now {
        return Err(Fault::Expired(until));
    }
    match &single.status {
        CertStatus::Good(_) => Ok(Good { this_update, until }),
        CertStatus::Revoked(info) => {
            let reason = info.reason.as_ref().and_then(|reason| reason.value().last().copied());
            Err(Fault::Revoked(Revocation { since: info.revoked_at.to_system_time(), reason }))
        }
        CertStatus::Unknown(_) => Err(Fault::Unknown),
    }
}

fn check_signature(
    basic: &BasicResponse,
    signed: &[u8],
    responder: &ResponderId,
    query: &Query,
    now: SystemTime,
    algorithms: Algorithms<'_>,
) -> Result<(), Fault> {
    let signature = basic.signature.as_bytes().ok_or(Fault::Malformed)?;
    let is_by = |key: &PublicKey| is_signed(&basic.signature_algorithm, signed, signature, key, algorithms);
    // The name may also be that of a delegated responder, whose certificate is then included and decides.
    let by_issuer = query.is_issuer(responder).then(|| is_by(&query.issuer_key));
    if let Some(Ok(())) = by_issuer {
        return Ok(());
    }
    let mut fault = match by_issuer {
        Some(Err(fault)) => fault,
        _ => Fault::UnknownSigner,
    };
    for der in basic.certificates.iter().flatten().take(MOST_CERTIFICATES) {
        let Some((signed, certificate, key)) = delegate(der, responder) else { continue };
        if key.bits == query.issuer_key.bits {
            // The issuer's own certificate: its signature was already found to be wrong.
            continue;
        }
        let checked =
            check_delegate(&signed, &certificate, query, now, algorithms).and_then(|()| is_by(&key));
        match checked {
            Ok(()) => return Ok(()),
            Err(why) => fault = why,
        }
    }
    Err(fault)
}

/// Parses a certificate; `None` unless it is the responder's.
fn delegate(der: &Any, responder: &ResponderId) -> Option<(Signed, Certificate, PublicKey)> {
    let der = der.to_der().ok()?;
    let (signed, certificate) = (Signed::from_der(&der).ok()?, Certificate::from_der(&der).ok()?);
    let (name, key) =
        (certificate.tbs_certificate().subject().to_der().ok()?, PublicKey::of(&certificate).ok()?);
    query::is_named(responder, &name, &key).then_some((signed, certificate, key))
}

/// Checks that the issuer authorized a responder: the issuer has issued its certificate, for OCSP signing (RFC 6960
/// section 4.2.2.2). Revocation of that certificate is not checked: these certificates are short-lived, and say so
/// (id-pkix-ocsp-nocheck).
fn check_delegate(
    raw: &Signed,
    certificate: &Certificate,
    query: &Query,
    now: SystemTime,
    algorithms: Algorithms<'_>,
) -> Result<(), Fault> {
    const OCSP_SIGNING: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.9");
    let tbs = certificate.tbs_certificate();
    let signature = raw.signature.as_bytes().ok_or(Fault::Malformed)?;
    let signed = raw.what.to_der().map_err(malformed)?;
    if !query.has_issued(certificate) {
        return Err(Fault::SignerOfOtherIssuer);
    }
    match is_signed(&raw.algorithm, &signed, signature, &query.issuer_key, algorithms) {
        Err(Fault::WrongSignature) => return Err(Fault::SignerOfOtherIssuer),
        other => other?,
    }
    let usage = tbs.get_extension::<ExtendedKeyUsage>().map_err(malformed)?;
    if !usage.is_some_and(|(_, usage)| usage.0.contains(&OCSP_SIGNING)) {
        return Err(Fault::SignerNotAllowed);
    }
    let validity = tbs.validity();
    let time = |seconds: Duration| SystemTime::UNIX_EPOCH + seconds;
    let is_valid = time(validity.not_before.to_unix_duration()) <= now + SKEW
        && now <= time(validity.not_after.to_unix_duration());
    if is_valid { Ok(()) } else { Err(Fault::SignerUntimely) }
}

fn is_signed(
    algorithm: &Any,
    signed: &[u8],
    signature: &[u8],
    key: &PublicKey,
    algorithms: Algorithms<'_>,
) -> Result<(), Fault> {
    if algorithm.tag() != Tag::Sequence {
        return Err(Fault::Malformed);
    }
    let mut known =
        algorithms.iter().filter(|it| it.signature_alg_id().as_ref() == algorithm.value()).peekable();
    if known.peek().is_none() {
        return Err(Fault::Algorithm(name_of(algorithm)));
    }
    let is_right = known
        .filter(|it| it.public_key_alg_id().as_ref() == key.algorithm)
        .any(|it| it.verify_signature(key.bits.raw_bytes(), signed, signature).is_ok());
    if is_right { Ok(()) } else { Err(Fault::WrongSignature) }
}

fn name_of(algorithm: &Any) -> String {
    match <ObjectIdentifier>::from_der_partial(algorithm.value()) {
        Ok((oid, _)) => match oid.to_string().as_str() {
            "1.2.840.113549.1.1.4" => "MD5".to_owned(),
            "1.2.840.113549.1.1.5" | "1.2.840.10045.4.1" => "SHA-1".to_owned(),
            other => format!("algorithm {other}"),
        },
        Err(_) => "an unknown algorithm".to_owned(),
    }
}

fn refuse_critical(extensions: Option<&Extensions>) -> Result<(), Fault> {
    match extensions.into_iter().flatten().find(|extension| extension.critical) {
        Some(critical) => Err(Fault::CriticalExtension(critical.extn_id)),
        None => Ok(()),
    }
}

fn malformed(_: der::Error) -> Fault {
    Fault::Malformed
}
