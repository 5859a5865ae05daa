//! The addresses of hosts that are no backends: authorities and OCSP responders.

use std::io;
use std::net::SocketAddr;

use crate::account::Turn;

/// The addresses of a host that is no backend. The turn comes back with them. A look-up cannot be interrupted: where the caller gives
/// up, the turn ends when the look-up does.
pub(crate) async fn look_up(host: &str, port: u16, turn: Turn) -> io::Result<(Turn, Vec<SocketAddr>)> {
    let host = host.to_owned();
    let looking = tokio::spawn(async move {
        let found = tokio::net::lookup_host((host, port)).await?.collect();
        Ok((turn, found))
    });
    looking.await.map_err(io::Error::other)?
}
