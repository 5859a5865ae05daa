//! What clients get: TCP and UDP, IPv4 and IPv6, with the offloads of network cards on and off.

use std::collections::BTreeSet;
use std::fs;
use std::process::Stdio;

use testing::tools::{self, Root};
use testing::{eventually, secs};

use super::network::{
    BALANCER, CLIENT, LARGE, Network, PATIENT, Running, SERVERS, VIP, VIP6, are_same, config, host, noise,
};

#[test]
fn http_uploads_and_downloads_pass_whole_with_every_offload_and_replies_go_straight_back() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    http_passes("af_packet", &[VIP, VIP6], &OFFLOADS);
}

#[test]
fn the_same_passes_through_the_kernel_behind_the_driver() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    http_passes("tc", &[VIP, VIP6], &OFFLOADS);
}

#[test]
fn the_same_passes_through_the_kernel_before_its_network() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    // One program of this kind is on an interface.
    [VIP, VIP6].into_iter().for_each(|vip| http_passes("xdp-generic", &[vip], &OFFLOADS));
}

/// A virtual interface loses checksums that are left to the card, so that the client calculates them.
#[test]
fn the_same_passes_through_the_driver_if_no_checksum_is_left_to_the_card() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    [VIP, VIP6].into_iter().for_each(|vip| http_passes("xdp", &[vip], &UNLOADED));
}

/// Segmentation and checksums by the client's card (`tx`), and segments that the balancer's puts together (`gro`).
pub(crate) const OFFLOADS: [(&str, &str); 4] = [("on", "off"), ("on", "on"), ("off", "off"), ("off", "on")];

/// Those in which no checksum is left to the card.
pub(crate) const UNLOADED: [(&str, &str); 2] = [("off", "off"), ("off", "on")];

const UPLOAD: usize = 3_000_000;

/// Ten connections of a cell of the matrix: eight requests, an upload of 3 MB and a download of 90 MB, whose bytes do not pass
/// the balancer. What is not whole is added to `failures`. Returns whether frames of the upload were put together.
pub(crate) fn pass(network: &Network, address: &str, cell: &str, failures: &mut Vec<String>) -> Frames {
    let at = |name: &str| network.directory.path().join(name);
    let seen: BTreeSet<_> = (0..8).map(|_| network.visit(address)).collect();
    assert!(seen.iter().all(|name| ["2", "3"].contains(&&**name)), "{cell}: {seen:?}");
    let (from, to) = (at("upload").display().to_string(), format!("http://{address}/put"));
    let frames = || SERVERS.iter().map(|server| network.frames(*server)).sum::<u64>();
    let before = frames();
    let output = network.curl(&["-m", "20", "-f", "-T", &from, "-w", "%{time_total}", &to]);
    // Clients send to the servers through the balancer alone.
    let frames = frames() - before;
    let arrived = SERVERS.into_iter().map(|server| network.root(server).join("put"));
    let arrived: Vec<_> = arrived.filter(|path| path.exists()).collect();
    match &arrived[..] {
        [one] if output.status.success() && are_same(one, &at("upload")) => {
            println!("{cell}: 3 MB up in {} s, {frames} frames", String::from_utf8_lossy(&output.stdout));
        }
        _ => failures.push(format!("{cell}: upload: {output:?} {arrived:?}")),
    }
    arrived.iter().for_each(|path| fs::remove_file(path).unwrap());
    let before = network.received(BALANCER);
    let (from, to) = (format!("http://{address}/large"), at("download").display().to_string());
    let output = network.curl(&["-f", "-o", &to, &from]);
    if !output.status.success() || !are_same(&at("download"), &at("large")) {
        failures.push(format!("{cell}: download: {output:?}"));
    }
    let received = network.received(BALANCER) - before;
    assert!(received < LARGE as u64 / 10, "{cell}: the balancer received {received} bytes");
    match frames < UPLOAD as u64 / 1460 {
        true => Frames::Merged,
        false => Frames::Single,
    }
}

/// What came to the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frames {
    /// Some of them were longer than the MTU.
    Merged,
    Single,
}

