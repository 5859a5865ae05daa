//! Backends that do not accept the virtual address.

use serde_json::Value;
use testing::tools::{self, Root};
use testing::{Server, eventually, secs};

use super::network::{BALANCER, CHECKED, CLIENT, Network, SERVERS, VIP, VIP6, config};
use super::traffic::{ask, unbound};

/// What the probes say of a backend at an address.
fn probed(server: &Server, backend: &str, address: &str) -> Option<Value> {
    let services = server.backend(backend)["services"].as_array()?.clone();
    services.into_iter().find(|one| one["address"] == address)
}

fn state(server: &Server, backend: &str, address: &str) -> Option<String> {
    Some(probed(server, backend, address)?["state"].as_str()?.to_owned())
}

/// Waits until the probes say this of a backend.
#[track_caller]
fn wait(server: &Server, backend: &str, address: &str, wanted: &str) {
    eventually(&format!("{backend} is {wanted} at {address}"), secs(20), || {
        (state(server, backend, address)? == wanted).then_some(())
    });
}

/// Which servers answer new connections; none may fail.
fn seen(network: &Network, host: &str, requests: usize) -> Vec<String> {
    let url = format!("http://{host}/?[1-{requests}]");
    let output = network.curl(&["-m", "50", "-H", "Connection: close", "-w", "\n%{http_code}\n", &url]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(said.lines().filter(|line| *line == "200").count(), requests, "{:?}", output.stderr);
    let mut servers: Vec<_> = said.lines().filter(|line| line.len() == 1).map(str::to_owned).collect();
    servers.sort();
    servers.dedup();
    servers
}

#[test]
fn of_a_thousand_requests_none_fails_once_a_backend_that_lost_the_vip_is_down_and_it_returns_with_it() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    ["tc", "af_packet"].into_iter().for_each(|path| thousand(&network, path));
}

fn thousand(network: &Network, path: &str) {
    let (v4, v6) = (format!("{VIP}:80"), format!("[{VIP6}]:80"));
    let listener = format!("data-path = \"{path}\"");
    let server = network.balancer(&config(&format!("[\"{v4}\", \"{v6}\"]"), &listener, CHECKED));
    for address in [&v4, &v6] {
        for backend in ["10.77.0.14:80", "10.77.0.15:80"] {
            wait(&server, backend, address, "up");
        }
    }
    let hosts = [VIP.to_owned(), format!("[{VIP6}]")];
    for (vip, address, (host, other)) in
        [(VIP, &v4, (&hosts[0], &hosts[1])), (VIP6, &v6, (&hosts[1], &hosts[0]))]
    {
        network.set_vip(SERVERS[0], "del", vip);
        wait(&server, "10.77.0.14:80", address, "down");
        assert_eq!(seen(network, host, 1000), ["3"], "{address}");
        // Its own address is fine, and so is the other virtual one.
        assert_eq!(server.health("10.77.0.14:80"), "up");
        assert_eq!(seen(network, other, 100), ["2", "3"]);
        let cause = probed(&server, "10.77.0.14:80", address).unwrap()["cause"].to_string();
        assert!(cause.contains("its loopback lacks the address"), "{cause}");
        let degraded = server.ctl_json(&["status"])["degraded"].clone();
        let subject = format!("listener.web.{address}.backend.10.77.0.14:80");
        assert!(degraded[0]["subject"] == *subject && degraded[0]["reason"].to_string().contains("lacks"));
        let said = |words: &[&str]| String::from_utf8_lossy(&server.ctl(words).stdout).into_owned();
        for words in [&["events"][..], &["backends"], &["status"], &["dsr", "status"]] {
            let text = said(words).split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(text.contains("its loopback lacks the address"), "{words:?}: {text}");
        }
        network.set_vip(SERVERS[0], "add", vip);
        wait(&server, "10.77.0.14:80", address, "up");
        eventually("it takes connections again", secs(10), || {
            (seen(network, host, 50) == ["2", "3"]).then_some(())
        });
        assert_eq!(server.ctl_json(&["status"])["degraded"].as_array().map(Vec::len), Some(0));
    }
}

#[test]
fn a_server_whose_process_stopped_is_told_from_one_that_lacks_the_vip() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let [first, _second] = SERVERS.map(|server| network.nginx(server));
    let address = format!("{VIP}:80");
    let server = network.balancer(&config(&format!("\"{address}\""), "", CHECKED));
    wait(&server, "10.77.0.14:80", &address, "up");
    drop(first);
    wait(&server, "10.77.0.14:80", &address, "down");
    let cause = probed(&server, "10.77.0.14:80", &address).unwrap()["cause"].clone();
    assert_eq!(cause, "no process listens on 10.77.0.100:80");
    let _again = network.nginx(SERVERS[0]);
    wait(&server, "10.77.0.14:80", &address, "up");
}

