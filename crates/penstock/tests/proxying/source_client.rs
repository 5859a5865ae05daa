//! `source-address = "client"`: backends see the addresses of clients. A client, a balancer and a backend in network
//! namespaces; the route of the backend to the client leads through the balancer.

use std::net::UdpSocket;
use std::path::Path;

use testing::client::request;
use testing::network::Machine;
use testing::peers::Process;
use testing::server::{Setup, penstock};
use testing::tools::{self, Root};
use testing::{Scripted, Server, eventually, secs};

use crate::between_networks::{self, BACKENDS, CLIENTS};

struct Network {
    client: Machine,
    balancer: Machine,
    backend: Machine,
}

impl Network {
    fn new() -> Self {
        let [client, balancer, backend] = between_networks::machines(["t", "u", "v"]);
        for (machine, (v4, v6)) in [(&client, CLIENTS), (&backend, BACKENDS)] {
            machine.ip(&["route", "add", "default", "via", &format!("{v4}.1")]);
            machine.ip(&["-6", "route", "add", "default", "via", &format!("{v6}:1")]);
        }
        // As docs/serve.md has it: what comes from the port of the backends is for this machine, also if it is sent to a client.
        for family in ["-4", "-6"] {
            for (protocol, port) in [("tcp", "8000"), ("udp", "5300")] {
                let from_backends = ["iif", "backends", "ipproto", protocol, "sport", port, "lookup", "100"];
                balancer.ip(&[&[family, "rule", "add"], &from_backends[..]].concat());
            }
            let all = if family == "-4" { "0.0.0.0/0" } else { "::/0" };
            balancer.ip(&[family, "route", "add", "local", all, "dev", "lo", "table", "100"]);
        }
        Self { client, balancer, backend }
    }

    /// Python's server, whose log has the addresses of its clients.
    fn python(&self) -> Process {
        let directory = std::env::temp_dir();
        let mut command =
            self.backend.command(&["python3", "-u", "-m", "http.server", "8000", "--bind", "::"]);
        let process = Process::start(command.arg("--directory").arg(directory));
        process.stdout.wait_for("Serving HTTP on ", secs(20));
        process
    }

    /// unbound on port 5300, whose log has its clients with their questions.
    fn unbound(&self, directory: &Path) -> Process {
        let config = directory.join("unbound.conf");
        let text = "server:\n directory: \"\"\n chroot: \"\"\n username: \"\"\n pidfile: \"\"\n use-syslog: no\n verbosity: 1\n \
                    log-queries: yes\n interface: 203.0.113.2\n interface: 2001:db8:2::2\n port: 5300\n \
                    access-control: 0.0.0.0/0 allow\n access-control: ::/0 allow\n local-zone: \"test.\" static\n \
                    local-data: \"a.test. A 192.0.2.9\"\nremote-control:\n control-enable: no\n";
        std::fs::write(&config, text).unwrap();
        let process =
            Process::start(&mut self.backend.command(&["unbound", "-d", "-c", config.to_str().unwrap()]));
        process.stderr.wait_for("start of service", secs(20));
        process
    }

    /// Asks the balancer for `a.test.`, from any port. Returns the answer.
    fn dig(&self, server: &str, port: &str, more: &[&str]) -> String {
        let (place, retries) = (format!("@{server}"), ["+short", "+time=5", "+retry=0"]);
        let question = [&["kdig", &place, "-p", port], &retries[..], more, &["a.test.", "A"]].concat();
        String::from_utf8_lossy(&self.client.output(&question).stdout).trim().to_owned()
    }

    /// Sends a text to the balancer, and waits for the end of the answer.
    fn say(&self, port: &str, text: &str) {
        let script = format!(
            "import socket\ns = socket.create_connection(('198.51.100.1', {port}), 20)\ns.sendall(b'{text}')\nwhile s.recv(65536): pass"
        );
        self.client.run(&["python3", "-c", &script]);
    }

