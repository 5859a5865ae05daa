//! Backends that the network does not reach any more: what the kernel, or a router, says of one datagram counts once, and the
//! flow goes elsewhere.

use testing::network::Machine;
use testing::peers::Process;
use testing::tools::{self, Root};
use testing::{Server, eventually, secs};

use crate::between_networks;

/// Sends each datagram back, from the address to which it was sent.
const BACKEND: &str = r#"
import socket, struct
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
s.bind(("::", 5300))
print("ready", flush=True)
while True:
    datagram, control, _, client = s.recvmsg(2000, 1000)
    s.sendmsg([datagram], [one for one in control if one[1] == socket.IPV6_PKTINFO], 0, client)
"#;

/// Sends a datagram, always from the same port, up to COUNT times until it is answered.
const CLIENT: &str = r#"
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("198.51.100.2", 4000))
s.connect(("198.51.100.1", 5301))
s.settimeout(float(sys.argv[2]))
for _ in range(int(sys.argv[1])):
    s.send(b"a question")
    try:
        print(s.recv(2000).decode())
        break
    except TimeoutError:
        pass
"#;

/// An address behind the machine of the backends.
const BEHIND: &str = "2001:db8:9::1";

struct Network {
    client: Machine,
    balancer: Machine,
    backend: Machine,
    server: Server,
    _echo: Process,
}

impl Network {
    /// The pool has these hosts, with the first one preferred, and never ejects one. The first question was answered.
    fn start(hosts: &[&str]) -> Self {
        let [client, balancer, backend] = between_networks::machines(["u", "v", "w"]);
        let (v4, v6) = between_networks::BACKENDS;
        backend.ip(&["link", "set", "lo", "up"]);
        backend.ip(&["addr", "add", &format!("{BEHIND}/128"), "dev", "lo"]);
        balancer.ip(&["route", "add", &format!("{BEHIND}/128"), "via", &format!("{v6}:2")]);
        backend.ip(&["route", "add", "default", "via", &format!("{v4}.1")]);
        let echo = Process::start(&mut backend.command(&["python3", "-c", BACKEND]));
        echo.stdout.wait_for("ready", secs(20));
        let all: Vec<String> = hosts
            .iter()
            .enumerate()
            .map(|(priority, host)| format!("{{ address = \"{host}:5300\", priority = {priority} }}"))
            .collect();
        let config = format!(
            "[process]\nworkers = 1\n[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
             [listener.dns]\nbind = \":5301\"\nprotocol = \"udp\"\npool = \"app\"\n\
             [pool.app]\nbackends = [{}]\nhealth = \"off\"\npassive = {{ failures = 1000 }}\n",
            all.join(", ")
        );
        let server = balancer.setup(&config).start();
        let network = Self { client, balancer, backend, server, _echo: echo };
        assert_eq!(network.ask(1, "20"), "a question\n");
        assert_eq!(network.failures(hosts[0]), 0);
        network
    }

    fn ask(&self, times: usize, wait: &str) -> String {
        self.client.run(&["python3", "-c", CLIENT, &times.to_string(), wait])
    }

    fn failures(&self, host: &str) -> u64 {
        self.server.backend(&format!("{host}:5300"))["failures"].as_u64().unwrap()
    }

    /// The flow has gone to the second host, and a question is answered from there.
    fn moves(&self, hosts: &[&str]) {
        assert_eq!(self.ask(20, "1"), "a question\n");
        let [left, taken] = [0, 1].map(|at| self.server.backend(&format!("{}:5300", hosts[at])));
        assert_eq!((&left["moved"], &left["connects"]), (&1.into(), &1.into()), "{left:#}");
        assert_eq!((&taken["failures"], &taken["connects"]), (&0.into(), &1.into()), "{taken:#}");
        assert!((1..=2).contains(&self.failures(hosts[0])), "{left:#}");
    }
}

#[test]
fn a_datagram_to_a_backend_without_a_route_counts_one_failure() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::start(&["203.0.113.2"]);
    network.balancer.ip(&["route", "del", "203.0.113.0/24", "dev", "backends"]);
    assert_eq!(network.ask(1, "0.1"), "");
    eventually("it is dropped", secs(20), || {
        let status = network.server.ctl_json(&["status"]);
        (status["listeners"][0]["datagrams_dropped"] == 1).then_some(())
    });
    assert_eq!(network.failures("203.0.113.2"), 1);
}

#[test]
fn a_flow_leaves_a_backend_that_a_route_of_this_machine_prohibits() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let hosts = ["203.0.113.2", "[2001:db8:2::2]"];
    let network = Network::start(&hosts);
    network.balancer.ip(&["route", "add", "prohibit", "203.0.113.2/32"]);
    network.moves(&hosts);
}

#[test]
fn a_flow_leaves_a_backend_that_a_router_prohibits() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let (host, other) = (format!("[{BEHIND}]"), "203.0.113.2");
    let hosts = [&*host, other];
    let network = Network::start(&hosts);
    // The machine becomes a router to the address that it had.
    network.backend.run(&["sysctl", "-w", "net.ipv6.conf.all.forwarding=1"]);
    network.backend.ip(&["addr", "del", &format!("{BEHIND}/128"), "dev", "lo"]);
    network.backend.ip(&["-6", "route", "add", "prohibit", &format!("{BEHIND}/128")]);
    network.moves(&hosts);
}
