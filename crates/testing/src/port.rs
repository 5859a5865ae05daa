//! Ports for programs that cannot choose a free port and report it.

use std::net::{TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};

/// A free port of 127.0.0.1 for TCP and UDP, different for each call in this process. It is below 32768: the kernel
/// takes ports from there on for clients and for port 0 (`ip_local_port_range`), so neither takes this port first.
///
/// # Panics
/// No port is free.
#[must_use]
pub fn free() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 12_000;
    const COUNT: u16 = 20_000;
    // Two test programs at the same time start at different ports.
    let begin = u16::try_from(std::process::id() * 64 % u32::from(COUNT)).unwrap();
    let is_free = |port: &u16| {
        TcpListener::bind(("127.0.0.1", *port)).is_ok() && UdpSocket::bind(("127.0.0.1", *port)).is_ok()
    };
    let next = || FIRST + (begin + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT) % COUNT;
    std::iter::repeat_with(next).take(usize::from(COUNT)).find(is_free).expect("a free port")
}
