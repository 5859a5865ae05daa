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
    assert!(started.elapsed() < secs(3), "{:?}", started.elapsed());
    backend.send_to(b"answer", from).unwrap();
    assert_eq!(client.receive(), b"answer");
}

#[test]
fn a_listener_that_is_put_back_at_once_is_served_by_its_new_sockets_alone() {
    let backend = UdpSocket::bind("127.0.0.1:0").unwrap();
    backend.set_read_timeout(Some(secs(20))).unwrap();
    let address = format!("127.0.0.1:{}", port::free());
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
    for change in [&["remove", "listener.dns"][..], &["undo"]] {
        let output = server.ctl(change);
        assert!(output.status.success(), "{output:?}");
    }
    for client in &clients {
        let from = ask(client);
        assert!(!before.contains(&from), "a flow of the earlier listener took the datagram");
        backend.send_to(b"answer", from).unwrap();
        assert_eq!(client.receive(), b"answer");
    }
}
