//! Numbered datagrams at a steady rate, while the process is killed, restarted and replaced by another build: each of
//! them arrives, on the server of its flow.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Stdio;

use nix::sys::signal::Signal;
use testing::server::Setup;
use testing::tools::{self, Root};
use testing::{eventually, secs};

use super::network::{BALANCER, CLIENT, Network, Running, SERVERS, VIP, config};
use super::paths::stop;
use super::survival::{link, other_build, program};

/// Writes down what comes, a port and a number a line.
const SINK: &str = r#"
import socket, sys
of = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
of.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)
of.bind((sys.argv[1], 53))
with open(sys.argv[2], "w", buffering=1) as seen:
    while True:
        data, client = of.recvfrom(100)
        seen.write(f"{client[1]} {data.decode()}\n")
"#;

/// Sends a number every millisecond from one of 20 ports after the other, until a file is there. Prints how many.
const SEND: &str = r#"
import os, socket, sys, time
ports = []
for port in range(30000, 30020):
    of = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    of.bind(("", port))
    of.connect((sys.argv[1], 53))
    ports.append(of)
number, began = 0, time.monotonic()
while number % 1000 or not os.path.exists(sys.argv[2]):
    try:
        ports[number % 20].send(b"%d" % number)
    except ConnectionRefusedError:
        ports[number % 20].send(b"%d" % number)
    number += 1
    time.sleep(max(0, began + number / 1000 - time.monotonic()))
print(number)
"#;

#[test]
fn of_a_steady_stream_of_datagrams_none_is_lost_over_a_crash_a_restart_and_an_upgrade() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let at = |name: String| network.directory.path().join(name);
    let _sinks = SERVERS.map(|server| {
        let seen = at(format!("seen{server}")).display().to_string();
        let mut command = network.command(server, &["python3", "-c", SINK, VIP, &seen]);
        let running = Running(command.stdout(Stdio::null()).spawn().unwrap());
        eventually("it listens", secs(30), || fs::exists(&seen).unwrap().then_some(()));
        running
    });
    // While no process lives nothing answers questions for the address: packets alone are counted.
    let mac = network.ethernet(BALANCER);
    network.ip(CLIENT, &["neigh", "replace", VIP, "lladdr", &mac, "dev", "eth0", "nud", "permanent"]);
    let listener = "transport = \"udp\"\ndata-path = \"tc\"\nat-stop = \"keep\"";
    let config = config(&format!("\"{VIP}:53\""), listener, "health = \"off\"");
    let mut server = network.balancer_with_all_files(&config);
    eventually("it knows its backends", secs(20), || {
        let backends = server.ctl_json(&["dsr", "status"])["services"][0]["backends"].clone();
        backends.as_array()?.iter().all(|one| one["ethernet"].is_string()).then_some(())
    });
    let place = link(&network, "tc").display().to_string().replace("_100-80", "_100-53");
    let place = std::path::Path::new(&place);

    let end = at("end".to_owned());
    let mut send = network.command(CLIENT, &["python3", "-c", SEND, VIP, end.to_str().unwrap()]);
    let send = Running(send.stdout(Stdio::piped()).spawn().unwrap());
    let count = || -> usize {
        let texts = SERVERS.map(|server| fs::read_to_string(at(format!("seen{server}"))).unwrap());
        texts.iter().map(|text| text.lines().count()).sum()
    };
    let more = |what: &str| {
        let before = count();
        eventually(what, secs(30), || (count() > before + 500).then_some(()));
    };
    more("they arrive");
    let (first, tag) = program(place);
    server.signal(Signal::SIGKILL);
    server.wait_end(secs(10));
    more("they arrive without a process");
    server = network.balancer_with_all_files(&config);
    let (second, same) = program(place);
    assert!(second != first && same == tag, "the same program, loaded anew");
    more("they arrive after the restart");
    server.signal(Signal::SIGTERM);
    assert!(server.wait_end(secs(10)).success());
    more("they arrive after the stop");
    let upgraded = other_build(&network, "tc");
    let script = format!("shift; exec {} \"$@\"", upgraded.display());
    let space = network.space();
    let server = Setup::new(&config).through(["nsenter", &space, "sh", "-c", &script, "sh"]).start();
    let (third, other) = program(place);
    assert!(third != second && other != tag, "another program: {tag} {other}");
    more("they arrive after the upgrade");

    fs::write(&end, "").unwrap();
    let mut send = send;
    let mut said = String::new();
    std::io::Read::read_to_string(&mut send.0.stdout.take().unwrap(), &mut said).unwrap();
    let sent: usize = said.trim().parse().unwrap();
    eventually(&format!("all {sent} have arrived"), secs(20), || (count() >= sent).then_some(()));
    let (mut seen, mut owners) = (BTreeSet::new(), BTreeMap::<String, BTreeSet<usize>>::new());
    for server in SERVERS {
        for line in fs::read_to_string(at(format!("seen{server}"))).unwrap().lines() {
            let (port, number) = line.split_once(' ').unwrap();
            owners.entry(port.to_owned()).or_default().insert(server);
            seen.insert(number.parse::<usize>().unwrap());
        }
    }
    let missing: Vec<_> = (0..sent).filter(|number| !seen.contains(number)).collect();
    println!("{sent} datagrams, {} missing", missing.len());
    assert!(missing.is_empty(), "{} of {sent}: {:?}", missing.len(), &missing[..missing.len().min(20)]);
    assert!(owners.len() == 20 && owners.values().all(|all| all.len() == 1), "none moved: {owners:?}");
    drop(server);
    stop(network.balancer_with_all_files(&config.replace("at-stop = \"keep\"", "")));
    assert!(!place.exists());
}
