//! The handshake after the ClientHello. tokio-rustls does not return a connection whose handshake failed, but the alert
//! needs it, and it reads from the network before it processes the bytes that came together with the ClientHello.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;

use rustls::server::Accepted;
use rustls::{ServerConfig, ServerConnection};
use tokio::io::AsyncWriteExt;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::plain::Plain;
use crate::{alert, hello, replay, wire};

/// Performs the handshake. `early` holds bytes that follow the ClientHello. If the handshake fails, the client has got
/// the alert, and the connection is returned.
pub(crate) async fn complete(
    accepted: Accepted,
    config: Arc<ServerConfig>,
    mut plain: Plain,
    early: &[u8],
) -> Result<TlsStream<Plain>, (io::Error, Plain)> {
    let mut connection = match accepted.into_connection(config.clone()) {
        Ok(connection) => Box::new(connection),
        Err((error, alert)) => {
            send_last(&mut plain, &hello::alert(&error, alert)).await;
            return Err((io::Error::new(io::ErrorKind::InvalidData, error), plain));
        }
    };
    replay::feed(&mut connection, early);
    match exchange(&mut connection, &mut plain).await {
        Ok(()) => {
            // tokio-rustls wraps only connections that it has made.
            let wrapping = TlsAcceptor::from(config).accept_with(plain, |made| *made = *connection);
            wrapping.into_fallible().await
        }
        Err(error) => Err((error, plain)),
    }
}

async fn exchange(connection: &mut ServerConnection, plain: &mut Plain) -> io::Result<()> {
    loop {
        if let Err(error) = connection.process_new_packets() {
            send_last(plain, &alert::last_bytes(connection, &error)).await;
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        while connection.wants_write() {
            if poll_fn(|cx| wire::poll_write(connection, plain, cx)).await? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        if !connection.is_handshaking() {
            return Ok(());
        }
        if poll_fn(|cx| wire::poll_read(connection, plain, cx)).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

async fn send_last(plain: &mut Plain, bytes: &[u8]) {
    // The client may have closed the connection; nothing depends on the alert.
    let _ = plain.write_all(bytes).await;
}
