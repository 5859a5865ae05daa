//! `penstock doctor dsr` on the balancer: each leg is broken in turn, and the right sentence is expected.

use std::fs;
use std::process::Output;

use serde_json::Value;
use testing::tools::{self, Root};
use testing::{binary, eventually, secs};

use super::network::{BALANCER, CLIENT, Network, SERVERS, VIP, VIP6, config};
use super::traffic::unbound;

struct Doctor<'a> {
    network: &'a Network,
    file: String,
}

impl<'a> Doctor<'a> {
    fn new(network: &'a Network, config: &str) -> Self {
        let file = network.directory.path().join("doctor.toml");
        fs::write(&file, config.replace("@DIR@", "/nowhere")).unwrap();
        Self { network, file: file.display().to_string() }
    }

    fn run(&self, words: &[&str]) -> Output {
        let command = [binary(), "doctor", "dsr", "--config", &self.file];
        self.network.output(BALANCER, &[&command[..], words].concat())
    }

    /// Words and texts of all faults.
    #[track_caller]
    fn faults(&self) -> Vec<(String, String)> {
        let output = self.run(&["--json"]);
        let report: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        let services = report["services"].as_array().unwrap();
        let all = services.iter().flat_map(|service| service["findings"].as_array().unwrap());
        let word = |one: &Value, key: &str| one[key].as_str().unwrap().to_owned();
        let faults = all.filter(|one| one["state"] == "fault");
        let faults: Vec<_> = faults
            .map(|one| (word(one, "check"), format!("{}\n{}", word(one, "text"), one["mend"])))
            .collect();
        assert_eq!(
            (&report["ok"], output.status.code()),
            (&Value::from(faults.is_empty()), Some(i32::from(!faults.is_empty())))
        );
        faults
    }

    /// Breaks something with a script on a machine, and mends it with another one.
    #[track_caller]
    fn expect(&self, (machine, breaks, mends): (usize, &str, &str), expected: &[(&str, &str)]) {
        self.network.run(machine, &["sh", "-ec", breaks]);
        self.expect_now(breaks, expected);
        self.network.run(machine, &["sh", "-ec", mends]);
        self.expect_health(mends);
    }

    #[track_caller]
    fn expect_now(&self, what: &str, expected: &[(&str, &str)]) {
        let found = self.faults();
        assert_eq!(found.len(), expected.len(), "{what}: {found:#?}");
        for ((check, text), (wanted, part)) in found.iter().zip(expected) {
            assert!(check == wanted && text.contains(part), "{what}: {found:#?} and not {expected:#?}");
        }
    }

    #[track_caller]
    fn expect_health(&self, after: &str) {
        eventually(&format!("all is well after {after}"), secs(30), || {
            self.faults().is_empty().then_some(())
        });
    }
}

