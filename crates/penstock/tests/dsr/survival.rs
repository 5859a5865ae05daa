//! What running downloads see of a crash, an upgrade and a failed start of the balancer: nothing.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use testing::server::{Setup, binary};
use testing::tools::{self, Root};
use testing::{Server, eventually, secs};

use super::downloads::{Downloads, MANY};
use super::network::{BALANCER, CLIENT, Network, PATIENT, SERVERS, VIP, VIP6, config, host, only};
use super::tunnel::{self, Routed};

/// The link of the service's program, if there is one.
pub(crate) fn link(network: &Network, path: &str) -> PathBuf {
    let space = Path::new("/run/netns").join(network.machine(BALANCER).name());
    let number = fs::metadata(space).unwrap().ino();
    format!("/sys/fs/bpf/penstock/v2-{number}-eth0-web-10_77_0_100-80/link-{path}").into()
}

/// Number and tag of the program of a link: a program with another tag has other instructions.
#[track_caller]
pub(crate) fn program(link: &Path) -> (u64, String) {
    let ask = |words: &[&str]| {
        let output = tools::run("bpftool", &[&["-j"], words].concat(), secs(10));
        assert!(output.status.success(), "{words:?}: {output:?}");
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let shown = ask(&["link", "show", "pinned", link.to_str().unwrap()]);
    let number = shown["prog_id"].as_u64().unwrap_or_else(|| panic!("{shown:#}"));
    let shown = ask(&["prog", "show", "id", &number.to_string()]);
    (number, shown["tag"].as_str().unwrap().to_owned())
}

#[track_caller]
fn serves(network: &Network) {
    serves_at(network, VIP);
}

#[track_caller]
fn serves_at(network: &Network, vip: &str) {
    eventually("it serves", secs(20), || {
        network.curl(&["-m", "1", &format!("http://{}/", host(vip))]).status.success().then_some(())
    });
}

#[track_caller]
fn knows_all(server: &Server) {
    eventually("it knows the flows of the one before", secs(60), || {
        let flows = server.ctl_json(&["dsr", "status"])["services"][0]["flows"].as_u64()?;
        (flows >= MANY as u64).then_some(())
    });
}

#[test]
fn two_hundred_downloads_outlive_a_crash_a_restart_and_an_upgrade_behind_the_driver() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    survive("tc");
}

#[test]
fn two_hundred_downloads_outlive_a_crash_a_restart_and_an_upgrade_before_the_network() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    survive("xdp-generic");
}

/// A virtual interface loses checksums that are left to the card, so that the client calculates them.
#[test]
fn two_hundred_downloads_outlive_a_crash_a_restart_and_an_upgrade_in_the_driver() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    survive("xdp");
}

#[test]
fn two_hundred_downloads_of_ipv6_outlive_a_crash_a_restart_and_an_upgrade() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    outlive(&network, "tc", &config(&format!("\"[{VIP6}]:80\""), &kept("tc"), PATIENT), ("web", VIP6));
}

#[test]
fn two_hundred_downloads_through_tunnels_outlive_a_crash_a_restart_and_an_upgrade() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let routed = Routed::new();
    routed.limit_segments();
    let _servers = SERVERS.map(|server| routed.network.nginx(server));
    let config = only(&tunnel::config(80, &kept("tc"), PATIENT), &["v4"]);
    outlive(&routed.network, "tc", &config, ("v4", VIP));
}

/// While no process lives nothing is forwarded: downloads wait, and go on where they were.
#[test]
fn two_hundred_downloads_outlive_the_process_that_forwards_them_if_the_next_one_has_its_key() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let key = network.directory.path().join("key");
    fs::write(&key, "0123456789abcdef0123456789abcdef").unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let listener = format!("data-path = \"af_packet\"\nhash-key-file = \"{}\"", key.display());
    let config = config(&format!("\"{VIP}:80\""), &listener, PATIENT);
    // Root alone may read the key.
    let config = config.replace("user = \"nobody\"\n", "");
    let mut server = network.balancer(&config);
    serves(&network);
    let downloads = Downloads::begin(&network);
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        server.signal(signal);
        server.wait_end(secs(10));
        downloads.assert_all_run_where_they_began();
        server = network.balancer(&config);
        knows_all(&server);
        downloads.assert_all_run_where_they_began();
    }
    (0..20).for_each(|_| assert!(["2", "3"].contains(&&*network.visit(VIP))));
    downloads.assert_all_end_whole();
}

fn kept(path: &str) -> String {
    format!("data-path = \"{path}\"\nat-stop = \"keep\"")
}

fn survive(path: &str) {
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    if path == "xdp" {
        network.pass_in_driver(BALANCER);
        network.offload(CLIENT, "tx", "off");
    }
    outlive(&network, path, &config(&format!("\"{VIP}:80\""), &kept(path), PATIENT), ("web", VIP));
}

