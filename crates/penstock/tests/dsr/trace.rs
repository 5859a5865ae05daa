//! `penstock ctl dsr trace`: packets with what was decided about them, as tshark, capinfos and tcpdump read them.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use testing::server::{binary, run_to_end};
use testing::tools::{self, Root, run};
use testing::{Server, eventually, secs};

use super::network::{BALANCER, CLIENT, Network, Running, SERVERS, VIP, VIP6, config};

/// Traces that run.
fn traces(server: &Server) -> u64 {
    let services = server.ctl_json(&["dsr", "status"])["services"].clone();
    services.as_array().unwrap().iter().map(|one| one["traces"].as_u64().unwrap()).sum::<u64>()
}

/// Starts a trace, and waits until the services give it their packets, or it has ended with those that it asked for.
pub(super) fn trace(server: &Server, file: &Path, more: &[&str]) -> Child {
    let before = traces(server);
    let mut child = Command::new(binary())
        .args(["ctl", "--socket"])
        .arg(server.control_socket())
        .args(["dsr", "trace", "--to"])
        .arg(file)
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("the trace begins", secs(20), || {
        (traces(server) > before || child.try_wait().unwrap().is_some()).then_some(())
    });
    child
}

#[track_caller]
pub(super) fn ended(child: Child) -> (String, String) {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).into()
}

/// What tshark prints of each packet.
#[track_caller]
pub(super) fn fields(file: &Path, fields: &[&str]) -> Vec<Vec<String>> {
    let mut arguments = vec!["-r", file.to_str().unwrap(), "-T", "fields"];
    fields.iter().for_each(|field| arguments.extend(["-e", field]));
    let output = run("tshark", &arguments, secs(60));
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

/// Waits until clients are served at all addresses.
fn served(network: &Network, hosts: &[&str]) {
    for host in hosts {
        eventually("the service has its backends", secs(20), || {
            network.curl(&["-m", "1", &format!("http://{host}/")]).status.success().then_some(())
        });
    }
}

#[test]
fn packets_of_a_download_are_read_with_the_backend_that_each_went_to_and_why() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let at = |name: &str| network.directory.path().join(name);
    for path in ["af_packet", "tc"] {
        let bind = format!("[\"{VIP}:80\", \"[{VIP6}]:80\"]");
        let listener = format!("data-path = \"{path}\"");
        let server = network.balancer(&config(&bind, &listener, "health = \"off\""));
        served(&network, &[VIP, &format!("[{VIP6}]")]);
        let file = at(&format!("{path}.pcapng"));
        // Two at once: one of a network without clients, by name of its service.
        let other = at(&format!("{path}-other.pcapng"));
        let none = ["--from", "192.0.2.0/24", "--service", "web", "--for", "12s", "--json"];
        let none = trace(&server, &other, &none);
        let v4 = format!("{VIP}:80");
        let all = trace(&server, &file, &["--service", &v4, "--client", "10.77.0.12", "--packets", "40"]);
        let url = format!("http://{VIP}/large");
        let output = network.curl(&["-m", "50", "--limit-rate", "60M", "-o", "/dev/null", "-D", "-", &url]);
        assert!(output.status.success(), "{path}: {output:?}");
        let heads = String::from_utf8_lossy(&output.stdout).to_lowercase();
        let backend = if heads.contains("x-server: 2") { "10.77.0.14:80" } else { "10.77.0.15:80" };
        let (said, notes) = ended(all);
        assert!(said.contains("40 packets, ") && notes.is_empty(), "{path}: {said} {notes}");

        let wanted = ["ip.src", "ip.dst", "tcp.dstport", "tcp.flags.syn", "frame.comment", "tcp.srcport"];
        let mut packets = fields(&file, &wanted);
        assert_eq!(packets.len(), 40, "{path}");
        // The end of an earlier connection may still be there.
        let from = packets[39][5].clone();
        packets.retain(|packet| packet[5] == from);
        assert!(packets.len() > 30, "{path}: {packets:?}");
        let place = format!("[listener.web {v4} tcp, {path}]");
        for packet in &packets {
            let [from, to, port, _, comment, _] = &packet[..] else { panic!("{packet:?}") };
            assert_eq!((&**from, &**to, &**port), ("10.77.0.12", VIP, "80"), "{path}");
            assert!(comment.starts_with(&format!("forwarded to {backend} at ")), "{path}: {comment}");
            assert!(comment.ends_with(&place), "{path}: {comment}");
        }
        assert_eq!(
            packets[0][3].replace("True", "1"),
            "1",
            "{path}: the first one is the SYN: {:?}",
            packets[0]
        );
        let because = if path == "tc" { "the flow is remembered" } else { "the flow is new" };
        assert!(packets[0][4].contains(because), "{path}: {:?}", packets[0]);
        assert!(packets[9][4].contains("the flow is remembered"), "{path}: {:?}", packets[9]);
        let information = run("capinfos", &["-M", file.to_str().unwrap()], secs(30));
        let information = String::from_utf8_lossy(&information.stdout).into_owned();
        for part in ["pcapng", "Ethernet", "Number of packets:   40", "Name = eth0"] {
            assert!(information.contains(part), "{part}: {information}");
        }
        let read = run("tcpdump", &["-nn", "-r", file.to_str().unwrap()], secs(30));
        assert!(String::from_utf8_lossy(&read.stdout).contains("Flags [S]"), "{read:?}");
        let (said, _) = ended(none);
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!((&said["packets"], &said["end"]), (&0.into(), &"time".into()), "{said:#}");
        let events = server.said(&["events"]);
        assert!(
            events.contains("traces packets of dsr services, from 192.0.2.0/24, service web for 12 s"),
            "{events}"
        );
        eventually("nothing is traced any more", secs(10), || {
            let services = server.ctl_json(&["dsr", "status"])["services"].clone();
            services.as_array()?.iter().all(|one| one["traces"] == 0).then_some(())
        });
    }
}