    fn visit(&self, arguments: &[&str]) -> String {
        let curl = ["curl", "-s", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}\n"];
        let output = self.client.output(&[&curl, arguments].concat());
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

#[test]
fn backends_see_the_addresses_of_clients_after_the_process_has_dropped_root() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let python = network.python();
    let listener = |name: &str, port: u16, more: &str| {
        format!("[listener.{name}]\nbind = \":{port}\"\npool = \"app\"\n{more}\n")
    };
    let config = [
        "[process]\nuser = \"nobody\"\n[control]\nsocket = \"@DIR@/control.sock\"\n".to_owned(),
        listener("web", 8080, ""),
        listener("tcp", 8081, "protocol = \"tcp\""),
        listener("behind", 8082, "protocol = \"tcp\"\nproxy-protocol-from = [\"198.51.100.0/24\"]"),
        listener("six", 8083, "").replace("\"app\"", "\"six\""),
        "[pool.app]\nbackends = [\"203.0.113.2:8000\"]\nsource-address = \"client\"\nhealth = { tcp = true, interval = \"2s\", timeout = \"2s\" }\n".to_owned(),
        "[pool.six]\nbackends = [\"[2001:db8:2::2]:8000\"]\nsource-address = \"client\"\nhealth = \"off\"\n".to_owned(),
    ]
    .concat();
    let server = network.balancer.setup(&config).start();
    server.stderr.wait_for("CAP_NET_RAW is kept", secs(5));
    assert_eq!(server.ctl_json(&["status"])["degraded"], serde_json::json!([]));
    let seen = |address: &str, path: &str| {
        let of_it = |line: &String| line.contains(address) && line.contains(&format!("GET {path} "));
        eventually(
            &format!("{address} in the log of the backend: {:?}", python.stderr.all()),
            secs(20),
            || python.stderr.all().iter().any(of_it).then_some(()),
        );
    };
    let kept = ["http://198.51.100.1:8080/?web", "-o", "/dev/null", "http://198.51.100.1:8080/?again"];
    assert_eq!(network.visit(&kept), "200\n200");
    seen("198.51.100.2 ", "/?web");
    seen("198.51.100.2 ", "/?again");
    assert_eq!(network.visit(&["http://198.51.100.1:8081/?tcp"]), "200");
    seen("198.51.100.2 ", "/?tcp");
    network
        .say("8082", "PROXY TCP4 198.51.100.77 198.51.100.1 1 8082\\r\\nGET /?header HTTP/1.0\\r\\n\\r\\n");
    seen("198.51.100.77 ", "/?header");
    assert_eq!(network.visit(&["http://[2001:db8:1::1]:8083/?six"]), "200");
    seen("2001:db8:1::2 ", "/?six");
    // An IPv6 client of a pool with IPv4 backends: there is no such address that it could be seen with.
    assert_eq!(network.visit(&["http://[2001:db8:1::1]:8080/?other"]), "200");
    seen("203.0.113.1 ", "/?other");
    eventually("the checks pass", secs(20), || (server.health("203.0.113.2:8000") == "up").then_some(()));
}

#[test]
fn name_servers_see_the_addresses_of_clients_over_udp() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let directory = tempfile::tempdir().unwrap();
    let unbound = network.unbound(directory.path());
    network.client.ip(&["addr", "add", "198.51.100.77/24", "dev", "eth0"]);
    let listener = |name: &str, port: u16, pool: &str, more: &str| {
        format!("[listener.{name}]\nbind = \":{port}\"\nprotocol = \"udp\"\npool = \"{pool}\"\n{more}\n")
    };
    let pool = |name: &str, backend: &str| {
        format!(
            "[pool.{name}]\nbackends = [\"{backend}\"]\nsource-address = \"client\"\n\
             health = {{ dns = \"a.test\", interval = \"2s\", timeout = \"2s\" }}\n"
        )
    };
    let config = [
        "[process]\nuser = \"nobody\"\n[control]\nsocket = \"@DIR@/control.sock\"\n".to_owned(),
        listener("dns", 5301, "four", "replies = 1"),
        listener("stream", 5302, "four", ""),
        listener("six", 5303, "six", "replies = 1"),
        pool("four", "203.0.113.2:5300"),
        pool("six", "[2001:db8:2::2]:5300"),
    ]
    .concat();
    let server = network.balancer.setup(&config).start();
    assert_eq!(server.ctl_json(&["status"])["degraded"], serde_json::json!([]));
    let questions = |client: &str| {
        let asked = format!(" {client} a.test. A IN");
        unbound.stderr.all().iter().filter(|line| line.contains(&asked)).count()
    };
    // The socket of a flow that has its answer serves the next one of the same client, and of no other one.
    let clients = ["198.51.100.2", "198.51.100.77", "198.51.100.2", "198.51.100.77", "198.51.100.2"];
    for client in clients {
        assert_eq!(network.dig("198.51.100.1", "5301", &["-b", client]), "192.0.2.9", "{client}");
    }
    eventually("unbound has seen both", secs(20), || {
        ((questions("198.51.100.2"), questions("198.51.100.77")) == (3, 2)).then_some(())
    });
    assert_eq!(network.dig("198.51.100.1", "5302", &[]), "192.0.2.9");
    assert_eq!(network.dig("2001:db8:1::1", "5303", &[]), "192.0.2.9");
    eventually("it has seen the one of IPv6", secs(20), || (questions("2001:db8:1::2") == 1).then_some(()));
    // Of another family than the backend: there is no such address.
    assert_eq!(network.dig("2001:db8:1::1", "5301", &[]), "192.0.2.9");
    // From this machine come the checks, too.
    eventually("it has seen an address of the balancer", secs(20), || {
        (questions("203.0.113.1") > 0).then_some(())
    });
    eventually("the checks pass", secs(20), || (server.health("203.0.113.2:5300") == "up").then_some(()));
    assert_eq!(server.backend("203.0.113.2:5300")["failures"], 0);
}

