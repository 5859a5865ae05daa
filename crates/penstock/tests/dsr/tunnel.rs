//! `mode = "ipip"`: one server is on the network of the balancer, the other one behind a router. Packets to them travel in
//! others, which a program takes apart at the servers: not every kernel has tunnel devices.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use serde_json::Value;
use testing::binary;
use testing::network::Machine;
use testing::tools::{self, Root};
use testing::{Server, eventually, secs};

use super::network::{
    BALANCER, CHECKED, CLIENT, FAMILIES, Network, PATIENT, Running, SERVERS, SWITCH, VIP, VIP6, noise, only,
};
use super::trace::{ended, fields, trace};
use super::traffic::{Frames, OFFLOADS, UNLOADED, ask, pass, unbound};

/// The network with a router between the balancer and the second server.
pub(crate) struct Routed {
    pub(crate) network: Network,
    router: Machine,
}

/// The server behind the router, and its addresses.
const FAR: usize = SERVERS[1];
const FAR_IP: &str = "10.78.0.15";

impl Routed {
    pub(crate) fn new() -> Self {
        let routed = Self { network: Network::new(), router: Machine::new("r") };
        let Self { network, router } = &routed;
        network.unplug(FAR);
        network.ip(
            SWITCH,
            &["link", "add", "p9", "type", "veth", "peer", "name", "eth0", "netns", router.name()],
        );
        network.ip(SWITCH, &["link", "set", "p9", "master", "br0", "up"]);
        router.ip(&[
            "link",
            "add",
            "eth1",
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            network.name(FAR),
        ]);
        for (card, network) in [("eth0", "7"), ("eth1", "8")] {
            router.ip(&["addr", "add", &format!("10.7{network}.0.1/24"), "dev", card]);
            router.ip(&["addr", "add", &format!("fd7{network}::1/64"), "dev", card]);
            router.ip(&["link", "set", card, "up"]);
        }
        router.run(&["sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"]);
        network.ip(FAR, &["addr", "add", &format!("{FAR_IP}/24"), "dev", "eth0"]);
        network.ip(FAR, &["addr", "add", "fd78::15/64", "dev", "eth0"]);
        network.ip(FAR, &["link", "set", "eth0", "up"]);
        // What its programs are asked for on the machine itself.
        network.ip(FAR, &["addr", "add", "10.77.0.15/32", "dev", "lo"]);
        network.ip(FAR, &["route", "add", "default", "via", "10.78.0.1"]);
        network.ip(FAR, &["-6", "route", "add", "default", "via", "fd78::1"]);
        network.ip(BALANCER, &["route", "add", "10.78.0.0/24", "via", "10.77.0.1"]);
        network.ip(BALANCER, &["-6", "route", "add", "fd78::/64", "via", "fd77::1"]);
        let program = routed.decapsulator();
        for server in SERVERS {
            let tc = |words: &[&str]| network.run(server, &[&["tc"], words].concat());
            tc(&["qdisc", "add", "dev", "eth0", "clsact"]);
            tc(&[
                "filter",
                "add",
                "dev",
                "eth0",
                "ingress",
                "bpf",
                "da",
                "obj",
                &program,
                "sec",
                "classifier",
            ]);
        }
        routed
    }

    fn decapsulator(&self) -> String {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/dsr/decapsulate.bpf.c");
        let object = self.network.directory.path().join("decapsulate.o").display().to_string();
        let words =
            ["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-target", "bpf", "-c", source, "-o", &object];
        let output = Command::new("clang-14").args(words).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        object
    }

    /// Lets the servers announce segments that fit into the tunnel.
    pub(crate) fn limit_segments(&self) {
        let limit = |server, family: &str, route: &[&str], size| {
            self.network.ip(server, &[&[family, "route", "replace"], route, &["advmss", size]].concat());
        };
        limit(SERVERS[0], "-4", &["10.77.0.0/24", "dev", "eth0"], "1440");
        limit(SERVERS[0], "-6", &["fd77::/64", "dev", "eth0", "metric", "256"], "1400");
        limit(FAR, "-4", &["default", "via", "10.78.0.1"], "1440");
        limit(FAR, "-6", &["default", "via", "fd78::1"], "1400");
    }
}

