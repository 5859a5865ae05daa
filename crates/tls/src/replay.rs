//! Passes bytes that were read before the handshake (after a PROXY header) to the TLS connection.

use rustls::ServerConnection;

/// Feeds `early` into the connection. Bytes that do not fit or cannot be parsed make the next step of the handshake
/// fail.
pub(super) fn feed(connection: &mut ServerConnection, early: &[u8]) {
    let mut rest = early;
    while !rest.is_empty() {
        match connection.read_tls(&mut rest) {
            Ok(0) | Err(_) => break,
            Ok(_) => {
                // The handshake reports the same error, with its alert, at its next step.
                if connection.process_new_packets().is_err() {
                    break;
                }
            }
        }
    }
}
