//! Reasons for which a response is not stapled.

use std::fmt;
use std::time::SystemTime;

use der::asn1::ObjectIdentifier;

use super::message::ResponseStatus;

/// Why a response is not stapled. `Display` continues a sentence: `... is not an OCSP response (DER)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The data is not an OCSPResponse.
    Malformed,
    NoAnswer(ResponseStatus),
    /// The response is about other certificates.
    OtherCertificate,
    /// The signer that the response names is neither the issuer nor the subject of an included certificate.
    UnknownSigner,
    /// The signer's certificate was not issued by the issuer of the served certificate.
    SignerOfOtherIssuer,
    /// The signer's certificate is not for OCSP signing (RFC 6960 section 4.2.2.2).
    SignerNotAllowed,
    /// The signer's certificate is not valid now.
    SignerUntimely,
    WrongSignature,
    /// The signature algorithm is not trusted (SHA-1) or unknown.
    Algorithm(String),
    /// The response has an unknown critical extension.
    CriticalExtension(ObjectIdentifier),
    /// `thisUpdate` is in the future.
    NotYet(SystemTime),
    /// `nextUpdate` is in the past.
    Expired(SystemTime),
    /// The certificate is revoked.
    Revoked(Revocation),
    /// The responder does not know the certificate.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revocation {
    pub since: SystemTime,
    /// `CRLReason` (RFC 5280 section 5.3.1).
    pub reason: Option<u8>,
}

/// Whether earlier responses may still be stapled after a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// An earlier response can be used until it expires.
    KeepFormer,
    /// Earlier responses are no longer true.
    DropFormer,
}

impl Fault {
    pub fn hint(&self) -> Hint {
        match self {
            // The newer response is signed and says "revoked": an earlier "good" is known to be false.
            Self::Revoked(_) => Hint::DropFormer,
            _ => Hint::KeepFormer,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => f.write_str("is not an OCSP response (DER)"),
            Self::NoAnswer(status) => {
                let word = match status {
                    ResponseStatus::Successful => "the status `successful`, but no response in it",
                    ResponseStatus::MalformedRequest => "malformedRequest",
                    ResponseStatus::InternalError => "internalError",
                    ResponseStatus::TryLater => "tryLater",
                    ResponseStatus::SigRequired => "sigRequired",
                    ResponseStatus::Unauthorized => "unauthorized",
                };
                write!(f, "is an answer without a verdict: {word}")
            }
            Self::OtherCertificate => f.write_str("is the OCSP response for another certificate"),
            Self::UnknownSigner => {
                f.write_str("is signed neither by the issuer of the checked certificate nor by a certificate in the response")
            }
            Self::SignerOfOtherIssuer => {
                f.write_str("is signed by a responder that the issuer of the certificate did not appoint")
            }
            Self::SignerNotAllowed => f.write_str(
                "is signed with a certificate that is not for OCSP (extendedKeyUsage OCSPSigning)",
            ),
            Self::SignerUntimely => {
                f.write_str("is signed with a responder's certificate that is not valid now")
            }
            Self::WrongSignature => f.write_str("has a wrong signature"),
            Self::Algorithm(name) => write!(f, "is signed with {name}, which is not trusted"),
            Self::CriticalExtension(oid) => {
                write!(f, "holds a critical extension that is not known here ({oid})")
            }
            Self::NotYet(_) => f.write_str("is an OCSP response of the future; is the clock right?"),
            Self::Expired(_) => f.write_str("is an OCSP response whose time is over"),
            Self::Revoked(Revocation { reason, .. }) => {
                let why = reason.and_then(|reason| REASONS.get(usize::from(reason)));
                match why {
                    Some(why) if !why.is_empty() => {
                        write!(f, "says that the certificate is revoked ({why})")
                    }
                    _ => f.write_str("says that the certificate is revoked"),
                }
            }
            Self::Unknown => f.write_str("says that the responder does not know the certificate"),
        }
    }
}

/// Indexed by CRLReason; 0 means unspecified, 7 does not exist.
const REASONS: [&str; 11] = [
    "",
    "keyCompromise",
    "cACompromise",
    "affiliationChanged",
    "superseded",
    "cessationOfOperation",
    "certificateHold",
    "",
    "removeFromCRL",
    "privilegeWithdrawn",
    "aACompromise",
];