/// A listener and a pool for each family.
pub(crate) fn config(port: u16, listener: &str, pool: &str) -> String {
    let mut text = "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
                    [process]\nuser = \"nobody\"\nworkers = 2\n"
        .to_owned();
    for (name, vip, backends) in [
        ("v4", VIP.to_owned(), ["10.77.0.14", FAR_IP]),
        ("v6", format!("[{VIP6}]"), ["[fd77::14]", "[fd78::15]"]),
    ] {
        let backends = backends.map(|ip| format!("\"{ip}:{port}\"")).join(", ");
        text.push_str(&format!(
            "[listener.{name}]\nbind = \"{vip}:{port}\"\nprotocol = \"dsr\"\nmode = \"ipip\"\ninterface = \"eth0\"\n\
             pool = \"{name}\"\n{listener}\n\
             [pool.{name}]\nbackends = [{backends}]\nbalance = \"maglev\"\n{pool}\n"
        ));
    }
    text
}

#[test]
fn http_passes_through_tunnels_with_every_offload_and_replies_go_straight_back() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    http_passes("af_packet", &OFFLOADS, &FAMILIES);
}

#[test]
fn the_same_passes_through_the_kernel_behind_the_driver() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    http_passes("tc", &OFFLOADS, &FAMILIES);
}

/// One program of this kind is on an interface. A virtual one loses checksums that are left to the card.
#[test]
fn the_same_passes_through_the_driver_if_no_checksum_is_left_to_the_card() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    FAMILIES.into_iter().for_each(|family| http_passes("xdp", &UNLOADED, &[family]));
}

