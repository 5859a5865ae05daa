//! Who has the address of a backend: another machine that claims it, and another network card of the backend itself.

use testing::tools::{self, Root};
use testing::{Server, eventually, secs};

use super::network::{BALANCER, CLIENT, Network, Running, SERVERS, VIP, config};

/// Tells a machine again and again who has an address: own Ethernet address, that of the machine, the address, that of the
/// machine.
const SPOOF: &str = r#"
import socket, sys, time
own, to = (bytes.fromhex(word) for word in sys.argv[1:3])
family = socket.AF_INET6 if ":" in sys.argv[3] else socket.AF_INET
ip, asker = (socket.inet_pton(family, word) for word in sys.argv[3:5])
if family == socket.AF_INET:
    frame = to + own + bytes([8, 6, 0, 1, 8, 0, 6, 4, 0, 2]) + own + ip + to + asker
else:
    icmp = bytes([136, 0, 0, 0, 0x60, 0, 0, 0]) + ip + bytes([2, 1]) + own
    part = ip + asker + bytes([0, 0, 0, len(icmp), 0, 0, 0, 58]) + icmp
    total = sum(part[at] << 8 | part[at + 1] for at in range(0, len(part), 2))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    icmp = icmp[:2] + (total ^ 0xFFFF).to_bytes(2, "big") + icmp[4:]
    frame = to + own + bytes([0x86, 0xDD, 0x60, 0, 0, 0, 0, len(icmp), 58, 255]) + ip + asker + icmp
link = socket.socket(17, 3)
link.bind(("eth0", 0))
while True:
    link.send(frame)
    time.sleep(0.3)
"#;

fn degraded(server: &Server) -> String {
    server.ctl_json(&["status"])["degraded"].to_string()
}

#[test]
fn a_machine_that_claims_the_address_of_a_backend_gets_no_packets_and_another_card_does() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    claim([14, 15, 13].map(|host| format!("10.77.0.{host}")));
}

#[test]
fn the_same_is_so_with_neighbour_discovery() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    claim([14, 15, 13].map(|host| format!("fd77::{host}")));
}

fn claim([first, second, own]: [String; 3]) {
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let at = |ip: &str| if ip.contains(':') { format!("[{ip}]:80") } else { format!("{ip}:80") };
    let text = config(&format!("\"{VIP}:80\""), "", "health = \"off\"");
    let text = text.replace("10.77.0.14:80", &at(&first)).replace("10.77.0.15:80", &at(&second));
    let server = network.balancer(&text);
    let ethernet = || {
        let status = server.ctl_json(&["dsr", "status"]);
        let backends = status["services"][0]["backends"].as_array()?.clone();
        Some(backends.iter().map(|one| one["ethernet"].as_str().map(str::to_owned)).collect::<Vec<_>>())
    };
    let all = || SERVERS.map(|server| Some(network.ethernet(server)));
    eventually("both are known", secs(20), || (ethernet()? == all()).then_some(()));

    let [attacker, balancer] = [CLIENT, BALANCER].map(|machine| network.ethernet(machine).replace(':', ""));
    let words = ["python3", "-c", SPOOF, &attacker, &balancer, &first, &own];
    let spoofing = Running(network.command(CLIENT, &words).spawn().unwrap());
    let (other, holder) = (network.ethernet(CLIENT), network.ethernet(SERVERS[0]));
    eventually("both machines are named", secs(20), || {
        let said = degraded(&server);
        let claims = format!("{other} claims {first}, which is the address of this backend");
        (said.contains(&claims) && said.contains(&format!("packets go on to {holder}"))).then_some(())
    });
    let visits: Vec<_> = (0..100).map(|_| network.visit(VIP)).collect();
    assert!(["2", "3"].iter().all(|server| visits.iter().any(|visit| visit == server)), "{visits:?}");
    assert_eq!(ethernet().unwrap(), all());
    drop(spoofing);
    eventually("it is over", secs(90), || (degraded(&server) == "[]").then_some(()));

    // Another network card.
    network.ip(SERVERS[0], &["link", "set", "eth0", "down"]);
    network.ip(SERVERS[0], &["link", "set", "eth0", "address", "02:00:00:00:77:14"]);
    network.ip(SERVERS[0], &["link", "set", "eth0", "up"]);
    network.ip(SERVERS[0], &["-6", "addr", "replace", "fd77::14/64", "dev", "eth0", "nodad"]);
    network.ip(BALANCER, &["neigh", "flush", "dev", "eth0"]);
    eventually("its address is taken", secs(30), || (ethernet()? == all()).then_some(()));
    let events = String::from_utf8(server.ctl(&["events"]).stdout).unwrap();
    let expected = format!("packets go to 02:00:00:00:77:14 ({first}) from now on, and no more to {holder}");
    assert!(events.contains(&expected), "{events}");
    eventually("it gets connections", secs(10), || (network.visit(VIP) == "2").then_some(()));
    eventually("nothing is degraded", secs(10), || (degraded(&server) == "[]").then_some(()));
}
