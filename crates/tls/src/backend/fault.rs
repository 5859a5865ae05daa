//! Error messages for failed TLS handshakes with backends: the cause, and what the operator can do.

use std::io;
use std::time::{Duration, SystemTime};

use rustls::{AlertDescription, CertificateError, Error};
use rustls_pki_types::UnixTime;
use state::events::timestamp;

/// Message for a backend that accepted the TCP connection and sent nothing.
pub(super) const SILENT: &str = "no handshake within the time for a connect: does this port speak TLS?";

/// Message for a backend that chose another protocol than HTTP/2, or none, by ALPN.
pub(super) const NO_HTTP2: &str =
    "the backend does not speak HTTP/2 on this port (ALPN): remove http2 = \"on\"";

/// Returns the message for the error of a handshake.
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
        Error::PeerIncompatible(why) => format!("no protocol version or algorithm in common: {why:?}"),
        other => other.to_string(),
    }
}

fn of_certificate(fault: &CertificateError) -> String {
    match fault {
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("the backend's certificate expired at {}: renew it there", utc_time(*not_after))
        }
        CertificateError::NotValidYetContext { not_before, .. } => format!(
            "the backend's certificate is not valid before {}: is the clock right?",
            utc_time(*not_before)
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
        CertificateError::UnknownIssuer => "no trusted CA has signed the backend's certificate: name the \
                                            file with its authority as tls.ca (or does the backend leave out an \
                                            intermediate certificate?)"
            .to_owned(),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "the backend's certificate is not for servers (extended key usage)".to_owned()
        }
        CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
            "the backend's certificate is self-signed, or that of a CA: to trust exactly this one, set it as tls.ca"
                .to_owned()
        }
        other => format!("the backend's certificate is refused: {other}"),
    }
}

/// Returns the plain name from rustls' form `DnsName("a.example")`.
fn bare(name: &str) -> &str {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(name).trim_matches('"')
}

fn of_alert(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::CertificateRequired => {
            "the backend requires a client certificate: set tls.certificate".to_owned()
        }
        AlertDescription::UnknownCA
        | AlertDescription::BadCertificate
        | AlertDescription::CertificateUnknown => {
            format!("the backend rejects our certificate ({alert:?})")
        }
        AlertDescription::CertificateExpired => {
            "the backend says that our certificate has expired".to_owned()
        }
        AlertDescription::UnrecognisedName => "the backend does not know that server name (SNI)".to_owned(),
        AlertDescription::ProtocolVersion => {
            "the backend speaks only versions of TLS that are too old".to_owned()
        }
        AlertDescription::HandshakeFailure => {
            "the backend ended the handshake: no cipher in common, or it requires a client certificate"
                .to_owned()
        }
        AlertDescription::NoApplicationProtocol => NO_HTTP2.to_owned(),
        other => format!("the backend ended the handshake ({other:?})"),
    }
}

fn utc_time(time: UnixTime) -> String {
    timestamp(SystemTime::UNIX_EPOCH + Duration::from_secs(time.as_secs()))
}
