//! What operators, and keepalived by `penstock ctl health`, are told of a service that no backend takes flows of, and of
//! one that ends.

use testing::tools::{self, Root};
use testing::{Server, eventually, secs};

use super::network::{CHECKED, Network, SERVERS, VIP, config};

/// Exit code of `ctl health`, and what it says.
fn health(server: &Server, pools: &[&str]) -> (Option<i32>, String) {
    let output = server.ctl(&[&["health"], pools].concat());
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

fn wait_for(server: &Server, pools: &[&str], code: i32, words: &str) {
    eventually(&format!("{code}: {words}; {:?}", health(server, pools)), secs(20), || {
        let (found, said) = health(server, pools);
        (found == Some(code) && said.contains(words)).then_some(())
    });
}

#[test]
fn a_service_whose_address_no_backend_accepts_is_unhealthy_and_every_view_says_so() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let server = network.balancer(&config(&format!("\"{VIP}:80\""), "", CHECKED));
    wait_for(&server, &[], 0, "healthy: it serves");
    wait_for(&server, &["app"], 0, "healthy: it serves");
    let taking = |server: &Server| server.ctl_json(&["status"])["pools"][0]["taking"][0].clone();
    eventually("both take flows", secs(20), || (taking(&server)["backends"] == 2).then_some(()));
    SERVERS.iter().for_each(|one| network.set_vip(*one, "del", VIP));
    let why = format!("no backend of pool app takes flows at {VIP}:80: `penstock ctl dsr status` says why");
    wait_for(&server, &[], 1, &why);
    wait_for(&server, &["app"], 1, &why);
    assert_eq!(taking(&server)["address"], format!("{VIP}:80"));
    for command in ["status", "backends"] {
        let said = server.said(&[command]);
        assert!(said.contains(&format!("2 of 2 backends available, 0 take flows at {VIP}:80")), "{said}");
        assert_eq!(said.matches("up, VIP not accepted").count(), 2, "{said}");
    }
    network.set_vip(SERVERS[0], "add", VIP);
    wait_for(&server, &["app"], 0, "healthy: it serves");
    let said = server.said(&["backends"]);
    assert!(said.contains(&format!("2 of 2 backends available, 1 takes flows at {VIP}:80")), "{said}");
    network.curl(&["-m", "10", &format!("http://{VIP}/")]);
    eventually("its flow is told", secs(20), || {
        (server.ctl_json(&["dsr", "status"])["services"][0]["flows"] == 1).then_some(())
    });
    let said = server.said(&["stop"]);
    let cut = format!("{VIP}:80 is no longer forwarded: ");
    assert!(said.contains(&cut), "{said}");
    server.stderr.wait_for(&cut, secs(20));
    server.stderr.wait_for("stopped: every connection through this process has ended", secs(20));
}

#[test]
fn one_of_two_addresses_that_no_backend_accepts_is_told_of_a_healthy_service() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let bind = format!("[\"{VIP}:80\", \"10.77.0.101:80\"]");
    let server = network.balancer(&config(&bind, "", CHECKED));
    let but =
        "; but no backend of pool app takes flows at 10.77.0.101:80: `penstock ctl dsr status` says why";
    wait_for(&server, &[], 0, but);
    wait_for(&server, &["app"], 0, but);
    SERVERS.iter().for_each(|one| network.set_vip(*one, "add", "10.77.0.101"));
    eventually("all is well", secs(20), || {
        let (code, said) = health(&server, &[]);
        (code == Some(0) && !said.contains("but")).then_some(())
    });
}
