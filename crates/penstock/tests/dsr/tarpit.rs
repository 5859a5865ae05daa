//! Unused addresses that hold clients: what real clients see, and machines that have such an address.

use std::fs;
use std::process::Stdio;
use std::time::Instant;

use serde_json::Value;
use testing::tools::{self, Root};
use testing::{Server, eventually, secs};

use super::network::{BALANCER, CLIENT, Network, Running, SERVERS, VIP, VIP6, config, host};
use super::trace;

/// Connects, and sends more than any buffer takes. When it is killed its connection is gone, and asks for the window no more.
const CONNECT: &str = r#"
import socket, struct, sys
connection = socket.create_connection((sys.argv[1], 22), 20)
connection.settimeout(None)
connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
connection.sendall(b"x" * 100_000_000)
"#;

/// Sends 3000 SYNs from many addresses, one each half of a millisecond, and counts what comes back until a second later.
const FLOOD: &str = r#"
import socket, struct, sys, time
own, to = (bytes.fromhex(mac.replace(":", "")) for mac in sys.argv[1:3])
address = socket.inet_aton(sys.argv[3])
def checksum(addresses):
    total = sum(struct.unpack(">9H", bytes([0x45, 0, 0, 40, 0, 1, 0x40, 0, 64, 6]) + addresses))
    total = (total & 0xffff) + (total >> 16)
    return struct.pack(">H", ~((total & 0xffff) + (total >> 16)) & 0xffff)
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
wire.bind(("eth0", 0x0800))
wire.setblocking(False)
count, number, last = 0, 0, time.monotonic()
while time.monotonic() < last + 1:
    if number < 3000:
        number, last = number + 1, time.monotonic()
        source = bytes([10, 99, number >> 8 & 255, number & 255])
        ip = bytes([0x45, 0, 0, 40, 0, 1, 0x40, 0, 64, 6]) + checksum(source + address) + source + address
        tcp = (40000).to_bytes(2, "big") + (22).to_bytes(2, "big") + number.to_bytes(4, "big") + bytes(4)
        tcp += bytes([0x50, 2, 255, 255, 0, 0, 0, 0])
        wire.send(to + own + bytes([8, 0]) + ip + tcp)
        time.sleep(0.0005)
    try:
        while True:
            frame = wire.recv(2000)
            if frame[6:12] == to and frame[26:30] == address and frame[30:32] == bytes([10, 99]):
                assert frame[47] == 0x12, "SYN and ACK"
                count += 1
    except BlockingIOError:
        pass
print(number, count)
"#;

/// Says that a machine has an address.
const CLAIM: &str = r#"
import socket, sys
own, address = bytes.fromhex(sys.argv[1].replace(":", "")), socket.inet_aton(sys.argv[2])
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0806))
wire.bind(("eth0", 0x0806))
wire.send(bytes([255] * 6) + own + bytes([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]) + own + address + bytes(6) + address)
"#;

const NETWORKS: &str = "tarpit-networks = [\"10.77.0.192/26\", \"fd77::dead:0/112\"]\ntarpit-rate = 50\n";

fn status(server: &Server) -> Value {
    server.ctl_json(&["dsr", "status"])["services"][0]["tarpit"].clone()
}

fn number(server: &Server, key: &str) -> u64 {
    status(server)[key].as_u64().unwrap_or(0)
}

fn ready(server: &Server) {
    eventually("the tarpit is there", secs(20), || status(server).is_object().then_some(()));
}

