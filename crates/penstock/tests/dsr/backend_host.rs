//! `penstock backend` on a server: what is needed, what makes it so, and the way back.

use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::Value;
use testing::binary;
use testing::tools::{self, Root};

use super::network::{CLIENT, Network, SERVERS, VIP, VIP6, config};

/// Runs penstock on a machine.
fn penstock(network: &Network, machine: usize, words: &[&str]) -> Output {
    network.output(machine, &[&[binary(), "backend"], words].concat())
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The findings that are faults.
fn faults(output: &Output) -> Vec<Value> {
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let all = report["findings"].as_array().unwrap();
    let faults: Vec<_> = all.iter().filter(|one| one["state"] == "fault").cloned().collect();
    assert_eq!(report["ok"], faults.is_empty(), "{report:#}");
    assert_eq!(output.status.code(), Some(i32::from(!faults.is_empty())), "{report:#}");
    faults
}

#[test]
fn verify_names_each_fault_with_the_command_that_mends_it() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let server = SERVERS[0];
    let _nginx = network.nginx(server);
    let (v4, v6) = (format!("{VIP}:80"), format!("[{VIP6}]:80"));
    let verify = || {
        penstock(&network, server, &["verify", "--vip", &v4, "--vip", &v6, "--interface", "eth0", "--json"])
    };
    assert_eq!(faults(&verify()), [] as [Value; 0]);
    // The way back to clients leads to a place that is not eth0.
    network.run(
        server,
        &[
            "sh",
            "-ec",
            "ip link add eth1 type veth peer name eth2\nip link set eth1 up\nip link set eth2 up\nsysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0\nip route add default dev eth1",
        ],
    );
    let (wide, foreign) =
        (format!("ip address add {VIP}/24 dev lo"), format!("ip address add {VIP}/24 dev eth0"));
    let (without, without6) =
        (format!("ip address del {VIP}/32 dev lo"), format!("ip address del {VIP6}/128 dev lo"));
    for (breaks, check, text) in [
        (&*without, "loopback", "lo lacks 10.77.0.100/32"),
        (&*without6, "loopback", "lo lacks fd77::100/128"),
        (&*wide, "loopback", "lo has 10.77.0.100/24, which is a whole network"),
        (&*foreign, "other-interface", "eth0 has 10.77.0.100: this server answers for it there"),
        ("sysctl -qw net.ipv4.conf.all.arp_ignore=0", "arp-ignore", "arp_ignore of eth0 is 0"),
        ("sysctl -qw net.ipv4.conf.eth0.arp_ignore=8", "arp-ignore", "answers no ARP request at all"),
        ("sysctl -qw net.ipv4.conf.all.arp_announce=0", "arp-announce", "arp_announce of eth0 is 0"),
        (
            "sysctl -qw net.ipv4.conf.eth0.rp_filter=1",
            "rp-filter",
            "the way back to clients leads through eth1",
        ),
    ] {
        network.run(server, &["sh", "-ec", breaks]);
        let found = faults(&verify());
        assert_eq!(found.len(), 1, "{breaks}: {found:#?}");
        assert_eq!(found[0]["check"], check, "{breaks}");
        assert!(found[0]["text"].as_str().unwrap().contains(text), "{breaks}: {found:#?}");
        let mend: Vec<_> =
            found[0]["mend"].as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect();
        network.run(server, &["sh", "-ec", &mend.join("\n")]);
        assert_eq!(faults(&verify()), [] as [Value; 0], "{breaks}, {mend:?}");
    }
    let output = penstock(&network, server, &["verify", "--vip", &format!("{VIP}:81")]);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("fault    no process serves 10.77.0.100:81 (tcp): connections to it are refused"),
        "{text}"
    );
    assert!(text.contains("ok       lo has 10.77.0.100/32"), "{text}");
    let udp = penstock(
        &network,
        server,
        &["verify", "--vip", &v4, "--transport", "udp", "--interface", "eth0", "--json"],
    );
    assert_eq!(faults(&udp)[0]["check"], "port", "nginx takes no datagrams");
    // The configuration of the balancer names the addresses, ports and protocols.
    let file = network.directory.path().join("balancer.toml");
    let text = config(&format!("[\"{VIP}:80\", \"[{VIP6}]:80\"]"), "", "");
    fs::write(&file, text.replace("@DIR@", "/nowhere")).unwrap();
    let words = ["verify", "--config", file.to_str().unwrap(), "--interface", "eth0"];
    let output = penstock(&network, server, &words);
    let text = said(&output);
    assert!(output.status.success() && text.contains("serves [fd77::100]:80 (tcp)"), "{text}");
    assert!(text.contains("serves 10.77.0.100:80 (tcp)"), "{text}");
}

