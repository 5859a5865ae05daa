//! A service without a configuration file.

use testing::tools::{self, Root};
use testing::{eventually, secs};

use super::network::{Network, SERVERS, VIP};

#[test]
fn flags_are_enough_for_a_service() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let setup = network.setup("");
    let control = setup.dir().join("control.sock");
    let listen = format!("{VIP}:80");
    let words = ["serve", "--dsr", "eth0", "--listen", &listen, "--backend", "10.77.0.14", "--backend"];
    let more = ["10.77.0.15,weight=1", "--health", "tcp", "--control", control.to_str().unwrap()];
    let server = setup.arguments(&[&words[..], &more].concat()).start();
    eventually("both serve", secs(20), || {
        let seen: Vec<_> =
            (0..8).map(|_| network.curl(&["-m", "1", &format!("http://{VIP}/")]).stdout).collect();
        (seen.contains(&b"2".to_vec()) && seen.contains(&b"3".to_vec())).then_some(())
    });
    assert_eq!(server.ctl_json(&["dsr", "status"])["services"][0]["listener"], "main");
}
