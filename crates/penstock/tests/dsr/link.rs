//! The network of a service: who else has its address, where its backends are, and what the interface takes.

use testing::tools::{self, Root};
use testing::{Server, eventually, secs};

use super::network::{BALANCER, CLIENT, Network, SERVERS, VIP, VIP6, config};

fn degraded(server: &Server) -> String {
    server.ctl_json(&["status"])["degraded"].to_string()
}

#[test]
fn a_backend_that_answers_arp_for_the_vip_is_named_until_it_does_not() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    network.run(SERVERS[0], &["sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=0"]);
    let server = network.balancer(&config(&format!("\"{VIP}:80\""), "", "health = \"off\""));
    let other = network.ethernet(SERVERS[0]);
    eventually("the other machine is named", secs(30), || {
        let part =
            format!("{other} claims {VIP}:80 of listener.web on eth0: it is the backend 10.77.0.14:80");
        degraded(&server).contains(&part).then_some(())
    });
    // Clients come here all the same, if they hear this machine last.
    assert!(
        server.ctl_json(&["status"])["degraded"]
            .to_string()
            .contains("penstock backend setup --vip 10.77.0.100")
    );
    network.run(SERVERS[0], &["sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=1"]);
    eventually("the conflict is over", secs(60), || (degraded(&server) == "[]").then_some(()));
}

#[test]
fn a_machine_with_the_ipv6_address_on_its_card_is_named() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    network.ip(SERVERS[0], &["addr", "add", &format!("{VIP6}/64"), "dev", "eth0", "nodad"]);
    let server = network.balancer(&config(&format!("\"[{VIP6}]:80\""), "", "health = \"off\""));
    let other = network.ethernet(SERVERS[0]);
    eventually("the other machine is named", secs(30), || {
        degraded(&server).contains(&format!("{other} claims [{VIP6}]:80")).then_some(())
    });
}

#[test]
fn a_backend_that_answers_no_arp_any_more_gets_nothing_until_it_does() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let server = network.balancer(&config(&format!("\"{VIP}:80\""), "", "health = \"off\""));
    let ethernet = || {
        let status = server.ctl_json(&["dsr", "status"]);
        let backends = status["services"][0]["backends"].as_array()?.clone();
        Some(backends.iter().map(|one| one["ethernet"].as_str().map(str::to_owned)).collect::<Vec<_>>())
    };
    let all = SERVERS.map(|server| Some(network.ethernet(server)));
    eventually("both are known", secs(20), || (ethernet()? == all).then_some(()));
    network.set_link(SERVERS[0], "down");
    // The kernel would ask only after half a minute.
    network.ip(BALANCER, &["neigh", "flush", "dev", "eth0"]);
    eventually("it is withdrawn", secs(30), || (ethernet()? == [None, all[1].clone()]).then_some(()));
    assert!(degraded(&server).contains("no machine on eth0 answers for 10.77.0.14"), "{}", degraded(&server));
    assert!((0..50).all(|_| network.visit(VIP) == "3"));
    network.set_link(SERVERS[0], "up");
    eventually("it is back", secs(30), || (ethernet()? == all).then_some(()));
    eventually("nothing is degraded", secs(10), || (degraded(&server) == "[]").then_some(()));
    eventually("it gets connections", secs(10), || (network.visit(VIP) == "2").then_some(()));
}

#[test]
fn backends_are_looked_for_on_the_interface_also_where_the_routing_table_leads_elsewhere() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    network.ip(BALANCER, &["link", "add", "other", "type", "veth", "peer", "name", "nobody"]);
    for link in ["other", "nobody"] {
        network.ip(BALANCER, &["link", "set", link, "up"]);
    }
    for server in SERVERS {
        network.ip(BALANCER, &["route", "add", &format!("{}/32", network.address(server)), "dev", "other"]);
    }
    let server = network.balancer(&config(&format!("\"{VIP}:80\""), "", "health = \"off\""));
    eventually("it serves", secs(20), || {
        network.curl(&["-m", "1", &format!("http://{VIP}/")]).status.success().then_some(())
    });
    assert_eq!(degraded(&server), "[]");
}

#[test]
fn the_group_of_questions_is_joined_once_the_interface_has_ipv6() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    // IPv6 needs 1280 bytes.
    network.ip(BALANCER, &["link", "set", "eth0", "mtu", "1000"]);
    let server = network.balancer(&config(&format!("\"[{VIP6}]:80\""), "", "health = \"off\""));
    eventually("what is missing is told", secs(20), || {
        degraded(&server).contains("the group for them cannot be joined on eth0").then_some(())
    });
    network.ip(BALANCER, &["link", "set", "eth0", "mtu", "1500"]);
    eventually("it is joined", secs(20), || {
        let groups = network.run(BALANCER, &["ip", "maddr", "show", "dev", "eth0"]);
        (groups.contains("ff02::1:ff00:100") && !degraded(&server).contains("joined")).then_some(())
    });
}

#[test]
fn frames_with_a_priority_and_no_vlan_in_their_tag_are_taken() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let server = network.balancer(&config(&format!("\"{VIP}:80\""), "", "health = \"off\""));
    let mac = |machine| network.ethernet(machine).replace(':', "");
    // Priority 3 and VLAN 0; then a SYN to the VIP.
    let frame = |tag: &str| {
        format!(
            "{}{}8100{tag}0800450000280001000040060000{}9c400050000000010000000050021000000000000000000000000000",
            mac(BALANCER),
            mac(CLIENT),
            "0a4d000c0a4d0064"
        )
    };
    let send = |tag| {
        let program = format!(
            "import socket; s = socket.socket(17, 3); s.bind((\"eth0\", 0)); s.send(bytes.fromhex(\"{}\"))",
            frame(tag)
        );
        network.run(CLIENT, &["python3", "-c", &program]);
    };
    let taken = || {
        let service = server.ctl_json(&["dsr", "status"])["services"][0].clone();
        Some(service["packets"].as_u64()? + service["dropped"]["packet-no-backend"].as_u64().unwrap_or(0))
    };
    eventually("the service is there", secs(20), taken);
    send("6007");
    send("6000");
    eventually("it is taken", secs(20), || (taken()? == 1).then_some(()));
}

#[test]
fn what_is_degraded_of_a_backend_goes_with_it() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let good = config(&format!("\"{VIP}:80\""), "", "health = \"off\"")
        // Root alone may read the file again.
        .replace("user = \"nobody\"\n", "");
    let server = network.balancer(&good.replace("10.77.0.15:80", "10.77.0.99:80"));
    eventually("its absence is told", secs(20), || {
        degraded(&server).contains("listener.web.10.77.0.99:80").then_some(())
    });
    server.write_config(&good.replace(", \"10.77.0.15:80\"", ""));
    assert!(server.ctl(&["reload"]).status.success());
    eventually("it is forgotten", secs(20), || (!degraded(&server).contains("10.77.0.99")).then_some(()));
    // The same for a listener.
    network.unplug(BALANCER);
    eventually("the interface is missed", secs(20), || degraded(&server).contains("eth0").then_some(()));
    network.plug(BALANCER);
    let other = good.replace(":80\"", ":81\"").replace("listener.web", "listener.other");
    server.write_config(&other);
    assert!(server.ctl(&["reload"]).status.success());
    eventually("it went with the listener", secs(20), || {
        (!degraded(&server).contains("listener.web")).then_some(())
    });
}