#[test]
fn the_only_address_of_a_machine_is_no_vip_and_nothing_advises_to_delete_it() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let server = SERVERS[0];
    let own = network.address(server);
    let before = network.run(server, &["ip", "-o", "address"]);
    let text = format!("{own} is the only IPv4 address of eth0: it is this machine's own one, and no VIP");
    for words in [&["setup", "--vip", &own, "--apply"][..], &["setup", "--vip", &own]] {
        let output = penstock(&network, server, words);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(said(&output).contains(&text), "{output:?}");
    }
    let output = penstock(&network, server, &["verify", "--vip", &own]);
    let told = said(&output);
    assert!(told.contains(&text) && !told.contains("address del"), "{told}");
    assert_eq!(network.run(server, &["ip", "-o", "address"]), before);
}

/// Everything that a set-up may change on a machine.
fn state(network: &Network, machine: usize) -> String {
    let script = "ip -o address show dev lo | sed 's/ *valid_lft.*//'\nsysctl net.ipv4.conf.all net.ipv4.conf.eth0 | grep -E 'arp_|rp_filter'";
    network.run(machine, &["sh", "-c", script])
}

/// What `setup` of both addresses ends with.
const DONE: &str =
    "ok: this server is set up for 10.77.0.100, fd77::100, until it starts again: --persist makes it last\n";