#[test]
fn datagrams_without_the_capability_are_dropped_and_no_backend_is_blamed() {
    let backend = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = backend.local_addr().unwrap().to_string();
    let config = format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[listener.dns]\nbind = \"127.0.0.1:0\"\nprotocol = \"udp\"\n\
         pool = \"app\"\n[pool.app]\nbackends = [\"{address}\"]\nsource-address = \"client\"\nhealth = \"off\"\n"
    );
    let setup = Setup::new(&config);
    let server: Server = match nix::unistd::geteuid().is_root() {
        true => setup.through(["setpriv", "--bounding-set", "-net_raw,-net_admin"]).start(),
        false => setup.start(),
    };
    let status = server.ctl_json(&["status"]);
    assert!(status["degraded"][0]["reason"].as_str().unwrap().contains("CAP_NET_RAW"), "{status:#}");
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.send_to(b"question", server.address("dns")).unwrap();
    eventually("it is dropped and said why", secs(20), || {
        let listener = &server.ctl_json(&["status"])["listeners"][0];
        (listener["datagrams_dropped"] == 1 && listener["endings"]["connect-failed"] == 1).then_some(())
    });
    assert_eq!(server.backend(&address)["failures"], 0);
}

#[test]
fn without_the_capability_it_is_degraded_and_no_backend_is_blamed() {
    let backend = Scripted::answering("app");
    let config = format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"{}\"]\nsource-address = \"client\"\nhealth = \"off\"\n",
        backend.address
    );
    let setup = Setup::new(&config);
    let server: Server = match nix::unistd::geteuid().is_root() {
        true => setup.through(["setpriv", "--bounding-set", "-net_raw,-net_admin"]).start(),
        false => setup.start(),
    };
    let status = server.ctl_json(&["status"]);
    assert_eq!(status["degraded"][0]["subject"], "pool.app.source-address", "{status:#}");
    assert!(status["degraded"][0]["reason"].as_str().unwrap().contains("CAP_NET_RAW"), "{status:#}");
    let mut client = server.client("web");
    client.send(request("GET", "/", &[], b""));
    assert_eq!(client.response().status, 502);
    assert_eq!(server.backend(&backend.address)["failures"], 0);
}

#[test]
fn check_says_what_the_capability_is_for() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("penstock.toml");
    let config = "[listener.web]\nbind = \":8080\"\npool = \"app\"\n[pool.app]\nbackends = [\"192.0.2.1:80\"]\nsource-address = \"client\"\n";
    std::fs::write(&file, config).unwrap();
    let output = penstock(&["check", "--privileges", file.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stdout);
    let row = text.lines().find(|line| line.contains("CAP_NET_RAW")).unwrap_or_else(|| panic!("{text}"));
    assert!(row.contains("source-address"), "{row}");
}
