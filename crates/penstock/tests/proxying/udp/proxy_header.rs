//! PROXY headers of datagrams: before each one to a backend, and before each one of a listed peer.

use std::net::Ipv4Addr;

use super::*;

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// A header of version 2 for UDP over IPv4.
fn header(client: &str, destination: &str) -> Vec<u8> {
    let end = |text: &str| match text.parse().unwrap() {
        SocketAddr::V4(end) => (end.ip().octets(), end.port().to_be_bytes()),
        SocketAddr::V6(_) => unreachable!("the tests name IPv4 addresses"),
    };
    let (client, destination) = (end(client), end(destination));
    [SIGNATURE, &[0x21, 0x12, 0, 12], &client.0, &destination.0, &client.1, &destination.1].concat()
}

/// Asks with a datagram, and returns what the backend has seen and the address of the socket from which it came.
fn seen(client: &Client, datagram: &[u8]) -> (Vec<u8>, String) {
    client.send(datagram);
    let answer = client.receive();
    let mut words = answer.splitn(3, |byte| *byte == b' ');
    let (_, from) = (words.next().unwrap(), words.next().unwrap());
    (words.next().unwrap().to_vec(), String::from_utf8(from.to_vec()).unwrap())
}

#[test]
fn every_datagram_to_a_backend_begins_with_the_address_of_its_client() {
    let echo = Echo::start();
    let pool = format!("{}\nsend-proxy = \"v2\"", backends(&[&echo]));
    let server = Server::start(&config("", &pool));
    let address = server.address("dns");
    let client = Client::new(&address);
    let expected = header(&client.0.local_addr().unwrap().to_string(), &address);
    for datagram in [&b"first"[..], b"second", b""] {
        let wanted = [&expected[..], datagram].concat();
        assert_eq!(seen(&client, datagram).0, wanted);
    }
    // What is too long with its header is not sent, and the next one is.
    client.send(&vec![7; 65_507]);
    assert_eq!(seen(&client, b"after").0, [&expected[..], b"after"].concat());
    assert_eq!(listener(&server)["endings"]["datagram-not-sent"], 1);
}

#[test]
fn clients_behind_a_listed_peer_have_their_own_flows_and_a_header_is_required_there_only() {
    let echo = Echo::start();
    let pool = format!("{}\nsend-proxy = \"v2\"", backends(&[&echo]));
    let mut server = Server::start(&config("proxy-protocol-from = [\"127.0.0.1\"]", &pool));
    let address = server.address("dns");
    let proxy = Client::new(&address);
    let ask = |client: &str| {
        let header = header(client, "192.0.2.53:53");
        let (bytes, from) = seen(&proxy, &[&header[..], b"question"].concat());
        assert_eq!(
            bytes,
            [&header[..], b"question"].concat(),
            "the backend learns the client and its destination"
        );
        from
    };
    let (one, other) = (ask("198.51.100.1:1000"), ask("198.51.100.2:1000"));
    assert_ne!(one, other, "each client has a flow");
    assert_eq!((ask("198.51.100.1:1000"), ask("198.51.100.2:1000")), (one, other));
    // A check of the proxy itself is its own client.
    let own = [SIGNATURE, &[0x20, 0x00, 0, 0], b"alive?"].concat();
    let of_proxy = header(&proxy.0.local_addr().unwrap().to_string(), &address);
    assert_eq!(seen(&proxy, &own).0, [&of_proxy[..], b"alive?"].concat());
    let whole = header("198.51.100.1:1000", "192.0.2.53:53");
    for bad in [&b"question"[..], b"", &whole[..20], b"PROXY UDP4 198.51.100.1 192.0.2.53 1000 53\r\n"] {
        proxy.send(bad);
    }
    eventually("they are dropped", secs(20), || {
        (listener(&server)["endings"]["proxy-header"].as_u64() == Some(4)).then_some(())
    });
    // What a stranger sends is a payload, whatever it looks like.
    let stranger = Client::from(Ipv4Addr::new(127, 0, 0, 2).into(), &address);
    let payload = [&whole[..], b"question"].concat();
    let expected = header(&stranger.0.local_addr().unwrap().to_string(), &address);
    assert_eq!(seen(&stranger, &payload).0, [&expected[..], &payload].concat());
    server.signal(Signal::SIGTERM);
    assert!(server.wait_end(secs(20)).success());
    server.stdout.wait_for(" 198.51.100.2:1000", secs(20));
}

/// A question for the address of `web.lan`.
pub(super) fn question() -> Vec<u8> {
    [&b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0"[..], b"\x03web\x03lan\0", b"\0\x01\0\x01"].concat()
}

#[test]
fn unbound_believes_the_header_and_decides_by_the_client_that_it_names() {
    let unbound = Unbound::with(|port| {
        format!(
            "proxy-protocol-port: {port}\n  access-control: 127.0.0.0/8 allow\n  \
             access-control: 198.51.100.7/32 refuse"
        )
    });
    let pool = format!(
        "backends = [{:?}]\nsend-proxy = \"v2\"\nhealth = {{ dns = \"web.lan\", interval = \"200ms\" }}",
        unbound.address
    );
    let server = Server::start(&config("replies = 1\nproxy-protocol-from = [\"127.0.0.1\"]", &pool));
    eventually("it is up", secs(20), || (server.health(&unbound.address) == "up").then_some(()));
    let address = server.address("dns");
    let code = |answer: &[u8]| answer[3] & 0x0f;
    let proxy = Client::new(&address);
    proxy.send(&[&header("198.51.100.7:5353", "192.0.2.53:53")[..], &question()].concat());
    assert_eq!(code(&proxy.receive()), 5, "refused");
    // One that no proxy tells of is named as it is.
    let stranger = Client::from(Ipv4Addr::new(127, 0, 0, 4).into(), &address);
    for (client, prefix) in [(&proxy, header("127.0.0.3:5353", "192.0.2.53:53")), (&stranger, Vec::new())] {
        client.send(&[prefix, question()].concat());
        let answer = client.receive();
        assert_eq!((code(&answer), &answer[answer.len() - 4..]), (0, &[192, 0, 2, 1][..]));
    }
}
