//! A listener that is removed while a flow has no reply yet.

use std::net::UdpSocket;
use std::time::Instant;

use testing::{Scripted, Server, secs};

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
