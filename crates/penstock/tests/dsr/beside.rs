//! Programs of others on the interface of a service, and of a second penstock with another data path: what does not go
//! together is refused or left for another path, and what was there before serves on.

use testing::server::binary;
use testing::tools::{self, Root};
use testing::{Server, eventually, secs};

use super::network::{BALANCER, Network, SERVERS, VIP, config};
use super::paths::stop;

const OTHER: &str = "10.77.0.101";
const NO_CHECKS: &str = "health = \"off\"";

fn of(vip: &str, path: &str, more: &str) -> String {
    config(&format!("\"{vip}:80\""), &format!("data-path = \"{path}\"\n{more}"), NO_CHECKS)
}

#[track_caller]
fn serves(network: &Network, vip: &str) {
    eventually(&format!("{vip} serves"), secs(20), || {
        network.curl(&["-m", "1", &format!("http://{vip}/")]).status.success().then_some(())
    });
}

#[track_caller]
fn is_refused(network: &Network, config: &str, expected: &str) {
    let output = network.setup_with_all_files(config).output();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains(expected), "{expected}: {text}");
}

/// The path of the service, and the reason against `tc`.
fn path(server: &Server) -> (String, String) {
    let path = server.ctl_json(&["status"])["listeners"][0]["paths"][0].clone();
    let refused = path["refused"].as_array().unwrap();
    let reason =
        refused.iter().find(|one| one["path"] == "tc").map_or("", |one| one["reason"].as_str().unwrap());
    (path["path"].as_str().unwrap().to_owned(), reason.to_owned())
}

/// What `penstock doctor dsr` says of a service that is not served.
fn doctor(network: &Network, path: &str) -> String {
    let file = network.directory.path().join("doctor.toml");
    std::fs::write(&file, of(VIP, path, "").replace("@DIR@", "/nowhere")).unwrap();
    let words = [binary(), "doctor", "dsr", "--config", file.to_str().unwrap()];
    String::from_utf8(network.output(BALANCER, &words).stdout).unwrap()
}

fn two_addresses() -> (Network, [super::network::Running; 2]) {
    let network = Network::new();
    let servers = SERVERS.map(|server| network.nginx(server));
    SERVERS.iter().for_each(|server| network.set_vip(*server, "add", OTHER));
    (network, servers)
}

#[test]
fn behind_a_program_of_another_owner_in_generic_mode_this_process_forwards_and_tc_is_refused() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../sys/bpf/dsr-xdp.bpf.o");
    // Without a service it lets all pass.
    network.ip(BALANCER, &["link", "set", "eth0", "xdpgeneric", "object", program, "section", "xdp.frags"]);
    is_refused(&network, &of(VIP, "tc", ""), "tc: eth0 has an XDP program in generic mode (program ");
    assert!(
        doctor(&network, "tc")
            .contains("fault    a start refuses data-path = \"tc\": eth0 has an XDP program")
    );
    assert!(!doctor(&network, "auto").contains("fault    "));
    let server = network.balancer_with_all_files(&of(VIP, "auto", ""));
    serves(&network, VIP);
    let (path, reason) = path(&server);
    assert_eq!(path, "af_packet", "{reason}");
    assert!(
        reason.contains("behind which programs of tc see frames without their Ethernet header"),
        "{reason}"
    );
    (0..10).for_each(|_| assert!(["2", "3"].contains(&&*network.visit(VIP))));
    let shown = network.run(BALANCER, &["ip", "link", "show", "eth0"]);
    assert!(shown.contains("xdpgeneric"), "it is left alone: {shown}");
    stop(server);
    // Programs of tc that another owner has would get no whole frames.
    network.ip(BALANCER, &["link", "set", "eth0", "xdpgeneric", "off"]);
    network.run(BALANCER, &["tc", "qdisc", "add", "dev", "eth0", "clsact"]);
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../sys/bpf/dsr-tc.bpf.o");
    let words =
        ["tc", "filter", "add", "dev", "eth0", "ingress", "bpf", "da", "obj", program, "sec", "classifier"];
    network.run(BALANCER, &words);
    is_refused(&network, &of(VIP, "xdp-generic", ""), "xdp-generic: eth0 has programs of tc (program ");
    let server = network.balancer_with_all_files(&of(VIP, "auto", ""));
    serves(&network, VIP);
    assert_eq!(self::path(&server).0, "tc", "programs of tc go together");
    stop(server);
}

