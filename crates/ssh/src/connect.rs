//! Connects to a host over TCP: tries the addresses one after another, each with a head start (RFC 8305).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hosts::fleet::ending::{Failure, Phase, Reason};
use hosts::ssh::place::NameWithPort;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::target::Target;
use crate::trouble::{advised, failure, is_exhaustion, late};

/// Returns the addresses of `target`, in the order of the attempts.
///
/// # Errors
/// The name has no address.
pub(crate) async fn resolve(target: &Target, lookups: &Semaphore) -> Result<Vec<SocketAddr>, Failure> {
    let family = target.addresses.family;
    let of_family = |addresses: &[IpAddr]| -> Vec<SocketAddr> {
        let wanted = addresses.iter().filter(|ip| family.has(**ip));
        wanted.map(|ip| SocketAddr::new(*ip, target.port)).collect()
    };
    let only_others = || format!("it has no address for AddressFamily {}", family.word());
    if !target.addresses.known.is_empty() {
        let known = of_family(&target.addresses.known);
        return if known.is_empty() { Err(no_address(target, &only_others())) } else { Ok(known) };
    }
    let _turn = lookups.acquire().await;
    let hints = of_family(&target.addresses.hints);
    // If the host has hints, a name server that does not answer must not delay the connection.
    let patience = if hints.is_empty() { FOREVER } else { LOOKUP_BESIDE_HINTS };
    let looked_up = tokio::net::lookup_host((target.host.as_str(), target.port));
    let fault = match tokio::time::timeout(patience, looked_up).await {
        Ok(Ok(found)) => {
            let all: Vec<SocketAddr> = found.collect();
            let has_any = !all.is_empty();
            let mut found = in_turns(all.into_iter().filter(|address| family.has(address.ip())).collect());
            let more: Vec<_> = hints.iter().filter(|hint| !found.contains(hint)).copied().collect();
            found.extend(more);
            if !found.is_empty() {
                return Ok(found);
            }
            if has_any { only_others() } else { "no address".to_owned() }
        }
        _ if !hints.is_empty() => return Ok(hints),
        Ok(Err(fault)) => fault.to_string(),
        Err(_) => "no answer".to_owned(),
    };
    Err(no_address(target, fault.strip_prefix("failed to lookup address information: ").unwrap_or(&fault)))
}

/// Connects to the first address that answers within `limit`.
///
/// # Errors
/// No address answered.
pub(crate) async fn tcp(
    name: &str,
    addresses: &[SocketAddr],
    limit: Duration,
) -> Result<(TcpStream, SocketAddr), Failure> {
    let mut refusals = Vec::new();
    match tokio::time::timeout(limit, first(name, addresses, &mut refusals)).await {
        Ok(connected) => connected,
        Err(_) => Err(silent(name, addresses, refusals, limit)),
    }
}

/// Returns the first connection that succeeds. The failures of other addresses go to `refusals`.
async fn first(
    name: &str,
    addresses: &[SocketAddr],
    refusals: &mut Vec<(SocketAddr, Failure)>,
) -> Result<(TcpStream, SocketAddr), Failure> {
    let mut left = addresses.iter().copied();
    let mut attempts = JoinSet::new();
    loop {
        let more = left.next();
        if let Some(address) = more {
            attempts.spawn(async move { (address, TcpStream::connect(address).await) });
        }
        let wait = if left.len() > 0 { HEAD_START } else { FOREVER };
        let Ok(joined) = tokio::time::timeout(wait, attempts.join_next()).await else { continue };
        match joined {
            Some(Ok((address, Ok(stream)))) => {
                stream.set_nodelay(true).map_err(|fault| refused(name, address, &fault))?;
                return Ok((stream, address));
            }
            Some(Ok((address, Err(fault)))) => refusals.push((address, refused(name, address, &fault))),
            Some(Err(_)) => {}
            None if more.is_none() => break,
            None => {}
        }
    }
    let last = refusals.pop().map(|(_, failure)| failure);
    Err(last.unwrap_or_else(|| failure(Phase::Resolve, Reason::NoAddress, format!("{name} has no address"))))
}

/// Orders the addresses: IPv6 and IPv4 in turn, starting with the family that the system put first.
fn in_turns(found: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first = found.first().is_some_and(SocketAddr::is_ipv6);
    let (same, other): (Vec<_>, Vec<_>) = found.into_iter().partition(|address| address.is_ipv6() == first);
    let mut other = other.into_iter();
    let mut mixed = Vec::new();
    for address in same {
        mixed.push(address);
        mixed.extend(other.next());
    }
    mixed.extend(other);
    mixed.dedup();
    mixed
}

