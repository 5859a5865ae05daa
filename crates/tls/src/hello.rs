//! The first message of a client: reads it, and answers one that is no ClientHello.

use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll};

use logic::client_hello::fatal_alert;
use rustls::server::{AcceptedAlert, Acceptor};
use rustls::{ContentType, Error, InvalidMessage};
use tokio::io::{AsyncRead, ReadBuf};

use crate::plain::Plain;

/// Reads more bytes of the client.
pub(crate) fn poll_read(
    acceptor: &mut Acceptor,
    plain: &mut Plain,
    cx: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    match acceptor.read_tls(&mut Reader { plain, cx }) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        read => Poll::Ready(read),
    }
}

/// Returns the one alert for a message that is no ClientHello: that of rustls, which has none for some faults. Empty
/// if the message was an alert.
pub(crate) fn alert(error: &Error, mut own: AcceptedAlert) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Writing to a vector cannot fail.
    let _ = own.write_all(&mut bytes);
    if bytes.is_empty()
        && let Some(description) = description(error)
    {
        bytes.extend_from_slice(&fatal_alert(description));
    }
    bytes
}

/// Alert for a message that cannot be read (RFC 8446 section 6.2).
pub(crate) const DECODE_ERROR: u8 = 50;

/// Alert of RFC 8446 section 6.2.
fn description(error: &Error) -> Option<u8> {
    const UNEXPECTED_MESSAGE: u8 = 10;
    const RECORD_OVERFLOW: u8 = 22;
    match error {
        Error::InappropriateMessage { got_type: ContentType::Alert, .. } => None,
        Error::InvalidMessage(InvalidMessage::MessageTooLarge) => Some(RECORD_OVERFLOW),
        Error::InvalidMessage(_) => Some(DECODE_ERROR),
        // rustls has no alert for another record between the parts of a message, or for too many empty records.
        Error::InappropriateMessage { .. }
        | Error::InappropriateHandshakeMessage { .. }
        | Error::PeerMisbehaved(_) => Some(UNEXPECTED_MESSAGE),
        _ => None,
    }
}

/// A connection whose reads return `WouldBlock` instead of waiting.
struct Reader<'a, 'c> {
    plain: &'a mut Plain,
    cx: &'a mut Context<'c>,
}

impl Read for Reader<'_, '_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut bytes = ReadBuf::new(bytes);
        match Pin::new(&mut *self.plain).poll_read(self.cx, &mut bytes) {
            Poll::Ready(read) => read.map(|()| bytes.filled().len()),
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}
