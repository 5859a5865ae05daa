//! One side resets its connection while the other one has not taken all that it sent before.

use socket2::{Domain, Socket, Type};

use super::*;

/// Less than a session moves in the ring, and more than the kernel takes for a peer with [`narrow`] that reads nothing.
const BYTES: usize = 60_000;

/// So small that bytes for this socket wait in the server.
fn narrow() -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(1).unwrap();
    socket.set_tcp_mss(536).unwrap();
    socket
}

/// A server, and a listener at the address of its backend.
fn front(engine: &str, listener: &str) -> (Server, TcpListener) {
    let socket = narrow();
    socket.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
    socket.listen(16).unwrap();
    let backend = TcpListener::from(socket);
    let address = backend.local_addr().unwrap().to_string();
    let setup = Setup::new(&config(&[&address], listener, ""));
    (setup.env("PENSTOCK_PROCESS_ENGINE", engine).start(), backend)
}

/// A session of a client and a backend that read slowly.
fn session(server: &Server, backend: &TcpListener) -> (TcpStream, TcpStream) {
    let socket = narrow();
    let address = server.address("raw").parse::<std::net::SocketAddr>().unwrap();
    socket.connect(&address.into()).unwrap();
    let mut client = TcpStream::from(socket);
    client.write_all(b"x").unwrap();
    let mut backend = backend.accept().unwrap().0;
    backend.read_exact(&mut [0; 1]).unwrap();
    for stream in [&client, &backend] {
        stream.set_read_timeout(Some(secs(60))).unwrap();
    }
    (client, backend)
}

/// Sends bytes, waits until some wait in the server for the other side, and resets the connection.
fn send_and_reset(server: &Server, pattern: &Pattern, mut from: TcpStream, key: &str) {
    from.write_all(pattern.slice(0, BYTES)).unwrap();
    // With epoll it leaves most of them in the kernel.
    let much = if server.ctl_json(&["status"])["engine"]["in_use"] == "epoll" { BYTES / 4 } else { BYTES };
    eventually("the server has them", secs(20), || {
        (server.ctl_json(&["sessions"])["sessions"][0][key].as_u64() >= Some(much as u64)).then_some(())
    });
    SockRef::from(&from).set_linger(Some(Duration::ZERO)).unwrap();
}

/// Reads up to the reset, with which the kernel throws away what it has not sent yet.
fn read_all(mut stream: TcpStream) -> Vec<u8> {
    let (mut got, mut piece) = (Vec::new(), [0; 1000]);
    loop {
        match stream.read(&mut piece) {
            Ok(0) => panic!("an end, and no reset"),
            Ok(count) => got.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return got,
            Err(error) => panic!("{error}"),
        }
    }
}

/// `crates/proxy/src/relay/whole.rs` has a test that all of it is written; what the kernel then throws away differs.
#[test]
fn what_a_side_sent_before_its_reset_waits_for_a_slow_reader() {
    let pattern = Pattern::new();
    for engine in ["epoll", "io-uring"] {
        let (server, listener) = front(engine, "");
        let (client, backend) = session(&server, &listener);
        send_and_reset(&server, &pattern, backend, "bytes_out");
        wait_until_old(&server);
        let got = read_all(client);
        assert!(!got.is_empty() && pattern.is_at(0, &got), "{engine}: {} bytes", got.len());
        let (client, backend) = session(&server, &listener);
        send_and_reset(&server, &pattern, client, "bytes_in");
        wait_until_old(&server);
        let got = read_all(backend);
        assert!(!got.is_empty() && pattern.is_at(0, &got), "{engine}: {} bytes", got.len());
        let outcomes: Vec<_> = rows(&server, 2).iter().map(|row| row["outcome"].clone()).collect();
        assert_eq!(outcomes, ["backend-aborted", "client-closed"], "{engine}");
        let address = listener.local_addr().unwrap().to_string();
        wait_until_clean(&server, &[&address]);
    }
}

#[test]
fn a_reader_of_a_side_that_was_reset_has_as_long_as_the_idle_timeout_and_the_drain() {
    let pattern = Pattern::new();
    for engine in ["epoll", "io-uring"] {
        let (server, listener) = front(engine, "idle-timeout = \"2s\"");
        let (_client, backend) = session(&server, &listener);
        send_and_reset(&server, &pattern, backend, "bytes_out");
        wait_until_old(&server);
        assert_eq!(rows(&server, 1)[0]["outcome"], "idle-timeout", "{engine}");
        let (mut server, listener) = front(engine, "");
        let (client, backend) = session(&server, &listener);
        send_and_reset(&server, &pattern, backend, "bytes_out");
        server.signal(Signal::SIGTERM);
        server.stderr.wait_for("stopping: no new connections", secs(10));
        wait_until_old(&server);
        let got = read_all(client);
        assert!(!got.is_empty() && pattern.is_at(0, &got), "{engine}: {} bytes", got.len());
        assert!(server.wait_end(secs(20)).success());
        assert_eq!(rows(&server, 1)[0]["outcome"], "backend-aborted", "{engine}");
    }
}
