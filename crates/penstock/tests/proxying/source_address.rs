//! Where connections to backends come from, how they are kept alive, and the queue before a listener.

use std::net::UdpSocket;
use std::process::Command;
use std::sync::{Arc, Mutex};

use testing::client::request;
use testing::{Scripted, Server, eventually, secs, tools};

/// A backend that answers with the address that it sees.
fn mirror() -> Scripted {
    Scripted::start(|talk| {
        let seen = match &talk.client.stream {
            testing::client::Stream::Tcp(tcp) => tcp.peer_addr().unwrap().ip().to_string(),
            testing::client::Stream::Unix(_) => "unix".to_owned(),
        };
        while talk.request().is_some() {
            if talk.answer(200, &[], seen.as_bytes()).is_err() {
                return;
            }
        }
    })
}

#[test]
fn traffic_and_checks_come_from_the_source_address() {
    let backend = mirror();
    let checks = Arc::new(Mutex::new(Vec::new()));
    let seen = checks.clone();
    let checked = Scripted::start(move |talk| {
        if let testing::client::Stream::Tcp(tcp) = &talk.client.stream {
            seen.lock().unwrap().push(tcp.peer_addr().unwrap().ip().to_string());
        }
        while talk.request().is_some() {
            let _ = talk.answer(200, &[], b"ok");
        }
    });
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.set_read_timeout(Some(secs(20))).unwrap();
    let server = Server::start(&format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
         [listener.tcp]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"app\"\n\
         [listener.udp]\nbind = \"127.0.0.1:0\"\nprotocol = \"udp\"\npool = \"udp\"\n\
         [listener.more]\nbind = \"127.0.0.1:0\"\npool = \"checked\"\n\
         [pool.app]\nbackends = [\"{}\"]\nsource-address = \"127.0.0.9\"\n\
         [pool.udp]\nbackends = [\"{}\"]\nsource-address = \"127.0.0.8\"\n\
         [pool.checked]\nbackends = [\"{}\"]\nsource-address = \"127.0.0.7\"\nhealth = {{ http = \"/\", interval = \"2s\", timeout = \"2s\" }}\n",
        backend.address,
        udp.local_addr().unwrap(),
        checked.address
    ));
    for listener in ["web", "tcp"] {
        let mut client = server.client(listener);
        client.send(request("GET", "/", &[], b""));
        assert_eq!(client.response().text(), "127.0.0.9", "{listener}");
    }
    UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"ping", server.address("udp")).unwrap();
    let (_, from) = udp.recv_from(&mut [0; 16]).unwrap();
    assert_eq!(from.ip().to_string(), "127.0.0.8");
    eventually("checks come", secs(20), || (!checks.lock().unwrap().is_empty()).then_some(()));
    assert_eq!(server.client("more").get("/", &[]).text(), "ok");
    assert!(checks.lock().unwrap().iter().all(|from| from == "127.0.0.7"), "{:?}", checks.lock().unwrap());
}

#[test]
fn a_source_address_of_another_machine_is_degraded_and_its_sessions_fail() {
    let backend = mirror();
    let server = Server::start(&format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"{}\"]\nsource-address = \"192.0.2.1\"\n",
        backend.address
    ));
    let status = server.ctl_json(&["status"]);
    assert_eq!(status["degraded"][0]["subject"], "pool.app.source-address", "{status:#}");
    assert_eq!(server.client("web").get("/", &[]).status, 502);
}

#[test]
fn a_silent_connection_is_probed_and_the_queue_has_its_length() {
    let backend = Scripted::answering("app");
    let server = Server::start(&format!(
        "[process]\nworkers = 1\n[listener.tcp]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\nbacklog = 77\npool = \"app\"\n\
         [pool.app]\nbackends = [\"{}\"]\ntcp-keepalive = \"30s\"\n",
        backend.address
    ));
    let mut client = server.client("tcp");
    assert_eq!(client.get("/", &[]).text(), "app");
    let ss = |arguments: &[&str]| {
        let output = Command::new(tools::program("ss")).args(arguments).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let port = backend.address.rsplit(':').next().unwrap();
    let sockets = ss(&["-Htno", "dst", "127.0.0.1", "dport", "=", &format!(":{port}")]);
    assert!(sockets.contains("timer:(keepalive,2") || sockets.contains("timer:(keepalive,30"), "{sockets}");
    let address = server.address("tcp");
    let listening = ss(&["-Htln", "src", &address]);
    assert_eq!(listening.split_whitespace().nth(2), Some("77"), "{listening}");
}