#[test]
fn setup_does_what_is_lacking_once_and_undo_takes_exactly_that_back() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let directory = network.directory.path().join("state");
    let kept = directory.to_str().unwrap();
    let setup = |words: &[&str]| {
        penstock(&network, CLIENT, &[&["setup", "--apply", "--state", kept], words].concat())
    };
    let undo = |vip: &str| penstock(&network, CLIENT, &["undo", "--state", kept, "--vip", vip]);
    let second = "10.77.0.101";
    let bare = state(&network, CLIENT);
    let output = setup(&["--vip", VIP, "--vip", VIP6]);
    let text = said(&output);
    assert!(output.status.success() && text.ends_with(DONE), "{text}");
    let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part} in {text}"));
    let address = at("ip address add 10.77.0.100/32 dev lo\n");
    assert!(at("sysctl -w net.ipv4.conf.all.arp_ignore=1   # it was 0\n") < address, "{text}");
    assert!(at("sysctl -w net.ipv4.conf.all.arp_announce=2") < address, "{text}");
    let verify = ["verify", "--vip", VIP, "--vip", VIP6];
    assert!(penstock(&network, CLIENT, &verify).status.success());
    let ready = state(&network, CLIENT);
    let again = setup(&["--vip", VIP, "--vip", VIP6]);
    assert_eq!(said(&again), DONE);
    // The settings stay as long as an address needs them, whichever was first.
    assert!(setup(&["--vip", second]).status.success());
    let text = said(&undo(VIP));
    assert!(
        text.contains(
            "stays: net.ipv4.conf.all.arp_ignore=1, net.ipv4.conf.all.arp_announce=2: 10.77.0.101 needs it"
        ),
        "{text}"
    );
    assert!(!state(&network, CLIENT).contains("10.77.0.100/32"));
    assert!(penstock(&network, CLIENT, &["verify", "--vip", second]).status.success());
    assert!(undo(second).status.success() && undo(VIP6).status.success());
    assert_eq!(state(&network, CLIENT), bare);
    let output = undo(VIP);
    assert!(!output.status.success() && said(&output).contains("there is no record"), "{output:?}");
    // What was there before stays.
    network.run(CLIENT, &["ip", "address", "add", &format!("{VIP}/32"), "dev", "lo"]);
    let before = state(&network, CLIENT);
    assert!(setup(&["--vip", VIP]).status.success());
    assert_ne!(state(&network, CLIENT), before);
    assert!(undo(VIP).status.success());
    assert_eq!(state(&network, CLIENT), before);
    network.run(CLIENT, &["ip", "address", "del", &format!("{VIP}/32"), "dev", "lo"]);
    // An address that was there before needs the settings of one that was set up with it.
    let (first, both) = (state(&network, CLIENT), ["--vip", VIP, "--vip", second]);
    network.run(CLIENT, &["ip", "address", "add", &format!("{second}/32"), "dev", "lo"]);
    assert!(setup(&both).status.success());
    let text = said(&undo(VIP));
    assert!(text.contains("arp_announce=2: 10.77.0.101 needs it"), "{text}");
    assert!(penstock(&network, CLIENT, &["verify", "--vip", second]).status.success());
    assert!(undo(second).status.success());
    network.run(CLIENT, &["ip", "address", "del", &format!("{second}/32"), "dev", "lo"]);
    assert_eq!(state(&network, CLIENT), first);
    // Of a set-up that fails halfway, what was done can be taken back.
    let words = [
        "setpriv",
        "--bounding-set",
        "-net_admin",
        binary(),
        "backend",
        "setup",
        "--apply",
        "--state",
        kept,
        "--vip",
        VIP,
    ];
    let output = network.output(CLIENT, &words);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("error: `ip address add 10.77.0.100/32 dev lo` failed: "), "{text}");
    assert_ne!(state(&network, CLIENT), bare);
    assert!(undo(VIP).status.success());
    assert_eq!(state(&network, CLIENT), bare);
    // The printed script does the same, and may run again.
    let script = penstock(&network, CLIENT, &["setup", "--vip", VIP, "--vip", VIP6]);
    let script = String::from_utf8(script.stdout).unwrap();
    for _ in 0..2 {
        network.run(CLIENT, &["sh", "-c", &script]);
        assert_eq!(state(&network, CLIENT), ready);
    }
}

/// Runs a script on a machine with an /etc of its own.
fn with_etc(network: &Network, etc: &Path, script: &str) -> Output {
    let script = format!("set -e\nmount --bind {} /etc\n{script}", etc.display());
    network.output(CLIENT, &["sh", "-c", &script])
}

/// Files below a directory, with their content.
fn files(directory: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push((path.display().to_string(), fs::read_to_string(&path).unwrap())),
        }
    }
    found.sort();
    found
}

