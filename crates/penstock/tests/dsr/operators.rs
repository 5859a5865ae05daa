//! `penstock ctl dsr`: how services stand, and what would happen with a packet.

use testing::tools::{self, Root};
use testing::{eventually, secs};

use super::network::{CHECKED, Network, SERVERS, VIP, VIP6, config};

#[test]
fn services_are_shown_and_what_is_explained_of_a_packet_is_what_happens() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    for (path, ports) in [("tc", 41_000..41_008), ("af_packet", 42_000..42_008)] {
        show_and_explain(&network, path, ports);
    }
}

fn show_and_explain(network: &Network, path: &str, ports: std::ops::Range<u16>) {
    let bind = format!("[\"{VIP}:80\", \"[{VIP6}]:80\"]");
    let server = network.balancer(&config(&bind, &format!("data-path = \"{path}\""), CHECKED));
    let services = || server.ctl_json(&["dsr", "status"])["services"].clone();
    eventually("all accept the addresses", secs(20), || {
        let services = services();
        let services = services.as_array().filter(|all| all.len() == 2)?;
        let backends: Vec<_> = services.iter().flat_map(|one| one["backends"].as_array().unwrap()).collect();
        let known = |one: &&serde_json::Value| one["vip"]["state"] == "up" && one["ethernet"].is_string();
        // Those of a service that was not looked at yet are none.
        (backends.iter().filter(|one| known(one)).count() == 4).then_some(())
    });
    let before = services()[0].clone();
    assert_eq!((&before["path"], &before["interface"]), (&path.into(), &"eth0".into()), "{before:#}");
    assert_eq!(before["flows"], 0, "{before:#}");
    let target = format!("{VIP}:80");
    let explain =
        |port: u16| server.ctl_json(&["dsr", "explain", &format!("10.77.0.12:{port}"), &target, "tcp"]);
    let vip = format!("{VIP}:4000");
    let refused = server.refused(&["dsr", "explain", &vip, &target, "tcp"]);
    assert!(refused.contains("is the address of a service, and no client sends from it"), "{refused}");
    let refused = server.refused(&["why", &format!("http://{VIP}/")]);
    let hint = "listener.web forwards the packets of this port; penstock ctl dsr explain tells";
    assert!(refused.contains(hint), "{refused}");
    // A connection from each port comes to the backend that was explained.
    for port in ports.clone() {
        let said = explain(port);
        assert_eq!(
            (&said["verdict"], &said["flow"]),
            (&"forward".into(), &serde_json::Value::Null),
            "{said:#}"
        );
        let range = format!("{port}-{port}");
        let output = network.curl(&["-m", "10", "--local-port", &range, &format!("http://{VIP}/")]);
        let name = if said["backend"] == "10.77.0.14:80" { "2" } else { "3" };
        assert_eq!(String::from_utf8_lossy(&output.stdout), name, "{said:#}");
        let known = explain(port);
        assert_eq!(known["flow"]["backend"], said["backend"], "{known:#}");
        assert!(known["reason"].to_string().contains("the flow is remembered"), "{known:#}");
    }
    eventually("the packets are counted", secs(10), || {
        let after = services()[0].clone();
        (after["packets"].as_u64()? > 8 && after["flows"].as_u64()? >= 8).then_some(())
    });
    let said = |words: &[&str]| {
        let output = server.ctl(words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let text = said(&["dsr", "status"]);
    let service = format!("SERVICE 10.77.0.100:80 tcp (listener.web): by {path}, eth0");
    for part in [&*service, "accepted", "flows 8 of"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let text = said(&["dsr", "explain", &format!("10.77.0.12:{}", ports.start), &target, "tcp"]);
    assert!(text.contains("flow: remembered for 10.77.0.1") && text.contains("=> forwarded to"), "{text}");
    // A flow of a backend that is down goes to the other one.
    let of_first = ports.clone().find(|port| explain(*port)["flow"]["backend"] == "10.77.0.14:80");
    if let Some(port) = of_first {
        network.set_vip(SERVERS[0], "del", VIP);
        eventually("the flow is told as moved", secs(20), || {
            let said = explain(port);
            let is_moved =
                said["reason"].as_str()?.contains("the flow is remembered, but its backend is down");
            (is_moved && said["backend"] == "10.77.0.15:80").then_some(())
        });
        network.set_vip(SERVERS[0], "add", VIP);
    }
    for (words, part) in [
        (["10.77.0.12:1", "10.77.0.101:80", "tcp"], "no dsr listener has the address 10.77.0.101"),
        (["10.77.0.12:1", "10.77.0.100:80", "udp"], "there are: 10.77.0.100:80 tcp"),
        (["10.77.0.12:1", "10.77.0.100:81", "tcp"], "there are: 10.77.0.100:80 tcp"),
    ] {
        let text = said(&[&["dsr", "explain"][..], &words].concat());
        assert!(text.contains(part), "{text}");
    }
    for (words, part) in [
        (["10.77.0.12", "10.77.0.100:80", "tcp"], "\"10.77.0.12\" is no address and port"),
        (["10.77.0.12:1", "[fd77::100]:80", "tcp"], "both addresses"),
        (["10.77.0.12:1", "10.77.0.100:80", "sctp"], "tcp or udp"),
    ] {
        let refused = server.ctl(&[&["dsr", "explain"][..], &words].concat());
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && text.contains(part), "{text}");
    }
}
