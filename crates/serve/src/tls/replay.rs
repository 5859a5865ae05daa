//! Hands bytes that were read before the handshake (behind a PROXY header) to the TLS connection.

use rustls::ServerConnection;

/// Feeds `early` into the connection. What does not fit or does not parse makes the handshake fail at its next step.
pub(super) fn feed(connection: &mut ServerConnection, early: &[u8]) {
    let mut rest = early;
    while !rest.is_empty() {
        match connection.read_tls(&mut rest) {
            Ok(0) | Err(_) => break,
            Ok(_) => {
                // The error comes again, with its alert, when the handshake goes on.
                if connection.process_new_packets().is_err() {
                    break;
                }
            }
        }
    }
}