#[test]
fn two_processes_with_different_paths_on_one_interface_serve_or_are_refused_with_the_reason() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let (network, _servers) = two_addresses();
    let both = || {
        for vip in [VIP, OTHER] {
            (0..10).for_each(|_| assert!(["2", "3"].contains(&&*network.visit(vip)), "{vip}"));
        }
    };
    let first = network.balancer_with_all_files(&of(VIP, "tc", ""));
    serves(&network, VIP);
    let said = doctor(&network, "auto");
    assert!(said.contains("a process forwards what comes to this address on eth0"), "{said}");
    assert!(said.contains("ss -xap | grep penstock-dsr/eth0/10.77.0.100/80/tcp"), "{said}");
    is_refused(&network, &of(OTHER, "xdp-generic", ""), "of a penstock (/sys/fs/bpf/penstock/v2-");
    let every = of(VIP, "auto", "").replace(&format!("{VIP}:80"), &format!("{VIP}:*"));
    is_refused(&network, &every, "another process forwards what comes to this address on eth0");
    (0..10).for_each(|_| assert!(["2", "3"].contains(&&*network.visit(VIP))));
    stop(first);
    let first = network.balancer_with_all_files(&of(VIP, "xdp-generic", ""));
    serves(&network, VIP);
    is_refused(&network, &of(OTHER, "tc", ""), "tc: eth0 has an XDP program in generic mode (program ");
    is_refused(&network, &of(OTHER, "xdp-generic", ""), "an XDP program is on eth0 already");
    let second = network.balancer_with_all_files(&of(OTHER, "auto", ""));
    serves(&network, OTHER);
    assert_eq!(path(&second).0, "af_packet");
    both();
    stop(first);
    (0..10).for_each(|_| assert!(["2", "3"].contains(&&*network.visit(OTHER))));
    stop(second);
    // In the driver and behind it both see whole frames. The interface of a test sends what `xdp` gives back to another one
    // only if that has a program, and without checksums that are left to a card.
    network.pass_in_driver(BALANCER);
    network.offload(super::network::CLIENT, "tx", "off");
    let first = network.balancer_with_all_files(&of(VIP, "xdp", ""));
    let second = network.balancer_with_all_files(&of(OTHER, "auto", ""));
    [VIP, OTHER].iter().for_each(|vip| serves(&network, vip));
    assert_eq!((path(&first).0.as_str(), path(&second).0.as_str()), ("xdp", "tc"));
    both();
    stop(second);
    stop(first);
}

#[test]
fn a_listener_of_two_addresses_with_xdp_generic_is_refused_before_anything_is_attached() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let text = config(&format!("[\"{VIP}:80\", \"{OTHER}:80\"]"), "data-path = \"xdp-generic\"", NO_CHECKS);
    is_refused(
        &network,
        &text,
        "is for one address of an interface, which takes one XDP program: listener.web has 2 on eth0",
    );
}

