//! `packaging/keepalived.conf`: two servers in network namespaces share an address, and a client in a third one sees it.

use std::fs;
use std::path::Path;
use std::process::Child;

use testing::network::Machine;
use testing::server::binary;
use testing::tools::{self, Root};
use testing::{Scripted, Server, eventually, secs};

/// Two servers, a client, and a switch between them.
struct Network {
    machines: [Machine; 4],
    /// Has the control sockets.
    directory: tempfile::TempDir,
}

const NODES: [&str; 3] = ["192.0.2.1", "192.0.2.2", "192.0.2.3"];
const SHARED: &str = "192.0.2.100";

impl Network {
    fn new() -> Self {
        let network = Self {
            machines: ["a", "b", "c", "s"].map(Machine::new),
            directory: tempfile::tempdir().unwrap(),
        };
        let switch = &network.machines[3];
        switch.ip(&["link", "add", "br0", "type", "bridge"]);
        switch.ip(&["link", "set", "br0", "up"]);
        for (node, (machine, address)) in network.machines.iter().zip(NODES).enumerate() {
            let port = format!("p{node}");
            switch.ip(&[
                "link",
                "add",
                &port,
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                machine.name(),
            ]);
            switch.ip(&["link", "set", &port, "master", "br0", "up"]);
            machine.ip(&["addr", "add", &format!("{address}/24"), "dev", "eth0"]);
            machine.ip(&["link", "set", "eth0", "up"]);
        }
        network
    }

    fn has_address(&self, node: usize) -> bool {
        let shown = self.machines[node].run(&["ip", "-o", "addr", "show", "dev", "eth0"]);
        shown.contains(&format!("{SHARED}/24"))
    }

    /// What the client gets from the shared address.
    fn visit(&self) -> Option<String> {
        let url = format!("http://{SHARED}:8080/");
        let output = self.machines[2].output(&["curl", "-s", "-m", "2", "-D", "-", &url]);
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    }

    /// Starts a server that answers with the number of its node.
    fn server(&self, node: usize) -> Server {
        let config = format!(
            "[control]\nsocket = \"{}\"\n[process]\ndrain-timeout = \"0s\"\n[access-log]\ntarget = \"off\"\n\
             [listener.web]\nbind = \":8080\"\nprotocol = \"http\"\npool = \"app\"\n\
             [[listener.web.route]]\npath = \"/\"\nredirect = \"https://node{node}.example/\"\n\
             [pool.app]\nbackends = [\"127.0.0.1:1\"]\nhealth = \"off\"\n",
            self.socket(node)
        );
        self.machines[node].setup(&config).start()
    }

    fn socket(&self, node: usize) -> String {
        self.directory.path().join(format!("{node}.sock")).display().to_string()
    }

    fn keepalived(&self, node: usize) -> Keepalived {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name).display().to_string();
        let recipe = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/keepalived.conf");
        // keepalived runs scripts that only root can replace.
        let script = format!("{} ctl --timeout 1 --socket {} health", binary(), self.socket(node));
        let text = fs::read_to_string(recipe).unwrap();
        let text = text.replace("/usr/bin/penstock ctl --timeout 1 health", &script);
        assert!(text.contains(&script), "{text}");
        fs::write(at("conf"), text).unwrap();
        let log = fs::File::create(at("log")).unwrap();
        let child = self.machines[node]
            .command(&["keepalived", "-n", "-l", "-D", "-P"])
            .args(["-f", &at("conf"), "-p", &at("pid"), "-r", &at("vrrp.pid")])
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Keepalived { child, directory }
    }
}

struct Keepalived {
    child: Child,
    directory: tempfile::TempDir,
}

impl Keepalived {
    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Keepalived {
    fn drop(&mut self) {
        // SIGTERM: it takes its children with it.
        let id = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        let _ = nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGTERM);
        let _ = self.child.wait();
    }
}

#[test]
fn the_shared_address_moves_when_its_server_stops_and_the_client_sees_the_other() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let servers = [network.server(0), network.server(1)];
    // One after the other: if both took the address at the same moment, it would move once more when they hear each other.
    let first = network.keepalived(0);
    eventually(&format!("the first has the address: {}", first.log()), secs(40), || {
        network.has_address(0).then_some(())
    });
    let keepers = [first, network.keepalived(1)];
    let logs = || keepers.iter().map(Keepalived::log).collect::<Vec<_>>().join("\n-----\n");
    let mut servers: Vec<_> = servers.into_iter().map(Some).collect();
    for (from, to) in [(0, 1), (1, 0)] {
        eventually(&format!("the client sees node {from}: {}", logs()), secs(20), || {
            network.visit().filter(|page| page.contains(&format!("node{from}.example"))).map(drop)
        });
        servers[from] = None;
        eventually(&format!("the address moves from {from}: {}", logs()), secs(40), || {
            (network.has_address(to) && !network.has_address(from)).then_some(())
        });
        eventually(&format!("the client sees node {to}: {}", logs()), secs(20), || {
            network.visit().filter(|page| page.contains(&format!("node{to}.example"))).map(drop)
        });
        // The server comes back, and the address stays at the other one.
        servers[from] = Some(network.server(from));
    }
}

#[test]
fn health_is_an_exit_code_with_a_reason() {
    let backend = Scripted::answering("x");
    let port = testing::port::free();
    let mut server = Server::start(&format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n\
         [[listener.web.route]]\npath = \"/dead\"\npool = \"dead\"\n\
         [pool.app]\nbackends = [\"{}\"]\nhealth = \"off\"\n\
         [pool.dead]\nbackends = [\"127.0.0.1:{port}\"]\nhealth = {{ tcp = true, interval = \"100ms\", fall = 1 }}\n",
        backend.address
    ));
    eventually("the other pool is down", secs(20), || {
        (server.health(&format!("127.0.0.1:{port}")) == "down").then_some(())
    });
    let health = |server: &Server, pools: &[&str]| {
        let output = server.ctl(&[&["health"], pools].concat());
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap())
    };
    let (code, said) = health(&server, &[]);
    assert!(
        code == Some(0) && said == "healthy: it serves, and 1 of 2 pools have an available backend\n",
        "{said}"
    );
    assert_eq!(health(&server, &["app"]).0, Some(0));
    let (code, said) = health(&server, &["app", "dead"]);
    assert!(code == Some(1) && said.contains("unhealthy: no backend of pool dead is available"), "{said}");
    let (code, said) = health(&server, &["ap"]);
    assert!(code == Some(1) && said.contains("did you mean \"app\""), "{said}");
    assert!(server.ctl(&["drain", &backend.address]).status.success());
    let (code, said) = health(&server, &[]);
    assert!(code == Some(1) && said.contains("unhealthy: no pool has an available backend"), "{said}");
    assert_eq!(server.ctl_json(&["ready", &backend.address])["admission"], "ready");
    assert_eq!(server.ctl_json(&["health"])["healthy"], true);

    server.signal(nix::sys::signal::Signal::SIGKILL);
    server.wait_end(secs(20));
    let (code, said) = health(&server, &[]);
    assert!(code == Some(1) && said.contains("control.sock"), "no server: {code:?} {said}");
}
