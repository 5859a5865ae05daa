//! Where packets are forwarded: which path is taken and why, and what a crash, a restart and a stop do to it.

use std::fs;

use nix::sys::signal::Signal;
use testing::tools::{self, Root};
use testing::{Server, eventually, secs};

use super::downloads::LargeDownloads;
use super::network::{BALANCER, CLIENT, Network, PATIENT, SERVERS, SWITCH, VIP, config};

const NO_CHECKS: &str = "health = \"off\"";

fn bind() -> String {
    format!("\"{VIP}:80\"")
}

/// Ends a balancer as an operator does.
pub(crate) fn stop(mut server: Server) {
    server.signal(Signal::SIGTERM);
    assert!(server.wait_end(secs(10)).success());
}

/// Waits until neither process nor kernel forwards what clients still send to the balancer.
#[track_caller]
pub(crate) fn ends(network: &Network) {
    eventually("nothing is forwarded", secs(20), || {
        (!network.curl(&["-m", "1", &format!("http://{VIP}/")]).status.success()).then_some(())
    });
}

#[test]
fn the_best_path_is_taken_and_told_with_the_reasons_against_better_ones() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let server = network.balancer(&config(&bind(), "", NO_CHECKS));
    eventually("it serves", secs(20), || {
        network.curl(&["-m", "1", &format!("http://{VIP}/")]).status.success().then_some(())
    });
    let path = server.ctl_json(&["status"])["listeners"][0]["paths"][0].clone();
    assert_eq!(path["address"].as_str(), Some("10.77.0.100:80"), "{path:#}");
    assert_eq!(path["path"].as_str(), Some("tc"), "{path:#}");
    let refused = &path["refused"][0];
    assert_eq!(refused["path"].as_str(), Some("xdp"));
    assert!(refused["reason"].as_str().unwrap().contains("eth0 is a virtual interface (veth)"), "{path:#}");
    let events = String::from_utf8(server.ctl(&["events"]).stdout).unwrap();
    assert!(events.contains("packets are forwarded by the kernel (tc); xdp: eth0 is a virtual"), "{events}");
    stop(server);
    ends(&network);
}

#[test]
fn without_the_rights_this_process_forwards_and_says_which_ones_it_needs() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let config = config(&bind(), "", NO_CHECKS).replace("user = \"nobody\"\n", "");
    let less = ["setpriv", "--bounding-set", "-bpf,-perfmon,-net_admin,-sys_admin"];
    let server = network.setup_through(&config, less).start();
    eventually("it serves", secs(20), || {
        network.curl(&["-m", "1", &format!("http://{VIP}/")]).status.success().then_some(())
    });
    let path = server.ctl_json(&["status"])["listeners"][0]["paths"][0].clone();
    assert_eq!(path["path"].as_str(), Some("af_packet"), "{path:#}");
    let reason = path["refused"][1]["reason"].as_str().unwrap();
    assert!(reason.contains("it needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON"), "{path:#}");
    drop(server);
    let asked = config.replace("protocol = \"dsr\"", "protocol = \"dsr\"\ndata-path = \"tc\"");
    let output = network.setup_through(&asked, less).output();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("tc: it needs CAP_BPF"), "{text}");
}

/// Lets bpf(2) fail with an error for the program that follows.
const WITHOUT_BPF: &str = r#"
import ctypes, os, platform, struct, sys
number = {"x86_64": 321, "aarch64": 280}[platform.machine()]
one = lambda *parts: struct.pack("HBBI", *parts)
# The number of the call is the first word; an error, or all is allowed.
code = one(0x20, 0, 0, 0) + one(0x15, 0, 1, number) + one(6, 0, 0, 0x50000 | int(sys.argv[1])) + one(6, 0, 0, 0x7FFF0000)
room = ctypes.create_string_buffer(code)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]
program = Program(4, ctypes.addressof(room))
library = ctypes.CDLL(None)
assert library.prctl(38, 1, 0, 0, 0) == 0 and library.prctl(22, 2, ctypes.byref(program)) == 0
os.execvp(sys.argv[2], sys.argv[2:])
"#;

