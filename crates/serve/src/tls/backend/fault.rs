//! The words for a handshake with a backend that failed: what it was, and what to do about it.

use std::io;
use std::time::{Duration, SystemTime};

use rustls::{AlertDescription, CertificateError, Error};
use rustls_pki_types::UnixTime;

use crate::events::timestamp;

/// It took the connection and never answered.
pub(super) const SILENT: &str = "no handshake within the time for a connect: does this port speak TLS?";

/// It has agreed on something else, or on nothing.
pub(super) const NO_HTTP2: &str =
    "the backend does not speak HTTP/2 on this port (ALPN): take away http2 = \"on\"";

/// What went wrong in a handshake.
pub(super) fn of_handshake(error: &io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(error) => words(error),
        None if matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) => {
            "the backend closed the connection during the handshake".to_owned()
        }
        None => format!("the connection broke during the handshake: {error}"),
    }
}

fn words(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(fault) => of_certificate(fault),
        Error::InvalidMessage(_) => {
            "what the backend says is not TLS: does this port speak plain text?".to_owned()
        }
        Error::AlertReceived(alert) => of_alert(*alert),
        Error::PeerIncompatible(why) => format!("no way of talking that both know: {why:?}"),
        other => other.to_string(),
    }
}

fn of_certificate(fault: &CertificateError) -> String {
    match fault {
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("the backend's certificate expired at {}: renew it there", moment_of(*not_after))
        }
        CertificateError::NotValidYetContext { not_before, .. } => format!(
            "the backend's certificate is valid from {} only: is the clock right?",
            moment_of(*not_before)
        ),
        CertificateError::NotValidForNameContext { expected, presented } => {
            let presented = match presented.as_slice() {
                [] => "no name at all".to_owned(),
                names => names.iter().map(|name| bare(name)).collect::<Vec<_>>().join(", "),
            };
            format!(
                "the backend's certificate is not for {}, but for {presented}: say which name it should have as \
                 tls.server-name",
                expected.to_str()
            )
        }
        CertificateError::UnknownIssuer => "nobody who is trusted here has signed the backend's certificate: name the \
                                            file with its authority as tls.ca (or does the backend leave out an \
                                            intermediate certificate?)"
            .to_owned(),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "the backend's certificate is not for servers (extended key usage)".to_owned()
        }
        CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
            "the backend's certificate is self-signed, or an authority's own: to trust this very one name it as tls.ca"
                .to_owned()
        }
        other => format!("the backend's certificate is refused: {other}"),
    }
}

/// rustls writes names as `DnsName("a.example")`.
fn bare(name: &str) -> &str {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(name).trim_matches('"')
}

fn of_alert(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::CertificateRequired => {
            "the backend wants a certificate of us: name one as tls.certificate".to_owned()
        }
        AlertDescription::UnknownCA
        | AlertDescription::BadCertificate
        | AlertDescription::CertificateUnknown => {
            format!("the backend does not take our certificate ({alert:?})")
        }
        AlertDescription::CertificateExpired => {
            "the backend says that our certificate has expired".to_owned()
        }
        AlertDescription::UnrecognisedName => "the backend knows nobody of that name (SNI)".to_owned(),
        AlertDescription::ProtocolVersion => {
            "the backend speaks only versions of TLS that are too old".to_owned()
        }
        AlertDescription::HandshakeFailure => {
            "the backend ended the handshake: no cipher in common, or it wants a certificate of us".to_owned()
        }
        AlertDescription::NoApplicationProtocol => NO_HTTP2.to_owned(),
        other => format!("the backend ended the handshake ({other:?})"),
    }
}

fn moment_of(time: UnixTime) -> String {
    timestamp(SystemTime::UNIX_EPOCH + Duration::from_secs(time.as_secs()))
}
