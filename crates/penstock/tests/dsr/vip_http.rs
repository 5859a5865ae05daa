//! An HTTP check asks through the virtual address as well: a backend that accepts connections there, and answers requests
//! with errors, gets no clients.

use std::fs;

use serde_json::Value;
use testing::tools::{self, Root};
use testing::{Server, eventually, secs};

use super::network::{BALANCER, Network, SERVERS, VIP, VIP6, config, host};
use super::tunnel::{self, Routed};

const CHECKED: &str = "health = { http = \"/\", interval = \"1s\", timeout = \"1s\", rise = 1, fall = 2 }";

/// State and cause of a backend at an address.
fn probed(server: &Server, backend: &str, address: &str) -> Option<(String, String)> {
    let services = server.backend(backend)["services"].as_array()?.clone();
    let one = services.into_iter().find(|one| one["address"] == address)?;
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Some((word(&one["state"]), word(&one["cause"])))
}

#[track_caller]
fn wait(server: &Server, backend: &str, address: &str, (state, cause): (&str, &str)) {
    eventually(&format!("{backend} is {state} at {address}: {cause}"), secs(20), || {
        let (now, why) = probed(server, backend, address)?;
        (now == state && why.contains(cause)).then_some(())
    });
}

/// Breaks what a server answers at an address, and mends it.
fn breaks(network: &Network, server: &Server, (backend, vip, address): (&str, &str, &str)) {
    let broken = network.root(SERVERS[0]).join(format!("broken-{vip}"));
    wait(server, backend, address, ("up", ""));
    fs::write(&broken, "").unwrap();
    wait(server, backend, address, ("down", "HTTP 503"));
    assert_eq!(server.health(backend), "up", "its own address");
    for _ in 0..20 {
        assert_eq!(network.visit(&host(vip)), "3");
    }
    fs::remove_file(&broken).unwrap();
    wait(server, backend, address, ("up", ""));
}

#[test]
fn a_backend_that_answers_with_errors_at_the_virtual_address_gets_no_clients_until_it_does_not() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let mut servers = SERVERS.map(|server| Some(network.nginx(server)));
    // A RST of this machine's kernel would find the server.
    let mac = network.ethernet(SERVERS[0]);
    for vip in [VIP, VIP6] {
        network.ip(BALANCER, &["neigh", "replace", vip, "lladdr", &mac, "dev", "eth0", "nud", "permanent"]);
    }
    let bind = format!("[\"{VIP}:80\", \"[{VIP6}]:80\"]");
    for path in ["tc", "af_packet"] {
        let server = network.balancer(&config(&bind, &format!("data-path = \"{path}\""), CHECKED));
        for (vip, address) in [(VIP, format!("{VIP}:80")), (VIP6, format!("[{VIP6}]:80"))] {
            breaks(&network, &server, ("10.77.0.14:80", vip, &address));
        }
        if path == "af_packet" {
            // Where no process listens that is told as before.
            drop(servers[0].take());
            wait(
                &server,
                "10.77.0.14:80",
                &format!("{VIP}:80"),
                ("down", "no process listens on 10.77.0.100:80"),
            );
        }
        super::paths::stop(server);
    }
}

#[test]
fn the_same_is_so_through_tunnels() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let routed = Routed::new();
    routed.limit_segments();
    let _servers = SERVERS.map(|server| routed.network.nginx(server));
    let server = routed.network.balancer(&tunnel::config(80, "", CHECKED));
    for (backend, vip, address) in
        [("10.77.0.14:80", VIP, format!("{VIP}:80")), ("[fd77::14]:80", VIP6, format!("[{VIP6}]:80"))]
    {
        breaks(&routed.network, &server, (backend, vip, &address));
    }
}
