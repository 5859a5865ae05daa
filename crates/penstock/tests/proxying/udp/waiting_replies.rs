//! Replies of backends that wait beside datagrams of clients.

use std::io::IoSliceMut;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use testing::{Server, eventually, secs};

use super::*;

const FLOWS: usize = 64;
/// For each flow. Its socket, and that of the client, take them all.
const REPLIES: usize = 200;
/// Datagrams of one further client.
const ASKED: usize = 224;

/// A client or a backend that learns when the kernel put a datagram into its socket.
fn stamped() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    setsockopt(&socket, sockopt::ReceiveTimestampns, &true).unwrap();
    socket
}

/// When the next datagram came, and the address that sent it.
fn next(socket: &UdpSocket) -> Option<(Duration, SocketAddr)> {
    let (mut room, mut control) = ([0; 100], nix::cmsg_space!(nix::sys::time::TimeSpec));
    let mut parts = [IoSliceMut::new(&mut room)];
    let flags = MsgFlags::MSG_DONTWAIT;
    let got =
        recvmsg::<nix::sys::socket::SockaddrIn>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags)
            .ok()?;
    let from = got.address.map(|address| SocketAddr::from((address.ip(), address.port()))).unwrap();
    let stamp = got.cmsgs().unwrap().find_map(|message| match message {
        ControlMessageOwned::ScmTimestampns(stamp) => Some(Duration::from(stamp)),
        _ => None,
    });
    Some((stamp.unwrap(), from))
}

#[test]
fn replies_that_wait_for_many_clients_hold_up_few_datagrams_of_another_one() {
    let backend = stamped();
    let pool = format!("backends = [\"{}\"]", backend.local_addr().unwrap());
    let server = Server::start(&config("", &pool));
    let listener = server.address("dns");
    let clients: Vec<UdpSocket> = (0..FLOWS).map(|_| stamped()).collect();
    let flows: Vec<SocketAddr> = clients
        .iter()
        .map(|client| {
            client.send_to(b"subscribe", &listener).unwrap();
            eventually("the backend has it", secs(20), || next(&backend)).1
        })
        .collect();
    let other = Client::new(&listener);
    other.send(b"begin");
    eventually("the backend has it", secs(20), || next(&backend));
    server.signal(Signal::SIGSTOP);
    for flow in &flows {
        (0..REPLIES).for_each(|_| assert_eq!(backend.send_to(b"news", flow).unwrap(), 4));
    }
    (0..ASKED).for_each(|_| other.send(b"question"));
    server.signal(Signal::SIGCONT);
    let mut last = Duration::ZERO;
    for _ in 0..ASKED {
        last = last.max(eventually("the backend has it", secs(20), || next(&backend)).0);
    }
    let mut before = 0;
    for client in &clients {
        for _ in 0..REPLIES {
            let (at, _) = eventually("the client has it", secs(20), || next(client));
            before += usize::from(at < last);
        }
    }
    // A batch of datagrams is 32: for each, some hundred replies at most.
    assert!(before <= ASKED / 32 * 300, "{before} replies went before the last of {ASKED} datagrams");
}