#[test]
fn what_no_backend_takes_is_in_the_trace_of_drops_alone() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    for path in ["af_packet", "tc"] {
        let listener = format!("data-path = \"{path}\"");
        let server = network.balancer(&config(&format!("\"{VIP}:80\""), &listener, "health = \"off\""));
        served(&network, &[VIP]);
        let file = network.directory.path().join(format!("{path}.pcapng"));
        let child = trace(&server, &file, &["--verdict", "packet-no-backend", "--packets", "2"]);
        assert!(["2", "3"].contains(&&*network.visit(VIP)));
        for backend in ["10.77.0.14:80", "10.77.0.15:80"] {
            server.said(&["drain", backend]);
        }
        eventually("new connections have no backend", secs(20), || {
            (!network.curl(&["-m", "1", &format!("http://{VIP}/")]).status.success()).then_some(())
        });
        let _ = network.curl(&["-m", "3", &format!("http://{VIP}/")]);
        ended(child);
        for packet in fields(&file, &["tcp.flags.ack", "frame.comment"]) {
            assert_eq!(packet[0].replace("False", "0"), "0", "{path}: {packet:?}");
            assert!(packet[1].starts_with("dropped: no backend takes new flows"), "{path}: {packet:?}");
        }
    }
}

#[test]
fn packets_to_the_address_that_are_not_for_the_service_are_seen_when_they_are_asked_for() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    for path in ["af_packet", "tc"] {
        let listener = format!("data-path = \"{path}\"");
        let server = network.balancer(&config(&format!("\"{VIP}:80\""), &listener, "health = \"off\""));
        served(&network, &[VIP]);
        let file = network.directory.path().join(format!("{path}-passed.pcapng"));
        let child = trace(&server, &file, &["--verdict", "passed", "--packets", "2"]);
        network.visit(VIP);
        let _ = network.curl(&["-m", "4", &format!("http://{VIP}:81/")]);
        ended(child);
        for packet in fields(&file, &["tcp.dstport", "frame.comment"]) {
            assert_eq!(packet[0], "81", "{path}: {packet:?}");
            assert!(packet[1].starts_with("passed over: it is not for this service"), "{path}: {packet:?}");
        }
    }
}

