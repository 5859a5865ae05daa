//! pen (`-O "dsr_if eth0"`) in the place of the balancer, in the cells of the matrix that it knows (IPv4, servers on the same
//! network), beside the data paths of ours: the table in `docs/dsr.md`. And what becomes of its clients when a server goes.

use std::fs;
use std::process::Stdio;

use testing::tools::{self, Root};
use testing::{Server, eventually, secs};

use super::network::{BALANCER, CLIENT, Network, Running, SERVERS, VIP, are_same, config, noise};
use super::traffic::{ask, unbound};

/// Offloads: checksums of the client (`tx`), and the joining of frames at the balancer (`gro`).
const CELLS: [(&str, &str); 4] = [("on", "on"), ("on", "off"), ("off", "on"), ("off", "off")];

const REQUESTS: usize = 8;

const HEAD: &str = "| | tx on, gro on | tx on, gro off | tx off, gro on | tx off, gro off |";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Transport {
    Tcp,
    Udp,
}

/// What came through of eight requests, 3 MB to a server, and 90 MB from one; or of eight questions.
fn measure(network: &Network, transport: Transport) -> String {
    if transport == Transport::Udp {
        let answers = (0..REQUESTS).filter(|_| ask(network, CLIENT, VIP, None).is_some()).count();
        return if answers == REQUESTS {
            "whole".to_owned()
        } else {
            format!("{answers} of {REQUESTS} answers")
        };
    }
    let at = |name: &str| network.directory.path().join(name);
    let url = |path: &str| format!("http://{VIP}/{path}");
    let visits = (0..REQUESTS).filter(|_| network.curl(&["-m", "1", "-f", &url("")]).status.success());
    let requests = visits.count();
    let passes = |words: &[&str]| network.curl(&[&["-m", "8", "-f"], words].concat()).status.success();
    let (from, to) = (at("upload").display().to_string(), at("download").display().to_string());
    let is_sent = passes(&["-o", "/dev/null", "-T", &from, &url("put")]);
    let arrived = SERVERS.into_iter().map(|server| network.root(server).join("put"));
    let arrived: Vec<_> = arrived.filter(|path| path.exists()).collect();
    let is_sent = is_sent && matches!(&arrived[..], [one] if are_same(one, &at("upload")));
    arrived.iter().for_each(|path| fs::remove_file(path).unwrap());
    let is_received = passes(&["-o", &to, &url("large")]) && are_same(&at("download"), &at("large"));
    if requests == REQUESTS && is_sent && is_received {
        return "whole".to_owned();
    }
    let with = |is: bool, what: &str| format!("{} {what}", if is { "the" } else { "no" });
    format!(
        "{requests} of {REQUESTS} requests, {}, {}",
        with(is_sent, "upload"),
        with(is_received, "download")
    )
}

/// pen in front of both servers, by address and port of the client.
fn pen(network: &Network, transport: Transport) -> Running {
    let port = if transport == Transport::Tcp { 80 } else { 53 };
    let [one, other] = SERVERS.map(|server| format!("{}:{port}", network.address(server)));
    let vip = format!("{VIP}:{port}");
    let mut words = vec!["pen", "-f", "-r", "-O", "dsr_if eth0"];
    words.extend((transport == Transport::Udp).then_some("-U"));
    words.extend([&*vip, &*one, &*other]);
    let log = fs::File::create(network.directory.path().join("pen.log")).unwrap();
    let mut command = network.command(BALANCER, &words);
    let mut pen = Running(command.stdout(Stdio::null()).stderr(log).spawn().unwrap());
    // Without the checksums of the client nothing may come through: that it answers is enough.
    eventually("pen answers for the address", secs(20), || {
        let _ = network.curl(&["-m", "1", &format!("http://{VIP}/")]);
        if let Some(status) = pen.0.try_wait().unwrap() {
            panic!("{status}: {}", fs::read_to_string(network.directory.path().join("pen.log")).unwrap());
        }
        network.run(CLIENT, &["ip", "neigh", "show", VIP]).contains("lladdr").then_some(())
    });
    pen
}

