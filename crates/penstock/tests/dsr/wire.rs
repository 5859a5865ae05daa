//! What real packets of a client do beside whole segments: fragments, ICMP errors of routers, and shares of new flows.

use std::collections::BTreeSet;
use std::process::Stdio;

use serde_json::Value;
use testing::tools::{self, Root};
use testing::{Server, eventually, secs};

use super::network::{CLIENT, Network, Running, SERVERS, VIP, VIP6, config};

/// Answers datagrams to the address of the service with its own name and their length.
const ANSWER: &str = r#"
import selectors, socket, sys
ready = selectors.DefaultSelector()
for family, address in ((socket.AF_INET, sys.argv[2]), (socket.AF_INET6, sys.argv[3])):
    of = socket.socket(family, socket.SOCK_DGRAM)
    of.bind((address, 53))
    ready.register(of, selectors.EVENT_READ)
while True:
    for key, _ in ready.select():
        data, client = key.fileobj.recvfrom(65535)
        key.fileobj.sendto(f"{sys.argv[1]} {len(data)}".encode(), client)
"#;

/// Asks from each of some ports, once, with so many bytes: prints which server answered, or "-".
const ASK: &str = r#"
import socket, sys
address, first, last, length = sys.argv[1], *map(int, sys.argv[2:5])
family = socket.AF_INET6 if ":" in address else socket.AF_INET
for port in range(first, last):
    of = socket.socket(family, socket.SOCK_DGRAM)
    of.bind(("", port))
    of.settimeout(5)
    of.sendto(bytes(length), (address, 53))
    try:
        name, seen = of.recv(99).split()
        print(name.decode() if int(seen) == length else "cut")
    except TimeoutError:
        print("-")
    of.close()
"#;

/// Says for a router that a reply of the service to a port was too big, and shows 8 bytes of it above IP.
const TOO_BIG: &str = r#"
import socket, struct, sys
own, vip, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
above = struct.pack(">HHHH", 53, port, 1400, 0)
if ":" in vip:
    ends = socket.inet_pton(socket.AF_INET6, vip) + socket.inet_pton(socket.AF_INET6, own)
    inner = struct.pack(">IHBB", 6 << 28, 1400, 17, 60) + ends
    of = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
    message = struct.pack(">BBHI", 2, 0, 0, 1300) + inner + above
else:
    ends = socket.inet_aton(vip) + socket.inet_aton(own)
    inner = struct.pack(">BBHHHBBH", 0x45, 0, 1420, 9, 0x4000, 60, 17, 0) + ends
    of = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    message = struct.pack(">BBHHH", 3, 4, 0, 0, 1300) + inner + above
    total = sum(struct.unpack(f">{len(message) // 2}H", message))
    total = (total & 0xffff) + (total >> 16)
    total = (total & 0xffff) + (total >> 16)
    message = message[:2] + struct.pack(">H", ~total & 0xffff) + message[4:]
of.sendto(message, (vip, 0))
"#;

fn answering(network: &Network, server: usize) -> Running {
    let name = server.to_string();
    let mut command = network.command(server, &["python3", "-c", ANSWER, &name, VIP, VIP6]);
    let running = Running(command.stdout(Stdio::null()).spawn().unwrap());
    eventually("it listens", secs(30), || {
        let sockets = network.run(server, &["ss", "-Hlnu", "sport", "=", ":53"]);
        (sockets.lines().count() == 2).then_some(())
    });
    running
}

#[track_caller]
pub(crate) fn ready(server: &Server) {
    eventually("the backends are known", secs(20), || {
        let services = server.ctl_json(&["dsr", "status"])["services"].clone();
        let backends = |one: &Value| one["backends"].as_array().cloned().unwrap_or_default();
        let all: Vec<Value> = services.as_array()?.iter().flat_map(backends).collect();
        (!all.is_empty() && all.iter().all(|one| one["ethernet"].is_string())).then_some(())
    });
}

/// Which servers answer from these ports.
fn ask(network: &Network, vip: &str, ports: std::ops::Range<u16>, length: usize) -> Vec<String> {
    let numbers = [ports.start.to_string(), ports.end.to_string(), length.to_string()];
    let [first, last, length] = numbers.each_ref().map(String::as_str);
    let said = network.run(CLIENT, &["python3", "-c", ASK, vip, first, last, length]);
    said.lines().map(str::to_owned).collect()
}

