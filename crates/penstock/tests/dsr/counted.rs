//! What the counters say of packets.

use testing::tools::{self, Root};
use testing::{eventually, secs};

use super::network::{BALANCER, CLIENT, Network, VIP, config};

#[test]
fn a_packet_that_the_network_card_does_not_take_is_dropped_and_not_forwarded() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    // An interface receives four bytes more than it sends: room for the tag of a VLAN.
    network.ip(BALANCER, &["link", "set", "eth0", "mtu", "1000"]);
    let listener = "data-path = \"af_packet\"\ntransport = \"udp\"";
    let server = network.balancer(&config(&format!("\"{VIP}:53\""), listener, "health = \"off\""));
    let service = || server.ctl_json(&["dsr", "status"])["services"][0].clone();
    eventually("the backends are known", secs(20), || {
        let backends = service()["backends"].as_array()?.clone();
        backends.iter().all(|one| one["ethernet"].is_string()).then_some(())
    });
    let send = |number: u64, packet: u64| {
        let program = format!(
            "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
             for _ in range({number}): s.sendto(bytes({packet} - 28), (\"{VIP}\", 53))"
        );
        network.run(CLIENT, &["python3", "-c", &program]);
    };
    let counted = || {
        let service = service();
        let dropped = service["dropped"]["packet-not-sent"].as_u64().unwrap_or(0);
        Some((service["packets"].as_u64()?, service["bytes"].as_u64()?, dropped))
    };
    send(3, 1000);
    eventually("three are forwarded", secs(20), || (counted()? == (3, 3 * 1014, 0)).then_some(()));
    send(5, 1002);
    eventually("five are told", secs(20), || (counted()?.2 == 5).then_some(()));
    assert_eq!(counted(), Some((3, 3 * 1014, 5)));
    let of_backends: u64 =
        service()["backends"].as_array().unwrap().iter().filter_map(|one| one["packets"].as_u64()).sum();
    assert_eq!(of_backends, 3);
    let metrics = |name: &str| {
        let all = server.ctl_json(&["status"])["listeners"][0][name].as_u64();
        all.unwrap_or_else(|| panic!("{}", server.ctl_json(&["status"])))
    };
    assert_eq!((metrics("packets_forwarded"), metrics("packets_dropped")), (3, 5));
}