#[test]
fn each_broken_leg_has_its_sentence_and_a_way_to_mend_it() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let [first, second] = SERVERS;
    let mut nginx = Some(network.nginx(first));
    let _other = network.nginx(second);
    let text = config(&format!("\"{VIP}:80\""), "", "health = \"off\"");
    let doctor = Doctor::new(&network, &text);
    doctor.expect_health("the start");
    let output = doctor.run(&[]);
    let said = String::from_utf8_lossy(&output.stdout);
    for line in [
        "listener.web: 10.77.0.100:80 on eth0\n",
        "ok       no other machine on eth0 answers for 10.77.0.100\n",
        "ok       10.77.0.14:80 takes TCP connections to 10.77.0.100:80\n",
        "ok       10.77.0.15:80 gets packets of 1500 bytes, and they come back\n",
        "need no change: large packets and unfinished checksums are forwarded as they are\n",
    ] {
        assert!(said.contains(line), "{line} is not in {said}");
    }
    // A balancer that serves at the same time is not taken for another machine.
    let serving = network.balancer(&text);
    eventually("it serves", secs(20), || (network.visit(VIP).len() == 1).then_some(()));
    doctor.expect_health("the start of the balancer");
    let with_vip = |verb: &str| format!("ip address {verb} {VIP}/32 dev lo");
    // What a server sends on to the balancer comes to the other one, whose answer is none of the first.
    let forwards = format!("sysctl -qw net.ipv4.ip_forward=1; {}", with_vip("del"));
    let mends = format!("sysctl -qw net.ipv4.ip_forward=0; {}", with_vip("add"));
    doctor.expect(
        (first, &forwards, &mends),
        &[("backend-tcp", "10.77.0.14:80 does not answer packets to 10.77.0.100:80: its loopback interface lacks the address")],
    );
    drop(serving);
    doctor.expect(
        (first, &with_vip("del"), &with_vip("add")),
        &[("backend-tcp", "10.77.0.14:80 does not answer packets to 10.77.0.100:80: its loopback interface lacks the address")],
    );
    let ignore = |value: &str| format!("sysctl -qw net.ipv4.conf.all.arp_ignore={value}");
    let mac = network.run(first, &["cat", "/sys/class/net/eth0/address"]);
    let named = format!("the backend 10.77.0.14:80 ({}) answers ARP requests for 10.77.0.100", mac.trim());
    doctor.expect((first, &ignore("0"), &ignore("1")), &[("vip-owner", &named)]);
    let on_eth0 = |verb: &str| format!("ip address {verb} {VIP}/24 dev eth0");
    let mac = network.run(CLIENT, &["cat", "/sys/class/net/eth0/address"]);
    let named = format!("another machine ({}) answers ARP requests for 10.77.0.100", mac.trim());
    doctor.expect((CLIENT, &on_eth0("add"), &on_eth0("del")), &[("vip-owner", &named)]);
    doctor.expect(
        (first, "ip link set eth0 mtu 1400", "ip link set eth0 mtu 1500"),
        &[("backend-mtu", "answers a short packet to 10.77.0.100 and none of 1500 bytes")],
    );
    doctor.expect(
        (BALANCER, "ip link set eth0 mtu 1300", "ip link set eth0 mtu 1500"),
        &[14, 15].map(|_| {
            ("backend-mtu", "clients send packets of 1500 bytes, and eth0 takes 1300: uploads stall\n[\"ip link set eth0 mtu 1500")
        }),
    );
    doctor.expect(
        (BALANCER, &with_vip("add"), &with_vip("del")),
        &[("vip-not-local", "lo of this machine has 10.77.0.100: its kernel answers clients itself")],
    );
    drop(nginx.take());
    doctor.expect_now(
        "the process is stopped",
        &[("backend-tcp", "10.77.0.14:80 has 10.77.0.100, and no process there has TCP port 80 of it: connections are refused")],
    );
    network.set_link(first, "down");
    doctor.expect_now(
        "the link of a server is down",
        &[(
            "backend-neighbour",
            "10.77.0.14:80: no machine on eth0 answers for 10.77.0.14: it is off, its link is down",
        )],
    );
    let own = Doctor::new(&network, &text.replace("10.77.0.14:80", "10.77.0.13:80"));
    own.expect_now(
        "a backend is the balancer itself",
        &[("backend-neighbour", "10.77.0.13:80: 10.77.0.13 is an address of this machine")],
    );
    let doctor = Doctor::new(&network, &text);
    network.set_link(BALANCER, "down");
    doctor.expect_now("our link is down", &[("link", "eth0 is up and has no link")]);
    network.run(BALANCER, &["ip", "link", "set", "eth0", "down"]);
    doctor.expect_now("our interface is down", &[("link", "eth0 is down\n[\"ip link set eth0 up\"]")]);
    network.unplug(BALANCER);
    doctor.expect_now("our interface is gone", &[("link", "there is no network interface eth0")]);
}

#[test]
fn forwarding_of_the_kernel_is_a_fault_where_it_takes_packets_of_the_service_and_else_left_alone() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    network.run(BALANCER, &["sysctl", "-qw", "net.ipv4.conf.eth0.forwarding=1"]);
    let on = |path: &str| {
        let text = config(&format!("\"{VIP}:80\""), &format!("data-path = \"{path}\""), "health = \"off\"");
        (Doctor::new(&network, &text), text)
    };
    let fault = [("forwarding", "clients hear that no machine has 10.77.0.100")];
    on("af_packet").0.expect_now("it is asked for", &fault);
    on("tc").0.expect_now("a program is asked for", &[]);
    let (mut doctor, text) = on("auto");
    doctor.expect_now("it is not known yet", &[]);
    let said = String::from_utf8(doctor.run(&[]).stdout).unwrap();
    assert!(
        said.contains("where the data path of the service is af_packet") && !said.contains("sysctl"),
        "{said}"
    );
    // What serves says what it is. Without its capabilities a program is not possible.
    let without = ["setpriv", "--bounding-set", "-bpf,-perfmon,-net_admin,-sys_admin"];
    for (path, setup) in [("tc", network.setup(&text)), ("af_packet", network.setup_through(&text, without))]
    {
        doctor.file = setup.dir().join("penstock.toml").display().to_string();
        let server = setup.start();
        eventually("it serves", secs(20), || {
            (server.ctl_json(&["dsr", "status"])["services"][0]["path"] == path).then_some(())
        });
        let faults = doctor.faults();
        match path {
            "tc" => assert!(faults.is_empty(), "{faults:#?}"),
            _ => assert!(faults.len() == 1 && faults[0].1.contains("forwarding=0"), "{faults:#?}"),
        }
        let said = String::from_utf8(doctor.run(&[]).stdout).unwrap();
        let program = "a program takes those of the service before that";
        assert_eq!(said.contains(program), path == "tc", "{said}");
    }
}

