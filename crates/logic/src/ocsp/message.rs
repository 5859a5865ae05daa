//! ASN.1 types of the OCSP messages (RFC 6960 sections 4.1.1 and 4.2.1). Certificates and signed data keep their
//! original bytes, because the signature covers these bytes.

use der::asn1::{Any, BitString, GeneralizedTime, Int, Null, ObjectIdentifier, OctetString};
use der::{Choice, Enumerated, Sequence};
use x509_cert::ext::Extensions;
use x509_cert::spki::AlgorithmIdentifierOwned;

/// `OCSPRequest`, unsigned, for one certificate.
#[derive(Clone, Debug, PartialEq, Eq, Sequence)]
pub struct OcspRequest {
    pub tbs_request: TbsRequest,
}

/// `TBSRequest` of version 1.
#[derive(Clone, Debug, PartialEq, Eq, Sequence)]
pub struct TbsRequest {
    pub request_list: Vec<Request>,
}

#[derive(Clone, Debug, PartialEq, Eq, Sequence)]
pub struct Request {
    pub cert_id: CertId,
}

/// `CertID`: identifies a certificate by hashes of its issuer and by its serial number.
#[derive(Clone, Debug, PartialEq, Eq, Sequence)]
pub struct CertId {
    /// Algorithm of both hashes.
    pub hash_algorithm: AlgorithmIdentifierOwned,
    /// Hash of the DER of the issuer's name.
    pub issuer_name_hash: OctetString,
    /// Hash of the issuer's public key, without tag, length and unused bits.
    pub issuer_key_hash: OctetString,
    pub serial_number: Int,
}

#[derive(Clone, Debug, PartialEq, Eq, Sequence)]
pub struct OcspResponse {
    pub status: ResponseStatus,
    #[asn1(context_specific = "0", optional = "true", tag_mode = "EXPLICIT")]
    pub bytes: Option<ResponseBytes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumerated)]
#[asn1(type = "ENUMERATED")]
#[repr(u8)]
pub enum ResponseStatus {
    Successful = 0,
    /// The responder could not parse the request.
    MalformedRequest = 1,
    InternalError = 2,
    /// The responder is busy.
    TryLater = 3,
    /// The responder requires signed requests.
    SigRequired = 5,
    /// The responder does not answer this client, or not for this certificate (RFC 5019 section 2.2.3).
    Unauthorized = 6,
}

#[derive(Clone, Debug, PartialEq, Eq, Sequence)]
pub struct ResponseBytes {
    /// Type of the response; only [`BASIC`] is defined.
    pub kind: ObjectIdentifier,
    /// DER of a [`BasicResponse`].
    pub response: OctetString,
}

/// id-pkix-ocsp-basic
pub const BASIC: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.48.1.1");

#[derive(Clone, Debug, PartialEq, Eq, Sequence)]
pub struct BasicResponse {
    /// DER of a [`ResponseData`].
    pub data: Any,
    /// An `AlgorithmIdentifier`.
    pub signature_algorithm: Any,
    /// Signature of `data`.
    pub signature: BitString,
    /// Certificates of the signer, to verify the signature.
    #[asn1(context_specific = "0", optional = "true", tag_mode = "EXPLICIT")]
    pub certificates: Option<Vec<Any>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Sequence)]
pub struct ResponseData {
    /// 0 means version 1 and is omitted.
    #[asn1(context_specific = "0", optional = "true", tag_mode = "EXPLICIT")]
    pub version: Option<u8>,
    pub responder: ResponderId,
    pub produced_at: GeneralizedTime,
    /// One per requested certificate, or more.
    pub responses: Vec<SingleResponse>,
    #[asn1(context_specific = "1", optional = "true", tag_mode = "EXPLICIT")]
    pub extensions: Option<Extensions>,
}

#[derive(Clone, Debug, PartialEq, Eq, Choice)]
pub enum ResponderId {
    /// Subject of the signer's certificate.
    #[asn1(context_specific = "1", tag_mode = "EXPLICIT", constructed = "true")]
    ByName(Any),
    /// SHA-1 of the signer's public key.
    #[asn1(context_specific = "2", tag_mode = "EXPLICIT", constructed = "true")]
    ByKey(OctetString),
}

#[derive(Clone, Debug, PartialEq, Eq, Sequence)]
pub struct SingleResponse {
    pub cert_id: CertId,
    pub status: CertStatus,
    pub this_update: GeneralizedTime,
    /// Time by which a newer response is available.
    #[asn1(context_specific = "0", optional = "true", tag_mode = "EXPLICIT")]
    pub next_update: Option<GeneralizedTime>,
    #[asn1(context_specific = "1", optional = "true", tag_mode = "EXPLICIT")]
    pub extensions: Option<Extensions>,
}

#[derive(Clone, Debug, PartialEq, Eq, Choice)]
pub enum CertStatus {
    #[asn1(context_specific = "0", tag_mode = "IMPLICIT")]
    Good(Null),
    /// Revoked permanently or temporarily.
    #[asn1(context_specific = "1", tag_mode = "IMPLICIT", constructed = "true")]
    Revoked(RevokedInfo),
    /// The responder does not know the certificate.
    #[asn1(context_specific = "2", tag_mode = "IMPLICIT")]
    Unknown(Null),
}

#[derive(Clone, Debug, PartialEq, Eq, Sequence)]
pub struct RevokedInfo {
    pub revoked_at: GeneralizedTime,
    /// A `CRLReason` (RFC 5280 section 5.3.1).
    #[asn1(context_specific = "0", optional = "true", tag_mode = "EXPLICIT")]
    pub reason: Option<Any>,
}

/// Certificate split into signed data, algorithm and signature (RFC 5280 section 4.1).
#[derive(Clone, Debug, PartialEq, Eq, Sequence)]
pub struct Signed {
    /// The `TBSCertificate`.
    pub what: Any,
    /// An `AlgorithmIdentifier`.
    pub algorithm: Any,
    /// Signature of `what`.
    pub signature: BitString,
}
