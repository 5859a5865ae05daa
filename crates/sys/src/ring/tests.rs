use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use super::*;

fn ring() -> Ring {
    let mut ring = Ring::new().unwrap();
    ring.enable().unwrap();
    ring
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (peer, listener.accept().unwrap().0)
}

/// Results until one satisfies `last`.
fn until(ring: &mut Ring, last: impl Fn(&Completion) -> bool) -> Vec<Completion> {
    let (mut all, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(10));
    while !all.iter().any(&last) {
        assert!(Instant::now() < deadline, "{all:?}");
        ring.enter().unwrap();
        ring.take(&mut all);
    }
    all
}

#[test]
fn bytes_that_are_received_are_sent_and_buffers_come_back() {
    let mut ring = ring();
    let (mut client, ours) = pair();
    let (mut backend, theirs) = pair();
    ring.receive(ours.as_fd(), Operation::ReceiveClient, 7);
    // More rounds than there are buffers.
    for round in 0..3000_u32 {
        client.write_all(&round.to_be_bytes()).unwrap();
        let mut all = until(&mut ring, |one| one.operation == Operation::ReceiveClient);
        let one = all.pop().unwrap();
        assert_eq!((one.key, one.result, one.more), (7, Ok(4), true));
        let lease = one.lease.unwrap();
        assert_eq!(ring.bytes(&lease), round.to_be_bytes());
        ring.send(theirs.as_fd(), lease, (Operation::SendBackend, 7), Next::Free, Then::Nothing);
        let mut all = until(&mut ring, |one| one.operation == Operation::SendBackend);
        let mut sent = all.pop().unwrap().lease.unwrap();
        sent.advance(4);
        assert!(sent.is_empty());
        ring.give_back(sent);
        let mut back = [0; 4];
        backend.read_exact(&mut back).unwrap();
        assert_eq!(back, round.to_be_bytes());
    }
    drop(client);
    let all = until(&mut ring, |one| one.operation == Operation::ReceiveClient);
    assert_eq!((all[0].result, all[0].more), (Ok(0), false));
}

#[test]
fn a_chain_goes_on_only_after_a_connect_that_succeeds() {
    let mut ring = ring();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let lease = |ring: &mut Ring| {
        let (mut peer, ours) = pair();
        peer.write_all(b"first").unwrap();
        ring.receive(ours.as_fd(), Operation::ReceiveClient, 1);
        let mut all = until(ring, |one| one.lease.is_some());
        ring.cancel(ours.as_fd(), 1);
        until(ring, |one| one.operation == Operation::Cancel);
        all.pop().unwrap().lease.unwrap()
    };
    let socket =
        || socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM.nonblocking(), None).unwrap();
    let (first, good) = (lease(&mut ring), socket());
    ring.connect(good.as_fd(), address, 2, Next::Waits);
    ring.send(good.as_fd(), first, (Operation::SendBackend, 2), Next::Free, Then::Nothing);
    let all = until(&mut ring, |one| one.operation == Operation::SendBackend);
    assert!(all.iter().any(|one| one.operation == Operation::Connect && one.result == Ok(0)), "{all:?}");
    let mut read = [0; 5];
    listener.accept().unwrap().0.read_exact(&mut read).unwrap();
    assert_eq!(&read, b"first");
    drop(listener);
    let (first, bad) = (lease(&mut ring), socket());
    ring.connect(bad.as_fd(), address, 3, Next::Waits);
    ring.send(bad.as_fd(), first, (Operation::SendBackend, 3), Next::Free, Then::Nothing);
    let all = until(&mut ring, |one| one.key == 3 && one.operation == Operation::SendBackend);
    let of = |operation| all.iter().find(|one| one.key == 3 && one.operation == operation).unwrap();
    assert_eq!(of(Operation::Connect).result, Err(libc::ECONNREFUSED));
    let sent = of(Operation::SendBackend);
    assert_eq!(sent.result, Err(libc::ECANCELED));
    assert_eq!(ring.bytes(sent.lease.as_ref().unwrap()), b"first");
}

#[test]
fn what_is_cancelled_or_waits_for_a_slow_reader_ends_and_nothing_is_left() {
    let mut ring = ring();
    // The peer does not read, and of a Unix socket nothing goes on without it: the send waits.
    let (mut client, ours) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    for piece in [65536, 1024, 1] {
        while (&ours).write(&vec![0; piece]).is_ok() {}
    }
    ours.set_nonblocking(false).unwrap();
    client.write_all(b"some").unwrap();
    ring.receive(ours.as_fd(), Operation::ReceiveClient, 1);
    let mut all = until(&mut ring, |one| one.lease.is_some());
    let lease = all.pop().unwrap().lease.unwrap();
    ring.send(ours.as_fd(), lease, (Operation::SendClient, 1), Next::Free, Then::Nothing);
    ring.enter().unwrap();
    assert_eq!(ring.outstanding, 2);
    ring.cancel(ours.as_fd(), 1);
    let mut all = until(&mut ring, |one| one.operation == Operation::Cancel);
    while ring.outstanding > 0 {
        ring.enter().unwrap();
        ring.take(&mut all);
    }
    let sent = all.iter().find(|one| one.operation == Operation::SendClient).unwrap();
    assert_eq!(sent.result, Err(libc::ECANCELED), "nothing of it was sent");
    // Again, and the ring ends it.
    ring.receive(ours.as_fd(), Operation::ReceiveClient, 1);
    ring.enter().unwrap();
    assert_eq!(ring.end_all(), Ended::Yes);
    assert_eq!(ring.outstanding, 0);
}

