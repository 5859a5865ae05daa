//! Who may begin a flow, and where a flow goes while its pool has no backend.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use testing::{Server, eventually, millis, secs};

use super::{Client, Echo, backends, config, listener};

const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

#[test]
fn the_access_list_of_a_listener_denies_a_source_without_an_answer_and_counts_it() {
    let echo = Echo::start();
    let lists = "acl = \"friends\"\n[acl.friends]\nentries = [\"deny 127.0.0.2\"]\ndefault = \"permit\"";
    let server = Server::start(&config(lists, &backends(&[&echo])));
    let address = server.address("dns");
    let denied = UdpSocket::bind((OTHER, 0)).unwrap();
    denied.connect(&address).unwrap();
    denied.send(b"denied").unwrap();
    eventually("it is counted", secs(20), || (listener(&server)["endings"]["denied"] == 1).then_some(()));
    // The other source is served after it, so the denied datagram has been judged.
    let friend = Client::new(&address);
    assert_eq!(friend.ask("hello").0, echo.address);
    denied.set_read_timeout(Some(millis(1))).unwrap();
    assert!(denied.recv(&mut [0; 100]).is_err(), "a denied source gets no datagram");
    assert_eq!(listener(&server)["connections"], 1, "and has no flow");
}

#[test]
fn the_access_list_of_a_backend_keeps_a_source_away_from_it() {
    let (one, other) = (Echo::start(), Echo::start());
    let pool = format!(
        "backends = [{{ address = \"{}\", acl = \"local\" }}, \"{}\"]\n\
         [acl.local]\nentries = [\"deny 127.0.0.2\"]\ndefault = \"permit\"",
        one.address, other.address
    );
    let server = Server::start(&config("", &pool));
    let address = server.address("dns");
    for _ in 0..4 {
        assert_eq!(Client::from(OTHER, &address).ask("hello").0, other.address);
    }
    let used: Vec<_> = (0..2).map(|_| Client::new(&address).ask("hello").0).collect();
    assert!(used.contains(&one.address), "others may: {used:?}");
}

#[test]
fn flows_go_to_the_fallback_while_the_pool_has_no_backend() {
    let (app, sorry) = (Echo::start(), Echo::start());
    let pool = format!("{}\nfallback = \"sorry\"\n[pool.sorry]\n{}", backends(&[&app]), backends(&[&sorry]));
    let server = Server::start(&config("", &pool));
    let address = server.address("dns");
    assert_eq!(Client::new(&address).ask("before").0, app.address);
    assert!(server.ctl(&["drain", &app.address.to_string()]).status.success());
    assert_eq!(Client::new(&address).ask("drained").0, sorry.address);
    assert!(server.ctl(&["ready", &app.address.to_string()]).status.success());
    assert_eq!(Client::new(&address).ask("back").0, app.address);
}
