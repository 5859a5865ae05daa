//! Machines that lack something: a kernel without the links of `tc`, no file system for names. And two processes beside
//! each other.

use testing::tools::{self, Root};
use testing::{Server, eventually, secs};

use super::bpf_refused::{Refused, starter};
use super::network::{Network, SERVERS, VIP, config};
use super::paths::stop;

const NO_CHECKS: &str = "health = \"off\"";

fn path(server: &Server) -> serde_json::Value {
    server.ctl_json(&["status"])["listeners"][0]["paths"][0].clone()
}

#[track_caller]
fn serves(network: &Network, vip: &str) {
    eventually("it serves", secs(20), || {
        network.curl(&["-m", "1", &format!("http://{vip}/")]).status.success().then_some(())
    });
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_kernel_without_links_for_tc_is_told_and_the_service_goes_on() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    // A filter of system calls takes new privileges away: the process stays root.
    let config = config(&format!("\"{VIP}:80\""), "", NO_CHECKS).replace("user = \"nobody\"\n", "");
    let server = network.setup_through(&config, ["python3", "-c", &starter(Refused::LinkCreate)]).start();
    serves(&network, VIP);
    let path = path(&server);
    match path["path"].as_str() {
        Some("tc") => {}
        Some("af_packet") => {
            let reason = path["refused"][1]["reason"].as_str().unwrap();
            assert!(reason.contains("Linux 6.6"), "{path:#}");
        }
        _ => panic!("{path:#}"),
    }
    (0..20).for_each(|_| assert!(["2", "3"].contains(&&*network.visit(VIP))));
    stop(server);
    super::paths::ends(&network);
}

#[test]
fn names_of_programs_need_a_file_system_which_is_mounted_or_missed() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let config = config(&format!("\"{VIP}:80\""), "", NO_CHECKS);
    let space = network.space();
    // Names for all, which the start has mounted if need be.
    let server = network.balancer_with_all_files(&config);
    assert!(path(&server)["unpinned"].is_null(), "{:#}", path(&server));
    stop(server);
    super::paths::ends(&network);
    for (script, reason) in [
        ("umount -l /sys/fs/bpf; exec \"$@\"", "a /sys/fs/bpf that this mount namespace has alone"),
        (
            "umount -l /sys/fs/bpf; mount -t tmpfs -o ro none /sys/fs; exec \"$@\"",
            "/sys/fs/bpf cannot be used",
        ),
    ] {
        let through = ["nsenter", &space, "unshare", "-m", "sh", "-c", script, "sh"];
        let server = testing::server::Setup::new(&config).through(through).start();
        serves(&network, VIP);
        let path = path(&server);
        assert_eq!(path["path"].as_str(), Some("tc"), "{script}: {path:#}");
        let unpinned = path["unpinned"].as_str();
        assert!(unpinned.is_some_and(|said| said.contains(reason)), "{script}: {path:#}");
        let events = server.said(&["events"]);
        assert!(events.contains("a crash of this process ends it") && events.contains(reason), "{events}");
        stop(server);
        super::paths::ends(&network);
    }
}

/// A file system for names that all may use, with the directory that an earlier start of root has left there, as it does when
/// the process has become another user.
const OF_ROOT: &str = "RIGHTS=+net_raw,+bpf,+net_admin,+perfmon; \
                       mount -t bpf -o mode=1777 none /sys/fs/bpf && umask 022 && \
                       mkdir -p /sys/fs/bpf/penstock/v2-$(stat -L -c %i /proc/self/ns/net)-eth0-web-10_77_0_100-80; \
                       exec setpriv --reuid 65534 --regid 65534 --clear-groups \
                       --inh-caps $RIGHTS --ambient-caps $RIGHTS \"$@\"";

#[test]
fn a_directory_of_another_user_for_names_is_told_and_the_program_goes_without() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let config = config(&format!("\"{VIP}:80\""), "", NO_CHECKS).replace("user = \"nobody\"\n", "");
    let space = network.space();
    let through = ["nsenter", &space, "unshare", "-m", "sh", "-c", OF_ROOT, "sh"];
    let setup = testing::server::Setup::new(&config).through(through);
    std::os::unix::fs::chown(setup.dir(), Some(65534), Some(65534)).unwrap();
    let server = setup.start();
    serves(&network, VIP);
    let path = path(&server);
    assert_eq!(path["path"].as_str(), Some("tc"), "{path:#}");
    let unpinned = path["unpinned"].as_str().unwrap_or_default();
    assert!(unpinned.contains("-eth0-web-10_77_0_100-80 cannot be used: Permission denied"), "{path:#}");
    stop(server);
    super::paths::ends(&network);
}

#[test]
fn two_processes_serve_two_addresses_of_one_interface_and_one_that_stops_leaves_the_other() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    const OTHER: &str = "10.77.0.101";
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    SERVERS.iter().for_each(|server| network.set_vip(*server, "add", OTHER));
    // `beside.rs` has xdp-generic.
    for (one, other) in [("tc", "tc"), ("af_packet", "af_packet"), ("tc", "af_packet")] {
        let start = |vip: &str, path: &str| {
            let server = network.balancer(&config(
                &format!("\"{vip}:80\""),
                &format!("data-path = \"{path}\""),
                NO_CHECKS,
            ));
            serves(&network, vip);
            server
        };
        let (first, second) = (start(VIP, one), start(OTHER, other));
        let both = || {
            for vip in [VIP, OTHER] {
                (0..10).for_each(|_| assert!(["2", "3"].contains(&&*network.visit(vip)), "{one} {other}"));
            }
        };
        both();
        stop(second);
        (0..10).for_each(|_| assert!(["2", "3"].contains(&&*network.visit(VIP)), "{one} {other}"));
        let second = start(OTHER, other);
        both();
        stop(first);
        (0..10).for_each(|_| assert!(["2", "3"].contains(&&*network.visit(OTHER)), "{one} {other}"));
        stop(second);
    }
}