#[test]
fn a_client_of_an_unused_address_is_connected_and_held_with_every_data_path() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    for path in ["af_packet", "tc", "xdp-generic"] {
        let bind =
            if path == "tc" { format!("[\"{VIP}:80\", \"[{VIP6}]:80\"]") } else { format!("\"{VIP}:80\"") };
        let listener = format!("data-path = \"{path}\"\n{NETWORKS}");
        let config = config(&bind, &listener, "health = \"off\"");
        let server = network.balancer(&format!("{config}[admin]\nbind = \"127.0.0.1:9900\"\n"));
        ready(&server);
        network.ip(CLIENT, &["neigh", "flush", "dev", "eth0"]);
        for (address, filter) in
            [("10.77.0.200", "src host 10.77.0.200"), ("fd77::dead:7", "src host fd77::dead:7")]
        {
            let seen = network.directory.path().join("seen");
            let mut watch =
                network.command(CLIENT, &["tcpdump", "-nn", "-vv", "-l", "-i", "eth0", "tcp and", filter]);
            let out = fs::File::create(&seen).unwrap();
            let watch = Running(watch.stdout(out).stderr(Stdio::null()).spawn().unwrap());
            eventually("tcpdump listens", secs(20), || {
                (network.run(CLIENT, &["cat", "/proc/net/packet"]).lines().count() > 1).then_some(())
            });
            let before = (number(&server, "tarpitted"), number(&server, "held"));
            let mut client = network.command(CLIENT, &["python3", "-c", CONNECT, address]);
            let mut client = Running(client.stdout(Stdio::piped()).spawn().unwrap());
            eventually("a probe of the window is answered", secs(30), || {
                (number(&server, "held") > before.1).then_some(())
            });
            let sockets = network.run(CLIENT, &["ss", "-tnoH", "dport", "=", ":22"]);
            assert!(sockets.contains("ESTAB") && sockets.contains("persist"), "{path}: {sockets}");
            assert!(client.0.try_wait().unwrap().is_none(), "{path} {address}: the client is held");
            drop(client);
            assert!(number(&server, "tarpitted") > before.0);
            let text = eventually("tcpdump has seen it", secs(10), || {
                let text = fs::read_to_string(&seen).unwrap();
                (text.contains("Flags [S.]") && text.contains("Flags [.]")).then_some(text)
            });
            drop(watch);
            assert!(
                text.contains("(correct)") && !text.contains("incorrect") && !text.contains("bad cksum"),
                "{text}"
            );
            assert!(
                text.contains("win 0") && !text.contains("Flags [R") && !text.contains("Flags [F"),
                "{text}"
            );
        }
        let text = server.said(&["dsr", "status"]);
        assert!(
            text.contains("tarpit 10.77.0.192/26 fd77::dead:0/112: addresses answered 2, of machines 0"),
            "{text}"
        );
        let metrics = network.run(BALANCER, &["curl", "-s", "-m", "5", "http://127.0.0.1:9900/metrics"]);
        let line = metrics.lines().find(|line| {
            line.starts_with("penstock_dsr_packets_total{") && line.contains("verdict=\"tarpitted\"")
        });
        assert!(line.is_some_and(|line| !line.ends_with(" 0")), "{line:?}");
        // After SIGKILL a program of tc stays until the mount namespace of its balancer has ended, a moment later. Until
        // then xdp-generic is refused: it would be before that program.
        super::paths::stop(server);
    }
}

#[test]
fn a_machine_with_such_an_address_keeps_it_also_one_that_comes_later() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    network.ip(SERVERS[0], &["addr", "add", "10.77.0.201/24", "dev", "eth0"]);
    network.ip(SERVERS[0], &["addr", "add", "fd77::dead:9/64", "dev", "eth0", "nodad"]);
    network.ip(BALANCER, &["addr", "add", "10.77.0.202/24", "dev", "eth0"]);
    let server = network.balancer(&config(&format!("\"{VIP}:80\""), NETWORKS, "health = \"off\""));
    ready(&server);
    for address in ["10.77.0.201", "[fd77::dead:9]"] {
        for _ in 0..3 {
            network.ip(CLIENT, &["neigh", "flush", "dev", "eth0"]);
            assert_eq!(network.visit(address), "2", "{address}");
        }
    }
    let machine = network.ethernet(SERVERS[0]);
    assert_eq!(network.visit("10.77.0.201"), "2");
    let neighbour = |address: &str| network.run(CLIENT, &["ip", "neigh", "show", address]);
    assert!(neighbour("10.77.0.201").contains(&machine), "{}", neighbour("10.77.0.201"));
    // That of the balancer itself refuses, as nothing listens there.
    let explained = |to: &str, transport: &str| {
        let text = server.said(&["dsr", "explain", "10.77.0.12:40000", to, transport]);
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let text = explained("10.77.0.203:80", "tcp");
    assert!(text.contains("=> to the tarpit of listener.web (10.77.0.192/26): it answers a SYN"), "{text}");
    assert!(explained("10.77.0.203:80", "udp").contains("which answers TCP alone"));
    assert!(explained("10.77.0.60:80", "tcp").contains("no dsr listener has the address"));
    let refused = network.curl(&["-m", "5", "http://10.77.0.202:81/"]);
    assert_eq!(refused.status.code(), Some(7), "{refused:?}");
    assert_eq!(number(&server, "tarpitted"), 0);
    // This one is held, until a machine comes.
    let file = network.directory.path().join("trapped.pcapng");
    let child = trace::trace(&server, &file, &["--verdict", "tarpitted", "--packets", "2"]);
    let held = network.curl(&["-m", "10", "http://10.77.0.203/"]);
    trace::ended(child);
    let packets = trace::fields(&file, &["ip.dst", "tcp.flags.syn", "frame.comment"]);
    assert!(packets.len() == 2 && packets.iter().all(|one| one[0] == "10.77.0.203"), "{packets:?}");
    assert!(packets.iter().all(|one| one[2].starts_with("answered by the tarpit")), "{packets:?}");
    assert_eq!(held.status.code(), Some(28), "{held:?}");
    assert!(neighbour("10.77.0.203").contains(&network.ethernet(BALANCER)), "{}", neighbour("10.77.0.203"));
    let used = number(&server, "used");
    network.ip(SERVERS[0], &["addr", "add", "10.77.0.203/24", "dev", "eth0"]);
    network.run(SERVERS[0], &["python3", "-c", CLAIM, &machine, "10.77.0.203"]);
    eventually("the tarpit gives it back", secs(10), || (number(&server, "used") > used).then_some(()));
    network.ip(CLIENT, &["neigh", "flush", "dev", "eth0"]);
    assert_eq!(network.visit("10.77.0.203"), "2");
    assert!(neighbour("10.77.0.203").contains(&machine));
}

