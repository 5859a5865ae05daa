//! One process of a network namespace forwards what comes to an address on an interface: two would send each packet of a
//! client twice. The claim is the name of a Unix socket without a file (unix(7), "abstract"), which the kernel gives once
//! and takes back from a process that ends in any way.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram};
use std::sync::{Arc, Mutex, Weak};

use logic::dsr::{Transport, Transports};

use crate::lock::lock;

/// The right to forward, as long as it is kept.
#[derive(Debug)]
pub struct Claim {
    interface: String,
    transports: Transports,
    _sockets: Vec<Arc<UnixDatagram>>,
}

/// Claims of this process: a reload may give an address to another listener before the earlier one is closed.
static OURS: Mutex<BTreeMap<String, Weak<UnixDatagram>>> = Mutex::new(BTreeMap::new());

impl Claim {
    /// Claims an address on an interface; port 0 is every port.
    pub fn new(interface: &str, vip: SocketAddr, transports: Transports) -> Result<Self, String> {
        let mut ours = lock(&OURS);
        ours.retain(|_, socket| socket.strong_count() > 0);
        let mut sockets = Vec::new();
        for (transport, word) in [(Transport::Tcp, "tcp"), (Transport::Udp, "udp")] {
            if !transports.has(transport) {
                continue;
            }
            let name = format!("penstock-dsr/{interface}/{}/{}/{word}", vip.ip(), vip.port());
            let socket = match ours.get(&name).and_then(Weak::upgrade) {
                Some(socket) => socket,
                None => Arc::new(bind(&name).map_err(|error| refused(&name, interface, &error))?),
            };
            ours.insert(name, Arc::downgrade(&socket));
            sockets.push(socket);
            // Both have claimed before they look: of two that start at once, one at least sees the other.
            if let Some(other) = overlapping(interface, vip, word, &ours) {
                return Err(refused(&other, interface, &io::ErrorKind::AddrInUse.into()));
            }
        }
        Ok(Self { interface: interface.to_owned(), transports, _sockets: sockets })
    }

    /// Whether the claim is about what comes in there.
    pub fn is_for(&self, interface: &str, transports: Transports) -> bool {
        (&*self.interface, self.transports) == (interface, transports)
    }
}

/// The claim of another process to what comes to an address on an interface: the name of its socket.
pub fn of_another(interface: &str, vip: SocketAddr, transports: Transports) -> Option<String> {
    let ours = lock(&OURS);
    let words = [(Transport::Tcp, "tcp"), (Transport::Udp, "udp")];
    let mut words = words.iter().filter(|(transport, _)| transports.has(*transport));
    words.find_map(|(_, word)| {
        claimed(interface, vip.ip(), word, &ours, |port| overlap(port, vip.port()) || port == vip.port())
    })
}

/// The name of a claim of another process to a port of an address, if the claim is to every port, or the other way about.
fn overlapping(
    interface: &str,
    vip: SocketAddr,
    transport: &str,
    ours: &BTreeMap<String, Weak<UnixDatagram>>,
) -> Option<String> {
    claimed(interface, vip.ip(), transport, ours, |port| overlap(port, vip.port()))
}

/// Whether one is every port, and the other is not.
fn overlap(port: u16, other: u16) -> bool {
    (port == 0) != (other == 0)
}

/// The name of a claim of another process to an address, with a port that is asked for.
fn claimed(
    interface: &str,
    vip: IpAddr,
    transport: &str,
    ours: &BTreeMap<String, Weak<UnixDatagram>>,
    is_asked: impl Fn(u16) -> bool,
) -> Option<String> {
    // What cannot be read says nothing.
    let all = fs::read_to_string("/proc/net/unix").ok()?;
    let prefix = format!("penstock-dsr/{interface}/{vip}/");
    let names = all.lines().filter_map(|line| line.split_whitespace().last()?.strip_prefix('@'));
    let mut claimed = names.filter(|name| {
        let (port, word) = match name.strip_prefix(&*prefix).and_then(|rest| rest.split_once('/')) {
            Some((port, word)) => (port.parse(), word),
            None => return false,
        };
        word == transport && port.is_ok_and(&is_asked) && !ours.contains_key(*name)
    });
    claimed.next().map(str::to_owned)
}

fn bind(name: &str) -> io::Result<UnixDatagram> {
    UnixDatagram::bind_addr(&UnixAddress::from_abstract_name(name)?)
}

fn refused(name: &str, interface: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "another process forwards what comes to this address on {interface}, and clients' packets would be sent twice: \
             stop it, or name another address or interface; `ss -xap | grep {name}` shows which process it is"
        ),
        _ => format!("cannot claim the address with the Unix socket @{name}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_on_an_interface_has_one_process_which_may_claim_it_again() {
        let vip = "192.0.2.77:80".parse().unwrap();
        let claim = |transports| Claim::new("test-claim0", vip, transports);
        let other = bind("penstock-dsr/test-claim0/192.0.2.77/80/udp").unwrap();
        let error = claim(Transports::TcpAndUdp).unwrap_err();
        assert!(
            error.starts_with("another process forwards what comes to this address on test-claim0"),
            "{error}"
        );
        let name = of_another("test-claim0", vip, Transports::TcpAndUdp);
        assert_eq!(name.as_deref(), Some("penstock-dsr/test-claim0/192.0.2.77/80/udp"));
        let first = claim(Transports::Tcp).unwrap();
        assert_eq!(of_another("test-claim0", vip, Transports::Tcp), None, "it is ours");
        let again = claim(Transports::Tcp).unwrap();
        drop(first);
        let by_another = || bind("penstock-dsr/test-claim0/192.0.2.77/80/tcp");
        assert_eq!(by_another().unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop((again, other));
        assert!(by_another().is_ok() && claim(Transports::TcpAndUdp).is_ok());
    }

    #[test]
    fn every_port_and_one_port_of_an_address_are_of_one_process() {
        let claim = |port, transports| {
            Claim::new("test-claim1", SocketAddr::new([192, 0, 2, 78].into(), port), transports)
        };
        let both = (claim(80, Transports::Tcp).unwrap(), claim(0, Transports::TcpAndUdp).unwrap());
        drop(both);
        for (other, port, free) in [("80/tcp", 0, Transports::Udp), ("0/udp", 53, Transports::Tcp)] {
            let other = bind(&format!("penstock-dsr/test-claim1/192.0.2.78/{other}")).unwrap();
            let error = claim(port, Transports::TcpAndUdp).unwrap_err();
            assert!(error.starts_with("another process forwards what comes to this address"), "{error}");
            assert!(claim(port, free).is_ok(), "another transport");
            drop(other);
            assert!(claim(port, Transports::TcpAndUdp).is_ok());
        }
    }
}
