//! A service on every port of its address.

use testing::tools::{self, Root};
use testing::{binary, eventually, secs};

use super::network::{BALANCER, CHECKED, CLIENT, Network, SERVERS, VIP, VIP6, config};
use super::traffic::{ask, unbound};

#[test]
fn every_port_and_transport_is_forwarded_but_those_of_a_more_specific_service() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    for path in ["tc", "af_packet"] {
        forwards(path, VIP, [VIP, "10.77.0.14", "10.77.0.15", "10.77.0.12"]);
    }
}

#[test]
fn the_same_is_so_of_an_ipv6_address() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    forwards("tc", VIP6, [&format!("[{VIP6}]"), "[fd77::14]", "[fd77::15]", "[fd77::12]"]);
}

/// An address, and how it, those of the backends and that of the client stand before a port.
fn forwards(path: &str, address: &str, [vip, first, second, client]: [&str; 4]) {
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let _dns = unbound(&network, SERVERS[1]);
    let mut config = config(&format!("\"{vip}:80\""), &format!("data-path = \"{path}\""), CHECKED)
        .replace(", \"10.77.0.15:80\"", "")
        .replace("10.77.0.14", first);
    config.push_str(&format!(
        "[listener.all]\nbind = \"{vip}:*\"\nprotocol = \"dsr\"\ninterface = \"eth0\"\n\
         data-path = \"{path}\"\ntransport = \"tcp-and-udp\"\npool = \"all\"\n\
         [pool.all]\nbackends = [\"{second}:8080\"]\nbalance = \"maglev\"\n{CHECKED}\n"
    ));
    let server = network.balancer(&config);
    let paths = server.ctl_json(&["status"])["listeners"].clone();
    assert!(paths.as_array().unwrap().iter().all(|one| one["paths"][0]["path"] == path), "{paths:#}");
    let visit = |port: u16, limit| network.curl(&["-m", limit, &format!("http://{vip}:{port}/")]).stdout;
    eventually("both serve", secs(20), || (visit(80, "1") == b"2" && visit(8080, "1") == b"3").then_some(()));
    assert!((0..20).all(|_| visit(80, "20") == b"2" && visit(8080, "20") == b"3"));
    assert_eq!(ask(&network, CLIENT, address, None).as_deref(), Some("3"));
    let explain = |port: u16, transport: &str| {
        let to = format!("{vip}:{port}");
        server.ctl_json(&["dsr", "explain", &format!("{client}:4000"), &to, transport])["listener"].clone()
    };
    assert_eq!(explain(80, "tcp"), "web");
    assert_eq!((explain(80, "udp"), explain(9, "tcp")), ("all".into(), "all".into()));
    // Seen from the balancer and from a server; the port of a backend is asked.
    let file = network.directory.path().join("every_port.toml");
    std::fs::write(&file, config.replace("tcp-and-udp", "tcp").replace("@DIR@", "/nowhere")).unwrap();
    let file = file.to_str().unwrap();
    let text = network.run(BALANCER, &[binary(), "doctor", "dsr", "--config", file]);
    assert!(text.contains(&format!("listener.all: {vip}:* on eth0\n")), "{text}");
    assert!(text.contains(&format!("{second}:8080 takes TCP connections to {vip}:8080\n")), "{text}");
    network.run(SERVERS[1], &[binary(), "backend", "verify", "--config", file]);
    // The port of a backend says where it is checked, and whether it accepts the address.
    network.set_vip(SERVERS[1], "del", address);
    eventually("it is down", secs(20), || {
        let services = server.backend(&format!("{second}:8080"))["services"].clone();
        let cause = services[0]["cause"].as_str()?.to_owned();
        cause.contains(&format!("no answer from {vip}:8080")).then_some(())
    });
}