pub(crate) fn bind(vips: &[&str], port: u16) -> String {
    let of = |vip: &&str| format!("\"{}:{port}\"", host(vip));
    format!("[{}]", vips.iter().map(of).collect::<Vec<_>>().join(", "))
}

fn http_passes(path: &str, vips: &[&str], offloads: &[(&str, &str)]) {
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let (bind, addresses) = (bind(vips, 80), vips.iter().map(|vip| host(vip)).collect::<Vec<_>>());
    if path == "xdp" {
        network.pass_in_driver(BALANCER);
        network.offload(CLIENT, "tx", "off");
    }
    let listener = format!("mode = \"l2\"\ndata-path = \"{path}\"");
    let server = network.balancer(&config(&bind, &listener, PATIENT));
    for address in &addresses {
        // None is given up, which would be counted later than those that are expected.
        eventually("the service has its backends", secs(20), || {
            network.curl(&["-m", "30", &format!("http://{address}/")]).status.success().then_some(())
        });
    }
    let listener = || server.ctl_json(&["status"])["listeners"][0].clone();
    assert_eq!(listener()["paths"][0]["path"].as_str(), Some(path), "{:#}", listener());
    let at = |name: &str| network.directory.path().join(name);
    fs::write(at("upload"), noise(UPLOAD)).unwrap();
    let first = eventually("what was until now is counted", secs(10), || {
        let first = listener();
        (first["sessions"].as_u64()? >= addresses.len() as u64).then_some(first)
    });
    let mut failures = Vec::new();
    for (tx, gro) in offloads {
        network.offload(CLIENT, "tx", tx);
        network.set_gro(gro);
        for address in &addresses {
            let cell = format!("{path}, tx {tx}, gro {gro}, {address}");
            let frames = pass(&network, address, &cell, &mut failures);
            // With a program of XDP on an interface the kernel puts nothing together there.
            let expected = match (path, *tx, *gro) {
                ("tc" | "af_packet", _, "on") | (_, "on", "off") => Some(Frames::Merged),
                (_, "off", "off") => Some(Frames::Single),
                _ => None,
            };
            if expected.is_some_and(|expected| frames != expected) {
                failures.push(format!("{cell}: {frames:?}"));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
    let cells = (offloads.len() * addresses.len()) as u64;
    // The kernel's numbers are taken over ten times a second.
    let last = eventually("all connections are counted", secs(10), || {
        let last = listener();
        (last["sessions"].as_u64()? >= first["sessions"].as_u64()? + 10 * cells).then_some(last)
    });
    let more = |key: &str| last[key].as_u64().unwrap() - first[key].as_u64().unwrap();
    assert_eq!((last["protocol"].as_str(), more("packets_dropped")), (Some("dsr"), 0), "{last:#}");
    assert_eq!(more("sessions"), 10 * cells, "cells with ten connections: {last:#}");
    assert!(more("packets_forwarded") > 100 * cells, "{last:#}");
    let bytes = more("bytes_in");
    assert!(
        (3_000_000 * cells..10_000_000 * cells).contains(&bytes),
        "uploads, and acknowledgements: {bytes}"
    );
    // Each has at least one of them, which of 21 flows or more one backend lacks once in a million times.
    let backends = eventually("they are those of both backends", secs(10), || {
        let backends = ["10.77.0.14:80", "10.77.0.15:80"].map(|backend| server.backend(backend));
        let sessions = backends.iter().map(|backend| backend["sessions"].as_u64().unwrap()).sum::<u64>();
        (last["sessions"] == sessions).then_some(backends)
    });
    for backend in backends {
        let is_used = |key: &str| backend[key].as_u64() > Some(0);
        assert!(is_used("sessions") && is_used("bytes_in"), "{backend:#}");
    }
    let privileges = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let effective = privileges.lines().find(|line| line.starts_with("CapEff:")).unwrap();
    assert!(effective.ends_with("0000000000002000"), "CAP_NET_RAW alone: {effective}");
}

/// Starts a DNS server that says which one it is.
pub(crate) fn unbound(network: &Network, server: usize) -> Running {
    let file = network.directory.path().join(format!("unbound{server}.conf"));
    let text = format!(
        "server:\n  interface: {VIP}\n  interface: {VIP6}\n  interface: {}\n  access-control: 0.0.0.0/0 allow\n\
         \x20 access-control: ::/0 allow\n  do-daemonize: no\n  username: \"\"\n  chroot: \"\"\n  pidfile: \"\"\n\
         \x20 directory: \"\"\n  use-syslog: no\n  num-threads: 1\n  module-config: \"iterator\"\n\
         \x20 local-zone: \"test.\" static\n  local-data: 'who.test. TXT \"{server}\"'\n\
         remote-control:\n  control-enable: no\n",
        network.address(server)
    );
    fs::write(&file, text).unwrap();
    let mut command = network.command(server, &["unbound", "-d", "-c", file.to_str().unwrap()]);
    let running = Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    eventually("unbound answers", secs(30), || {
        (ask(network, server, VIP, None)? == server.to_string()).then_some(())
    });
    running
}

/// Asks a DNS server which one it is, from a port of the client.
pub(crate) fn ask(network: &Network, machine: usize, address: &str, port: Option<u16>) -> Option<String> {
    let (at, from) = (format!("@{address}"), port.map(|port| format!("{}@{port}", network.address(machine))));
    let mut words = vec!["kdig", "+short", "+retry=0", "+time=5", &at];
    words.extend(from.iter().flat_map(|from| ["-b", from.as_str()]));
    words.extend(["who.test", "TXT"]);
    let output = network.output(machine, &words);
    let answer = String::from_utf8(output.stdout).unwrap();
    output.status.success().then(|| answer.trim().trim_matches('"').to_owned())
}

#[test]
fn dns_over_udp_is_spread_and_answered_by_the_address_that_was_asked() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    ["af_packet", "tc"].into_iter().for_each(|path| dns_passes(path, &[VIP, VIP6], &OFFLOADS));
}

#[test]
fn dns_over_udp_passes_before_the_network_and_through_the_driver() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    for vip in [VIP, VIP6] {
        dns_passes("xdp-generic", &[vip], &OFFLOADS);
        dns_passes("xdp", &[vip], &UNLOADED);
    }
}

fn dns_passes(path: &str, vips: &[&str], offloads: &[(&str, &str)]) {
    let network = Network::new();
    let _servers = SERVERS.map(|server| unbound(&network, server));
    let bind = bind(vips, 53);
    if path == "xdp" {
        network.pass_in_driver(BALANCER);
        network.offload(CLIENT, "tx", "off");
    }
    let listener = format!("transport = \"udp\"\ndata-path = \"{path}\"");
    let server = network.balancer(&config(&bind, &listener, "health = \"off\""));
    let listener = server.ctl_json(&["status"])["listeners"][0].clone();
    assert_eq!(listener["paths"][0]["path"].as_str(), Some(path), "{listener:#}");
    for address in vips {
        eventually("the service has its backends", secs(20), || ask(&network, CLIENT, address, None));
        let seen: Vec<_> =
            (0..30).map(|_| ask(&network, CLIENT, address, None).expect("an answer")).collect();
        let names: BTreeSet<_> = seen.iter().map(String::as_str).collect();
        assert_eq!(names, BTreeSet::from(["2", "3"]), "{address}");
        for (tx, gro) in offloads {
            network.offload(CLIENT, "tx", tx);
            network.set_gro(gro);
            let answers = (0..8).filter_map(|_| ask(&network, CLIENT, address, None));
            assert_eq!(answers.count(), 8, "{path}, tx {tx}, gro {gro}, {address}");
        }
    }
    let drained = server.ctl(&["drain", "10.77.0.14:53"]);
    assert!(drained.status.success(), "{drained:?}");
    eventually("the other one answers alone", secs(20), || {
        (0..20).all(|_| ask(&network, CLIENT, vips[0], None).as_deref() == Some("3")).then_some(())
    });
}