/// `penstock ctl dsr detach` on the balancer.
pub(crate) fn detach(network: &Network, words: &[&str]) -> (bool, String) {
    let space = network.space();
    let command = [&[&*space, binary(), "ctl", "dsr", "detach"], words].concat();
    let output = tools::run("nsenter", &command, secs(20));
    (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

#[test]
fn programs_that_are_kept_are_shown_and_taken_away_and_those_of_a_running_process_are_not() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let (network, _servers) = two_addresses();
    let (is_done, text) = detach(&network, &["--all"]);
    assert!(
        is_done && text.starts_with("no program of penstock with a name in /sys/fs/bpf is in this"),
        "{text}"
    );
    assert!(text.contains("one without a name") && text.contains("is not seen here"), "{text}");
    for (variable, filters) in [("", 0), ("PENSTOCK_TEST_WITHOUT_TCX", 2)] {
        let start = || {
            let text = config(&format!("[\"{VIP}:80\", \"{OTHER}:80\"]"), "at-stop = \"keep\"", NO_CHECKS);
            let setup = network.setup_as("one.toml", &text);
            let server = if variable.is_empty() { setup.start() } else { setup.env(variable, "1").start() };
            [VIP, OTHER].iter().for_each(|vip| serves(&network, vip));
            server
        };
        let server = start();
        let (is_done, text) = detach(&network, &["--all"]);
        assert!(is_done && text.matches("in use").count() == 2, "{text}");
        let place = text.lines().next().unwrap().split_whitespace().nth(2).unwrap().to_owned();
        let (is_done, text) = detach(&network, &[&place]);
        assert!(!is_done && text.contains("is the program of a penstock that runs"), "{text}");
        [VIP, OTHER].iter().for_each(|vip| assert_eq!(network.visit(vip).len(), 1));
        stop(server);
        [VIP, OTHER].iter().for_each(|vip| assert_eq!(network.visit(vip).len(), 1, "it is kept"));
        let (is_done, text) = detach(&network, &[]);
        assert!(is_done && text.matches("kept").count() == 3 && text.contains("/one.toml at "), "{text}");
        let (is_done, text) = detach(&network, &["nothing"]);
        assert!(!is_done && text.contains("nothing is no program of penstock"), "{text}");
        let shown = || network.run(BALANCER, &["tc", "filter", "show", "dev", "eth0", "ingress"]);
        assert_eq!(shown().matches("penstock-v").count(), filters, "{}", shown());
        let (is_done, text) = detach(&network, &[&place]);
        assert!(is_done && text.matches("taken away").count() == 1 && text.contains("kept"), "{text}");
        let (is_done, text) = detach(&network, &["--all", "--json"]);
        assert!(is_done && text.matches("\"taken away\"").count() == 1, "{text}");
        for vip in [VIP, OTHER] {
            assert!(!network.curl(&["-m", "1", &format!("http://{vip}/")]).status.success(), "{vip}");
        }
        assert!(!detach(&network, &[]).1.contains("v2-"));
        let qdiscs = network.run(BALANCER, &["tc", "qdisc", "show", "dev", "eth0"]);
        assert!(!qdiscs.contains("clsact"), "the qdisc that was made goes with the last filter: {qdiscs}");
    }
}

#[test]
fn maps_of_another_form_are_made_anew_and_their_flows_are_told_as_forgotten() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    for (name, size) in [("backends", "16"), ("service", "8"), ("fragments", "8")] {
        let mut server = network.setup_as("one.toml", &of(VIP, "tc", "")).start();
        serves(&network, VIP);
        server.signal(nix::sys::signal::Signal::SIGKILL);
        server.wait_end(secs(10));
        let pinned = super::survival::link(&network, "tc").with_file_name(name);
        std::fs::remove_file(&pinned).unwrap();
        let of_map = ["type", "array", "key", "4", "value", size, "entries", "1", "name", name];
        let pinned = pinned.to_str().unwrap();
        let output = tools::run("bpftool", &[&["map", "create", pinned], &of_map[..]].concat(), secs(10));
        assert!(output.status.success(), "{output:?}");
        (0..10).for_each(|_| assert_eq!(network.visit(VIP).len(), 1, "the program goes on with its own"));
        let server = network.setup_as("one.toml", &of(VIP, "tc", "")).start();
        serves(&network, VIP);
        let events = server.said(&["events"]);
        assert!(events.contains("whose flows are forgotten: its maps have another form"), "{name}: {events}");
        assert_eq!(path(&server).0, "tc");
        stop(server);
        super::paths::ends(&network);
    }
}
