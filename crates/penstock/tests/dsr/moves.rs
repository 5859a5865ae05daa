//! Reloads that move a service to another interface or transport.

use testing::tools::{self, Root};
use testing::{eventually, secs};

use super::network::{BALANCER, CLIENT, Network, SERVERS, VIP, config};

fn serves(network: &Network) -> Option<()> {
    network.curl(&["-m", "1", &format!("http://{VIP}/")]).status.success().then_some(())
}

#[test]
fn a_reload_to_an_interface_that_a_start_refuses_is_refused_and_the_service_goes_on() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    for path in ["tc", "af_packet"] {
        let network = Network::new();
        let _servers = SERVERS.map(|server| network.nginx(server));
        let good = config(&format!("\"{VIP}:80\""), &format!("data-path = \"{path}\""), "health = \"off\"");
        let server = network.balancer(&good);
        eventually("it serves", secs(20), || serves(&network));
        for (interface, part) in [
            ("eth7", "there is no network interface \"eth7\": `ip link` shows them"),
            ("lo", "lo is no Ethernet interface"),
        ] {
            server.write_config(&good.replace("eth0", interface));
            let refused = server.refused(&["reload"]);
            assert!(refused.contains("listener.web: cannot listen on 10.77.0.100:80"), "{refused}");
            assert!(refused.contains(part), "{refused}");
            let refused = server.refused(&["set", "listener.web.interface", interface]);
            assert!(refused.contains(part), "{refused}");
            network.ip(CLIENT, &["neigh", "flush", "dev", "eth0"]);
            assert!((0..20).all(|_| ["2", "3"].contains(&&*network.visit(VIP))), "{path}: {interface}");
            assert_eq!(server.ctl_json(&["dsr", "status"])["services"][0]["path"], *path);
        }
        assert_eq!(server.ctl_json(&["status"])["degraded"].to_string(), "[]");
        server.write_config(&good);
        assert!(server.ctl(&["reload"]).status.success());
    }
}

#[test]
fn a_reload_to_another_interface_or_transport_moves_the_claim_of_the_address() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    network.ip(BALANCER, &["link", "add", "eth1", "type", "veth", "peer", "name", "nobody"]);
    for link in ["eth1", "nobody"] {
        network.ip(BALANCER, &["link", "set", link, "up"]);
    }
    let of = |interface: &str, transport: &str| {
        let listener = format!("data-path = \"af_packet\"\ntransport = \"{transport}\"");
        config(&format!("\"{VIP}:80\""), &listener, "health = \"off\"").replace("eth0", interface)
    };
    // The name of the claim, as a second process would bind it.
    let is_free = |interface: &str, transport: &str| {
        let program = format!(
            "import socket; socket.socket(1, 2).bind(\"\\0penstock-dsr/{interface}/{VIP}/80/{transport}\")"
        );
        network.output(BALANCER, &["python3", "-c", &program]).status.success()
    };
    let server = network.balancer(&of("eth0", "tcp"));
    assert!(!is_free("eth0", "tcp") && is_free("eth0", "udp") && is_free("eth1", "tcp"));
    server.write_config(&of("eth1", "tcp"));
    assert!(server.ctl(&["reload"]).status.success());
    assert!(!is_free("eth1", "tcp") && is_free("eth0", "tcp"), "it moved with the interface");
    server.write_config(&of("eth1", "udp"));
    assert!(server.ctl(&["reload"]).status.success());
    assert!(!is_free("eth1", "udp") && is_free("eth1", "tcp"), "it moved with the transport");
    let other = network.balancer(&of("eth0", "udp"));
    server.write_config(&of("eth0", "udp"));
    let refused = server.refused(&["reload"]);
    assert!(refused.contains("another process forwards what comes to this address on eth0"), "{refused}");
    drop(other);
    assert!(server.ctl(&["reload"]).status.success());
}
