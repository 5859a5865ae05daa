//! The messages as ASN.1 has them (RFC 6960 sections 4.1.1 and 4.2.1). Certificates and what is signed stay as they came:
//! a signature is over bytes.

use der::asn1::{Any, BitString, GeneralizedTime, Int, Null, ObjectIdentifier, OctetString};
use der::{Choice, Enumerated, Sequence};
use x509_cert::ext::Extensions;
use x509_cert::spki::AlgorithmIdentifierOwned;

/// `OCSPRequest`, unsigned and for one certificate.
#[derive(Clone, Debug, PartialEq, Eq, Sequence)]
pub struct OcspRequest {
    /// What is asked.
    pub tbs_request: TbsRequest,
}

/// `TBSRequest` of version 1.
#[derive(Clone, Debug, PartialEq, Eq, Sequence)]
pub struct TbsRequest {
    /// One entry per certificate.
    pub request_list: Vec<Request>,
}

/// `Request`
#[derive(Clone, Debug, PartialEq, Eq, Sequence)]
pub struct Request {
    /// Which certificate.
    pub cert_id: CertId,
}

/// `CertID`: which certificate is meant, by hashes of its issuer and by its serial number.
#[derive(Clone, Debug, PartialEq, Eq, Sequence)]
pub struct CertId {
    /// What the hashes are made with.
    pub hash_algorithm: AlgorithmIdentifierOwned,
    /// Of the DER of the issuer's name.
    pub issuer_name_hash: OctetString,
    /// Of the issuer's public key, without tag, length and unused bits.
    pub issuer_key_hash: OctetString,
    /// As the certificate has it.
    pub serial_number: Int,
}

/// `OCSPResponse`
#[derive(Clone, Debug, PartialEq, Eq, Sequence)]
pub struct OcspResponse {
    /// Whether there is an answer.
    pub status: ResponseStatus,
    /// The answer.
    #[asn1(context_specific = "0", optional = "true", tag_mode = "EXPLICIT")]
    pub bytes: Option<ResponseBytes>,
}

/// `OCSPResponseStatus`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumerated)]
#[asn1(type = "ENUMERATED")]
#[repr(u8)]
pub enum ResponseStatus {
    /// There is.
    Successful = 0,
    /// It did not understand what it was asked.
    MalformedRequest = 1,
    /// It is broken.
    InternalError = 2,
    /// It has no time.
    TryLater = 3,
    /// It wants requests to be signed.
    SigRequired = 5,
    /// It does not answer us, or not about this certificate (RFC 5019 section 2.2.3).
    Unauthorized = 6,
}

/// `ResponseBytes`
#[derive(Clone, Debug, PartialEq, Eq, Sequence)]
pub struct ResponseBytes {
    /// How the answer is written; [`BASIC`] is the only way there is.
    pub kind: ObjectIdentifier,
    /// The DER of a [`BasicResponse`].
    pub response: OctetString,
}

/// id-pkix-ocsp-basic
pub const BASIC: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.48.1.1");

/// `BasicOCSPResponse`
#[derive(Clone, Debug, PartialEq, Eq, Sequence)]
pub struct BasicResponse {
    /// The DER of a [`ResponseData`].
    pub data: Any,
    /// An `AlgorithmIdentifier`.
    pub signature_algorithm: Any,
    /// Over `data`.
    pub signature: BitString,
    /// Certificates with which the signature can be checked.
    #[asn1(context_specific = "0", optional = "true", tag_mode = "EXPLICIT")]
    pub certificates: Option<Vec<Any>>,
}

/// `ResponseData`
#[derive(Clone, Debug, PartialEq, Eq, Sequence)]
pub struct ResponseData {
    /// 0 is version 1, and is left out.
    #[asn1(context_specific = "0", optional = "true", tag_mode = "EXPLICIT")]
    pub version: Option<u8>,
    /// Who signed.
    pub responder: ResponderId,
    /// When it was signed.
    pub produced_at: GeneralizedTime,
    /// One for each certificate that was asked about, or more.
    pub responses: Vec<SingleResponse>,
    /// What else it says.
    #[asn1(context_specific = "1", optional = "true", tag_mode = "EXPLICIT")]
    pub extensions: Option<Extensions>,
}

/// `ResponderID`
#[derive(Clone, Debug, PartialEq, Eq, Choice)]
pub enum ResponderId {
    /// Subject of the signer's certificate.
    #[asn1(context_specific = "1", tag_mode = "EXPLICIT", constructed = "true")]
    ByName(Any),
    /// SHA-1 of the signer's public key.
    #[asn1(context_specific = "2", tag_mode = "EXPLICIT", constructed = "true")]
    ByKey(OctetString),
}

/// `SingleResponse`
#[derive(Clone, Debug, PartialEq, Eq, Sequence)]
pub struct SingleResponse {
    /// Which certificate.
    pub cert_id: CertId,
    /// How it stands.
    pub status: CertStatus,
    /// When that was known.
    pub this_update: GeneralizedTime,
    /// When there is newer knowledge at the latest.
    #[asn1(context_specific = "0", optional = "true", tag_mode = "EXPLICIT")]
    pub next_update: Option<GeneralizedTime>,
    /// What else it says.
    #[asn1(context_specific = "1", optional = "true", tag_mode = "EXPLICIT")]
    pub extensions: Option<Extensions>,
}

/// `CertStatus`
#[derive(Clone, Debug, PartialEq, Eq, Choice)]
pub enum CertStatus {
    /// Not revoked.
    #[asn1(context_specific = "0", tag_mode = "IMPLICIT")]
    Good(Null),
    /// Revoked, for good or for now.
    #[asn1(context_specific = "1", tag_mode = "IMPLICIT", constructed = "true")]
    Revoked(RevokedInfo),
    /// The responder does not know it.
    #[asn1(context_specific = "2", tag_mode = "IMPLICIT")]
    Unknown(Null),
}

/// `RevokedInfo`
#[derive(Clone, Debug, PartialEq, Eq, Sequence)]
pub struct RevokedInfo {
    /// Since when.
    pub revoked_at: GeneralizedTime,
    /// A `CRLReason` (RFC 5280 section 5.3.1).
    #[asn1(context_specific = "0", optional = "true", tag_mode = "EXPLICIT")]
    pub reason: Option<Any>,
}

/// A certificate as what is signed, how, and the signature (RFC 5280 section 4.1).
#[derive(Clone, Debug, PartialEq, Eq, Sequence)]
pub struct Signed {
    /// The `TBSCertificate`.
    pub what: Any,
    /// An `AlgorithmIdentifier`.
    pub algorithm: Any,
    /// Over `what`.
    pub signature: BitString,
}
