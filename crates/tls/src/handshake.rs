//! The handshake after the ClientHello. tokio-rustls does not return a connection whose handshake failed, but the alert
//! needs it, and it reads from the network before it processes the bytes that came together with the ClientHello.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;

use rustls::server::Accepted;
use rustls::{InvalidMessage, ServerConfig, ServerConnection};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::failed::Failed;
use crate::plain::Plain;
use crate::{alert, hello, replay, wire};

/// Performs the handshake. `early` holds bytes that follow the ClientHello.
pub(crate) async fn complete(
    accepted: Accepted,
    config: Arc<ServerConfig>,
    mut plain: Plain,
    early: &[u8],
) -> Result<TlsStream<Plain>, Failed> {
    let mut connection = match accepted.into_connection(config.clone()) {
        // It has more than 1 KiB: in the task it would count for every waiting client.
        Ok(connection) => Box::new(connection),
        Err((error, alert)) => {
            let last = hello::alert(&error, alert);
            return Err(Failed::of(&invalid(error), plain, last));
        }
    };
    replay::feed(&mut connection, early);
    match exchange(&mut connection, &mut plain).await {
        Ok(()) => {
            // tokio-rustls wraps only connections that it has made itself: its own is replaced by this one.
            let wrapping = TlsAcceptor::from(config).accept_with(plain, |made| *made = *connection);
            wrapping.into_fallible().await.map_err(|(error, plain)| Failed::of(&error, plain, Vec::new()))
        }
        Err(error) => {
            let fault = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
            let last = fault.map(|fault| alert::last_bytes(&mut connection, fault)).unwrap_or_default();
            Err(Failed::of(&error, plain, last))
        }
    }
}

fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

async fn exchange(connection: &mut ServerConnection, plain: &mut Plain) -> io::Result<()> {
    loop {
        connection.process_new_packets().map_err(invalid)?;
        while connection.wants_write() {
            if poll_fn(|cx| wire::poll_write(connection, plain, cx)).await? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        if !connection.is_handshaking() {
            return Ok(());
        }
        match poll_fn(|cx| wire::poll_read(connection, plain, cx)).await {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            // Not from the kernel: rustls takes no message that is so long.
            Err(error) if error.raw_os_error().is_none() => {
                return Err(invalid(InvalidMessage::HandshakePayloadTooLarge.into()));
            }
            Err(error) => return Err(error),
        }
    }
}
