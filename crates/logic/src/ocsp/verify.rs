//! Whether a response may be sent to clients: it is about the certificate, says that it is good, is signed by its issuer
//! or by somebody whom that appointed, and its time is now (RFC 6960 section 3.2).

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

/// A response that may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Good {
    /// When what it says was known.
    pub this_update: SystemTime,
    /// When it may not be sent any more.
    pub until: SystemTime,
}

/// How the ways to check a signature are passed in: this crate has none of its own.
pub type Algorithms<'a> = &'a [&'a dyn SignatureVerificationAlgorithm];

/// Clocks differ by so much.
const SKEW: Duration = Duration::from_secs(5 * 60);

/// A response that does not say when the next one comes is good for so long.
const UNDATED: Duration = Duration::from_secs(24 * 60 * 60);

/// Certificates beside a response that are looked at. One is usual.
const MOST_CERTIFICATES: usize = 8;

/// Whether a response may be sent to clients, at this moment. What it says of the certificate is believed only once its
/// signature is.
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
    // First: it is what most often goes wrong, and clearer than whose signature is missing.
    let meant = data.responses.iter().filter(|single| query.is_meant(&single.cert_id));
    let newest = meant.max_by_key(|single| single.this_update.to_unix_duration());
    let single = newest.ok_or(Fault::OtherCertificate)?;
    check_signature(&basic, &signed, &data.responder, query, now, algorithms)?;
    refuse_critical(data.extensions.as_ref())?;
    judge(single, now)
}

/// What a response says of the certificate.
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
    // Its name may also be that of a delegate: then the certificate of that is there, and decides.
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
            // The issuer's own: that it signs wrongly is known by now.
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

/// The certificate, if it is the responder's.
fn delegate(der: &Any, responder: &ResponderId) -> Option<(Signed, Certificate, PublicKey)> {
    let der = der.to_der().ok()?;
    let (signed, certificate) = (Signed::from_der(&der).ok()?, Certificate::from_der(&der).ok()?);
    let (name, key) =
        (certificate.tbs_certificate().subject().to_der().ok()?, PublicKey::of(&certificate).ok()?);
    query::is_named(responder, &name, &key).then_some((signed, certificate, key))
}

/// Whether the issuer has appointed a responder: it issued its certificate itself, for this use (RFC 6960 section 4.2.2.2).
/// Whether that is revoked is not asked: these live shortly, and say so (id-pkix-ocsp-nocheck).
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