fn no_address(target: &Target, why: &str) -> Failure {
    let whom = match target.host.eq_ignore_ascii_case(&target.name) {
        true => target.host.clone(),
        false => format!("{} for {}", target.host, target.name),
    };
    let detail = format!("look up {whom}: {why}");
    let advice = match (&target.said.host, NameWithPort::of(&target.name)) {
        (Some(line), _) => format!("{line}: change it there"),
        (None, Some(meant)) => format!("a port does not go behind the name of a host: {meant}"),
        (None, None) => format!(
            "check the spelling of its name, or set HostName for {0} in ~/.ssh/config; if it is enrolled: penstock host move {0} ADDRESS",
            target.name
        ),
    };
    advised(Phase::Resolve, Reason::NoAddress, detail, &advice)
}

/// Makes the failure of a timeout: some addresses refused the connection, the others did not answer.
fn silent(
    name: &str,
    addresses: &[SocketAddr],
    mut refusals: Vec<(SocketAddr, Failure)>,
    limit: Duration,
) -> Failure {
    let quiet = addresses.iter().filter(|address| refusals.iter().all(|(refused, _)| refused != *address));
    let shown: Vec<_> = quiet.take(4).map(ToString::to_string).collect();
    let mut late = late(Phase::Connect, name, &format!("no answer from {}", shown.join(", ")), limit);
    if let Some((_, last)) = refusals.pop() {
        late.detail.push_str(&format!("; {}", last.detail));
    }
    late
}

fn refused(name: &str, address: SocketAddr, fault: &io::Error) -> Failure {
    let doing = format!("connect to {name} at {address}");
    match fault.kind() {
        io::ErrorKind::ConnectionRefused => advised(
            Phase::Connect,
            Reason::ConnectionRefused,
            format!("{doing}: connection refused"),
            "check that sshd runs, and its port",
        ),
        io::ErrorKind::TimedOut => failure(Phase::Connect, Reason::TimedOut, format!("{doing}: no answer")),
        io::ErrorKind::AddrNotAvailable => advised(
            Phase::Connect,
            Reason::LocalError,
            format!("{doing}: this machine has no port left, or not that kind of address"),
            "fewer at once",
        ),
        _ if is_exhaustion(fault) => advised(
            Phase::Connect,
            Reason::OutOfResources,
            format!("{doing}: this machine has no descriptor or memory left: {fault}"),
            "raise the limit (ulimit -n), or fewer at once",
        ),
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => {
            failure(Phase::Connect, Reason::Unreachable, format!("{doing}: no way there"))
        }
        io::ErrorKind::ConnectionReset => {
            failure(Phase::Connect, Reason::ConnectionRefused, format!("{doing}: the connection was reset"))
        }
        _ => failure(Phase::Connect, Reason::Unreachable, format!("{doing}: {fault}")),
    }
}

/// Time of one attempt, before the next address is tried in parallel.
const HEAD_START: Duration = Duration::from_millis(250);

/// Timeout of a name lookup if the host has hints.
const LOOKUP_BESIDE_HINTS: Duration = Duration::from_secs(2);

/// No timeout here: the caller has one.
const FOREVER: Duration = Duration::from_secs(24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn address_that_refused_is_told_as_such_beside_one_that_was_silent() {
        let refusing = SocketAddr::from(([127, 0, 0, 1], testing::port::free()));
        // A listener that accepts no connection and whose queue is full: the kernel does not answer further
        // connections.
        let full = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        full.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        full.listen(0).unwrap();
        let silent = full.local_addr().unwrap().as_socket().unwrap();
        let connect = || tokio::time::timeout(Duration::from_millis(200), TcpStream::connect(silent));
        let mut waiting = Vec::new();
        while let Ok(queued) = connect().await {
            waiting.push(queued.unwrap());
        }
        let failure = tcp("h1", &[refusing, silent], Duration::from_millis(600)).await.unwrap_err();
        assert_eq!(
            (failure.reason, failure.detail),
            (
                Reason::TimedOut,
                format!(
                    "h1: no answer from {silent} within 0.6 s; connect to h1 at {refusing}: connection refused"
                )
            )
        );
    }
}
