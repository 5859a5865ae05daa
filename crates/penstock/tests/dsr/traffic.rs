//! What clients get: TCP and UDP, IPv4 and IPv6, with the offloads of network cards on and off.

use std::collections::BTreeSet;
use std::fs;
use std::process::Stdio;

use testing::tools::{self, Root};
use testing::{eventually, secs};

use super::network::{
    BALANCER, CLIENT, LARGE, Network, Running, SERVERS, VIP, VIP6, are_same, config, noise,
};

#[test]
fn http_uploads_and_downloads_pass_whole_with_every_offload_and_replies_go_straight_back() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    http_passes("af_packet", &[("on", "off"), ("on", "on"), ("off", "off"), ("off", "on")]);
}

#[test]
fn the_same_passes_through_the_kernel_behind_the_driver() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    http_passes("tc", &[("on", "off"), ("on", "on"), ("off", "off"), ("off", "on")]);
}

#[test]
fn the_same_passes_through_the_kernel_before_its_network() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    http_passes("xdp-generic", &[("on", "off"), ("off", "on")]);
}

/// A virtual interface loses checksums that are left to the card, so that the client calculates them.
#[test]
fn the_same_passes_through_the_driver_if_no_checksum_is_left_to_the_card() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    http_passes("xdp", &[("off", "off")]);
}

/// Ten connections of a cell of the matrix: eight requests, an upload of 3 MB and a download of 90 MB, whose bytes do not pass
/// the balancer. What is not whole is added to `failures`.
pub(crate) fn pass(network: &Network, address: &str, cell: &str, failures: &mut Vec<String>) {
    let at = |name: &str| network.directory.path().join(name);
    let seen: BTreeSet<_> = (0..8).map(|_| network.visit(address)).collect();
    assert!(seen.iter().all(|name| ["2", "3"].contains(&&**name)), "{cell}: {seen:?}");
    let (from, to) = (at("upload").display().to_string(), format!("http://{address}/put"));
    let output = network.curl(&["-m", "20", "-f", "-T", &from, "-w", "%{time_total}", &to]);
    let arrived = SERVERS.into_iter().map(|server| network.root(server).join("put"));
    let arrived: Vec<_> = arrived.filter(|path| path.exists()).collect();
    match &arrived[..] {
        [one] if output.status.success() && are_same(one, &at("upload")) => {
            println!("{cell}: 3 MB up in {} s", String::from_utf8_lossy(&output.stdout));
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
}

fn http_passes(path: &str, offloads: &[(&str, &str)]) {
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let bind = match path {
        // One program of this kind is on an interface.
        "xdp" | "xdp-generic" => format!("\"{VIP}:80\""),
        _ => format!("[\"{VIP}:80\", \"[{VIP6}]:80\"]"),
    };
    let addresses: Vec<_> = match bind.contains(VIP6) {
        true => vec![VIP.to_owned(), format!("[{VIP6}]")],
        false => vec![VIP.to_owned()],
    };
    if path == "xdp" {
        network.pass_in_driver(BALANCER);
        network.offload(CLIENT, "tx", "off");
    }
    let listener = format!("mode = \"l2\"\ndata-path = \"{path}\"");
    let server = network.balancer(&config(&bind, &listener, "health = { tcp = true, interval = \"1s\" }"));
    for address in &addresses {
        eventually("the service has its backends", secs(20), || {
            network.curl(&["-m", "1", &format!("http://{address}/")]).status.success().then_some(())
        });
    }
    let listener = || server.ctl_json(&["status"])["listeners"][0].clone();
    assert_eq!(listener()["paths"][0]["path"].as_str(), Some(path), "{:#}", listener());
    let at = |name: &str| network.directory.path().join(name);
    fs::write(at("upload"), noise(3_000_000)).unwrap();
    let first = eventually("what was until now is counted", secs(10), || {
        let first = listener();
        (first["sessions"].as_u64()? >= addresses.len() as u64).then_some(first)
    });
    let mut failures = Vec::new();
    for (tx, gro) in offloads {
        network.offload(CLIENT, "tx", tx);
        network.offload(BALANCER, "gro", gro);
        for address in &addresses {
            let cell = format!("{path}, tx {tx}, gro {gro}, {address}");
            pass(&network, address, &cell, &mut failures);
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
    for backend in ["10.77.0.14:80", "10.77.0.15:80"] {
        let backend = server.backend(backend);
        let sessions = backend["sessions"].as_u64();
        assert!(sessions > Some(cells) && backend["bytes_in"].as_u64() > Some(0), "{backend:#}");
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
    let mut words = vec!["kdig", "+short", "+retry=0", "+time=2", &at];
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
    ["af_packet", "tc"].into_iter().for_each(dns_passes);
}

fn dns_passes(path: &str) {
    let network = Network::new();
    let _servers = SERVERS.map(|server| unbound(&network, server));
    let bind = format!("[\"{VIP}:53\", \"[{VIP6}]:53\"]");
    let listener = format!("transport = \"udp\"\ndata-path = \"{path}\"");
    let server = network.balancer(&config(&bind, &listener, "health = \"off\""));
    for address in [VIP, VIP6] {
        eventually("the service has its backends", secs(20), || ask(&network, CLIENT, address, None));
        let seen: Vec<_> =
            (0..30).map(|_| ask(&network, CLIENT, address, None).expect("an answer")).collect();
        let names: BTreeSet<_> = seen.iter().map(String::as_str).collect();
        assert_eq!(names, BTreeSet::from(["2", "3"]), "{address}");
    }
    let drained = server.ctl(&["drain", "10.77.0.14:53"]);
    assert!(drained.status.success(), "{drained:?}");
    eventually("the other one answers alone", secs(20), || {
        (0..20).all(|_| ask(&network, CLIENT, VIP, None).as_deref() == Some("3")).then_some(())
    });
}