fn http_passes(path: &str, offloads: &[(&str, &str)], families: &[&str]) {
    let routed = Routed::new();
    let network = &routed.network;
    let _servers = SERVERS.map(|server| network.nginx(server));
    let config = only(&config(80, &format!("data-path = \"{path}\""), PATIENT), families);
    let all = FAMILIES.into_iter().zip([VIP.to_owned(), format!("[{VIP6}]")]);
    let addresses: Vec<_> =
        all.filter(|(one, _)| families.contains(one)).map(|(_, address)| address).collect();
    if path == "xdp" {
        network.pass_in_driver(BALANCER);
        network.offload(CLIENT, "tx", "off");
    }
    let server = network.balancer(&config);
    for address in &addresses {
        eventually("both serve", secs(20), || {
            let url = format!("http://{address}/");
            let seen: BTreeSet<_> = (0..20).map(|_| network.curl(&["-m", "1", &url]).stdout).collect();
            (seen == BTreeSet::from([b"2".to_vec(), b"3".to_vec()])).then_some(())
        });
    }
    let listeners = || server.ctl_json(&["status"])["listeners"].clone();
    assert_eq!(listeners()[0]["paths"][0]["path"].as_str(), Some(path), "{:#}", listeners());
    let at = |name: &str| network.directory.path().join(name);
    fs::write(at("upload"), noise(3_000_000)).unwrap();
    let mut failures = Vec::new();
    for (segments, (tx, gro)) in offloads.iter().flat_map(|cell| [("learned", cell), ("announced", cell)]) {
        network.offload(CLIENT, "tx", tx);
        network.set_gro(gro);
        if segments == "announced" {
            routed.limit_segments();
        }
        for address in &addresses {
            let cell = format!("{path}, tx {tx}, gro {gro}, {address}, segments {segments}");
            let frames = pass(network, address, &cell, &mut failures);
            if (path, *gro, frames) == ("tc", "on", Frames::Single) {
                failures.push(format!("{cell}: no frame above the MTU"));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn dns_over_udp_passes_through_tunnels_and_long_packets_are_refused() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    ["af_packet", "tc"].into_iter().for_each(|path| dns_passes(path, &OFFLOADS, &FAMILIES));
}

#[test]
fn dns_over_udp_passes_through_tunnels_and_the_driver() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    FAMILIES.into_iter().for_each(|family| dns_passes("xdp", &UNLOADED, &[family]));
}

fn dns_passes(path: &str, offloads: &[(&str, &str)], families: &[&str]) {
    let routed = Routed::new();
    let network = &routed.network;
    let _servers = SERVERS.map(|server| unbound(network, server));
    let listener = format!("transport = \"udp\"\ndata-path = \"{path}\"");
    if path == "xdp" {
        network.pass_in_driver(BALANCER);
        network.offload(CLIENT, "tx", "off");
    }
    let server = network.balancer(&only(&config(53, &listener, "health = \"off\""), families));
    let all = FAMILIES.into_iter().zip([VIP, VIP6]);
    for (_, address) in all.filter(|(family, _)| families.contains(family)) {
        eventually("both serve", secs(20), || {
            let seen: BTreeSet<_> = (0..20).filter_map(|_| ask(network, CLIENT, address, None)).collect();
            (seen == BTreeSet::from(["2".to_owned(), "3".to_owned()])).then_some(())
        });
        for (tx, gro) in offloads {
            network.offload(CLIENT, "tx", tx);
            network.set_gro(gro);
            let answers = (0..8).filter_map(|_| ask(network, CLIENT, address, None));
            assert_eq!(answers.count(), 8, "{path}, tx {tx}, gro {gro}, {address}");
        }
        // A datagram that fills a frame of the network: the client learns that it does not fit.
        let length = if address.contains(':') { 1452 } else { 1472 };
        let script = format!(
            "import socket, sys, time\n\
             s = socket.socket(socket.AF_INET6 if ':' in '{address}' else socket.AF_INET, socket.SOCK_DGRAM)\n\
             s.connect(('{address}', 53))\n\
             s.settimeout(5)\n\
             s.setsockopt(socket.IPPROTO_IPV6 if ':' in '{address}' else 0, 23 if ':' in '{address}' else 10, 2)\n\
             end = time.time() + 10\n\
             while time.time() < end:\n\
             \x20   try:\n\
             \x20       s.send(bytes({length}))\n\
             \x20   except OSError as error:\n\
             \x20       print(s.getsockopt(*((socket.IPPROTO_IPV6, 24) if ':' in '{address}' else (0, 14))), error.errno)\n\
             \x20       sys.exit()\n"
        );
        let said = network.run(CLIENT, &["python3", "-c", &script]);
        let expected = if address.contains(':') { "1460 90" } else { "1480 90" };
        assert_eq!(said.trim(), expected, "{path} {address}: EMSGSIZE");
    }
    eventually("they are counted", secs(10), || {
        let text = String::from_utf8(server.ctl(&["dsr", "status", "--json"]).stdout).unwrap();
        text.contains("packet-too-long").then_some(())
    });
}

/// Sends datagrams of this length to the service. `discover` is a word of ip(7): 2 forbids fragments, with 5 they are as
/// long as the network of the client allows.
fn send(network: &Network, length: usize, count: usize, discover: u8) {
    let script = format!(
        "import socket\n\
         s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
         s.setsockopt(0, 10, {discover})\n\
         for _ in range({count}):\n\
         \x20   s.sendto(bytes({length}), ('{VIP}', 53))\n"
    );
    network.run(CLIENT, &["python3", "-c", &script]);
}

/// A balancer that serves DNS through tunnels by this data path, and the name servers.
fn dns(network: &Network, path: &str) -> (Server, [Running; 2]) {
    let servers = SERVERS.map(|server| unbound(network, server));
    let listener = format!("transport = \"udp\"\ndata-path = \"{path}\"");
    let server = network.balancer(&config(53, &listener, "health = \"off\""));
    eventually("it serves", secs(20), || ask(network, CLIENT, VIP, None));
    (server, servers)
}

#[test]
fn fragments_that_do_not_fit_into_a_tunnel_are_counted_also_those_without_ports() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    for path in ["af_packet", "tc"] {
        let routed = Routed::new();
        let network = &routed.network;
        let (server, _servers) = dns(network, path);
        let refused = || {
            let services = server.ctl_json(&["dsr", "status"])["services"].clone();
            services[0]["dropped"]["packet-too-long"].as_u64().unwrap_or(0)
        };
        assert_eq!(refused(), 0);
        // Two fragments of 1500 bytes and a short one.
        send(network, 4000, 5, 5);
        eventually("two of each datagram are counted", secs(20), || (refused() >= 10).then_some(()));
        assert_eq!(refused(), 10, "{path}");
    }
}

#[test]
fn a_trace_says_of_a_packet_that_does_not_fit_into_a_tunnel_that_it_was_dropped() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    for path in ["af_packet", "tc"] {
        let routed = Routed::new();
        let network = &routed.network;
        let (server, _servers) = dns(network, path);
        let file = network.directory.path().join(format!("{path}.pcapng"));
        let words = ["--service", "v4", "--from", "10.77.0.12", "--packets", "2"];
        let child = trace(&server, &file, &words);
        send(network, 1472, 1, 2);
        assert!(ask(network, CLIENT, VIP, None).is_some());
        ended(child);
        let packets = fields(&file, &["ip.len", "frame.comment"]);
        assert_eq!(packets[0][0], "1500", "{packets:?}");
        let long = "dropped: it does not fit into the tunnel to 10.7";
        assert!(
            packets[0][1].starts_with(long) && packets[0][1].contains("room for 1480 bytes"),
            "{packets:?}"
        );
        assert!(packets[1][1].starts_with("forwarded to "), "{packets:?}");
    }
}

