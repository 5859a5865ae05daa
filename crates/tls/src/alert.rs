//! Fatal alerts after the faults of a client for which rustls 0.23 has none (RFC 8446 section 6.2, RFC 5246 section
//! 7.2.2).

use logic::tls_alert::{self, CONTENT_TYPE};
use rustls::{ContentType, Error, InvalidMessage, PeerMisbehaved, ServerConnection};

use crate::suites;

/// Returns the alert for an error of rustls. `None` if the client has sent an alert itself, or if the error is none of
/// those after which rustls is silent.
pub(crate) fn description(error: &Error) -> Option<u8> {
    match error {
        Error::InappropriateMessage { got_type: ContentType::Alert, .. } => None,
        Error::InvalidMessage(InvalidMessage::MessageTooLarge) => Some(tls_alert::RECORD_OVERFLOW),
        Error::InvalidMessage(_) => Some(tls_alert::DECODE_ERROR),
        // It cannot be decrypted.
        Error::PeerMisbehaved(PeerMisbehaved::RejectedEarlyDataInterleavedWithHandshakeMessage) => {
            Some(tls_alert::BAD_RECORD_MAC)
        }
        Error::PeerMisbehaved(PeerMisbehaved::ServerNameDifferedOnRetry) => {
            Some(tls_alert::ILLEGAL_PARAMETER)
        }
        Error::PeerMisbehaved(PeerMisbehaved::UnsolicitedCertExtension) => {
            Some(tls_alert::UNSUPPORTED_EXTENSION)
        }
        // Another record between the parts of a message, a record without content type, too many records of a kind.
        Error::InappropriateMessage { .. }
        | Error::InappropriateHandshakeMessage { .. }
        | Error::PeerMisbehaved(_) => Some(tls_alert::UNEXPECTED_MESSAGE),
        _ => None,
    }
}

/// Queues an alert for the error of a connection after its handshake, if there is an error and rustls has no alert for
/// it.
pub(crate) fn queue(connection: &mut ServerConnection) {
    // rustls returns the error again, and reads nothing more.
    if let Err(error) = connection.process_new_packets()
        && let Some(description) = description(&error)
    {
        suites::replace_alert(description, || connection.send_close_notify());
    }
}

/// Returns the last bytes for a client whose handshake has failed: what rustls has queued, and an alert if rustls has
/// none.
pub(crate) fn last_bytes(connection: &mut ServerConnection, error: &Error) -> Vec<u8> {
    let mut bytes = queued(connection);
    if let Some(description) = description(error) {
        // No effect if rustls has sent an alert.
        let encrypted = suites::replace_alert(description, || connection.send_close_notify());
        let alert = queued(connection);
        if encrypted {
            bytes.extend(alert);
        } else if alert == CLOSE_NOTIFY {
            bytes.extend(tls_alert::fatal(description));
        }
    }
    bytes
}

/// close_notify as an unencrypted record.
const CLOSE_NOTIFY: [u8; 7] = [CONTENT_TYPE, 3, 3, 0, 2, 1, 0];

/// Takes the bytes that rustls wants to send.
pub(crate) fn queued(connection: &mut ServerConnection) -> Vec<u8> {
    let mut bytes = Vec::new();
    while connection.wants_write() {
        // Writing to a vector cannot fail.
        let _ = connection.write_tls(&mut bytes);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::crypto::{CryptoProvider, aws_lc_rs};
    use rustls::version::{TLS12, TLS13};
    use rustls::{AlertDescription, ClientConfig, ClientConnection, RootCertStore, ServerConfig};
    use rustls::{SupportedCipherSuite, SupportedProtocolVersion};

    use super::*;

    const TOO_MANY: Error = Error::PeerMisbehaved(PeerMisbehaved::TooManyWarningAlertsReceived);

    /// A server that has answered the ClientHello, and its client, which has not got the answer.
    fn begun(
        version: &'static SupportedProtocolVersion,
        suite: impl Fn(SupportedCipherSuite) -> SupportedCipherSuite,
    ) -> (ServerConnection, ClientConnection) {
        let usual = aws_lc_rs::default_provider();
        let cipher_suites = usual.cipher_suites.iter().map(|usual| suite(*usual)).collect();
        let provider = Arc::new(CryptoProvider { cipher_suites, ..usual });
        let rcgen::CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(cert.der().clone()).unwrap();
        let key = signing_key.serialize_der().try_into().unwrap();
        let builder =
            ServerConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap();
        let config = builder.with_no_client_auth().with_single_cert(vec![cert.der().clone()], key).unwrap();
        let mut server = ServerConnection::new(Arc::new(config)).unwrap();
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder =
            ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap();
        let config = builder.with_root_certificates(roots).with_no_client_auth();
        let mut client = ClientConnection::new(Arc::new(config), "a.example".try_into().unwrap()).unwrap();
        let mut hello = Vec::new();
        client.write_tls(&mut hello).unwrap();
        server.read_tls(&mut &hello[..]).unwrap();
        server.process_new_packets().unwrap();
        (server, client)
    }

    fn seen(client: &mut ClientConnection, mut bytes: &[u8]) -> Option<Error> {
        while !bytes.is_empty() {
            client.read_tls(&mut bytes).unwrap();
            if let Err(error) = client.process_new_packets() {
                return Some(error);
            }
        }
        None
    }

    #[test]
    fn the_alert_of_a_failed_handshake_follows_what_was_queued_encrypted_or_not() {
        for version in [&TLS12, &TLS13] {
            let (mut server, mut client) = begun(version, suites::wrapped);
            let bytes = last_bytes(&mut server, &TOO_MANY);
            assert_eq!(bytes.ends_with(&tls_alert::fatal(tls_alert::UNEXPECTED_MESSAGE)), version == &TLS12);
            let expected = Error::AlertReceived(AlertDescription::UnexpectedMessage);
            assert_eq!(seen(&mut client, &bytes), Some(expected));
            assert!(last_bytes(&mut server, &TOO_MANY).is_empty(), "one alert is enough");
        }
    }

    #[test]
    fn an_alert_that_cannot_be_encrypted_is_left_out() {
        let (mut server, mut client) = begun(&TLS13, |suite| suite);
        let bytes = last_bytes(&mut server, &TOO_MANY);
        assert_eq!(seen(&mut client, &bytes), None);
        assert!(!client.is_handshaking(), "the rest was sent");
    }

    #[test]
    fn a_fault_that_rustls_has_answered_gets_no_second_alert() {
        let (mut server, mut client) = begun(&TLS12, suites::wrapped);
        let heartbeat = [24, 3, 3, 0, 1, 1];
        server.read_tls(&mut &heartbeat[..]).unwrap();
        let error = server.process_new_packets().unwrap_err();
        let bytes = last_bytes(&mut server, &error);
        assert_eq!(bytes.windows(5).filter(|record| *record == [CONTENT_TYPE, 3, 3, 0, 2]).count(), 1);
        assert_eq!(seen(&mut client, &bytes), Some(Error::AlertReceived(AlertDescription::DecodeError)));
    }
}
