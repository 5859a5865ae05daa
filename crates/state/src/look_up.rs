//! Name look-ups for ACME authorities and OCSP responders, and connections to what they find.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

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

/// Most addresses of a name that are tried.
const MOST_ADDRESSES: usize = 4;

/// Connects to the first of the addresses that accepts. Each has an equal part of the time limit: an address that drops
/// packets leaves time for the next one. The families take turns (RFC 8305 section 4), so that a network on which one of
/// them leads nowhere costs one part. The error names each address.
pub async fn connect(addresses: &[SocketAddr], limit: Duration) -> io::Result<TcpStream> {
    let mut addresses = in_turns(addresses);
    addresses.truncate(MOST_ADDRESSES);
    let part = limit / u32::try_from(addresses.len()).unwrap_or(1).max(1);
    let (mut kind, mut faults) = (io::ErrorKind::NotFound, Vec::new());
    for address in addresses {
        match timeout(part, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => {
                kind = error.kind();
                faults.push(format!("{address}: {error}"));
            }
            Err(_) => {
                kind = io::ErrorKind::TimedOut;
                faults.push(format!("{address}: no answer within {} s", part.as_secs_f32()));
            }
        }
    }
    let message = if faults.is_empty() { "it has no address".to_owned() } else { faults.join("; ") };
    Err(io::Error::new(kind, message))
}

/// Orders addresses so that the families take turns, beginning with that of the first one.
fn in_turns(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let first = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (mut one, mut other) = (Vec::new(), Vec::new());
    for address in addresses {
        if address.is_ipv6() == first { one.push(*address) } else { other.push(*address) }
    }
    let mut other = other.into_iter();
    let mut turns: Vec<_> =
        one.into_iter().flat_map(|address| [Some(address), other.next()]).flatten().collect();
    turns.extend(other);
    turns
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn families_take_turns() {
        let mixed = ["[::1]:1", "[::2]:1", "[::3]:1", "10.0.0.1:1"];
        let turns = ["[::1]:1", "10.0.0.1:1", "[::2]:1", "[::3]:1"];
        assert_eq!(in_turns(&addresses(&mixed)), addresses(&turns));
        assert_eq!(in_turns(&addresses(&["10.0.0.1:1", "[::1]:1", "[::2]:1"])).len(), 3);
        assert!(in_turns(&[]).is_empty());
    }

    #[tokio::test]
    async fn an_address_that_drops_packets_leaves_time_for_the_next_one() {
        // Further connections to a listener whose queue is full get no answer.
        let silent = tokio::net::TcpSocket::new_v4().unwrap();
        silent.bind(addresses(&["127.0.0.1:0"])[0]).unwrap();
        let silent = silent.listen(1).unwrap();
        let silent_address = silent.local_addr().unwrap();
        let mut queue = Vec::new();
        while let Ok(Ok(stream)) =
            timeout(Duration::from_millis(300), TcpStream::connect(silent_address)).await
        {
            queue.push(stream);
            assert!(queue.len() < 100, "the queue is never full");
        }
        let good = TcpListener::bind("127.0.0.1:0").unwrap();
        let good_address = good.local_addr().unwrap();
        let limit = Duration::from_millis(600);
        let stream = connect(&[silent_address, good_address], limit).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), good_address);
        drop(good);
        let error = connect(&[silent_address, good_address], limit).await.unwrap_err().to_string();
        assert!(
            error.contains(&format!("{silent_address}: no answer within 0.3 s; {good_address}: ")),
            "{error}"
        );
        assert_eq!(connect(&[], limit).await.unwrap_err().to_string(), "it has no address");
    }
}
