//! Two balancers with one service: only the owner of the address answers for it, and flows stay where they are when the
//! other one takes it over.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use testing::server::binary;
use testing::tools::{self, Root};
use testing::{Server, eventually, secs};

use super::downloads::Downloads;
use super::network::{BALANCER, CLIENT, Network, PATIENT, Running, SERVERS, VIP, VIP6, config};
use super::trace::{ended, fields, trace};

const OWNER: &str = "169.254.77.10";

/// A network with a second machine for a balancer, and its servers.
fn two_balancers() -> (Network, [usize; 2], [Running; 2]) {
    let mut network = Network::new();
    let machines = [BALANCER, network.add_balancer()];
    let servers = SERVERS.map(|server| network.nginx(server));
    (network, machines, servers)
}

/// Whether a balancer answers for the address, as it says itself.
fn ownership(server: &Server) -> Option<String> {
    let services = server.ctl_json(&["dsr", "status"])["services"].as_array()?.clone();
    let words: Vec<_> = services.iter().filter_map(|one| one["ownership"].as_str()).collect();
    let first = (*words.first()?).to_owned();
    words.iter().all(|word| *word == first).then_some(first)
}

#[track_caller]
fn becomes(server: &Server, word: &str) {
    eventually(&format!("it is {word}"), secs(20), || (ownership(server)? == word).then_some(()));
}

/// The Ethernet address that the client has for the service.
fn known(network: &Network) -> Option<String> {
    let entry = network.run(CLIENT, &["ip", "neigh", "show", VIP]);
    Some(entry.split_once("lladdr ")?.1.split_whitespace().next()?.to_owned())
}

fn visits(network: &Network, host: &str) -> bool {
    network.curl(&["-m", "1", &format!("http://{host}/")]).status.success()
}

/// The same with the time that a busy machine needs, where a visit must not fail.
fn must_visit(network: &Network, host: &str) -> bool {
    network.curl(&["-m", "20", &format!("http://{host}/")]).status.success()
}

#[test]
fn a_balancer_answers_for_the_address_only_while_it_has_the_owner_address() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    for path in ["tc", "af_packet"] {
        let network = Network::new();
        let _servers = SERVERS.map(|server| network.nginx(server));
        let listener = format!("data-path = \"{path}\"\nowner-address = \"{OWNER}\"");
        let bind = format!("[\"{VIP}:80\", \"[{VIP6}]:80\"]");
        let server = network.balancer(&config(&bind, &listener, "health = \"off\""));
        becomes(&server, "standby");
        assert!(server.said(&["dsr", "status"]).contains("STANDBY"));
        for host in [VIP.to_owned(), format!("[{VIP6}]")] {
            assert!(!visits(&network, &host), "{host}: nobody answers for the address");
        }
        let file = network.directory.path().join(format!("{path}.pcapng"));
        let words = ["--service", &format!("{VIP}:80"), "--from", "10.77.0.12", "--packets", "1"];
        let mut child = trace(&server, &file, &words);
        // A client that has just asked waits before it asks again.
        eventually("a question is in the trace", secs(40), || {
            assert!(!visits(&network, VIP));
            child.try_wait().unwrap().map(drop)
        });
        ended(child);
        let packets = fields(&file, &["arp.dst.proto_ipv4", "frame.comment"]);
        assert_eq!(packets[0][0], VIP, "{packets:?}");
        assert!(packets[0][1].starts_with("passed over: it asks who has the address"), "{packets:?}");
        network.ip(BALANCER, &["addr", "add", &format!("{OWNER}/32"), "dev", "lo"]);
        becomes(&server, "owner");
        for host in [VIP.to_owned(), format!("[{VIP6}]")] {
            eventually(&format!("{host} is served"), secs(20), || visits(&network, &host).then_some(()));
        }
        let events = server.said(&["events"]);
        assert!(
            events.contains(&format!("takes {VIP} over")) && events.contains(&format!("takes {VIP6} over"))
        );
        network.ip(BALANCER, &["addr", "del", &format!("{OWNER}/32"), "dev", "lo"]);
        becomes(&server, "standby");
        // What a client still sends is forwarded.
        let mac = network.ethernet(BALANCER);
        network.ip(CLIENT, &["neigh", "replace", VIP, "lladdr", &mac, "nud", "permanent", "dev", "eth0"]);
        assert!((0..10).all(|_| must_visit(&network, VIP)));
        network.ip(CLIENT, &["neigh", "del", VIP, "dev", "eth0"]);
        eventually("nobody answers any more", secs(20), || (!visits(&network, VIP)).then_some(()));
        assert!(server.said(&["events"]).contains(&format!("releases {VIP}")));
        assert_eq!(server.ctl_json(&["status"])["degraded"].to_string(), "[]");
    }
}

