//! `penstock serve --commit-confirm`: what becomes of a service that no operator confirms.

use testing::tools::{self, Root};
use testing::{Server, eventually, secs};

use super::network::{CLIENT, Network, SERVERS, VIP, config};
use super::paths::{ends, stop};
use super::survival::link;

fn started(network: &Network, path: &str, limit: &str) -> Server {
    let listener = format!("data-path = \"{path}\"\nat-stop = \"keep\"");
    let setup =
        network.setup_with_all_files(&config(&format!("\"{VIP}:80\""), &listener, "health = \"off\""));
    let file = setup.dir().join("penstock.toml");
    let words = ["serve", "--config", file.to_str().unwrap(), "--commit-confirm", limit];
    setup.arguments(&words).start()
}

fn status(server: &Server) -> serde_json::Value {
    server.ctl_json(&["status"])
}

#[test]
fn a_start_that_nobody_confirms_gives_its_services_up() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    for path in ["tc", "af_packet"] {
        let network = Network::new();
        let _servers = SERVERS.map(|server| network.nginx(server));
        // Long enough to be seen before it is over, on a busy machine too.
        let mut server = started(&network, path, "25s");
        eventually("it serves", secs(24), || {
            network.curl(&["-m", "1", &format!("http://{VIP}/")]).status.success().then_some(())
        });
        let said = status(&server)["pending"]["lines"].to_string();
        assert!(
            said.contains("dsr listeners are given up in") && said.contains("penstock ctl confirm"),
            "{said}"
        );
        assert_eq!(link(&network, "tc").exists(), path == "tc");
        eventually("it is given up", secs(60), || {
            let degraded = status(&server)["degraded"].to_string();
            degraded.contains("the start was not confirmed within 25 s").then_some(())
        });
        ends(&network);
        assert!(!link(&network, "tc").exists(), "the program has gone");
        network.ip(CLIENT, &["neigh", "flush", "dev", "eth0"]);
        ends(&network);
        let entry = network.run(CLIENT, &["ip", "neigh", "show", VIP]);
        assert!(!entry.contains("lladdr"), "nobody answers for the address: {entry}");
        let said = server.said(&["dsr", "status"]);
        assert!(said.contains("are given up: the start was not confirmed in time"), "{said}");
        let said = server.said(&["dsr", "explain", "10.77.0.12:40000", "10.77.0.100:80", "tcp"]);
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains("passed over: the services of dsr listeners are given up"), "{said}");
        assert!(
            server.refused(&["health"]).contains("unhealthy: the services of dsr listeners are given up")
        );
        let late = server.refused(&["confirm"]);
        assert!(late.contains("the time for it is over"), "{late}");
        let events = server.said(&["events"]);
        assert!(events.contains("the start was not confirmed"), "{events}");
        server.assert_running();
    }
}

#[test]
fn a_start_that_an_operator_confirms_stays() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let server = started(&network, "tc", "15");
    assert_eq!(server.said(&["confirm"]), "the start is confirmed\n");
    let began = std::time::Instant::now();
    assert!(server.refused(&["confirm"]).contains("confirm"), "there is nothing more to confirm");
    eventually("it serves, also when the time is over", secs(40), || {
        let serves = network.curl(&["-m", "1", &format!("http://{VIP}/")]).status.success();
        (serves && began.elapsed() > secs(17)).then_some(())
    });
    assert!(link(&network, "tc").exists() && status(&server)["degraded"].as_array().unwrap().is_empty());
    assert!(server.said(&["events"]).contains("the start is confirmed by"), "it is told who did");
    stop(server);
    // at-stop = "keep"
    assert!(link(&network, "tc").exists());
    let other = config(&format!("\"{VIP}:80\""), "data-path = \"af_packet\"", "health = \"off\"");
    let _server = network.balancer_with_all_files(&other);
    eventually("a start with another path takes it away", secs(20), || {
        (!link(&network, "tc").exists()).then_some(())
    });
}

#[test]
fn a_stop_before_the_confirmation_keeps_no_program() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let server = started(&network, "tc", "120s");
    eventually("it serves", secs(40), || {
        network.curl(&["-m", "1", &format!("http://{VIP}/")]).status.success().then_some(())
    });
    assert!(link(&network, "tc").exists());
    stop(server);
    assert!(!link(&network, "tc").exists(), "at-stop = \"keep\" is for what was confirmed");
    ends(&network);
}

#[test]
fn a_start_that_nobody_could_confirm_is_refused() {
    let refused = |config: &str| {
        let setup = testing::server::Setup::new(config);
        let file = setup.dir().join("penstock.toml");
        let words = ["serve", "--config", file.to_str().unwrap(), "--commit-confirm", "60s"];
        let output = setup.arguments(&words).output();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let other = "[control]\nsocket = \"@DIR@/c\"\n[listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\n\
                 pool = \"app\"\n[pool.app]\nbackends = [\"127.0.0.1:1\"]\n";
    let text = refused(other);
    assert!(text.contains("--commit-confirm is for the services of dsr listeners"), "{text}");
    let text = refused(
        &config(&format!("\"{VIP}:80\""), "", "").replace("[control]\nsocket = \"@DIR@/control.sock\"\n", ""),
    );
    assert!(text.contains("--commit-confirm needs a control socket"), "{text}");
}
