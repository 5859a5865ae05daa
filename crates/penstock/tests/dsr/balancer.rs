//! The balancer itself while it serves: its interfaces, its link, its kernel, and who else has the address.

use testing::tools::{self, Root};
use testing::{Server, eventually, secs};

use super::network::{BALANCER, CHECKED, CLIENT, Network, SERVERS, VIP, VIP6, config};

fn degraded(server: &Server) -> String {
    server.ctl_json(&["status"])["degraded"].to_string()
}

#[track_caller]
fn says(server: &Server, part: &str) {
    eventually(&format!("{part} is told"), secs(20), || degraded(server).contains(part).then_some(()));
}

#[track_caller]
fn is_well(server: &Server) {
    eventually("nothing is degraded", secs(30), || (degraded(server) == "[]").then_some(()));
}

fn serves(network: &Network) -> Option<()> {
    network.curl(&["-m", "1", &format!("http://{VIP}/")]).status.success().then_some(())
}

/// The Ethernet address that the client has for the service.
fn known(network: &Network) -> Option<String> {
    let entry = network.run(CLIENT, &["ip", "neigh", "show", VIP]);
    Some(entry.split_once("lladdr ")?.1.split_whitespace().next()?.to_owned())
}

#[test]
fn the_address_on_the_balancer_and_forwarding_of_its_kernel_are_told_as_long_as_they_last() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    for (path, consequence) in [("tc", "the next start of penstock is refused"), ("af_packet", "with resets")]
    {
        let network = Network::new();
        let bind = format!("[\"{VIP}:80\", \"[{VIP6}]:80\"]");
        let listener = format!("data-path = \"{path}\"");
        let server = network.balancer(&config(&bind, &listener, "health = \"off\""));
        is_well(&server);
        for (vip, prefix) in [(VIP, 32), (VIP6, 128)] {
            network.ip(BALANCER, &["addr", "add", &format!("{vip}/{prefix}"), "dev", "lo"]);
            says(&server, &format!("lo of this machine has {vip} now: its kernel answers "));
            says(&server, &format!("{consequence}: `ip address del {vip}/{prefix} dev lo`"));
            network.ip(BALANCER, &["addr", "del", &format!("{vip}/{prefix}"), "dev", "lo"]);
            is_well(&server);
        }
        let events = server.said(&["events"]);
        assert!(events.contains("of this machine has") && events.contains("works again"), "{events}");
        network.run(BALANCER, &["sysctl", "-qw", "net.ipv4.ip_forward=1"]);
        if path == "tc" {
            // The program takes packets before that.
            assert_eq!(degraded(&server), "[]");
            continue;
        }
        says(&server, "`sysctl -w net/ipv4/conf/eth0/forwarding=0`");
        network.run(BALANCER, &["sysctl", "-qw", "net.ipv4.ip_forward=0"]);
        is_well(&server);
        network.run(BALANCER, &["sysctl", "-qw", "net.ipv6.conf.eth0.forwarding=1"]);
        says(&server, "`sysctl -w net/ipv6/conf/eth0/forwarding=0`");
        network.run(BALANCER, &["sysctl", "-qw", "net.ipv6.conf.eth0.forwarding=0"]);
        is_well(&server);
    }
}

#[test]
fn the_address_of_another_machine_is_neither_announced_nor_answered_until_it_is_given_up() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    for path in ["tc", "af_packet"] {
        let network = Network::new();
        let _servers = SERVERS.map(|server| network.nginx(server));
        // A machine that is no backend has it.
        network.ip(SERVERS[0], &["addr", "add", &format!("{VIP}/24"), "dev", "eth0"]);
        assert_eq!(network.visit(VIP), "2");
        let mac = network.ethernet(SERVERS[0]);
        assert_eq!(known(&network).as_ref(), Some(&mac));
        let listener = format!("data-path = \"{path}\"");
        let text = config(&format!("\"{VIP}:80\""), &listener, "health = \"off\"");
        let server = network.balancer(&text.replace("\"10.77.0.14:80\", ", ""));
        says(&server, &format!("{mac} claims {VIP}:80 of listener.web on eth0 and had it before"));
        assert_eq!(known(&network).as_ref(), Some(&mac), "nothing was announced");
        for _ in 0..3 {
            network.ip(CLIENT, &["neigh", "flush", "dev", "eth0"]);
            assert_eq!(network.visit(VIP), "2");
        }
        assert_eq!(known(&network), Some(mac), "nothing was answered");
        assert_eq!(server.ctl_json(&["dsr", "status"])["services"][0]["answered"], 0);
        network.ip(SERVERS[0], &["addr", "del", &format!("{VIP}/24"), "dev", "eth0"]);
        eventually("it is announced", secs(20), || {
            (known(&network)? == network.ethernet(BALANCER)).then_some(())
        });
        assert_eq!(network.visit(VIP), "3");
        is_well(&server);
    }
}

#[test]
fn our_own_link_and_a_silent_backend_are_not_told_as_a_missing_address() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let server = network.balancer(&config(&format!("\"{VIP}:80\""), "", CHECKED));
    let health = |state: &str| {
        let all = ["10.77.0.14:80", "10.77.0.15:80"];
        all.iter().all(|backend| server.health(backend) == state).then_some(())
    };
    eventually("both are up", secs(20), || health("up"));
    eventually("it serves", secs(20), || serves(&network));
    is_well(&server);
    network.set_link(BALANCER, "down");
    says(&server, "eth0 is up and has no link");
    eventually("both are down", secs(20), || health("down"));
    says(&server, "no healthy backend: packets of the dsr listeners are dropped");
    network.set_link(BALANCER, "up");
    network.run(BALANCER, &["ip", "link", "set", "eth0", "down"]);
    says(&server, "eth0 is down, and nothing is known of its backends: `ip link set eth0 up`");
    network.run(BALANCER, &["ip", "link", "set", "eth0", "up"]);
    network.ip(BALANCER, &["addr", "replace", "fd77::13/64", "dev", "eth0"]);
    is_well(&server);
    eventually("it serves again", secs(20), || serves(&network));
    let events = server.said(&["events"]);
    assert!(!events.contains("loopback lacks") && !events.contains("no machine on eth0"), "{events}");
    // The link of a backend.
    network.set_link(SERVERS[0], "down");
    let subject = format!("listener.web.{VIP}:80.backend.10.77.0.14:80");
    eventually("the backend is told as silent", secs(20), || {
        let all = server.ctl_json(&["status"])["degraded"].clone();
        let one = all.as_array()?.iter().find(|one| one["subject"] == *subject)?.clone();
        one["reason"].as_str()?.contains("its own address fails the check, too").then_some(())
    });
    network.set_link(SERVERS[0], "up");
    is_well(&server);
}

#[test]
fn a_backend_that_is_the_balancer_itself_is_told() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _server = network.nginx(SERVERS[1]);
    let text = config(&format!("\"{VIP}:80\""), "", "health = \"off\"");
    let server = network.balancer(&text.replace("10.77.0.14", "10.77.0.13"));
    says(&server, "10.77.0.13 is an address of this machine: packets reach only backends on other machines");
    eventually("the other one serves", secs(20), || serves(&network));
}