#[test]
fn a_server_behind_a_router_is_probed_through_its_tunnel_and_routes_are_followed() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    for path in ["af_packet", "tc"] {
        let routed = Routed::new();
        let network = &routed.network;
        let _servers = SERVERS.map(|server| network.nginx(server));
        let server = network.balancer(&config(80, &format!("data-path = \"{path}\""), CHECKED));
        let far = format!("{FAR_IP}:80");
        let both = |vip: &str| {
            let url = format!("http://{vip}/");
            let seen: BTreeSet<_> = (0..20).map(|_| network.curl(&["-m", "1", &url]).stdout).collect();
            (seen == BTreeSet::from([b"2".to_vec(), b"3".to_vec()])).then_some(())
        };
        eventually("both serve", secs(20), || both(VIP));
        network.set_vip(FAR, "del", VIP);
        eventually("the one without the address is down", secs(20), || {
            let services = server.backend(&far)["services"].clone();
            services[0]["cause"].as_str()?.contains("no answer from 10.77.0.100:80").then_some(())
        });
        assert!((0..20).all(|_| network.visit(VIP) == "2"), "{path}");
        network.set_vip(FAR, "add", VIP);
        eventually("it is back", secs(20), || both(VIP));
        // Another way to it: the router has another address from now on, and another card.
        routed.router.ip(&["link", "set", "eth0", "down"]);
        routed.router.ip(&["link", "set", "eth0", "address", "02:00:00:00:77:02"]);
        routed.router.ip(&["link", "set", "eth0", "up"]);
        routed.router.ip(&["addr", "add", "10.77.0.2/24", "dev", "eth0"]);
        network.ip(BALANCER, &["route", "replace", "10.78.0.0/24", "via", "10.77.0.2"]);
        eventually("packets take it", secs(30), || both(VIP));
        network.ip(BALANCER, &["route", "del", "10.78.0.0/24"]);
        eventually("the way is missed", secs(30), || {
            let said = String::from_utf8(server.ctl(&["status"]).stdout).unwrap();
            said.contains("10.78.0.15").then_some(())
        });
        eventually("the other one has all", secs(30), || {
            (0..20)
                .all(|_| network.curl(&["-m", "1", &format!("http://{VIP}/")]).stdout == b"2")
                .then_some(())
        });
    }
}