#[test]
fn a_ring_that_another_thread_has_made_is_enabled_here_and_one_may_stay_without_use() {
    let mut ring = std::thread::spawn(|| Ring::new().unwrap()).join().unwrap();
    ring.enable().unwrap();
    let (mut client, ours) = pair();
    client.write_all(b"some").unwrap();
    ring.receive(ours.as_fd(), Operation::ReceiveClient, 1);
    assert_eq!(until(&mut ring, |one| one.lease.is_some()).pop().unwrap().result, Ok(4));
    drop(Ring::new().unwrap());
}

#[test]
fn the_ring_refuses_other_operations() {
    let mut ring = ring();
    let entry = opcode::Nop::new().build().user_data(word(Operation::Cancel, 9, 0));
    ring.begin(entry, Next::Free, Needs::Nothing);
    let all = until(&mut ring, |one| one.key == 9);
    assert_eq!(all[0].result, Err(libc::EACCES));
}

/// A listener whose accept queue is full, and the clients in the queue: the kernel leaves further connections without an answer.
fn full() -> (TcpListener, Vec<TcpStream>) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&socket2::SockAddr::from(std::net::SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))).unwrap();
    socket.listen(0).unwrap();
    let listener = TcpListener::from(socket);
    let address = listener.local_addr().unwrap();
    let wait = Duration::from_millis(200);
    let clients = std::iter::from_fn(|| TcpStream::connect_timeout(&address, wait).ok()).collect();
    (listener, clients)
}

#[test]
fn a_connect_that_the_kernel_gets_together_with_the_end_is_ended_at_once() {
    let (listener, _clients) = full();
    let address = listener.local_addr().unwrap();
    let (mut peer, ours) = pair();
    for chained in [Next::Free, Next::Waits] {
        let mut ring = ring();
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM.nonblocking(), None).unwrap();
        peer.write_all(b"first").unwrap();
        ring.receive(ours.as_fd(), Operation::ReceiveClient, 1);
        let lease = until(&mut ring, |one| one.lease.is_some()).pop().unwrap().lease.unwrap();
        ring.connect(socket.as_fd(), address, 2, chained);
        match chained {
            Next::Waits => {
                ring.send(socket.as_fd(), lease, (Operation::SendBackend, 2), Next::Free, Then::Nothing);
            }
            Next::Free => ring.give_back(lease),
        }
        let began = Instant::now();
        assert_eq!(ring.end_all(), Ended::Yes, "{chained:?}");
        assert!(began.elapsed() < END_LIMIT / 2, "{chained:?}: {:?}", began.elapsed());
    }
}

#[test]
fn a_ring_that_the_kernel_takes_nothing_from_closes_what_it_was_given_and_frees_no_buffer() {
    let mut ring = ring();
    let (mut client, ours) = pair();
    let (mut other, theirs) = pair();
    ring.receive(ours.as_fd(), Operation::ReceiveClient, 1);
    ring.enter().unwrap();
    ring.close(theirs.into());
    // The kernel refuses each thread but the one that has enabled the ring.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(ring.enter().unwrap_err().raw_os_error(), Some(libc::EEXIST));
            assert!(ring.has_queued());
            ring.end();
        });
    });
    assert_eq!(ring.stage, Stage::Broken);
    drop(ours);
    for peer in [&mut client, &mut other] {
        peer.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        // Unlike `read` it goes on when the end of the ring interrupts it.
        assert_eq!(peer.read_to_end(&mut Vec::new()).unwrap(), 0, "its connection is closed");
    }
}

#[test]
fn last_bytes_wait_for_the_end_that_follows_them_and_arrive_with_it() {
    let mut ring = ring();
    // The kernel waits 200 ms at most: on a busy machine this thread may look too late.
    let has_waited = (0..20).any(|_| {
        let (mut client, ours) = pair();
        let (mut reader, theirs) = pair();
        client.write_all(b"last").unwrap();
        ring.receive(ours.as_fd(), Operation::ReceiveClient, 1);
        let lease = until(&mut ring, |one| one.lease.is_some()).pop().unwrap().lease.unwrap();
        ring.send(theirs.as_fd(), lease, (Operation::SendBackend, 1), Next::Free, Then::ShutsDown);
        let mut all = until(&mut ring, |one| one.operation == Operation::SendBackend);
        ring.give_back(all.pop().unwrap().lease.unwrap());
        reader.set_nonblocking(true).unwrap();
        let has_waited = reader.peek(&mut [0; 4]).is_err();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        reader.set_nonblocking(false).unwrap();
        let mut read = Vec::new();
        reader.read_to_end(&mut read).unwrap();
        assert_eq!(read, b"last");
        drop(client);
        until(&mut ring, |one| one.operation == Operation::ReceiveClient && !one.more);
        has_waited
    });
    assert!(has_waited);
}
