//! A handshake that failed: what is still to be sent to the client, and what the log says.

use std::io;

use logic::tls_alert;
use state::ending::{ClientFault, Ending, TlsFault};
use tokio::io::AsyncWriteExt;

use crate::client;
use crate::linger::linger;
use crate::plain::Plain;

/// A handshake that failed. The client does not know it yet.
pub(crate) struct Failed {
    refused: Refused,
    /// The connection, and the bytes that end it: the alert, and what was queued before it. `None` if it gets none.
    last: Option<(Plain, Vec<u8>)>,
}

impl Failed {
    /// Makes a failure after which `last` is sent. To be called in the same turn of the task in which a certificate was
    /// refused.
    pub(crate) fn new(fault: TlsFault, plain: Plain, last: Vec<u8>) -> Self {
        // A client that has closed the connection, or has sent an alert, expects nothing more.
        let last = (!matches!(fault, TlsFault::Closed | TlsFault::Alert)).then_some((plain, last));
        Self { refused: Refused::from(fault), last }
    }

    /// Makes a failure of an error of the network or of rustls, after which `last` is sent. To be called in the same turn of
    /// the task in which a certificate was refused.
    pub(crate) fn of(error: &io::Error, plain: Plain, last: Vec<u8>) -> Self {
        let mut failed = Self::new(fault_of(error), plain, last);
        if let Some(rustls::Error::AlertReceived(alert)) = of_rustls(error) {
            failed.refused.alert = Some(u8::from(*alert));
        }
        failed
    }

    /// Makes a failure that the client is told by an unencrypted alert.
    pub(crate) fn with_alert(fault: TlsFault, plain: Plain, description: u8) -> Self {
        Self::new(fault, plain, tls_alert::fatal(description).to_vec())
    }

    /// Makes the failure of a client that speaks plain HTTP, and is told so by a page with that status.
    pub(crate) fn with_page(plain: Plain, status: u16, page: Vec<u8>) -> Self {
        let mut failed = Self::new(TlsFault::NotTls, plain, page);
        failed.refused.status = Some(status);
        failed
    }

    /// Makes the failure of a client for whose server name there is no certificate. `description` is its alert.
    pub(crate) fn no_certificate(plain: Plain, server_name: Option<&str>, description: u8) -> Self {
        let mut failed = Self::with_alert(TlsFault::NoCertificate, plain, description);
        failed.refused.server_name = server_name.map(Box::from);
        failed
    }

    /// Sends the last bytes, and closes the connection so that the client gets them.
    pub(crate) async fn part(mut self) -> Refused {
        if let Some((mut plain, last)) = self.last {
            // The client may have closed the connection; nothing depends on the alert.
            match plain.write_all(&last).await {
                Ok(()) => self.refused.bytes_out = last.len() as u64,
                Err(_) => self.refused.status = None,
            }
            // The client may already have sent more: a TCP reset would arrive before the alert.
            linger(plain).await;
        }
        self.refused
    }
}

impl From<TlsFault> for Failed {
    /// The client gets nothing more.
    fn from(fault: TlsFault) -> Self {
        Self { refused: Refused::from(fault), last: None }
    }
}

/// A client whose handshake failed.
#[derive(Debug)]
pub struct Refused {
    pub ending: Ending,
    /// Subject of the client's certificate, if it was refused.
    pub certificate: Option<Box<str>>,
    /// Server name that the client sent, if no certificate is for it.
    pub server_name: Option<Box<str>>,
    /// Alert with which the client ended the handshake.
    pub alert: Option<u8>,
    /// Status of the page that told a client of plain HTTP what this port is.
    pub status: Option<u16>,
    /// Bytes of that page, or of the alert and what was queued before it.
    pub bytes_out: u64,
}

impl From<Ending> for Refused {
    fn from(ending: Ending) -> Self {
        Self { ending, certificate: None, server_name: None, alert: None, status: None, bytes_out: 0 }
    }
}

impl From<TlsFault> for Refused {
    /// To be called in the same turn of the task in which the certificate was refused.
    fn from(fault: TlsFault) -> Self {
        let certificate = client::take_refused().filter(|_| matches!(fault, TlsFault::Client(_)));
        Self { certificate, ..Self::from(Ending::TlsFailed(fault)) }
    }
}

/// Returns what the log says of an error of the network or of rustls.
pub(crate) fn fault_of(error: &io::Error) -> TlsFault {
    match of_rustls(error) {
        Some(rustls::Error::InvalidMessage(_)) => TlsFault::NotTls,
        Some(rustls::Error::PeerIncompatible(_)) => TlsFault::Incompatible,
        Some(rustls::Error::AlertReceived(_)) => TlsFault::Alert,
        Some(rustls::Error::NoCertificatesPresented) => TlsFault::Client(ClientFault::Missing),
        Some(error @ rustls::Error::InvalidCertificate(_)) => TlsFault::Client(client::fault(error)),
        // rustls has no error variant for a resolver that found no certificate.
        Some(rustls::Error::General(why)) if why.contains("certificate") => TlsFault::NoCertificate,
        Some(_) => TlsFault::Protocol,
        None => TlsFault::Closed,
    }
}

fn of_rustls(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}