#[test]
fn two_balancers_that_both_stand_by_are_a_fault_and_flags_are_enough_for_the_doctor() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let mut network = Network::new();
    let other = network.add_balancer();
    let network = network;
    let _servers = SERVERS.map(|server| network.nginx(server));
    let text = config(&format!("\"{VIP}:80\""), "owner-address = \"169.254.77.10\"", "health = \"off\"");
    let doctor = Doctor::new(&network, &text);
    let server = network.machine(other).setup(&text).start();
    eventually("the service is there", secs(20), || {
        (server.ctl_json(&["dsr", "status"])["services"].as_array()?.len() == 1).then_some(())
    });
    doctor.expect_now(
        "no machine has the address",
        &[("vip-owner", "no machine on eth0 answers for 10.77.0.100: this one stands by")],
    );
    network.ip(other, &["addr", "add", "169.254.77.10/32", "dev", "lo"]);
    doctor.expect_health("the other one became the owner");
    let flags =
        ["--dsr", "eth0", "--listen", "10.77.0.100:80", "--backend", "10.77.0.14", "--backend", "10.77.0.15"];
    let output = network.output(BALANCER, &[&[binary(), "doctor", "dsr"][..], &flags].concat());
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        said.contains("another machine (") && said.contains("10.77.0.14:80 takes TCP connections"),
        "{said}"
    );
}

#[test]
fn ipv6_is_asked_by_neighbour_discovery_and_udp_services_by_datagrams() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let [first, second] = SERVERS;
    let mut server = Some(unbound(&network, first));
    let _other = unbound(&network, second);
    let bind = format!("[\"{VIP}:53\", \"[{VIP6}]:53\"]");
    let doctor = Doctor::new(&network, &config(&bind, "transport = \"tcp-and-udp\"", "health = \"off\""));
    doctor.expect_health("the start");
    let with_vip = |verb: &str| format!("ip address {verb} {VIP6}/128 dev lo");
    let silent =
        "10.77.0.14:53 does not answer packets to [fd77::100]:53: its loopback interface lacks the address";
    // What the server has bound to the address stays bound.
    doctor.expect(
        (first, &with_vip("del"), &with_vip("add")),
        &[("backend-tcp", silent), ("backend-udp", silent)],
    );
    let on_eth0 = |verb: &str| format!("ip address {verb} {VIP6}/64 dev eth0");
    let mac = network.run(CLIENT, &["cat", "/sys/class/net/eth0/address"]);
    let named = format!("another machine ({}) answers neighbour solicitations for fd77::100", mac.trim());
    doctor.expect((CLIENT, &on_eth0("add"), &on_eth0("del")), &[("vip-owner", &named)]);
    drop(server.take());
    doctor.expect_now(
        "the process is stopped",
        &[
            ("backend-tcp", "no process there has TCP port 53"),
            ("backend-udp", "no process there has UDP port 53 of it: datagrams are refused"),
            ("backend-tcp", "no process there has TCP port 53"),
            ("backend-udp", "10.77.0.14:53 has fd77::100, and no process there has UDP port 53"),
        ],
    );
}

#[test]
fn what_cannot_be_examined_is_said() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let good = config(&format!("\"{VIP}:80\""), "", "");
    let doctor = Doctor::new(&network, &good);
    let words =
        ["setpriv", "--bounding-set", "-net_raw", binary(), "doctor", "dsr", "--config", &doctor.file];
    let output = network.output(BALANCER, &words);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && text.contains("it needs CAP_NET_RAW"), "{output:?}");
    let other = Doctor::new(
        &network,
        &good.replace("\"dsr\"\ninterface = \"eth0\"", "\"tcp\"").replace("maglev", "hash"),
    );
    let output = other.run(&[]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(2) && text.contains("has no listener with protocol = \"dsr\""),
        "{output:?}"
    );
    let output = testing::server::penstock(&["doctor", "dsr", "--config", "/nowhere/x.toml"]);
    assert!(output.status.code() == Some(2), "{output:?}");
}