fn outlive(network: &Network, path: &str, config: &str, (listener, vip): (&str, &str)) {
    let place = link(network, path).display().to_string();
    let name = vip.replace(['.', ':'], "_");
    let link = PathBuf::from(place.replace("-web-10_77_0_100-", &format!("-{listener}-{name}-")));
    let mut server = network.balancer_with_all_files(config);
    serves_at(network, vip);
    let downloads = Downloads::begin_at(network, vip);
    let (first, tag) = program(&link);

    server.signal(Signal::SIGKILL);
    server.wait_end(secs(10));
    assert_eq!(program(&link).0, first, "without the process the program goes on");
    downloads.assert_all_run_where_they_began();

    let mut server = network.balancer_with_all_files(config);
    knows_all(&server);
    let (second, same) = program(&link);
    assert!(second != first && same == tag, "the same program, loaded anew");
    downloads.assert_all_run_where_they_began();

    // The upgrade: the earlier version stops, and another one with another program starts.
    server.signal(Signal::SIGTERM);
    assert!(server.wait_end(secs(10)).success());
    let upgraded = other_build(network, path);
    let script = format!("shift; exec {} \"$@\"", upgraded.display());
    let space = network.space();
    let through = ["nsenter", &space, "sh", "-c", &script, "sh"];
    let server = Setup::new(config).through(through).start();
    knows_all(&server);
    let (third, other) = program(&link);
    assert!(third != second && other != tag, "another program: {tag} {other}");
    downloads.assert_all_run_where_they_began();
    (0..20).for_each(|_| assert!(["2", "3"].contains(&&*network.visit(&host(vip)))));
    downloads.assert_all_end_whole();
    // The other tests' machine keeps nothing of this one.
    let last = config.replace("at-stop = \"keep\"", "");
    drop(server);
    super::paths::stop(network.balancer_with_all_files(&last));
    assert!(!link.exists());
}

/// A penstock of another build: the instructions of its program for this path are in another order.
pub(crate) fn other_build(network: &Network, path: &str) -> PathBuf {
    let (object, section) =
        if path == "tc" { ("dsr-tc.bpf.o", "classifier") } else { ("dsr-xdp.bpf.o", "xdp.frags") };
    let object = fs::read(format!("{}/../sys/bpf/{object}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let mut other = object.clone();
    exchange_two_independent(&mut other, section);
    let mut bytes = fs::read(binary()).unwrap();
    // Constants of this kind begin at multiples of 8.
    let is_there = |at: &usize| bytes[*at..*at + 4] == object[..4] && bytes[*at..].starts_with(&object);
    let places: Vec<_> = (0..bytes.len() - object.len()).step_by(8).filter(is_there).collect();
    assert!(!places.is_empty(), "the program is not in the binary as it is in the tree");
    for at in places {
        bytes[at..at + other.len()].copy_from_slice(&other);
    }
    let at = |name: &str| network.directory.path().join(name);
    fs::write(at("bytes"), bytes).unwrap();
    fs::set_permissions(at("bytes"), fs::Permissions::from_mode(0o755)).unwrap();
    // A process that another test starts just now would inherit a descriptor with which we write, and keep it from running.
    let words = ["bytes", "penstock"].map(|name| at(name).display().to_string());
    assert!(tools::run("cp", &[&words[0], &words[1]], secs(60)).status.success());
    at("penstock")
}

/// Exchanges two neighbours of the program's instructions that do not depend on each other, and between which nothing jumps.
fn exchange_two_independent(object: &mut [u8], section: &str) {
    let code = section_of(object, section);
    let instructions: Vec<[u8; 8]> =
        object[code.clone()].chunks_exact(8).map(|one| one.try_into().unwrap()).collect();
    let targets: Vec<usize> = instructions
        .iter()
        .enumerate()
        .filter(|(_, it)| matches!(it[0] & 7, 5 | 6) && !matches!(it[0], 0x85 | 0x95))
        .map(|(at, it)| (at as i64 + 1 + i64::from(i16::from_le_bytes([it[2], it[3]]))) as usize)
        .collect();
    let at = (0..instructions.len() - 1)
        .find(|at| are_independent(&instructions[*at], &instructions[at + 1]) && !targets.contains(&(at + 1)))
        .expect("two such instructions");
    let from = code.start + 8 * at;
    object[from..from + 16].rotate_left(8);
}

/// Whether two instructions do the same in either order. Of those that copy a register or a constant to a register, and
/// those that store 8 bytes on the stack.
fn are_independent(one: &[u8; 8], other: &[u8; 8]) -> bool {
    const STACK: u8 = 10;
    /// What an instruction reads, and the register or place of the stack that it sets.
    fn effect(it: &[u8; 8]) -> Option<(Option<u8>, Option<u8>, Option<i16>)> {
        let (to, from) = (it[1] & 15, it[1] >> 4);
        match it[0] {
            0xb7 => Some((None, Some(to), None)),
            0xbf => Some((Some(from), Some(to), None)),
            0x7b if to == STACK => Some((Some(from), None, Some(i16::from_le_bytes([it[2], it[3]])))),
            _ => None,
        }
    }
    let (Some(one), Some(other)) = (effect(one), effect(other)) else { return false };
    let sets = |one: Option<u8>, other: Option<u8>| one.is_some() && one == other;
    let overlap = matches!((one.2, other.2), (Some(one), Some(other)) if one.abs_diff(other) < 8);
    !(sets(one.1, other.0) || sets(other.1, one.0) || sets(one.1, other.1) || overlap)
}

/// Where a section of an object file (ELF, 64 bits, little-endian) is.
fn section_of(object: &[u8], name: &str) -> std::ops::Range<usize> {
    let number = |at: usize, length: usize| {
        object[at..at + length].iter().rev().fold(0, |all, byte| all << 8 | usize::from(*byte))
    };
    let (headers, size, count) = (number(0x28, 8), number(0x3a, 2), number(0x3c, 2));
    let header = |at: usize| headers + size * at;
    let place = |at: usize| (number(header(at) + 0x18, 8), number(header(at) + 0x20, 8));
    let (names, _) = place(number(0x3e, 2));
    let is_it = |at: &usize| {
        let from = names + number(header(*at), 4);
        object[from..].starts_with(name.as_bytes()) && object[from + name.len()] == 0
    };
    let (from, length) = place((0..count).find(is_it).expect("this section"));
    from..from + length
}

#[test]
fn a_start_that_fails_takes_its_program_away_and_leaves_an_earlier_one() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let good = config(&format!("\"{VIP}:80\""), "", "health = \"off\"");
    // An address that this machine does not have.
    let bad = format!("[admin]\nbind = \"192.0.2.77:9900\"\n{good}");
    let link = link(&network, "tc");
    let fails = |config: &str| {
        let output = network.setup_with_all_files(config).output();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains("admin.bind"), "{text}");
    };
    fails(&bad);
    assert!(!link.parent().unwrap().exists(), "no name is left");

    let mut server = network.balancer_with_all_files(&good);
    serves(&network);
    server.signal(Signal::SIGKILL);
    server.wait_end(secs(10));
    let (earlier, _) = program(&link);
    fails(&bad);
    assert_eq!(program(&link).0, earlier, "the earlier program is there again");
    (0..10).for_each(|_| assert!(["2", "3"].contains(&&*network.visit(VIP))));
    // Nor is it lost to a start that would have had another path.
    for path in ["xdp-generic", "af_packet"] {
        fails(&bad.replace("protocol = \"dsr\"", &format!("protocol = \"dsr\"\ndata-path = \"{path}\"")));
        assert_eq!(program(&link).0, earlier, "{path}");
        (0..10).for_each(|_| assert!(["2", "3"].contains(&&*network.visit(VIP))));
    }
    let server = network.balancer_with_all_files(&good);
    serves(&network);
    super::paths::stop(server);
    assert!(!link.exists());
}

