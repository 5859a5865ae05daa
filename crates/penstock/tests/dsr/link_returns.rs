//! The link of the balancer is lost, and comes back to a network that has changed meanwhile.

use testing::tools::{self, Root};
use testing::{Server, eventually, secs};

use super::network::{BALANCER, CLIENT, Network, SERVERS, VIP, config};

#[track_caller]
fn says(server: &Server, part: &str) {
    eventually(&format!("{part} is told"), secs(20), || {
        server.ctl_json(&["status"])["degraded"].to_string().contains(part).then_some(())
    });
}

/// The Ethernet address that the client has for the service.
fn known(network: &Network) -> Option<String> {
    let entry = network.run(CLIENT, &["ip", "neigh", "show", VIP]);
    Some(entry.split_once("lladdr ")?.1.split_whitespace().next()?.to_owned())
}

/// What would become of a packet of the client.
fn explained(server: &Server) -> (String, String) {
    let said = server.ctl_json(&["dsr", "explain", "10.77.0.12:40000", &format!("{VIP}:80"), "tcp"]);
    let word = |key: &str| said[key].as_str().unwrap().to_owned();
    (word("verdict"), word("reason"))
}

#[test]
fn an_explanation_says_that_no_packet_comes_in_while_the_link_or_the_interface_is_missing() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    for path in ["tc", "af_packet"] {
        let listener = format!("data-path = \"{path}\"");
        let server = network.balancer(&config(&format!("\"{VIP}:80\""), &listener, "health = \"off\""));
        let forwards = || (explained(&server).0 == "forward").then_some(());
        eventually("it would be forwarded", secs(20), forwards);
        let set = |change: &str| network.ip(BALANCER, &["link", "set", "eth0", change]);
        set("down");
        says(&server, "eth0 is down");
        let down = "no packet comes in: eth0 is down: `ip link set eth0 up`";
        assert_eq!(explained(&server), ("drop".to_owned(), down.to_owned()), "{path}");
        set("up");
        eventually("it would be forwarded again", secs(20), forwards);
        network.set_link(BALANCER, "down");
        says(&server, "eth0 is up and has no link");
        assert!(explained(&server).1.contains("no packet comes in: eth0 is up and has no link"), "{path}");
        network.unplug(BALANCER);
        says(&server, "there is no network interface");
        let gone = "no packet comes in: there is no network interface eth0";
        assert_eq!(explained(&server), ("drop".to_owned(), gone.to_owned()), "{path}");
        super::paths::stop(server);
        network.plug(BALANCER);
    }
}

#[test]
fn a_machine_that_took_the_address_meanwhile_keeps_it_until_it_gives_it_up() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    for (path, begins) in [("tc", "with its link"), ("af_packet", "with its link"), ("tc", "without a link")]
    {
        let network = Network::new();
        let _servers = SERVERS.map(|server| network.nginx(server));
        let listener = format!("data-path = \"{path}\"");
        let text = config(&format!("\"{VIP}:80\""), &listener, "health = \"off\"");
        let text = text.replace("\"10.77.0.14:80\", ", "");
        if begins == "without a link" {
            network.set_link(BALANCER, "down");
        }
        let server = network.balancer(&text);
        if begins == "with its link" {
            eventually("it serves", secs(20), || {
                network.curl(&["-m", "1", &format!("http://{VIP}/")]).status.success().then_some(())
            });
            network.set_link(BALANCER, "down");
        }
        says(&server, "eth0 is up and has no link");
        network.ip(SERVERS[0], &["addr", "add", &format!("{VIP}/24"), "dev", "eth0"]);
        network.ip(CLIENT, &["neigh", "flush", "dev", "eth0"]);
        assert_eq!(network.visit(VIP), "2");
        network.set_link(BALANCER, "up");
        let mac = network.ethernet(SERVERS[0]);
        says(&server, &format!("{mac} claims {VIP}:80 of listener.web on eth0 and had it before"));
        assert_eq!(known(&network).as_ref(), Some(&mac), "{path}, {begins}: nothing was announced");
        network.ip(CLIENT, &["neigh", "flush", "dev", "eth0"]);
        assert_eq!(network.visit(VIP), "2", "{path}, {begins}: nothing was answered");
        network.ip(SERVERS[0], &["addr", "del", &format!("{VIP}/24"), "dev", "eth0"]);
        eventually("it is announced", secs(20), || {
            (known(&network)? == network.ethernet(BALANCER)).then_some(())
        });
        assert_eq!(network.visit(VIP), "3", "{path}, {begins}");
    }
}

#[test]
fn clients_learn_at_once_where_the_address_is_when_the_link_is_back() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let server = network.balancer(&config(&format!("\"{VIP}:80\""), "", "health = \"off\""));
    let own = network.ethernet(BALANCER);
    let learn = |mac: &str| {
        network.ip(CLIENT, &["neigh", "replace", VIP, "lladdr", mac, "nud", "stale", "dev", "eth0"]);
    };
    learn("02:00:00:00:00:77");
    let answered = || server.ctl_json(&["dsr", "status"])["services"][0]["answered"].as_u64();
    eventually("the service is there", secs(20), answered);
    network.set_link(BALANCER, "down");
    says(&server, "eth0 is up and has no link");
    learn("02:00:00:00:00:77");
    network.set_link(BALANCER, "up");
    // The client asks nothing.
    eventually("it is announced", secs(20), || (known(&network)? == own).then_some(()));
    assert_eq!(answered(), Some(0));
}