/// Starts keepalived with the recipe, for a balancer.
fn keepalived(network: &Network, machine: usize, server: &Server) -> Running {
    let at = |name: &str| server.dir.path().join(name).display().to_string();
    let recipe = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/keepalived-dsr.conf");
    let script = format!("{} ctl --timeout 20 --socket {} health", binary(), at("control.sock"));
    let text = fs::read_to_string(recipe).unwrap();
    let text = text.replace("/usr/bin/penstock ctl --timeout 1 health", &script);
    // On a busy machine, which may run none of these programs for seconds, both would become owners, or the owner would not.
    let text = text.replace("advert_int 0.2", "advert_int 2").replace("    timeout 2\n", "    timeout 30\n");
    assert!(text.contains(&script) && text.contains(OWNER), "{text}");
    assert!(text.contains("advert_int 2\n") && text.contains("timeout 30\n"), "{text}");
    fs::write(at("keepalived.conf"), text).unwrap();
    let log = fs::File::create(at("keepalived.log")).unwrap();
    let mut command = network.command(machine, &["keepalived", "-n", "-l", "-D", "-P"]);
    command.args(["-f", &at("keepalived.conf"), "-p", &at("keepalived.pid"), "-r", &at("vrrp.pid")]);
    Running(command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap())
}

#[test]
fn two_hundred_downloads_stay_where_they_are_when_the_other_balancer_takes_over() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let (network, machines, _servers) = two_balancers();
    let key = network.directory.path().join("key");
    fs::write(&key, "0123456789abcdef0123456789abcdef").unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let listener = format!("owner-address = \"{OWNER}\"\nhash-key-file = \"{}\"", key.display());
    let config = config(&format!("\"{VIP}:80\""), &listener, PATIENT);
    // Root alone may read the key.
    let config = config.replace("user = \"nobody\"\n", "");
    let servers = machines.map(|machine| network.machine(machine).setup(&config).start());
    for server in &servers {
        eventually("it knows its backends", secs(30), || {
            let backends = server.ctl_json(&["dsr", "status"])["services"][0]["backends"].as_array()?.clone();
            let is_good =
                |one: &serde_json::Value| one["vip"]["state"] == "up" && one["ethernet"].is_string();
            (backends.len() == 2 && backends.iter().all(is_good)).then_some(())
        });
        becomes(server, "standby");
    }
    // One after the other: keepalived decides between two that begin at once only when both have the address.
    let _first = keepalived(&network, machines[0], &servers[0]);
    becomes(&servers[0], "owner");
    let _second = keepalived(&network, machines[1], &servers[1]);
    let (owner, other) = (0, 1);
    eventually("it serves", secs(20), || visits(&network, VIP).then_some(()));
    let downloads = Downloads::begin(&network);
    assert_eq!(known(&network), Some(network.ethernet(machines[owner])), "the owner alone answers");
    downloads.assert_all_run_where_they_began();

    network.set_link(machines[owner], "down");
    becomes(&servers[other], "owner");
    eventually("the client knows it", secs(20), || {
        (known(&network)? == network.ethernet(machines[other])).then_some(())
    });
    becomes(&servers[owner], "standby");
    eventually("it serves", secs(20), || visits(&network, VIP).then_some(()));
    downloads.assert_all_run_where_they_began();
    // The first one comes back, and does not disturb.
    network.set_link(machines[owner], "up");
    downloads.assert_all_end_whole();
    assert_eq!(ownership(&servers[owner]).as_deref(), Some("standby"));
    assert_eq!(known(&network), Some(network.ethernet(machines[other])));
    for server in &servers {
        assert!(!server.said(&["events"]).contains("claims"), "both never answered at once");
    }
}

#[test]
fn a_planned_take_over_is_at_once_and_neither_balancer_tells_of_a_conflict() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let (network, machines, _servers) = two_balancers();
    let listener = format!("owner-address = \"{OWNER}\"");
    let config = config(&format!("\"{VIP}:80\""), &listener, "health = \"off\"");
    let servers = machines.map(|machine| network.machine(machine).setup(&config).start());
    servers.iter().for_each(|server| becomes(server, "standby"));
    let give = |machine: usize, verb: &str| {
        network.ip(machine, &["addr", verb, &format!("{OWNER}/32"), "dev", "lo"]);
    };
    give(machines[0], "add");
    becomes(&servers[0], "owner");
    eventually("it serves", secs(20), || visits(&network, VIP).then_some(()));
    for (from, to) in [(0, 1), (1, 0)] {
        // For a moment both have it.
        give(machines[to], "add");
        give(machines[from], "del");
        eventually("the client knows the new owner", secs(20), || {
            (known(&network)? == network.ethernet(machines[to])).then_some(())
        });
        becomes(&servers[from], "standby");
        becomes(&servers[to], "owner");
        assert!((0..10).all(|_| must_visit(&network, VIP)));
    }
    for server in &servers {
        let events = server.said(&["events"]);
        assert!(!events.contains("claims"), "{events}");
    }
    // Two owners that stay are one.
    give(machines[1], "add");
    eventually("the conflict is told", secs(30), || {
        let all = servers.iter().map(|server| server.ctl_json(&["status"])["degraded"].to_string());
        all.into_iter().any(|text| text.contains("claims 10.77.0.100:80")).then_some(())
    });
}
