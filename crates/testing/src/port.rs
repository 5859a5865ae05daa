//! Ports for programs that cannot choose a free port and report it.

use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicU16, Ordering};

/// A free port of 127.0.0.1 for TCP and UDP, different for each call, also in other test programs. It is below 32768: the
/// kernel takes ports from there on for clients and for port 0 (`ip_local_port_range`), so neither takes this port first.
///
/// # Panics
/// No port is free.
#[must_use]
pub fn free() -> u16 {
    all().find(|port| take(*port)).expect("a free port")
}

/// A listener at such a port. Where a test closes it, connections are refused as long as the test lasts; the kernel would
/// soon give a port that it chose itself to the listener of another test.
///
/// # Panics
/// No port is free.
#[must_use]
pub fn listener() -> TcpListener {
    all()
        .filter(|port| take(*port))
        .find_map(|port| TcpListener::bind(("127.0.0.1", port)).ok())
        .expect("a free port")
}

/// Each port once, beginning with the one behind those that earlier calls in this process have tried.
fn all() -> impl Iterator<Item = u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 12_000;
    const COUNT: u16 = 20_000;
    // Two test programs at the same time start at different ports.
    let begin = u16::try_from(std::process::id() * 64 % u32::from(COUNT)).unwrap();
    let next = move || FIRST + (begin + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT) % COUNT;
    std::iter::repeat_with(next).take(usize::from(COUNT))
}

/// Takes a port for this program until its end, if it is free. A name in the abstract namespace stands for it.
fn take(port: u16) -> bool {
    let name = SocketAddr::from_abstract_name(format!("penstock-test-port-{port}")).unwrap();
    let Ok(taken) = UnixDatagram::bind_addr(&name) else { return false };
    let is_free =
        TcpListener::bind(("127.0.0.1", port)).is_ok() && UdpSocket::bind(("127.0.0.1", port)).is_ok();
    if is_free {
        std::mem::forget(taken);
    }
    is_free
}