const OWNER: &str = "169.254.77.10";

#[test]
fn without_its_process_the_program_of_an_owner_answers_who_has_the_address_and_that_of_a_standby_does_not() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    for (path, hosts) in
        [("tc", vec![VIP.to_owned(), format!("[{VIP6}]")]), ("xdp-generic", vec![VIP.to_owned()])]
    {
        let network = Network::new();
        let _servers = SERVERS.map(|server| network.nginx(server));
        let binds: Vec<_> = hosts.iter().map(|host| format!("\"{host}:80\"")).collect();
        let listener = format!("data-path = \"{path}\"\nowner-address = \"{OWNER}\"");
        let config = config(&format!("[{}]", binds.join(", ")), &listener, PATIENT);
        for word in ["owner", "standby"] {
            let change = if word == "owner" { "add" } else { "del" };
            network.ip(BALANCER, &["addr", change, &format!("{OWNER}/32"), "dev", "lo"]);
            let mut server = network.balancer_with_all_files(&config);
            eventually("both backends and the ownership are known", secs(20), || {
                let services = server.ctl_json(&["dsr", "status"])["services"].as_array()?.clone();
                let is_ready = |one: &serde_json::Value| {
                    let backends = one["backends"].as_array().unwrap();
                    let known = backends.iter().filter(|backend| backend["ethernet"].is_string());
                    one["ownership"] == word && known.count() == SERVERS.len()
                };
                (services.len() == hosts.len() && services.iter().all(is_ready)).then_some(())
            });
            server.signal(Signal::SIGKILL);
            server.wait_end(secs(10));
            for host in &hosts {
                network.ip(CLIENT, &["neigh", "flush", "dev", "eth0"]);
                let url = format!("http://{host}/");
                let visit = || network.curl(&["-m", "10", &url]).status.success();
                assert_eq!(visit(), word == "owner", "{path} {host}: {word}");
            }
        }
        // The machine keeps nothing of it.
        super::paths::stop(network.balancer_with_all_files(&config));
    }
}
