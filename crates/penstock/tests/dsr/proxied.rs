//! The last rung: where no packet can be had, or none is to be forwarded, the process takes connections and datagrams.

use std::fs;

use testing::tools::{self, Root};
use testing::{Server, eventually, secs};

use super::network::{BALANCER, CHECKED, Network, SERVERS, VIP, VIP6, are_same, config, host, noise};
use super::paths::stop;
use super::traffic::{ask, bind, unbound};

/// A network whose balancer has the addresses, as keepalived would give them. Of IPv6 it answers only for those of the interface.
fn network() -> Network {
    let network = Network::new();
    network.set_vip(BALANCER, "add", VIP);
    network.ip(BALANCER, &["addr", "add", &format!("{VIP6}/128"), "dev", "eth0", "nodad"]);
    network
}

fn path(server: &Server) -> serde_json::Value {
    server.ctl_json(&["status"])["listeners"][0]["paths"][0].clone()
}

#[test]
fn without_the_right_to_packets_connections_are_taken_with_the_reason_and_what_is_lost() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = network();
    let servers = SERVERS.map(|server| network.nginx(server));
    let text = config(&bind(&[VIP, VIP6], 80), "", CHECKED);
    let text = format!("[admin]\nbind = \"127.0.0.1:0\"\n{text}").replace("user = \"nobody\"\n", "");
    let server = network.setup_through(&text, ["setpriv", "--bounding-set", "-net_raw"]).start();
    assert_eq!(path(&server)["path"], "proxy", "{:#}", path(&server));
    let refused = path(&server)["refused"].as_array().unwrap().clone();
    let paths: Vec<_> = refused.iter().filter_map(|one| one["path"].as_str()).collect();
    assert_eq!(paths, ["xdp", "tc", "af_packet"], "{refused:?}");
    assert!(refused[2]["reason"].as_str().unwrap().contains("it needs CAP_NET_RAW"), "{refused:?}");
    let events = server.said(&["events"]);
    assert!(
        events
            .contains("no packet is forwarded: connections and datagrams are taken by this process (proxy)")
    );
    assert!(events.contains("backends see an address of it instead of the client's"), "{events}");
    for vip in [VIP, VIP6] {
        let which = network.visit(&host(vip));
        assert!(["2", "3"].contains(&&*which), "{which}");
    }
    // Pool and health are shared: of the backend that the client has, and then of the other one.
    let which = network.visit(VIP);
    let (address, other) = if which == "2" { ("10.77.0.14:80", "3") } else { ("10.77.0.15:80", "2") };
    let drained = server.ctl(&["drain", address]);
    assert!(drained.status.success(), "{drained:?}");
    assert_eq!(network.visit(VIP), other, "new connections go elsewhere");
    assert!(server.ctl(&["ready", address]).status.success());
    let at = if which == "2" { 0 } else { 1 };
    let mut servers = servers.map(Some);
    drop(servers[at].take());
    eventually("its check fails", secs(20), || (server.health(address) == "down").then_some(()));
    assert!((0..20).all(|_| network.visit(VIP) == other));
    let status = server.ctl_json(&["dsr", "status"])["services"].clone();
    assert_eq!(status.as_array().map(Vec::len), Some(2), "{status:#}");
    eventually("the service says so", secs(10), || {
        let service = server.ctl_json(&["dsr", "status"])["services"][0].clone();
        let states: Vec<_> =
            (0..2).filter_map(|one| service["backends"][one]["state"].as_str().map(str::to_owned)).collect();
        (service["path"] == "proxy" && states[at] == "down" && states[1 - at] == "open").then_some(())
    });
    let said = server.said(&["dsr", "status"]);
    assert!(said.contains("by proxy, pool app") && said.contains("no packet is forwarded"), "{said}");
    let refused = server.refused(&["dsr", "explain", "10.77.0.12:40000", &format!("{VIP}:80"), "tcp"]);
    assert!(refused.contains("data-path proxy"), "{refused}");
    assert!(server.ctl(&["health"]).status.success());
    drop(servers[1 - at].take());
    eventually("no backend is left", secs(20), || (!server.ctl(&["health"]).status.success()).then_some(()));
    stop(server);
}

#[test]
fn the_right_is_missed_with_the_address_elsewhere_and_the_start_says_both() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let text = config(&bind(&[VIP], 80), "", "").replace("user = \"nobody\"\n", "");
    let output = network.setup_through(&text, ["setpriv", "--bounding-set", "-net_raw"]).output();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("it needs CAP_NET_RAW"), "{said}");
    assert!(said.contains("`ip address add 10.77.0.100/32 dev eth0`"), "{said}");
    for (listener, part) in [
        ("data-path = \"proxy\"", "this machine does not have 10.77.0.100"),
        ("data-path = \"tc\"", "CAP_NET_RAW"),
        ("data-path = \"af_packet\"", "CAP_NET_RAW"),
    ] {
        let text = config(&bind(&[VIP], 80), listener, "").replace("user = \"nobody\"\n", "");
        let output = network.setup_through(&text, ["setpriv", "--bounding-set", "-net_raw"]).output();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(part), "{listener}: {said}");
    }
}