#[test]
fn where_bpf_fails_the_reason_is_that_and_what_to_do() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let script = network.directory.path().join("without-bpf.py").display().to_string();
    fs::write(&script, WITHOUT_BPF).unwrap();
    for (errno, expected) in
        [("38", "the kernel has no bpf(2) (ENOSYS)"), ("1", "it needs CAP_BPF, CAP_NET_ADMIN")]
    {
        let through = ["python3", &script, errno];
        let server = network.setup_through(&config(&bind(), "", NO_CHECKS), through).start();
        eventually("it serves", secs(20), || {
            network.curl(&["-m", "1", &format!("http://{VIP}/")]).status.success().then_some(())
        });
        let path = server.ctl_json(&["status"])["listeners"][0]["paths"][0].clone();
        assert_eq!(path["path"].as_str(), Some("af_packet"), "{path:#}");
        let reason = path["refused"][1]["reason"].as_str().unwrap();
        assert!(reason.contains(expected), "{path:#}");
        assert!(reason.contains("SystemCallFilter= of the unit must allow bpf"), "{path:#}");
    }
}

#[test]
fn another_program_in_the_driver_is_not_displaced() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    network.pass_at(BALANCER);
    let program = || {
        let text = network.run(BALANCER, &["ip", "-d", "link", "show", "eth0"]);
        let id = text.split("prog/xdp id ").nth(1).and_then(|rest| rest.split(' ').next());
        id.unwrap_or_else(|| panic!("{text}")).to_owned()
    };
    let before = program();
    let asked = config(&bind(), "data-path = \"xdp\"", NO_CHECKS);
    let output = network.setup(&asked).output();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("an XDP program is on eth0 already"), "{text}");
    assert_eq!(program(), before);
    let server = network.balancer(&config(&bind(), "", NO_CHECKS));
    eventually("it serves", secs(20), || {
        network.curl(&["-m", "1", &format!("http://{VIP}/")]).status.success().then_some(())
    });
    assert_eq!(server.ctl_json(&["status"])["listeners"][0]["paths"][0]["path"].as_str(), Some("tc"));
    stop(server);
    assert_eq!(program(), before);
}

#[test]
fn the_program_of_a_killed_process_ends_with_the_start_that_does_not_have_its_listener() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let old = config(&bind(), "", NO_CHECKS);
    // All of them; and the earlier process leaves its program in another mode.
    for (path, renamed) in [
        ("", old.replace("listener.web", "listener.site")),
        ("", old.replace(":80\"", ":8080\"")),
        ("data-path = \"xdp-generic\"", old.replace("listener.web", "listener.site")),
        ("data-path = \"xdp-generic\"", config(&bind(), "data-path = \"af_packet\"", NO_CHECKS)),
    ] {
        let mut server = network.setup_as("one.toml", &config(&bind(), path, NO_CHECKS)).start();
        eventually("it serves", secs(20), || {
            network.curl(&["-m", "1", &format!("http://{VIP}/")]).status.success().then_some(())
        });
        server.signal(Signal::SIGKILL);
        server.wait_end(secs(10));
        assert_eq!(network.visit(VIP).len(), 1, "the program goes on");
        let server = network.setup_as("one.toml", &renamed).start();
        let other = if renamed.contains(":8080") { ":8080" } else { "" };
        eventually("the next one serves", secs(20), || {
            network.curl(&["-m", "1", &format!("http://{VIP}{other}/")]).status.success().then_some(())
        });
        eventually("the start has ended", secs(20), || {
            let renamed = !renamed.contains("af_packet");
            (!renamed || server.said(&["events"]).contains("was taken away")).then_some(())
        });
        let events = server.said(&["events"]);
        let taken = events.matches("a program of an earlier start was taken away").count();
        assert_eq!(taken, usize::from(!renamed.contains("af_packet")), "{events}");
        // Its own backends alone are asked: packets of another program would still come to the drained one.
        let first = if other.is_empty() { "10.77.0.14:80" } else { "10.77.0.14:8080" };
        assert!(server.ctl(&["drain", first]).status.success());
        eventually("new connections go to the other one", secs(20), || {
            (0..20).all(|_| network.visit(&format!("{VIP}{other}")) == "3").then_some(())
        });
        if !other.is_empty() {
            let old = network.curl(&["-m", "1", &format!("http://{VIP}:80/")]);
            assert!(!old.status.success(), "the address is not served any more");
        }
        stop(server);
        ends(&network);
    }
}

