//! `tc` on kernels without TCX: the program is a filter of the qdisc clsact. What a crash, a restart, an upgrade, a failed
//! start and a stop do to it, and to what others have there.

use std::fs;

use nix::sys::signal::Signal;
use testing::server::Setup;
use testing::tools::{self, Root};
use testing::{Server, eventually, secs};

use super::downloads::LargeDownloads;
use super::network::{BALANCER, Network, PATIENT, SERVERS, VIP, config};
use super::paths::{ends, stop};
use super::survival::other_build;

/// A start on a kernel without TCX.
fn setup(network: &Network, config: &str) -> Setup {
    network.setup_as("one.toml", config).env("PENSTOCK_TEST_WITHOUT_TCX", "1")
}

fn of(listener: &str) -> String {
    config(&format!("\"{VIP}:80\""), listener, PATIENT)
}

fn serves(network: &Network) {
    eventually("it serves", secs(20), || {
        network.curl(&["-m", "1", &format!("http://{VIP}/")]).status.success().then_some(())
    });
}

/// Filters where packets come in: name and number of the program.
fn filters(network: &Network) -> Vec<(String, u64)> {
    let text = network.run(BALANCER, &["tc", "-j", "filter", "show", "dev", "eth0", "ingress"]);
    let all: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let of = |one: &serde_json::Value| {
        let options = &one["options"];
        Some((options["bpf_name"].as_str()?.to_owned(), options["prog"]["id"].as_u64()?))
    };
    all.as_array().unwrap_or(&Vec::new()).iter().filter_map(of).collect()
}

/// The number of the program of ours, which is there once.
#[track_caller]
fn ours(network: &Network) -> u64 {
    let all = filters(network);
    let mut ours = all.iter().filter(|(name, _)| name.starts_with("penstock-v"));
    match (ours.next(), ours.next()) {
        (Some((_, number)), None) => *number,
        _ => panic!("{all:?}"),
    }
}

fn has_qdisc(network: &Network) -> bool {
    network.run(BALANCER, &["tc", "qdisc", "show", "dev", "eth0"]).contains("clsact")
}

#[track_caller]
fn knows(server: &Server, flows: u64) {
    eventually("it knows the flows of the one before", secs(20), || {
        let of = |at: &str| server.backend(at)["in_flight"].as_u64();
        (of("10.77.0.14:80")? + of("10.77.0.15:80")? >= flows).then_some(())
    });
}

#[test]
fn downloads_outlive_a_crash_a_restart_and_an_upgrade_and_what_others_have_stays() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../sys/bpf/dsr-tc.bpf.o");
    network.run(BALANCER, &["tc", "qdisc", "add", "dev", "eth0", "clsact"]);
    // Without a service it lets all pass.
    let words = ["tc", "filter", "add", "dev", "eth0", "ingress", "pref", "7", "bpf", "da", "obj", program];
    network.run(BALANCER, &[&words[..], &["sec", "classifier"]].concat());
    let foreign = filters(&network);
    assert_eq!(foreign.len(), 1);

    let kept = of("at-stop = \"keep\"");
    let mut server = setup(&network, &kept).start();
    serves(&network);
    let path = server.ctl_json(&["status"])["listeners"][0]["paths"][0].clone();
    assert_eq!(path["path"].as_str(), Some("tc"), "{path:#}");
    assert!(server.said(&["events"]).contains("(tc, by a filter of clsact"), "{}", server.said(&["events"]));
    let first = ours(&network);
    let downloads = LargeDownloads::begin(&network, "4M");

    server.signal(Signal::SIGKILL);
    server.wait_end(secs(10));
    assert_eq!(ours(&network), first, "without the process the program goes on");
    (0..10).for_each(|_| assert!(["2", "3"].contains(&&*network.visit(VIP))));

    let failed = setup(&network, &format!("[admin]\nbind = \"192.0.2.77:9900\"\n{kept}")).output();
    assert!(!failed.status.success(), "{failed:?}");
    assert_eq!(ours(&network), first, "a start that fails puts it back");

    let server = setup(&network, &kept).start();
    knows(&server, 6);
    let second = ours(&network);
    assert_ne!(second, first, "in its place");
    stop(server);
    assert_eq!(ours(&network), second, "at-stop = \"keep\"");

    let upgraded = other_build(&network, "tc");
    let script = format!("shift; exec {} \"$@\"", upgraded.display());
    let space = network.space();
    let through = ["nsenter", &space, "sh", "-c", &script, "sh"];
    let server = Setup::new(&of("")).through(through).env("PENSTOCK_TEST_WITHOUT_TCX", "1").start();
    knows(&server, 6);
    assert_ne!(ours(&network), second, "the program of another version");
    downloads.assert_all_end_whole();
    stop(server);
    ends(&network);
    assert_eq!(filters(&network), foreign);
    assert!(has_qdisc(&network), "it was there before");
}

#[test]
fn the_qdisc_that_was_made_goes_with_the_filter_and_a_start_that_fails_leaves_none() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let failed = setup(&network, &format!("[admin]\nbind = \"192.0.2.77:9900\"\n{}", of(""))).output();
    assert!(!failed.status.success() && !has_qdisc(&network), "{failed:?}");
    let server = setup(&network, &of("")).start();
    serves(&network);
    assert!(has_qdisc(&network));
    let privileges = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let effective = privileges.lines().find(|line| line.starts_with("CapEff:")).unwrap();
    assert!(effective.ends_with("0000000000003000"), "CAP_NET_RAW and CAP_NET_ADMIN: {effective}");
    stop(server);
    ends(&network);
    assert!(!has_qdisc(&network) && filters(&network).is_empty());
    // It goes with the last filter, also if that is one of another process, and the first one has made the qdisc.
    let other = of("").replace(VIP, "10.77.0.101").replace("listener.web", "listener.other");
    for first_ends_first in [true, false] {
        let first = setup(&network, &of("")).start();
        let file = network.setup_as("two.toml", &other).env("PENSTOCK_TEST_WITHOUT_TCX", "1");
        let second = file.start();
        eventually("both are there", secs(20), || (filters(&network).len() == 2).then_some(()));
        let (one, last) = if first_ends_first { (first, second) } else { (second, first) };
        stop(one);
        assert!(has_qdisc(&network) && filters(&network).len() == 1);
        stop(last);
        assert!(!has_qdisc(&network) && filters(&network).is_empty(), "{first_ends_first}");
    }
    // One of an earlier start, for a listener that is not configured any more, and by a start on a newer kernel.
    for without_tcx in [true, false] {
        let mut server = setup(&network, &of("")).start();
        serves(&network);
        server.signal(Signal::SIGKILL);
        server.wait_end(secs(10));
        let text = of("").replace("listener.web", "listener.site");
        let next = match without_tcx {
            true => setup(&network, &text),
            false => network.setup_as("one.toml", &of("")),
        };
        let server = next.start();
        eventually("the earlier one is gone", secs(20), || {
            (filters(&network).len() == usize::from(without_tcx)).then_some(())
        });
        serves(&network);
        stop(server);
        ends(&network);
        assert!(filters(&network).is_empty());
    }
}