#[test]
fn the_doctor_proves_each_tunnel() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let routed = Routed::new();
    let network = &routed.network;
    let _servers = SERVERS.map(|server| network.nginx(server));
    let file = network.directory.path().join("doctor.toml").display().to_string();
    fs::write(&file, config(80, "", CHECKED).replace("@DIR@", "/nowhere")).unwrap();
    let faults = || {
        let output = network.output(BALANCER, &[binary(), "doctor", "dsr", "--config", &file, "--json"]);
        let report: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        let services = report["services"].as_array().unwrap().clone();
        let all = services.iter().flat_map(|one| one["findings"].as_array().unwrap().clone());
        all.filter(|one| one["state"] == "fault").collect::<Vec<_>>()
    };
    eventually("both servers announce segments for the whole MTU", secs(30), || {
        let found = faults();
        let is_told = |one: &Value| {
            let mend = one["mend"][0].as_str().unwrap().contains("--mode ipip --apply   # on ");
            mend && one["text"].as_str().unwrap().contains("clients send packets of 1500 bytes, and 14")
        };
        (found.len() == 4 && found.iter().all(is_told)).then_some(())
    });
    routed.limit_segments();
    eventually("all is well", secs(30), || faults().is_empty().then_some(()));
    routed.router.ip(&["link", "set", "eth1", "mtu", "1400"]);
    let found = faults();
    assert_eq!(found.len(), 2, "of each family: {found:#?}");
    for (one, length) in found.iter().zip(["1480", "1460"]) {
        let text = one["text"].as_str().unwrap();
        assert!(one["check"] == "backend-mtu" && text.contains(&format!("none of {length} bytes")), "{text}");
    }
    routed.router.ip(&["link", "set", "eth1", "mtu", "1500"]);
    network.set_vip(FAR, "del", VIP);
    let found = faults();
    assert!(
        found[0]["mend"][0].as_str().unwrap().contains("--mode ipip --apply   # on 10.78.0.15"),
        "{found:#?}"
    );
    network.set_vip(FAR, "add", VIP);
    routed.router.ip(&["link", "set", "eth0", "down"]);
    let found = faults();
    let text = found[0]["text"].as_str().unwrap();
    assert!(
        text.contains("no machine on eth0 answers for 10.77.0.1, the router on the way to 10.78.0.15"),
        "{text}"
    );
}

/// What a set-up for tunnels may change on a machine.
fn state(network: &Network, machine: usize) -> String {
    let script = "ip -o address show dev lo | sed 's/ *valid_lft.*//'; nft list ruleset; \
                  ip -o link show tunl0 | grep -c UP; sysctl net.ipv4.conf.tunl0.rp_filter";
    network.run(machine, &["sh", "-c", script])
}

#[test]
fn a_server_is_set_up_for_tunnels_and_back() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    // In the place of the device that a kernel with tunnels makes.
    network.ip(CLIENT, &["link", "add", "tunl0", "type", "veth", "peer", "name", "other"]);
    network.run(CLIENT, &["sysctl", "-qw", "net.ipv4.conf.tunl0.rp_filter=1"]);
    let kept = network.directory.path().join("state").display().to_string();
    let penstock = |machine, words: &[&str]| {
        network.output(machine, &[&[binary(), "backend"], words, &["--vip", VIP]].concat())
    };
    let verify = || penstock(CLIENT, &["verify", "--mode", "ipip", "--interface", "eth0", "--json"]);
    let faults = || {
        let report: Value = serde_json::from_slice(&verify().stdout).unwrap();
        let all = report["findings"].as_array().unwrap().clone();
        let faults = all.iter().filter(|one| one["state"] == "fault");
        faults.map(|one| one["check"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let all = ["arp-ignore", "arp-announce", "loopback", "tunnel", "tunnel-rp-filter", "segments"];
    assert_eq!(faults(), all);
    let bare = state(&network, CLIENT);
    let setup = penstock(CLIENT, &["setup", "--mode", "ipip", "--apply", "--state", &kept]);
    assert!(setup.status.success(), "{setup:?}");
    assert_eq!(faults(), [""; 0]);
    let ready = state(&network, CLIENT);
    assert!(ready.contains("maxseg size set 1440") && ready.contains("rp_filter = 2"), "{ready}");
    let again = penstock(CLIENT, &["setup", "--mode", "ipip", "--apply", "--state", &kept]);
    let said = String::from_utf8_lossy(&again.stdout).into_owned();
    assert!(said.starts_with("ok: this server is set up for 10.77.0.100, until it starts again: "), "{said}");
    let undo = penstock(CLIENT, &["undo", "--state", &kept]);
    assert!(undo.status.success(), "{undo:?}");
    assert_eq!(state(&network, CLIENT), bare);
    // The printed script does the same, and may run again.
    let script = String::from_utf8(penstock(CLIENT, &["setup", "--mode", "ipip"]).stdout).unwrap();
    for _ in 0..2 {
        network.run(CLIENT, &["sh", "-c", &script]);
        assert_eq!(state(&network, CLIENT), ready);
    }
    let lasting = penstock(CLIENT, &["setup", "--mode", "ipip", "--persist", "netplan"]);
    let said = String::from_utf8_lossy(&lasting.stderr);
    assert!(
        lasting.status.code() == Some(2) && said.contains("--persist netplan does not know tunnels"),
        "{said}"
    );
}
