//! The first message of a client: reads it, and answers one that is no ClientHello. rustls checks it, except for what
//! only the parser of `logic` looks at.

use std::io::{self, Read};
use std::task::{Context, Poll};

use logic::client_hello::{self, HelloFault, Progress};
use logic::tls_alert;
use rustls::Error;
use rustls::server::{AcceptedAlert, Acceptor};

use crate::alert;
use crate::plain::Plain;
use crate::wire::{self, Wire};

/// Reads more bytes of the client.
pub(crate) fn poll_read(
    acceptor: &mut Acceptor,
    second: &mut SecondReader,
    plain: &mut Plain,
    cx: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    wire::poll(read(acceptor, second, Wire { plain, cx }))
}

/// Passes bytes of the client to both readers of the ClientHello.
pub(crate) fn read(acceptor: &mut Acceptor, second: &mut SecondReader, from: impl Read) -> io::Result<usize> {
    acceptor.read_tls(&mut Tee { from, second })
}

/// Reads the ClientHello beside rustls. A ClientHello that only this reader cannot parse is left to rustls.
pub(crate) enum SecondReader {
    Reading(client_hello::Reader),
    Complete(Box<client_hello::ClientHello>),
    Failed(HelloFault),
}

impl Default for SecondReader {
    fn default() -> Self {
        Self::Reading(client_hello::Reader::default())
    }
}

impl SecondReader {
    fn read(&mut self, more: &[u8]) {
        let Self::Reading(reader) = self else { return };
        match reader.read(more) {
            Ok(Progress::Incomplete) => {}
            Ok(Progress::Complete(hello)) => *self = Self::Complete(Box::new(hello)),
            Err(fault) => *self = Self::Failed(fault),
        }
    }

    /// Returns the alert for what rustls accepts, or refuses for another reason.
    pub(crate) fn refusal(&self) -> Option<u8> {
        match self {
            Self::Complete(hello) => hello.refusal(),
            // rustls takes as much as an encrypted record may have (RFC 8446 sections 5.1 and 5.2).
            Self::Failed(fault @ HelloFault::LongRecord) => Some(fault.alert()),
            Self::Reading(_) | Self::Failed(_) => None,
        }
    }

    /// Whether the client is known to offer TLS 1.3.
    pub(crate) fn offers_tls13(&self) -> bool {
        matches!(self, Self::Complete(hello) if hello.offers_tls13())
    }
}

/// Bytes for rustls that the second reader gets as well.
struct Tee<'a, R> {
    from: R,
    second: &'a mut SecondReader,
}

impl<R: Read> Read for Tee<'_, R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(bytes)?;
        self.second.read(&bytes[..count]);
        Ok(count)
    }
}

/// Returns the one alert for a message that is no ClientHello, or for a ClientHello that cannot be answered: that of
/// rustls, which has none for some faults. Empty if the message was an alert.
pub(crate) fn alert(error: &Error, mut own: AcceptedAlert) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Writing to a vector cannot fail.
    let _ = own.write_all(&mut bytes);
    if bytes.is_empty()
        && let Some(description) = alert::description(error)
    {
        bytes.extend_from_slice(&tls_alert::fatal(description));
    }
    bytes
}
