//! Name look-ups for ACME authorities and OCSP responders.

use std::io;
use std::net::SocketAddr;

use crate::account::Turn;

/// Resolves a host that is not a backend. Returns the turn with the addresses. A look-up cannot be cancelled: if the
/// caller stops waiting, the turn ends when the look-up ends.
pub async fn look_up(host: &str, port: u16, turn: Turn) -> io::Result<(Turn, Vec<SocketAddr>)> {
    let host = host.to_owned();
    let looking = tokio::spawn(async move {
        let found = tokio::net::lookup_host((host, port)).await?.collect();
        Ok((turn, found))
    });
    looking.await.map_err(io::Error::other)?
}
