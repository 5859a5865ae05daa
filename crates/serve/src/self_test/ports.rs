//! Finds out which process has an address, from /proc.

use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use config::Config;
use config::types::{BindAddress, Transport};
use logic::self_test::facts::{Holder, Port};

/// A socket that listens, or that takes datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Socket {
    transport: Transport,
    address: SocketAddr,
    inode: u64,
}

/// Column `st` of /proc/net/tcp of a socket that listens, and of one for datagrams that is not connected.
const LISTENS: &str = "0A";
const TAKES: &str = "07";

/// All sockets of this network namespace to which clients can come.
pub(super) fn held() -> Vec<Socket> {
    let tables = [
        ("tcp", Transport::Stream, LISTENS),
        ("tcp6", Transport::Stream, LISTENS),
        ("udp", Transport::Datagram, TAKES),
        ("udp6", Transport::Datagram, TAKES),
    ];
    let mut found = Vec::new();
    for (table, transport, state) in tables {
        let text = fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
        found.extend(text.lines().skip(1).filter_map(|line| socket(line, transport, state)));
    }
    found
}

/// The ports of the listeners of a configuration, of [admin] and of control over the network.
pub(super) fn of(config: &Config, held: &[Socket]) -> Vec<Port> {
    let listeners = config.listeners.iter().flat_map(|listener| {
        let transport = listener.protocol.transport();
        listener.binds.iter().map(move |bind| (format!("listener.{}.bind", listener.name), bind, transport))
    });
    let admin = config.admin.iter().map(|admin| ("admin.bind".to_owned(), &admin.bind, Transport::Stream));
    let remote = config.remote_control().into_iter();
    let remote = remote.map(|remote| ("control.listen".to_owned(), &remote.listen, Transport::Stream));
    let mut owners = None;
    let port = |(key, bind, transport): (String, &BindAddress, Transport)| {
        let (ip, number) = match bind {
            BindAddress::AnyIp(number) => (IpAddr::V6(Ipv6Addr::UNSPECIFIED), *number),
            BindAddress::Ip(address) => (address.ip(), address.port()),
            BindAddress::EveryPort(_) | BindAddress::Unix(_) | BindAddress::Systemd(_) => return None,
        };
        let protocol = match transport {
            Transport::Stream => "tcp",
            Transport::Datagram => "udp",
            // No socket has the address.
            Transport::Packet => return None,
        };
        if number == 0 {
            return None;
        }
        let overlaps = |socket: &&Socket| {
            let other = socket.address.ip();
            let is_same = other == ip || other.is_unspecified() || ip.is_unspecified();
            socket.transport == transport && socket.address.port() == number && is_same
        };
        let holder = held.iter().find(overlaps).map(|socket| {
            let owners = owners.get_or_insert_with(owners_of_sockets);
            owners.get(&socket.inode).map_or(Holder::Hidden, |process| named(*process))
        });
        let refused = sys::socket::probe_source(ip).err().filter(is_of_the_address);
        let refused = refused.map(|error| error.to_string());
        Some(Port { key, address: bind.to_string(), protocol, number, holder, refused })
    };
    listeners.chain(admin).chain(remote).filter_map(port).collect()
}

/// Whether the address is the cause, not that this process may open no socket.
fn is_of_the_address(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::AddrNotAvailable
}

fn named(process: u32) -> Holder {
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    Holder::Process { name: name.trim().to_owned(), process }
}

/// Processes by the inodes of their sockets, as far as the kernel tells this user. Of several that share one, the first.
fn owners_of_sockets() -> HashMap<u64, u32> {
    let mut owners = HashMap::new();
    for process in sys::process::all().filter_map(|process| u32::try_from(process).ok()) {
        let descriptors = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        for link in descriptors.filter_map(|entry| fs::read_link(entry.path()).ok()) {
            let inode =
                link.to_str().and_then(|link| link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
            if let Some(inode) = inode {
                let owner = owners.entry(inode).or_insert(process);
                *owner = process.min(*owner);
            }
        }
    }
    owners
}

/// A line of /proc/net/tcp or a table like it (proc_pid_net(5)).
fn socket(line: &str, transport: Transport, state: &str) -> Option<Socket> {
    let mut columns = line.split_whitespace().skip(1);
    let local = columns.next()?;
    let found = columns.nth(1)?;
    let inode = columns.nth(5)?.parse().ok()?;
    let (ip, port) = local.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    (found == state).then_some(Socket { transport, address: SocketAddr::new(ip_of(ip)?, port), inode })
}

/// Each group of eight digits is a number in the order of bytes of this machine.
fn ip_of(digits: &str) -> Option<IpAddr> {
    let group = |at: usize| {
        let number = u32::from_str_radix(digits.get(at..at + 8)?, 16).ok()?;
        Some(number.to_ne_bytes())
    };
    match digits.len() {
        8 => Some(Ipv4Addr::from(group(0)?).into()),
        32 => {
            let mut bytes = [0; 16];
            for (at, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&group(at * 8)?);
            }
            Some(Ipv6Addr::from(bytes).to_canonical())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_listens_is_found_with_its_process() {
        let four = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let six = std::net::TcpListener::bind("[::1]:0").unwrap();
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let held = held();
        let owners = owners_of_sockets();
        for (transport, address) in [
            (Transport::Stream, four.local_addr().unwrap()),
            (Transport::Stream, six.local_addr().unwrap()),
            (Transport::Datagram, udp.local_addr().unwrap()),
        ] {
            let found = held.iter().find(|it| it.transport == transport && it.address == address);
            let found = found.unwrap_or_else(|| panic!("{address} is not in {held:?}"));
            assert_eq!(owners.get(&found.inode), Some(&std::process::id()), "{address}");
        }
    }
}