#[test]
fn files_that_make_it_last_are_written_and_taken_away_and_those_of_others_are_left() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let kept = network.directory.path().join("state");
    let bare = state(&network, CLIENT);
    let penstock = binary();
    for (persist, expected) in [
        ("sysctl.d", &["sysctl.d/60-penstock-vip-10-77-0-100.conf"][..]),
        (
            "ifupdown",
            &["network/interfaces.d/penstock-vip-10-77-0-100", "network/interfaces.d/penstock-vip-fd77--100"],
        ),
        (
            "netplan",
            &[
                "netplan/60-penstock-vip-10-77-0-100.yaml",
                "netplan/60-penstock-vip-fd77--100.yaml",
                "sysctl.d/60-penstock-vip-10-77-0-100.conf",
            ],
        ),
        (
            "systemd-networkd",
            &[
                "sysctl.d/60-penstock-vip-10-77-0-100.conf",
                "systemd/network/50-penstock-lo.network",
                "systemd/network/50-penstock-lo.network.d/10-77-0-100.conf",
                "systemd/network/50-penstock-lo.network.d/fd77--100.conf",
            ],
        ),
    ] {
        let etc = tempfile::tempdir().unwrap();
        let etc = etc.path();
        let order = format!("{penstock} backend setup --vip {VIP} --vip {VIP6} --persist {persist}");
        let apply = format!("{order} --apply --state {}", kept.display());
        let undo = format!("{penstock} backend undo --state {} --vip {VIP} --vip {VIP6}", kept.display());
        let output = with_etc(&network, etc, &apply);
        assert!(output.status.success(), "{persist}: {output:?}");
        let written = files(etc);
        let names: Vec<_> = written
            .iter()
            .map(|(name, _)| name.strip_prefix(&format!("{}/", etc.display())).unwrap())
            .collect();
        assert_eq!(names, expected);
        let again = with_etc(&network, etc, &apply);
        assert_eq!(said(&again), "ok: this server is set up for 10.77.0.100, fd77::100\n");
        // The script writes the same.
        let other = tempfile::tempdir().unwrap();
        let script = with_etc(&network, other.path(), &format!("{order} | sh"));
        assert!(script.status.success(), "{persist}: {script:?}");
        let texts =
            |files: Vec<(String, String)>| files.into_iter().map(|(_, text)| text).collect::<Vec<_>>();
        assert_eq!(texts(files(other.path())), texts(written.clone()), "{persist}");
        // A file that an administrator has changed since stays.
        let changed = &written[0].0;
        fs::write(changed, format!("{}# mine\n", written[0].1)).unwrap();
        let text = said(&with_etc(&network, etc, &undo));
        assert!(text.contains(&format!("# stays: /etc/{}: it was changed since", expected[0])), "{text}");
        assert_eq!(files(etc).len(), 1, "{persist}: {:?}", files(etc));
        assert_eq!(state(&network, CLIENT), bare);
        // One of others is in the way: nothing is changed at all.
        fs::write(changed, "# theirs\n").unwrap();
        for order in [&apply, &format!("{order} | sh")] {
            let output = with_etc(&network, etc, order);
            let text = said(&output);
            let says = format!("/etc/{} was not written by penstock: nothing is changed", expected[0]);
            assert!(!output.status.success() && text.contains(&says), "{persist}: {text}");
            assert_eq!(files(etc), [(changed.clone(), "# theirs\n".to_owned())]);
            assert_eq!(state(&network, CLIENT), bare);
        }
    }
}

#[test]
fn wrong_words_are_wrong_usage_and_say_what_is_right() {
    let directory = tempfile::tempdir().unwrap();
    let other = directory.path().join("other.toml");
    fs::write(
        &other,
        "[listener.web]\nbind = \":8080\"\npool = \"app\"\n[pool.app]\nbackends = [\"10.0.0.1:1\"]\n",
    )
    .unwrap();
    for (words, text) in [
        (&["verify"][..], "no address is named\n  hint: --vip 192.0.2.10"),
        (&["setup", "--vip", "192.0.2.10/32"], "it is no IP address: 192.0.2.10, 192.0.2.10:80"),
        (&["setup", "--vip", "127.0.0.1"], "no client can send packets to this address"),
        (&["setup", "--vip", "192.0.2.10", "--persist", "netplam"], "is no way to persist; did you mean"),
        (
            &["verify", "--vip", "192.0.2.10", "--interface", "eth77"],
            "there is no network interface \"eth77\"",
        ),
        (&["verify", "--vip", "192.0.2.10", "--interface", "lo"], "packets of clients do not come in on lo"),
        (
            &["setup", "--vip", "192.0.2.10", "--interface", "a b"],
            "\"a b\" is no name of a network interface",
        ),
        (&["verify", "--config", other.to_str().unwrap()], "has no listener with protocol = \"dsr\""),
        (&["undo"], "--vip <ADDRESS>"),
    ] {
        let output = testing::server::penstock(&[&["backend"], words].concat());
        assert_eq!(output.status.code(), Some(2), "{words:?}: {output:?}");
        assert!(said(&output).contains(text), "{words:?}: {output:?}");
    }
}