/// Number of messages that a packet was too big which a server has received.
fn told(network: &Network, server: usize, vip: &str) -> u64 {
    match vip.contains(':') {
        true => {
            let text = network.run(server, &["cat", "/proc/net/snmp6"]);
            let line = text.lines().find(|line| line.starts_with("Icmp6InPktTooBigs")).unwrap().to_owned();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        }
        false => {
            let text = network.run(server, &["cat", "/proc/net/snmp"]);
            let lines: Vec<_> = text.lines().filter(|line| line.starts_with("Icmp:")).collect();
            let at = lines[0].split_whitespace().position(|name| name == "InDestUnreachs").unwrap();
            lines[1].split_whitespace().nth(at).unwrap().parse().unwrap()
        }
    }
}

#[test]
fn fragments_and_messages_about_packets_that_are_too_big_reach_the_server_of_their_flow() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| answering(&network, server));
    let both = [VIP, VIP6];
    for (path, vips) in
        [("af_packet", &both[..]), ("tc", &both), ("xdp-generic", &both[..1]), ("xdp-generic", &both[1..])]
    {
        let listener = format!("transport = \"udp\"\ndata-path = \"{path}\"");
        let server =
            network.balancer(&config(&super::traffic::bind(vips, 53), &listener, "health = \"off\""));
        ready(&server);
        for vip in vips {
            // The flows of a port stay where they began, all of them perhaps at one server: other ports are asked then.
            let mut ports = 20_000..20_016;
            eventually("both serve", secs(20), || {
                ports = ports.start + 16..ports.end + 16;
                let seen: BTreeSet<_> = ask(&network, vip, ports.clone(), 9).into_iter().collect();
                (seen == BTreeSet::from(["2".to_owned(), "3".to_owned()])).then_some(())
            });
            let few = ask(&network, vip, ports.clone(), 9);
            let cut = ask(&network, vip, ports.clone(), 4000);
            assert_eq!(cut, few, "{path} {vip}: a datagram in three parts goes where its flow is");
            for (port, name) in ports.zip(&few) {
                let owner: usize = name.parse().unwrap();
                let before = SERVERS.map(|server| told(&network, server, vip));
                let own = if vip.contains(':') { "fd77::12".to_owned() } else { network.address(CLIENT) };
                network.run(CLIENT, &["python3", "-c", TOO_BIG, &own, vip, &port.to_string()]);
                eventually(&format!("{path} {vip}: server {owner} is told"), secs(10), || {
                    (told(&network, owner, vip) > before[owner - SERVERS[0]]).then_some(())
                });
                let other = SERVERS[1 - (owner - SERVERS[0])];
                assert_eq!(told(&network, other, vip), before[other - SERVERS[0]], "{path} {vip}");
            }
        }
        super::paths::stop(server);
        // What the servers have learned of the way would cut their answers.
        for server in SERVERS {
            network.ip(server, &["route", "flush", "cache"]);
            network.ip(server, &["-6", "route", "flush", "cache"]);
        }
    }
}

#[test]
fn a_weight_that_is_changed_while_it_runs_is_the_share_of_new_flows_and_moves_none() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| answering(&network, server));
    for path in ["tc", "af_packet", "xdp-generic"] {
        let listener = format!("transport = \"udp\"\ndata-path = \"{path}\"");
        let server = network.balancer(&config(&format!("\"{VIP}:53\""), &listener, "health = \"off\""));
        ready(&server);
        let share = |answers: &[String]| answers.iter().filter(|name| *name == "2").count();
        let mut ports = 20_000..20_016;
        eventually("both serve", secs(20), || {
            ports = ports.start + 16..ports.end + 16;
            let answers = ask(&network, VIP, ports.clone(), 9);
            ((1..16).contains(&share(&answers)) && !answers.contains(&"-".to_owned())).then_some(())
        });
        let before = ask(&network, VIP, 22_000..22_200, 9);
        assert!((60..140).contains(&share(&before)), "{path}: {}", share(&before));
        server.said(&["weight", "10.77.0.14:53", "9"]);
        let mut from = 23_000;
        let fresh = eventually("it has nine tenths", secs(20), || {
            let answers = ask(&network, VIP, from..from + 200, 9);
            from += 200;
            (share(&answers) > 150).then_some(answers)
        });
        assert!(share(&fresh) < 200 && !fresh.contains(&"-".to_owned()), "{path}: {fresh:?}");
        assert_eq!(ask(&network, VIP, 22_000..22_200, 9), before, "{path}: flows stay");
        server.said(&["weight", "10.77.0.14:53", "default"]);
        eventually("it has a half again", secs(20), || {
            let answers = ask(&network, VIP, from..from + 200, 9);
            from += 200;
            (60..140).contains(&share(&answers)).then_some(())
        });
        super::paths::stop(server);
    }
}
