//! Streams of one HTTP/2 connection share its socket: none of them waits while another one has it all.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpStream;

use testing::client::Stream;
use testing::http2::{DATA, Http2, SETTINGS, WINDOW_UPDATE};
use testing::{Scripted, Server, eventually, secs};

const KIB: usize = 1024;

/// Sends as much as is taken, in pieces of the size that the path names in KiB.
fn endless() -> Scripted {
    Scripted::start(|talk| {
        let Some(request) = talk.request() else { return };
        let size: usize = request.target.trim_start_matches('/').parse().unwrap();
        let piece = vec![b'x'; size * KIB];
        let Stream::Tcp(stream) = &mut talk.client.stream else { return };
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n";
        let mut sent = stream.write_all(head);
        while sent.is_ok() {
            sent = stream.write_all(&piece);
        }
    })
}

/// Reads so many bytes of bodies, and returns how many each stream got.
fn read(client: &mut Http2, most: usize) -> BTreeMap<u32, usize> {
    let (mut seen, mut all) = (BTreeMap::new(), 0);
    while all < most {
        let frame = client.next(secs(60)).expect("the connection goes on");
        if frame.kind == SETTINGS && frame.flags & 1 == 0 {
            client.send(SETTINGS, 1, 0, &[]);
        }
        if frame.kind == DATA {
            all += frame.payload.len();
            *seen.entry(frame.stream).or_insert(0) += frame.payload.len();
        }
    }
    seen
}

#[test]
fn each_of_twenty_streams_gets_its_part_of_a_full_socket_beside_a_greedy_one() {
    let backend = endless();
    let server = Server::start(&format!(
        "[process]\nworkers = 1\n[control]\nsocket = \"@DIR@/control.sock\"\n[listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"{}\"]\n",
        backend.address
    ));
    let stream = TcpStream::connect(server.address("web")).unwrap();
    socket2::SockRef::from(&stream).set_recv_buffer_size(64 * KIB).unwrap();
    let mut client = Http2::over(stream);
    // No flow-control window limits a stream: only the socket does.
    client.send(SETTINGS, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff]);
    client.send(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0, 0]);
    client.get(1, "/1024");
    read(&mut client, 4096 * KIB);
    for number in 1..=20 {
        client.get(2 * number + 1, "/16");
    }
    eventually("all are with the backend", secs(20), || {
        (server.backend(&backend.address)["in_flight"] == 21).then_some(())
    });
    // What was there before the others came.
    read(&mut client, 8192 * KIB);
    let seen = read(&mut client, 16_384 * KIB);
    let mean = 16_384 * KIB / 21;
    assert_eq!(seen.len(), 21, "{seen:?}");
    assert!(seen.values().all(|count| (mean / 2..mean * 2).contains(count)), "{mean}: {seen:?}");
}
