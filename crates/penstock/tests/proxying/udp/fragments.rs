//! Datagrams that are longer than the network takes: a client, a balancer and a backend in network namespaces, with an MTU
//! of 1500 between them. On loopback nothing is ever cut.

use nix::sys::signal::Signal;
use testing::network::Machine;
use testing::peers::Process;
use testing::tools::{self, Root};
use testing::{Server, eventually, secs};

use crate::between_networks;

/// Collects as many datagrams as the first byte of each says, prints their lengths, and sends them back.
const BACKEND: &str = r#"
import socket, sys
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE
s.bind(("::", 5300))
print("ready", flush=True)
while True:
    got = []
    while not got or len(got) < got[0][0]:
        datagram, client = s.recvfrom(70000)
        got.append(datagram)
    print("got", *(len(one) for one in got), flush=True)
    for one in got:
        s.sendto(one, client)
"#;

/// Sends COUNT datagrams of LENGTH bytes to HOST, and says whether they all come back as they were.
const CLIENT: &str = r#"
import socket, sys
host, port, count, length = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
s = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE
s.settimeout(20)
s.connect((host, port))
sent = [bytes([count, n]) + bytes((n * 7 + at * at) % 251 for at in range(length - 2)) for n in range(count)]
for one in sent:
    s.send(one)
print("sent", flush=True)
back = [s.recv(70000) for _ in sent]
print("the same" if sorted(back) == sorted(sent) else "other", [len(one) for one in back], flush=True)
"#;

/// Sends the first fragment of a datagram of 9,000 bytes, and the last one of another, and nothing else of them.
const LONE: &str = r#"
import socket, struct
ours, balancer = socket.inet_aton("198.51.100.2"), socket.inet_aton("198.51.100.1")
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
def fragment(number, offset, payload):
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), number, offset, 64, 17, 0, ours, balancer)
    s.sendto(head + payload, ("198.51.100.1", 0))
udp = struct.pack("!HHHH", 4000, 5301, 8 + 9000, 0)
fragment(77, 0x2000, udp + b"x" * 1472)
fragment(78, 1480 // 8, b"y" * 100)
"#;

struct Network {
    client: Machine,
    balancer: Machine,
    _backend: Machine,
    echo: Process,
}

impl Network {
    fn new() -> Self {
        let [client, balancer, backend] = between_networks::machines(["f", "g", "h"]);
        let echo = Process::start(&mut backend.command(&["python3", "-c", BACKEND]));
        echo.stdout.wait_for("ready", secs(20));
        Self { client, balancer, _backend: backend, echo }
    }

    fn start(&self) -> Server {
        let listener = |name: &str, port: u16, backend: &str| {
            format!(
                "[listener.{name}]\nbind = \":{port}\"\nprotocol = \"udp\"\npool = \"{name}\"\n\
                 [pool.{name}]\nbackends = [\"{backend}\"]\n"
            )
        };
        let config = [
            "[process]\nworkers = 1\n[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n",
            &listener("four", 5301, "203.0.113.2:5300"),
            &listener("six", 5302, "[2001:db8:2::2]:5300"),
        ];
        self.balancer.setup(&config.concat()).start()
    }

    fn send(&self, (host, port): (&str, &str), count: usize, length: usize) -> Process {
        let (count, length) = (count.to_string(), length.to_string());
        let words = ["python3", "-c", CLIENT, host, port, &count, &length];
        let client = Process::start(&mut self.client.command(&words));
        client.stdout.wait_for("sent", secs(20));
        client
    }

    /// A count of the kernel of the balancer, such as `ReasmOKs` of `Ip`.
    fn count(&self, file: &str, name: &str) -> u64 {
        let text = self.balancer.run(&["cat", &format!("/proc/net/{file}")]);
        if file == "snmp6" {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            return line.trim().parse().unwrap();
        }
        let mut lines = text.lines().filter(|line| line.starts_with("Ip: "));
        let (names, counts) = (lines.next().unwrap(), lines.next().unwrap());
        let at = names.split(' ').position(|one| one == name).unwrap();
        counts.split(' ').nth(at).unwrap().parse().unwrap()
    }
}

const FOUR: (&str, &str) = ("198.51.100.1", "5301");
const SIX: (&str, &str) = ("2001:db8:1::1", "5302");

#[test]
fn datagrams_that_the_network_cuts_into_fragments_pass_whole_in_both_directions() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let server = network.start();
    for to in [FOUR, SIX] {
        for length in [1_473, 9_000, 65_507] {
            let client = network.send(to, 1, length);
            client.stdout.wait_for("the same", secs(20));
        }
    }
    // From the client and from the backend arrived fragments, and to both of them left some.
    assert!(network.count("snmp", "ReasmOKs") >= 6 && network.count("snmp", "FragOKs") >= 6);
    assert!(network.count("snmp6", "Ip6ReasmOKs") >= 6 && network.count("snmp6", "Ip6FragOKs") >= 6);
    for listener in server.ctl_json(&["status"])["listeners"].as_array().unwrap() {
        let counts =
            ["datagrams_in", "datagrams_out", "datagrams_dropped"].map(|name| listener[name].as_u64());
        assert_eq!(counts, [Some(3), Some(3), Some(0)], "{listener:#}");
    }
}

/// Datagrams of one size for one receiver pass the kernel as one message, which the kernel refuses if one of them is larger
/// than the network takes: then each is sent by itself.
#[test]
fn a_burst_of_datagrams_that_are_larger_than_the_network_takes_passes_whole() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let server = network.start();
    for (to, length) in [(FOUR, 2_000), (FOUR, 1_200), (SIX, 2_000), (SIX, 1_200)] {
        // All arrive in one batch.
        server.signal(Signal::SIGSTOP);
        let client = network.send(to, 30, length);
        server.signal(Signal::SIGCONT);
        let line = network.echo.stdout.wait_for(&format!("got {length} "), secs(20));
        assert_eq!(line.split(' ').skip(1).collect::<Vec<_>>(), [&*length.to_string(); 30], "{to:?}");
        client.stdout.wait_for("the same", secs(20));
    }
}

#[test]
fn fragments_whose_rest_never_comes_reach_no_backend_and_begin_no_flow() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let server = network.start();
    let before = network.count("snmp", "ReasmReqds");
    network.client.run(&["python3", "-c", LONE]);
    eventually("both have arrived", secs(20), || {
        (network.count("snmp", "ReasmReqds") == before + 2).then_some(())
    });
    // What the backend gets first is a whole datagram.
    let client = network.send(FOUR, 1, 100);
    client.stdout.wait_for("the same", secs(20));
    network.echo.stdout.wait_for("got 100", secs(20));
    assert_eq!(network.echo.stdout.all(), ["ready", "got 100"]);
    let listener = server.ctl_json(&["status"])["listeners"][0].clone();
    let counts = ["datagrams_in", "accepted", "datagrams_dropped"].map(|name| listener[name].as_u64());
    assert_eq!(counts, [Some(1), Some(1), Some(0)], "{listener:#}");
}