#[test]
fn the_question_of_a_dns_check_is_asked_at_the_vip_too() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let [_first, second] = SERVERS.map(|server| unbound(&network, server));
    let check = CHECKED.replace("tcp = true", "dns = \"who.test\"");
    let (v4, v6) = (format!("{VIP}:53"), format!("[{VIP6}]:53"));
    let server = network.balancer(&config(&format!("[\"{v4}\", \"{v6}\"]"), "transport = \"udp\"", &check));
    for backend in ["10.77.0.14:53", "10.77.0.15:53"] {
        wait(&server, backend, &v4, "up");
        wait(&server, backend, &v6, "up");
    }
    network.set_vip(SERVERS[0], "del", VIP);
    wait(&server, "10.77.0.14:53", &v4, "down");
    assert!((0..50).all(|_| ask(&network, CLIENT, VIP, None).as_deref() == Some("3")));
    assert_eq!(state(&server, "10.77.0.14:53", &v6).as_deref(), Some("up"));
    network.set_vip(SERVERS[0], "add", VIP);
    wait(&server, "10.77.0.14:53", &v4, "up");
    drop(second);
    for address in [&v4, &v6] {
        wait(&server, "10.77.0.15:53", address, "down");
        // Kernels limit how many of their ICMP errors go to one address.
        eventually("the reason is known", secs(20), || {
            let cause = probed(&server, "10.77.0.15:53", address)?["cause"].clone();
            (cause == *format!("no process listens on {address}")).then_some(())
        });
    }
}

#[test]
fn without_an_own_address_the_service_goes_on_and_says_that_it_cannot_probe() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    network.ip(BALANCER, &["addr", "del", "10.77.0.13/24", "dev", "eth0"]);
    let address = format!("{VIP}:80");
    let config = config(&format!("\"{address}\""), "", CHECKED);
    let config = config.replace("10.77.0.14:80", "[fd77::14]:80").replace("10.77.0.15:80", "[fd77::15]:80");
    let server = network.balancer(&config);
    eventually("it serves", secs(20), || {
        network.curl(&["-m", "1", &format!("http://{VIP}/")]).status.success().then_some(())
    });
    eventually("it says what it needs", secs(20), || {
        let degraded = server.ctl_json(&["status"])["degraded"].to_string();
        degraded.contains("a probe needs an IPv4 address of this machine on eth0").then_some(())
    });
    assert_eq!(state(&server, "[fd77::14]:80", &address).as_deref(), Some("unchecked"));
    network.ip(BALANCER, &["addr", "add", "10.77.0.13/24", "dev", "eth0"]);
    wait(&server, "[fd77::14]:80", &address, "up");
    assert_eq!(server.ctl_json(&["status"])["degraded"].as_array().map(Vec::len), Some(0));
}

#[test]
fn a_pool_of_a_dsr_and_an_http_listener_has_one_health_and_the_vip_counts_for_one_alone() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let [first, _second] = SERVERS.map(|server| network.nginx(server));
    let address = format!("{VIP}:80");
    let config = config(&format!("\"{address}\""), "", CHECKED).replace(
        "[pool.app]",
        "[listener.site]\nbind = \"10.77.0.13:8000\"\nprotocol = \"http\"\npool = \"app\"\n[pool.app]",
    );
    // The proxy chooses by the address of the client.
    let clients: Vec<_> = (120..136).map(|number| format!("10.77.0.{number}")).collect();
    clients.iter().for_each(|own| network.ip(CLIENT, &["addr", "add", &format!("{own}/32"), "dev", "eth0"]));
    let server = network.balancer(&config);
    let backends = ["10.77.0.14:80", "10.77.0.15:80"];
    backends.iter().for_each(|backend| wait(&server, backend, &address, "up"));
    let both = ["2".to_owned(), "3".to_owned()];
    let proxied = || -> Vec<String> {
        let visit = |own: &String| {
            let output = network.curl(&["-m", "10", "-f", "--interface", own, "http://10.77.0.13:8000/"]);
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        let mut servers: Vec<_> = clients.iter().map(visit).collect();
        servers.sort();
        servers.dedup();
        servers
    };
    assert_eq!((seen(&network, VIP, 50), proxied()), (both.to_vec(), both.to_vec()));
    // The check fails: for both.
    drop(first);
    eventually("it is down", secs(20), || (server.health("10.77.0.14:80") == "down").then_some(()));
    wait(&server, "10.77.0.14:80", &address, "down");
    assert_eq!((seen(&network, VIP, 50), proxied()), (vec!["3".to_owned()], vec!["3".to_owned()]));
    let _again = network.nginx(SERVERS[0]);
    wait(&server, "10.77.0.14:80", &address, "up");
    eventually("both take requests again", secs(20), || {
        (seen(&network, VIP, 50) == both && proxied() == both).then_some(())
    });
    // The address is missing: for the listener that has it.
    network.set_vip(SERVERS[0], "del", VIP);
    wait(&server, "10.77.0.14:80", &address, "down");
    assert_eq!((seen(&network, VIP, 50), proxied()), (vec!["3".to_owned()], both.to_vec()));
    assert_eq!(server.health("10.77.0.14:80"), "up");
}