#[test]
fn a_flood_from_forged_addresses_gets_no_more_answers_than_the_limit() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let server = network.balancer(&config(&format!("\"{VIP}:80\""), NETWORKS, "health = \"off\""));
    ready(&server);
    // It is searched, and ours then.
    let held = network.curl(&["-m", "10", "http://10.77.0.210/"]);
    assert_eq!(held.status.code(), Some(28), "{held:?}");
    let (own, to) = (network.ethernet(CLIENT), network.ethernet(BALANCER));
    let began = Instant::now();
    let said = network.run(CLIENT, &["python3", "-c", FLOOD, &own, &to, "10.77.0.210"]);
    let most = 50 * (began.elapsed().as_secs() + 2);
    let numbers: Vec<u64> = said.split_whitespace().map(|number| number.parse().unwrap()).collect();
    let [sent, answered] = numbers[..] else { panic!("{said}") };
    assert_eq!(sent, 3000, "{said}");
    assert!((60..=most).contains(&answered), "{answered} of {sent}, at most {most}");
    eventually("what was left out is counted", secs(10), || {
        (number(&server, "limited") >= sent.saturating_sub(most)).then_some(())
    });
}

#[test]
fn a_machine_that_takes_such_an_address_has_it_from_its_first_question_about_another_one_on() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let server = network.balancer(&config(&format!("\"{VIP}:80\""), NETWORKS, "health = \"off\""));
    ready(&server);
    // Without a word of its own about the address, and from the address that it is told.
    for setting in ["arp_notify", "arp_announce"] {
        network.run(SERVERS[0], &["sysctl", "-qw", &format!("net.ipv4.conf.all.{setting}=0")]);
    }
    let neighbour = |address: &str| network.run(CLIENT, &["ip", "neigh", "show", address]);
    for (address, prefix, other) in
        [("10.77.0.203", "24", "10.77.0.12"), ("fd77::dead:9", "64", "[fd77::12]")]
    {
        let held = network.curl(&["-m", "10", &format!("http://{}/", host(address))]);
        assert_eq!(held.status.code(), Some(28), "{held:?}");
        assert!(neighbour(address).contains(&network.ethernet(BALANCER)), "{}", neighbour(address));
        let used = number(&server, "used");
        let add = format!("ip addr add {address}/{prefix} dev eth0");
        let add = if address.contains(':') { format!("{add} nodad") } else { add };
        let asks = format!(
            "{add}; ip neigh flush dev eth0; curl -gsm 1 --interface {address} http://{other}/ || true"
        );
        network.run(SERVERS[0], &["sh", "-ec", &asks]);
        eventually("the tarpit gives it back", secs(5), || (number(&server, "used") > used).then_some(()));
        network.ip(CLIENT, &["neigh", "flush", "dev", "eth0"]);
        assert_eq!(network.visit(&host(address)), "2");
        assert!(neighbour(address).contains(&network.ethernet(SERVERS[0])), "{}", neighbour(address));
    }
}