#[test]
fn the_modes_of_xdp_replace_each_other_and_the_status_says_which_one_it_is() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let start = |path: &str| {
        network.balancer_with_all_files(&config(&bind(), &format!("data-path = \"{path}\""), NO_CHECKS))
    };
    for path in ["xdp", "xdp-generic", "xdp"] {
        let mut server = start(path);
        let said = server.ctl_json(&["status"])["listeners"][0]["paths"][0]["path"].clone();
        assert_eq!(said.as_str(), Some(path));
        let shown = network.run(BALANCER, &["ip", "link", "show", "eth0"]);
        assert_eq!(shown.contains("xdpgeneric"), path == "xdp-generic", "{shown}");
        server.signal(Signal::SIGKILL);
        server.wait_end(secs(10));
    }
    stop(start("tc"));
    assert!(!network.run(BALANCER, &["ip", "link", "show", "eth0"]).contains("xdp"));
}

#[test]
fn xdp_on_a_veth_is_degraded_until_the_other_end_takes_what_it_sends() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    network.offload(CLIENT, "tx", "off");
    let server = network.balancer(&config(&bind(), "data-path = \"xdp\"", NO_CHECKS));
    let degraded = || server.ctl_json(&["status"])["degraded"].to_string();
    let port = format!("p{BALANCER}");
    for _ in 0..2 {
        eventually("it is told", secs(20), || {
            degraded()
                .contains("every packet is lost: eth0 is a veth, and takes what xdp sends only")
                .then_some(())
        });
        assert!(!network.curl(&["-m", "1", &format!("http://{VIP}/")]).status.success());
        network.pass_in_driver(BALANCER);
        eventually("it works", secs(20), || (degraded() == "[]").then_some(()));
        (0..20).for_each(|_| assert!(["2", "3"].contains(&&*network.visit(VIP))));
        network.ip(SWITCH, &["link", "set", &port, "xdpdrv", "off"]);
    }
}

#[test]
fn a_killed_process_and_its_successor_cut_no_download_and_a_stop_takes_the_program_away() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let config = config(&bind(), "", PATIENT);
    let mut server = network.balancer_with_all_files(&config);
    eventually("it serves", secs(20), || {
        network.curl(&["-m", "1", &format!("http://{VIP}/")]).status.success().then_some(())
    });
    let path = |server: &Server| server.ctl_json(&["status"])["listeners"][0]["paths"][0].clone();
    assert_eq!(path(&server)["path"].as_str(), Some("tc"));
    assert!(path(&server)["unpinned"].is_null(), "{:#}", path(&server));
    let downloads = LargeDownloads::begin(&network, "15M");
    server.signal(Signal::SIGKILL);
    server.wait_end(secs(10));
    // Without the process, new connections are served as well.
    (0..20).for_each(|_| assert!(["2", "3"].contains(&&*network.visit(VIP))));
    let server = network.balancer_with_all_files(&config);
    let in_flight = || -> u64 {
        ["10.77.0.14:80", "10.77.0.15:80"]
            .iter()
            .filter_map(|at| server.backend(at)["in_flight"].as_u64())
            .sum()
    };
    eventually("it knows the flows of the one before", secs(10), || (in_flight() >= 6).then_some(()));
    (0..20).for_each(|_| assert!(["2", "3"].contains(&&*network.visit(VIP))));
    downloads.assert_all_end_whole();
    stop(server);
    ends(&network);
}

#[test]
fn a_program_that_is_to_be_kept_goes_on_after_a_stop() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let kept = config(&bind(), "at-stop = \"keep\"", NO_CHECKS);
    let server = network.balancer_with_all_files(&kept);
    eventually("it serves", secs(20), || {
        network.curl(&["-m", "1", &format!("http://{VIP}/")]).status.success().then_some(())
    });
    stop(server);
    (0..10).for_each(|_| assert!(["2", "3"].contains(&&*network.visit(VIP))));
    stop(network.balancer_with_all_files(&config(&bind(), "", NO_CHECKS)));
    ends(&network);
}
