//! TCP to a host: its addresses, tried in turn.

use std::io;
use std::net::SocketAddr;

use logic::fleet::ending::{Failure, Phase, Reason};
use tokio::net::TcpStream;

use crate::target::Target;
use crate::trouble::failure;

/// The addresses of `target`.
///
/// # Errors
/// Its name has none.
pub(crate) async fn resolve(target: &Target) -> Result<Vec<SocketAddr>, Failure> {
    if !target.addresses.known.is_empty() {
        return Ok(target.addresses.known.iter().map(|ip| SocketAddr::new(*ip, target.port)).collect());
    }
    let no_address = |why: String| failure(Phase::Resolve, Reason::NoAddress, why);
    match tokio::net::lookup_host((target.host.as_str(), target.port)).await {
        Ok(found) => {
            let found: Vec<_> = found.collect();
            if found.is_empty() {
                return Err(no_address(format!("{} has no address", target.host)));
            }
            Ok(found)
        }
        Err(fault) => Err(no_address(format!("look up {}: {fault}", target.host))),
    }
}

/// Connects to the first address that answers.
///
/// # Errors
/// None did.
pub(crate) async fn tcp(addresses: &[SocketAddr]) -> Result<(TcpStream, SocketAddr), Failure> {
    let mut last = None;
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                stream.set_nodelay(true).map_err(|fault| refused(*address, &fault))?;
                return Ok((stream, *address));
            }
            Err(fault) => last = Some(refused(*address, &fault)),
        }
    }
    Err(last
        .unwrap_or_else(|| failure(Phase::Resolve, Reason::NoAddress, "no address to connect to".to_owned())))
}

fn refused(address: SocketAddr, fault: &io::Error) -> Failure {
    let reason = match fault.kind() {
        io::ErrorKind::ConnectionRefused => Reason::Refused,
        io::ErrorKind::TimedOut => Reason::TimedOut,
        _ => Reason::Unreachable,
    };
    failure(Phase::Connect, reason, format!("connect to {address}: {fault}"))
}