#[test]
fn a_trace_sees_the_packets_of_a_transport_that_a_reload_adds() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    for path in ["af_packet", "tc"] {
        let of = |transport: &str| {
            let listener = format!("transport = \"{transport}\"\ndata-path = \"{path}\"");
            config(&format!("\"{VIP}:80\""), &listener, "health = \"off\"")
        };
        let server = network.balancer(&of("tcp"));
        served(&network, &[VIP]);
        // Neither its last packets nor a question for the address are to be the one that is seen.
        eventually("its connections are over", secs(20), || {
            network.run(CLIENT, &["ss", "-Htn"]).trim().is_empty().then_some(())
        });
        let mac = network.ethernet(BALANCER);
        network.ip(CLIENT, &["neigh", "replace", VIP, "lladdr", &mac, "dev", "eth0", "nud", "permanent"]);
        let file = network.directory.path().join(format!("{path}.pcapng"));
        let mut child = trace(&server, &file, &["--packets", "1", "--from", "10.77.0.12"]);
        server.write_config(&of("tcp-and-udp"));
        server.said(&["reload"]);
        let send = format!(
            "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('{VIP}', 80))"
        );
        eventually("a datagram is in it", secs(30), || {
            network.run(CLIENT, &["python3", "-c", &send]);
            child.try_wait().unwrap().map(drop)
        });
        ended(child);
        let packets = fields(&file, &["udp.dstport", "frame.comment"]);
        assert_eq!(packets[0][0], "80", "{path}: {packets:?}");
        assert!(packets[0][1].starts_with("forwarded to "), "{path}: {packets:?}");
    }
}

#[test]
fn a_program_in_the_driver_shows_only_what_it_passes_on_and_the_trace_says_so() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let listener = "data-path = \"xdp-generic\"";
    let server = network.balancer(&config(&format!("\"{VIP}:80\""), listener, "health = \"off\""));
    served(&network, &[VIP]);
    let file = network.directory.path().join("xdp.pcapng");
    let child = trace(&server, &file, &["--packets", "1"]);
    network.visit(VIP);
    network.ip(CLIENT, &["neigh", "flush", "dev", "eth0"]);
    network.visit(VIP);
    let (_, notes) = ended(child);
    assert!(notes.contains("what it forwards or drops is not in the trace"), "{notes}");
    let packets = fields(&file, &["arp.dst.proto_ipv4", "frame.comment"]);
    assert_eq!(packets[0][0], VIP, "{packets:?}");
    assert!(packets[0][1].starts_with("answered: it asks who has the address"), "{packets:?}");
}

#[test]
fn wrong_filters_files_and_further_traces_are_refused_with_a_reason() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let server =
        network.balancer(&config(&format!("\"{VIP}:80\""), "data-path = \"tc\"", "health = \"off\""));
    eventually("the service is there", secs(20), || {
        (server.ctl_json(&["dsr", "status"])["services"].as_array()?.len() == 1).then_some(())
    });
    let directory = network.directory.path();
    let at = |name: &str| directory.join(name).display().to_string();
    for (words, part) in [
        (["--service", "wev"], "did you mean \"web\"?"),
        (["--backend", "10.77.0.99:80"], "there are: 10.77.0.14:80, 10.77.0.15:80"),
        (["--verdict", "lost"], "there are: answered, dropped, forwarded"),
        (["--from", "10.77.0.1/24"], "from: "),
        (["--packets", "0"], "0"),
        (["--for", "25h"], "25h"),
        (["--max-size", "1"], "1KiB"),
    ] {
        let text = server.refused(&[&["dsr", "trace", "--to", &at("refused")][..], &words].concat());
        assert!(text.contains(part), "{words:?}: {text}");
        assert!(!directory.join("refused").exists(), "{words:?}: nothing is left");
    }
    fs::write(at("there"), "mine").unwrap();
    assert!(server.refused(&["dsr", "trace", "--to", &at("there")]).contains("exists already"));
    assert_eq!(fs::read(at("there")).unwrap(), b"mine");
    assert!(server.refused(&["dsr", "trace", "--to", &at("no/where")]).contains("cannot be written"));
    // A full disk ends the trace, and what was written before stays.
    let mut full = Command::new("sh");
    let command = format!(
        "exec {} ctl --socket {} dsr trace --to - --for 20s >/dev/full",
        binary(),
        server.control_socket().display()
    );
    let output = run_to_end(full.args(["-c", &command]), secs(30));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("No space left"), "{text}");
    eventually("no trace runs", secs(20), || (traces(&server) == 0).then_some(()));
    let one = |number: usize| trace(&server, &directory.join(number.to_string()), &["--for", "10m"]);
    let running: Vec<_> = (0..4).map(|number| Running(one(number))).collect();
    assert!(server.refused(&["dsr", "trace", "--to", &at("fifth")]).contains("4 traces run already"));
    drop(running);
    eventually("a further one may begin", secs(20), || (traces(&server) == 0).then_some(()));
    drop(Running(one(5)));
}
