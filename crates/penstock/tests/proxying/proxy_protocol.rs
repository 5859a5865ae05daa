//! PROXY headers, versions 1 and 2: believed only from listed peers, then required; written to backends as configured.

use testing::client::{End, request};
use testing::{Client, Recorder, Scripted, Server, secs, show};

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

fn front(backend: &str, from: &str, pool: &str) -> Server {
    Server::start(&format!(
        "[listener.web]\nbind = [\"127.0.0.1:0\", \"unix:@DIR@/web.sock\"]\nprotocol = \"http\"\npool = \"app\"\nproxy-protocol-from = [{from}]\n\
         timeouts = {{ head = \"2s\" }}\n[pool.app]\nbackends = [\"{backend}\"]\n{pool}\n"
    ))
}

fn version_2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(body.len()).unwrap().to_be_bytes();
    [SIGNATURE, &[0x20 | command, family], &length, body].concat()
}

fn ipv4(source: [u8; 4], port: u16) -> Vec<u8> {
    [&source[..], &[127, 0, 0, 1], &port.to_be_bytes(), &[0, 80]].concat()
}

#[track_caller]
fn served_as(server: &Server, recorder: &Recorder, header: &[u8], client_address: &str) {
    for address in server.addresses("web") {
        let mut client = Client::connect(&address);
        client.send([header, &request("GET", "/", &[("Connection", "close")], b"")].concat());
        assert_eq!(client.response().status, 200, "{} over {address}", show(header));
        let seen = recorder.last().lines("x-forwarded-for").join(",");
        assert!(
            client_address.is_empty() || seen == client_address,
            "{seen} is not {client_address}: {}",
            show(header)
        );
    }
}

#[test]
fn headers_of_both_versions_name_the_client() {
    let recorder = Recorder::start();
    let server = front(recorder.address(), "\"127.0.0.0/8\", \"unix\"", "");
    served_as(&server, &recorder, b"PROXY TCP4 192.0.2.7 127.0.0.1 4711 80\r\n", "192.0.2.7");
    served_as(&server, &recorder, b"PROXY TCP6 2001:db8::7 ::1 4711 80\r\n", "2001:db8::7");
    served_as(&server, &recorder, &version_2(1, 0x11, &ipv4([192, 0, 2, 8], 4711)), "192.0.2.8");
    let six = [&[0x20, 1, 0x0d, 0xb8][..], &[0; 11], &[9], &[0; 15], &[1], &[0x12, 0x67, 0, 80]].concat();
    served_as(&server, &recorder, &version_2(1, 0x21, &six), "2001:db8::9");
    // TLVs behind the addresses are skipped: ALPN, NOOP.
    let more = [ipv4([192, 0, 2, 9], 1), vec![0x01, 0, 2, b'h', b'2', 0x04, 0, 3, 0, 0, 0]].concat();
    served_as(&server, &recorder, &version_2(1, 0x11, &more), "192.0.2.9");
    // LOCAL and UNKNOWN: the connection's own peer.
    served_as(&server, &recorder, &version_2(0, 0x00, b""), "");
    served_as(&server, &recorder, b"PROXY UNKNOWN\r\n", "");
}

#[test]
fn a_header_that_comes_byte_by_byte_counts() {
    let recorder = Recorder::start();
    let server = front(recorder.address(), "\"127.0.0.1\"", "");
    for header in
        [b"PROXY TCP4 192.0.2.7 127.0.0.1 4711 80\r\n".to_vec(), version_2(1, 0x11, &ipv4([192, 0, 2, 7], 9))]
    {
        let mut client = server.client("web");
        for byte in header.iter().chain(&request("GET", "/", &[], b"")) {
            client.send([*byte]);
        }
        assert_eq!(client.response().status, 200);
        assert_eq!(recorder.last().lines("x-forwarded-for"), ["192.0.2.7"]);
    }
}

