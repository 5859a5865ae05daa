//! A listener that is removed while a flow has no reply yet.

use std::net::UdpSocket;
use std::time::Instant;

use testing::{Scripted, Server, port, secs};

use super::Client;

#[test]
fn a_removed_listener_holds_up_no_other_change_and_still_passes_the_reply() {
    let (backend, web) = (UdpSocket::bind("127.0.0.1:0").unwrap(), Scripted::answering("x"));
    backend.set_read_timeout(Some(secs(20))).unwrap();
    let server = Server::start(&format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n[pool.app]\nbackends = [\"{}\"]\n\
         [listener.dns]\nbind = \"127.0.0.1:0\"\nprotocol = \"udp\"\npool = \"dns\"\n\
         [pool.dns]\nbackends = [\"{}\"]\n",
        web.address,
        backend.local_addr().unwrap()
    ));
    let client = Client::new(&server.address("dns"));
    client.send(b"question");
    let mut room = [0; 100];
    let (_, from) = backend.recv_from(&mut room).unwrap();
    let started = Instant::now();
    let output = server.ctl(&["remove", "listener.dns"]);
    assert!(output.status.success(), "{output:?}");
    let output = server.ctl(&["set", "pool.app.queue", "7"]);
    assert!(output.status.success(), "{output:?}");
    // The listener waits five seconds for its last replies.
    assert!(started.elapsed() < secs(5), "{:?}", started.elapsed());
    backend.send_to(b"answer", from).unwrap();
    assert_eq!(client.receive(), b"answer");
}

#[test]
fn a_listener_that_is_put_back_at_once_is_served_by_its_new_sockets_alone() {
    removed_and_back(|_| vec!["undo".to_owned()]);
}

#[test]
fn an_address_that_another_listener_covers_at_once_is_served_by_its_sockets_alone() {
    for bind in ["0.0.0.0:", ":"] {
        removed_and_back(|port| {
            let listener = format!("{{ bind = \"{bind}{port}\", protocol = \"udp\", pool = \"dns\" }}");
            vec!["add".to_owned(), "listener.all".to_owned(), listener]
        });
    }
}

/// Removes the listener of a port while flows wait for replies, and makes the change of `back`.
fn removed_and_back(back: impl Fn(u16) -> Vec<String>) {
    let backend = UdpSocket::bind("127.0.0.1:0").unwrap();
    backend.set_read_timeout(Some(secs(20))).unwrap();
    let port = port::free();
    let address = format!("127.0.0.1:{port}");
    let server = Server::start(&format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n[process]\nworkers = 1\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"dns\"\n\
         [listener.dns]\nbind = \"{address}\"\nprotocol = \"udp\"\npool = \"dns\"\n\
         [pool.dns]\nbackends = [\"{}\"]\nhealth = \"off\"\n",
        backend.local_addr().unwrap()
    ));
    let clients: Vec<_> = (0..8).map(|_| Client::new(&address)).collect();
    let mut room = [0; 100];
    let mut ask = |client: &Client| {
        client.send(b"question");
        backend.recv_from(&mut room).unwrap().1
    };
    // None has a reply yet, so the sockets of the listener wait for them when it is removed.
    let before: Vec<_> = clients.iter().map(&mut ask).collect();
    server.said(&["remove", "listener.dns"]);
    let back = back(port);
    server.said(&back.iter().map(String::as_str).collect::<Vec<_>>());
    for client in &clients {
        let from = ask(client);
        assert!(!before.contains(&from), "a flow of the earlier listener took the datagram");
        backend.send_to(b"answer", from).unwrap();
        assert_eq!(client.receive(), b"answer");
    }
}
