//! Why a response is not sent to clients.

use std::fmt;
use std::time::SystemTime;

use der::asn1::ObjectIdentifier;

use super::message::ResponseStatus;

/// Why a response is not sent to clients. `Display` continues a sentence that names it: `... is no OCSP response (DER)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is no OCSPResponse.
    Malformed,
    /// The responder had no answer.
    NoAnswer(ResponseStatus),
    /// It is about other certificates.
    OtherCertificate,
    /// Neither the issuer nor anybody whose certificate comes with it is the one that it says has signed it.
    UnknownSigner,
    /// Its signer's certificate was not issued by the issuer of ours.
    SignerOfOtherIssuer,
    /// Its signer's certificate is not for signing OCSP responses (RFC 6960 section 4.2.2.2).
    SignerNotAllowed,
    /// Its signer's certificate is not valid now.
    SignerUntimely,
    /// Its signature is wrong.
    WrongSignature,
    /// Its signature is made in a way that is not trusted (SHA-1) or not known.
    Algorithm(String),
    /// It holds something that must be understood, and is not.
    CriticalExtension(ObjectIdentifier),
    /// Its time has not come.
    NotYet(SystemTime),
    /// Its time is over.
    Expired(SystemTime),
    /// It says that the certificate is revoked.
    Revoked(Revocation),
    /// The responder does not know the certificate.
    Unknown,
}

/// What is known of a revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revocation {
    /// Since when.
    pub since: SystemTime,
    /// `CRLReason` (RFC 5280 section 5.3.1).
    pub reason: Option<u8>,
}

/// What a fault says of the responses from before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// Nothing: one that is still in its time is as good as it was.
    KeepFormer,
    /// They are not true any more.
    DropFormer,
}

impl Fault {
    /// What it says of the responses from before.
    pub fn hint(&self) -> Hint {
        match self {
            // Signed by the issuer, and newer: to go on saying "good" would be saying what we know to be false.
            Self::Revoked(_) => Hint::DropFormer,
            _ => Hint::KeepFormer,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => f.write_str("is no OCSP response (DER)"),
            Self::NoAnswer(status) => {
                let word = match status {
                    ResponseStatus::Successful => "successful, but empty",
                    ResponseStatus::MalformedRequest => "malformedRequest",
                    ResponseStatus::InternalError => "internalError",
                    ResponseStatus::TryLater => "tryLater",
                    ResponseStatus::SigRequired => "sigRequired",
                    ResponseStatus::Unauthorized => "unauthorized",
                };
                write!(f, "is an answer without a verdict: {word}")
            }
            Self::OtherCertificate => f.write_str("is the OCSP response for another certificate"),
            Self::UnknownSigner => f.write_str("is signed by somebody whose certificate is not known"),
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

/// By number; the first says nothing, and there is no 7.
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