#[test]
fn no_malformed_header_is_accepted() {
    let recorder = Recorder::start();
    let server = front(recorder.address(), "\"127.0.0.1\"", "");
    let good = ipv4([192, 0, 2, 7], 9);
    let mut bad: Vec<Vec<u8>> = [
        "PROXY",
        "PROXY\r\n",
        "PROXY TCP4\r\n",
        "PROXY TCP4 1.2.3.4 5.6.7.8 1\r\n",
        "PROXY TCP4 1.2.3.4 5.6.7.8 1 2 3\r\n",
        "PROXY TCP4 1.2.3.4 5.6.7.8 1 2\n",
        "PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r",
        "PROXY  TCP4 1.2.3.4 5.6.7.8 1 2\r\n",
        "PROXY TCP4 1.2.3.256 5.6.7.8 1 2\r\n",
        "PROXY TCP4 01.2.3.4 5.6.7.8 1 2\r\n",
        "PROXY TCP4 1.2.3.4 5.6.7.8 65536 2\r\n",
        "PROXY TCP4 1.2.3.4 5.6.7.8 -1 2\r\n",
        "PROXY TCP4 1.2.3.4 5.6.7.8 01 2\r\n",
        "PROXY TCP4 ::1 ::1 1 2\r\n",
        "PROXY TCP6 1.2.3.4 5.6.7.8 1 2\r\n",
        "PROXY TCP5 1.2.3.4 5.6.7.8 1 2\r\n",
        "proxy TCP4 1.2.3.4 5.6.7.8 1 2\r\n",
        "PROXY TCP4 1.2.3.4\t5.6.7.8 1 2\r\n",
        "PROXY TCP4 1.2.3.4 5.6.7.8 1 2 \r\n",
        "PROXY TCP4 1.2.3.4 5.6.7.8 1 +2\r\n",
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .collect();
    bad.push(format!("PROXY UNKNOWN {}\r\n", "x".repeat(120)).into_bytes());
    bad.push(version_2(2, 0x11, &good));
    bad.push(version_2(1, 0x11, &good[..10]));
    bad.push(version_2(1, 0x21, &good));
    bad.push(version_2(1, 0x41, &good));
    bad.push([SIGNATURE, &[0x11, 0x11, 0, 12], &good].concat());
    bad.push(version_2(1, 0x11, &[good.clone(), vec![0x01, 0xff, 0xff, 1]].concat()));
    bad.push(version_2(1, 0x11, &[good.clone(), vec![0x03, 0, 4, 1, 2, 3, 4]].concat()));
    bad.push(version_2(1, 0x11, &vec![0; 60_000]));
    bad.push(request("GET", "/", &[], b""));
    for header in bad {
        let mut client = server.client("web");
        let _ = client.try_send([&header[..], &request("GET", "/after", &[], b"")].concat());
        let (bytes, end) = client.read_to_end_within(secs(10));
        assert!(!bytes.starts_with(b"HTTP/1.1 200"), "{} was accepted", show(&header));
        assert_ne!(end, End::Open, "{}", show(&header));
    }
    assert!(recorder.requests().is_empty(), "{:?}", recorder.requests());
}

#[test]
fn a_strangers_header_is_no_header() {
    let recorder = Recorder::start();
    let server = front(recorder.address(), "\"192.0.2.0/24\"", "");
    let mut client = server.client("web");
    client
        .send([b"PROXY TCP4 6.6.6.6 127.0.0.1 4711 80\r\n".to_vec(), request("GET", "/", &[], b"")].concat());
    assert_eq!(client.response().status, 400);
    assert_eq!(server.client("web").get("/", &[]).status, 200, "and without one it is served");
    assert_eq!(recorder.last().lines("x-forwarded-for"), ["127.0.0.1"]);
}

#[test]
fn headers_are_written_to_backends_once_per_connection() {
    for (version, tcp) in [("v1", true), ("v2", true), ("v1", false), ("v2", false)] {
        let (tell, told) = std::sync::mpsc::channel();
        let tell = std::sync::Mutex::new(tell);
        let backend = Scripted::start(move |talk| {
            let head = if version == "v1" {
                talk.client.read_until(b"\r\n")
            } else {
                let mut head = talk.client.read_exactly(16);
                let length = usize::from(u16::from_be_bytes([head[14], head[15]]));
                head.extend(talk.client.read_exactly(length));
                head
            };
            tell.lock().unwrap().send(head).unwrap();
            if !talk.client.unused().is_empty() || tcp {
                // What came with the header belongs to the first request.
            }
            let rest = talk.client.read_until(if tcp { b"hello" } else { b"\r\n\r\n" });
            let _ = rest;
            let _ = if tcp { talk.client.try_send("bye") } else { talk.answer(200, &[], b"ok") };
        });
        let protocol = if tcp { "tcp" } else { "http" };
        let server = Server::start(&format!(
            "[listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"{protocol}\"\npool = \"app\"\n\
             [pool.app]\nbackends = [\"{}\"]\nsend-proxy = \"{version}\"\n",
            backend.address
        ));
        let mut client = server.client("web");
        let testing::client::Stream::Tcp(stream) = &client.stream else {
            unreachable!("the listener is on TCP")
        };
        let local = stream.local_addr().unwrap();
        if tcp {
            client.send("hello");
            assert_eq!(client.read_to_end().0, b"bye");
        } else {
            assert_eq!(client.get("/", &[]).status, 200);
        }
        let head = told.recv_timeout(secs(10)).unwrap();
        if version == "v1" {
            let text = String::from_utf8(head).unwrap();
            assert!(text.starts_with(&format!("PROXY TCP4 127.0.0.1 127.0.0.1 {} ", local.port())), "{text}");
        } else {
            assert_eq!(&head[..14], &[SIGNATURE, &[0x21, 0x11]].concat()[..], "{}", show(&head));
            assert_eq!(&head[16..20], &[127, 0, 0, 1]);
            assert_eq!(&head[24..26], &local.port().to_be_bytes());
        }
    }
}
