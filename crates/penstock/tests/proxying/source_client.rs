//! `source-address = "client"`: backends see the addresses of clients. A client, a balancer and a backend in network
//! namespaces; the route of the backend to the client leads through the balancer.

use testing::client::request;
use testing::network::Machine;
use testing::peers::Process;
use testing::server::{Setup, penstock};
use testing::tools::{self, Root};
use testing::{Scripted, Server, eventually, secs};

struct Network {
    client: Machine,
    balancer: Machine,
    backend: Machine,
}

impl Network {
    fn new() -> Self {
        let [client, balancer, backend] = ["t", "u", "v"].map(Machine::new);
        for (far, near, v4, v6) in [
            (&client, "clients", "198.51.100", "2001:db8:1:"),
            (&backend, "backends", "203.0.113", "2001:db8:2:"),
        ] {
            balancer.ip(&["link", "add", near, "type", "veth", "peer", "name", "eth0", "netns", far.name()]);
            for (machine, device, last) in [(&balancer, near, 1), (far, "eth0", 2)] {
                machine.ip(&["addr", "add", &format!("{v4}.{last}/24"), "dev", device]);
                machine.ip(&["addr", "add", &format!("{v6}:{last}/64"), "dev", device]);
                machine.ip(&["link", "set", device, "up"]);
            }
            far.ip(&["route", "add", "default", "via", &format!("{v4}.1")]);
            far.ip(&["-6", "route", "add", "default", "via", &format!("{v6}:1")]);
        }
        // As docs/serve.md has it: what comes from the port of the backends is for this machine, also if it is sent to a client.
        for family in ["-4", "-6"] {
            let from_backends = ["iif", "backends", "ipproto", "tcp", "sport", "8000", "lookup", "100"];
            balancer.ip(&[&[family, "rule", "add"], &from_backends[..]].concat());
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
        "[pool.app]\nbackends = [\"203.0.113.2:8000\"]\nsource-address = \"client\"\nhealth = { tcp = true, interval = \"200ms\", timeout = \"200ms\" }\n".to_owned(),
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
    assert_eq!(server.health("203.0.113.2:8000"), "up");
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
