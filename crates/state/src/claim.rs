//! One process of a network namespace forwards what comes to an address on an interface: two would send each packet of a
//! client twice. The claim is the name of a Unix socket without a file (unix(7), "abstract"), which the kernel gives once
//! and takes back from a process that ends in any way.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
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
        }
        Ok(Self { interface: interface.to_owned(), transports, _sockets: sockets })
    }

    /// Whether the claim is about what comes in there.
    pub fn is_for(&self, interface: &str, transports: Transports) -> bool {
        (&*self.interface, self.transports) == (interface, transports)
    }
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
        let first = claim(Transports::Tcp).unwrap();
        let again = claim(Transports::Tcp).unwrap();
        drop(first);
        let by_another = || bind("penstock-dsr/test-claim0/192.0.2.77/80/tcp");
        assert_eq!(by_another().unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop((again, other));
        assert!(by_another().is_ok() && claim(Transports::TcpAndUdp).is_ok());
    }
}