#[test]
fn proxy_by_request_takes_both_transports_whole_and_keeps_no_right_to_packets() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = network();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let at = |name: &str| network.directory.path().join(name);
    fs::write(at("upload"), noise(3_000_000)).unwrap();
    let text = config(&bind(&[VIP, VIP6], 80), "data-path = \"proxy\"", "health = \"off\"");
    let server = network.balancer(&text);
    assert_eq!(path(&server)["path"], "proxy");
    assert_eq!(path(&server)["refused"].as_array().map(Vec::len), Some(0));
    for vip in [VIP, VIP6].map(host) {
        let (from, to) = (at("upload").display().to_string(), format!("http://{vip}/put"));
        assert!(network.curl(&["-f", "-T", &from, &to]).status.success());
        let arrived =
            SERVERS.map(|server| network.root(server).join("put")).into_iter().find(|it| it.exists());
        let arrived = arrived.unwrap();
        assert!(are_same(&arrived, &at("upload")));
        fs::remove_file(arrived).unwrap();
        let (from, to) = (format!("http://{vip}/large"), at("download").display().to_string());
        assert!(network.curl(&["-f", "-o", &to, &from]).status.success());
        assert!(are_same(&at("download"), &at("large")));
    }
    let privileges = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let effective = privileges.lines().find(|line| line.starts_with("CapEff:")).unwrap();
    assert!(effective.ends_with("0000000000000400"), "CAP_NET_BIND_SERVICE alone: {effective}");
    // A download goes on when the process is told to stop, as with a tcp listener.
    stop(server);
    let network = self::network();
    let _servers = SERVERS.map(|server| unbound(&network, server));
    let listener = "data-path = \"proxy\"\ntransport = \"udp\"";
    let server = network.balancer(&config(&bind(&[VIP, VIP6], 53), listener, "health = \"off\""));
    for vip in [VIP, VIP6] {
        let answer = eventually("it answers", secs(20), || ask(&network, super::network::CLIENT, vip, None));
        assert!(["2", "3"].contains(&&*answer), "{answer}");
    }
    stop(server);
}

#[test]
fn a_reload_from_proxy_or_to_it_is_refused_and_the_service_goes_on() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let of = |path: &str| config(&bind(&[VIP], 80), &format!("data-path = \"{path}\""), "health = \"off\"");
    let serves = || network.curl(&["-m", "1", &format!("http://{VIP}/")]).status.success().then_some(());
    let server = network.balancer(&of("tc"));
    eventually("it serves", secs(20), serves);
    server.write_config(&of("proxy"));
    let refused = server.refused(&["reload"]);
    assert!(refused.contains("its packets are forwarded since the start"), "{refused}");
    assert!(refused.contains("it changes with the next start"), "{refused}");
    assert!(serves().is_some() && path(&server)["path"] == "tc");
    server.write_config(&of("tc"));
    assert!(server.ctl(&["reload"]).status.success());
    stop(server);
    network.set_vip(BALANCER, "add", VIP);
    let server = network.balancer(&of("proxy"));
    eventually("it serves", secs(20), serves);
    for other in ["tc", "af_packet", "xdp"] {
        server.write_config(&of(other));
        let refused = server.refused(&["reload"]);
        assert!(
            refused.contains("it is served without packets (data-path proxy) since the start"),
            "{refused}"
        );
        assert!(serves().is_some() && path(&server)["path"] == "proxy");
    }
    server.write_config(
        &of("proxy").replace("data-path = \"proxy\"", "data-path = \"proxy\"\ntransport = \"udp\""),
    );
    assert!(server.refused(&["reload"]).contains("another transport with the next start"));
    // Other changes are taken.
    server.write_config(&of("auto").replace("\"10.77.0.14:80\", ", ""));
    assert!(server.ctl(&["reload"]).status.success());
    assert!((0..10).all(|_| network.visit(VIP) == "3") && path(&server)["path"] == "proxy");
    stop(server);
}

#[test]
fn a_machine_that_loses_the_address_says_so_and_there_is_no_packet_to_trace() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = network();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let server =
        network.balancer(&config(&bind(&[VIP, VIP6], 80), "data-path = \"proxy\"", "health = \"off\""));
    eventually("it serves", secs(20), || ["2", "3"].contains(&&*network.visit(VIP)).then_some(()));
    let file = network.directory.path().join("none.pcapng");
    let words = ["dsr", "trace", "--to", file.to_str().unwrap(), "--for", "20s"];
    let refused = server.refused(&words);
    assert!(refused.contains("no packet of 10.77.0.100:80 is forwarded (data-path proxy)"), "{refused}");
    let degraded = || server.ctl_json(&["status"])["degraded"].to_string();
    assert_eq!(degraded(), "[]");
    network.set_vip(BALANCER, "del", VIP);
    eventually("it is told", secs(20), || {
        let part = "this machine does not have 10.77.0.100 any more";
        (degraded().contains(part) && degraded().contains("`ip address add 10.77.0.100/32 dev eth0`"))
            .then_some(())
    });
    assert!(!degraded().contains(VIP6), "{}", degraded());
    network.set_vip(BALANCER, "add", VIP);
    eventually("nothing is degraded", secs(20), || (degraded() == "[]").then_some(()));
    stop(server);
}