fn ours(network: &Network, path: &str, transport: Transport) -> Server {
    let (port, words) = match transport {
        Transport::Tcp => (80, ""),
        Transport::Udp => (53, "\ntransport = \"udp\""),
    };
    if path == "proxy" {
        network.set_vip(BALANCER, "add", VIP);
    }
    let listener = format!("data-path = \"{path}\"{words}");
    let server = network.balancer(&config(&format!("\"{VIP}:{port}\""), &listener, "health = \"off\""));
    eventually("it serves", secs(20), || match transport {
        Transport::Tcp => {
            network.curl(&["-m", "1", &format!("http://{VIP}/")]).status.success().then_some(())
        }
        Transport::Udp => ask(network, CLIENT, VIP, None).map(drop),
    });
    server
}

#[test]
#[ignore = "compares with another program, and takes minutes: run it by name for the table in docs/dsr.md"]
fn pen_in_the_same_matrix_is_as_the_table_in_the_manual_says() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let mut rows = Vec::new();
    for transport in [Transport::Tcp, Transport::Udp] {
        for way in ["pen", "af_packet", "tc", "xdp-generic", "proxy"] {
            let network = Network::new();
            let _servers = SERVERS.map(|server| match transport {
                Transport::Tcp => network.nginx(server),
                Transport::Udp => unbound(&network, server),
            });
            fs::write(network.directory.path().join("upload"), noise(3_000_000)).unwrap();
            let (_pen, _server) = match way {
                "pen" => (Some(pen(&network, transport)), None),
                path => (None, Some(ours(&network, path, transport))),
            };
            let name = if transport == Transport::Tcp { "TCP" } else { "UDP" };
            let mut row = format!("| {way}, {name} |");
            for (tx, gro) in CELLS {
                network.offload(CLIENT, "tx", tx);
                network.set_gro(gro);
                let cell = measure(&network, transport);
                println!("{way}, {name}, tx {tx}, gro {gro}: {cell}");
                row.push_str(&format!(" {cell} |"));
            }
            rows.push(row);
        }
    }
    let manual = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/dsr.md")).unwrap();
    let table = [&[HEAD.to_owned(), "|---|---|---|---|---|".to_owned()], &rows[..]].concat().join("\n");
    println!("{table}");
    assert!(manual.contains(&table), "docs/dsr.md has another table");
    let fails = |row: &String| !row.starts_with("| pen") && row.contains(" of ");
    assert!(!rows.iter().any(fails), "{rows:#?}");
}

/// How many of so many requests fail.
fn failed(network: &Network, requests: usize) -> usize {
    let url = format!("http://{VIP}/");
    (0..requests).filter(|_| !network.curl(&["-m", "0.5", "-f", &url]).status.success()).count()
}

#[test]
#[ignore = "compares with another program, and takes half a minute"]
fn of_the_clients_of_pen_a_half_fails_for_as_long_as_a_server_is_gone_and_of_ours_none() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    for link in [true, false] {
        let network = Network::new();
        let _servers = SERVERS.map(|server| network.nginx(server));
        // With them nothing comes through pen.
        network.offload(CLIENT, "tx", "off");
        let lose = |change: &str| match link {
            true => network.set_link(SERVERS[0], if change == "del" { "down" } else { "up" }),
            false => network.set_vip(SERVERS[0], change, VIP),
        };
        let pen = pen(&network, Transport::Tcp);
        assert_eq!(failed(&network, 40), 0);
        lose("del");
        for round in 0..3 {
            let failed = failed(&network, 40);
            println!("pen, link {link}, round {round}: {failed} of 40 fail");
            assert!((10..=30).contains(&failed), "{failed} of 40");
        }
        lose("add");
        drop(pen);
        let check = "health = { tcp = true, interval = \"200ms\", timeout = \"200ms\", rise = 1, fall = 2 }";
        let server = network.balancer(&config(&format!("\"{VIP}:80\""), "", check));
        eventually("both serve", secs(30), || {
            let visits: Vec<_> =
                (0..8).map(|_| network.curl(&["-m", "1", &format!("http://{VIP}/")])).collect();
            let is_from = |name: &[u8]| visits.iter().any(|one| one.stdout == name);
            (is_from(b"2") && is_from(b"3")).then_some(())
        });
        lose("del");
        eventually("it is down", secs(20), || {
            let services = server.backend("10.77.0.14:80")["services"].clone();
            (services[0]["state"] == "down").then_some(())
        });
        assert_eq!(failed(&network, 120), 0, "link {link}");
    }
}
