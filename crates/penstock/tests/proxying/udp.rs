//! `protocol = "udp"` with the real binary: datagrams of every size, flows and their limits, backends that end, are
//! drained or frozen, floods from many addresses, reloads.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use nix::sys::signal::Signal;
use testing::peers::Process;
use testing::server::Setup;
use testing::tools::program;
use testing::{Server, eventually, millis, port, secs};

mod access;
mod forged;
mod fragments;
mod listed;
mod losses;
mod proxy_header;
mod removed;
mod several_workers;
mod unreachable;
mod waiting_replies;

/// A backend that answers each datagram with its own and the sender's address, a blank and the datagram. One that begins
/// with `silent` gets no answer, one that is empty an empty one, and a very long one comes back as it is.
struct Echo {
    address: SocketAddr,
    socket: UdpSocket,
    ended: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Echo {
    fn start() -> Self {
        Self::at("127.0.0.1:0".parse().unwrap())
    }

    fn at(address: SocketAddr) -> Self {
        let socket = UdpSocket::bind(address).unwrap();
        socket.set_read_timeout(Some(millis(20))).unwrap();
        // For some hundred datagrams that come while the thread has no turn.
        socket2::SockRef::from(&socket).set_recv_buffer_size(1 << 20).unwrap();
        let address = socket.local_addr().unwrap();
        let ended = Arc::new(AtomicBool::new(false));
        let (seen, receiving) = (ended.clone(), socket.try_clone().unwrap());
        let thread = std::thread::spawn(move || {
            let mut room = vec![0; 70_000];
            while !seen.load(SeqCst) {
                let Ok((length, from)) = receiving.recv_from(&mut room) else { continue };
                let datagram = &room[..length];
                if datagram.starts_with(b"silent") {
                    continue;
                }
                let mut answer = format!("{address} {from} ").into_bytes();
                if length == 0 || length > 60_000 {
                    answer.clear();
                }
                answer.extend_from_slice(datagram);
                let _ = receiving.send_to(&answer, from);
            }
        });
        Self { address, socket, ended, thread: Some(thread) }
    }

    /// From now on the kernel refuses what comes to its address, as where no process listens: its socket takes only what it
    /// sends itself. To close the socket is not enough. A child that another test has forked holds it open until its
    /// execve(2), and loses what comes until then; and another test may get the port.
    fn refuse(&mut self) {
        self.end();
        self.socket.connect(self.address).unwrap();
    }

    fn end(&mut self) {
        self.ended.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.end();
    }
}

/// A client socket that is connected to the listener: it takes replies from that address only.
struct Client(UdpSocket);

impl Client {
    fn new(to: &str) -> Self {
        Self::from(IpAddr::V4(Ipv4Addr::LOCALHOST), to)
    }

    fn from(source: IpAddr, to: &str) -> Self {
        let socket = UdpSocket::bind((source, 0)).unwrap();
        socket.connect(to).unwrap();
        socket.set_read_timeout(Some(secs(20))).unwrap();
        Self(socket)
    }

    fn send(&self, datagram: &[u8]) {
        self.0.send(datagram).unwrap();
    }

    #[track_caller]
    fn receive(&self) -> Vec<u8> {
        let mut room = vec![0; 70_000];
        let length = self.0.recv(&mut room).expect("a reply");
        room.truncate(length);
        room
    }

    /// Asks, and returns the address of the backend and of the socket that it saw.
    #[track_caller]
    fn ask(&self, word: &str) -> (SocketAddr, SocketAddr) {
        self.send(word.as_bytes());
        let answer = String::from_utf8(self.receive()).unwrap();
        let words: Vec<&str> = answer.splitn(3, ' ').collect();
        assert_eq!(words[2], word);
        (words[0].parse().unwrap(), words[1].parse().unwrap())
    }

    /// Asks until an answer comes, as clients of DNS do; returns how often.
    fn ask_until_answered(&self, word: &str) -> usize {
        self.0.set_read_timeout(Some(secs(5))).unwrap();
        let mut room = [0; 1000];
        (1..100)
            .find(|_| {
                self.send(word.as_bytes());
                self.0.recv(&mut room).is_ok()
            })
            .expect("an answer")
    }
}

fn config(listener: &str, pool: &str) -> String {
    format!(
        "[process]\nworkers = 1\n[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"stdout\"\n\
         [listener.dns]\nbind = \"127.0.0.1:0\"\nprotocol = \"udp\"\npool = \"app\"\n{listener}\n[pool.app]\n{pool}\n"
    )
}

fn backends(all: &[&Echo]) -> String {
    let all: Vec<String> = all.iter().map(|echo| format!("\"{}\"", echo.address)).collect();
    format!("backends = [{}]", all.join(", "))
}

fn listener(server: &Server) -> serde_json::Value {
    server.ctl_json(&["status"])["listeners"][0].clone()
}

#[test]
fn datagrams_of_every_size_pass_and_a_client_keeps_its_flow() {
    let (one, other) = (Echo::start(), Echo::start());
    let server = Server::start(&config("", &backends(&[&one, &other])));
    let address = server.address("dns");
    let clients: Vec<Client> = (0..4).map(|_| Client::new(&address)).collect();
    let flows: Vec<_> = clients.iter().map(|client| client.ask("hello")).collect();
    let used: BTreeSet<SocketAddr> = flows.iter().map(|(backend, _)| *backend).collect();
    assert_eq!(used.len(), 2, "round robin");
    for (client, flow) in clients.iter().zip(&flows) {
        assert_eq!(client.ask("again"), *flow, "one flow");
    }
    let client = &clients[0];
    client.send(b"");
    assert_eq!(client.receive(), b"", "a datagram without a byte is one");
    let largest: Vec<u8> = (0..65_507_usize).map(|at| at as u8).collect();
    client.send(&largest);
    assert!(client.receive() == largest);
    // A whole batch, in order.
    for number in 0..100 {
        client.send(format!("n{number}").as_bytes());
    }
    for number in 0..100 {
        assert!(client.receive().ends_with(format!(" n{number}").as_bytes()));
    }
    let total = 4 + 4 + 1 + 1 + 100;
    // The last ones are counted when they have been sent.
    let status = eventually("all replies are counted", secs(20), || {
        Some(listener(&server)).filter(|status| status["datagrams_out"] == total)
    });
    assert_eq!((&status["protocol"], &status["connections"]), (&"udp".into(), &4.into()));
    assert_eq!(status["datagrams_in"], total);
    assert_eq!((&status["datagrams_dropped"], &status["accepted"]), (&0.into(), &4.into()));
}

#[test]
fn a_flow_with_replies_ends_with_the_last_one_and_an_idle_one_after_its_timeout() {
    let (one, other) = (Echo::start(), Echo::start());
    let server = Server::start(&config("replies = 1\nidle-timeout = \"5s\"", &backends(&[&one, &other])));
    let client = Client::new(&server.address("dns"));
    let used: BTreeSet<SocketAddr> = (0..4).map(|_| client.ask("query").0).collect();
    assert_eq!(used.len(), 2, "each query is balanced by itself");
    eventually("four flows have ended", secs(20), || (server.stdout.count(" udp - ok ") == 4).then_some(()));
    client.send(b"silent");
    let line = server.stdout.wait_for(" udp - no-reply ", secs(20));
    assert!(line.contains(" bytes_in=6 bytes_out=0 "), "{line}");
    eventually("its place is free", secs(20), || (listener(&server)["connections"] == 0).then_some(()));
    assert_eq!(listener(&server)["endings"]["no-reply"], 1);
}

#[test]
fn a_flow_leaves_a_backend_on_which_no_process_listens_and_a_drained_one_keeps_its_flows() {
    let (mut one, other) = (Echo::start(), Echo::start());
    let server = Server::start(&config("idle-timeout = \"10m\"", &backends(&[&one, &other])));
    let address = server.address("dns");
    let clients: Vec<Client> = (0..4).map(|_| Client::new(&address)).collect();
    let flows: Vec<_> = clients.iter().map(|client| client.ask("hello")).collect();
    server.ctl(&["drain", &one.address.to_string()]);
    for (client, flow) in clients.iter().zip(&flows) {
        assert_eq!(client.ask("drained"), *flow);
    }
    for _ in 0..4 {
        assert_eq!(Client::new(&address).ask("new").0, other.address);
    }
    server.ctl(&["ready", &one.address.to_string()]);
    let moving = flows.iter().filter(|flow| flow.0 == one.address).count();
    one.refuse();
    for (client, flow) in clients.iter().zip(&flows) {
        let asked = client.ask_until_answered("moved");
        let most = if flow.0 == one.address { 2 } else { 1 };
        assert!(asked <= most, "asked {asked} times: {}", server.said(&["backends"]));
        assert_eq!(client.ask("there").0, other.address, "{}", server.said(&["backends"]));
    }
    assert_eq!(server.backend(&one.address.to_string())["moved"], moving);
    assert_eq!(server.backend(&other.address.to_string())["in_flight"], 8);
}

#[test]
fn a_lost_reply_keeps_no_client_at_a_backend_that_drains() {
    let (one, other) = (Echo::start(), Echo::start());
    let server = Server::start(&config("replies = 1", &backends(&[&one, &other])));
    let client = Client::new(&server.address("dns"));
    client.send(b"silent");
    // The client goes on to ask, and each later question is answered: also the first of them, as a backend that drains and
    // has been silent for a second would be left.
    let address = client.ask("next").0;
    let (first, second) = if address == one.address { (&one, &other) } else { (&other, &one) };
    let has_it = |echo: &Echo| server.backend(&echo.address.to_string())["in_flight"] == 1;
    let mark = |word: &str, echo: &Echo| drop(server.said(&[word, &echo.address.to_string()]));
    mark("drain", first);
    assert_eq!(client.ask("again").0, first.address);
    eventually("its next flow is at the other backend", secs(30), || {
        (client.ask("again").0 != first.address).then_some(())
    });
    let line = server.stdout.wait_for(" no-reply ", secs(20));
    assert!(line.contains(&format!(" backend={} ", first.address)), "{line}");
    // One that gets no answer at all leaves at once.
    mark("ready", first);
    mark("drain", second);
    let client = Client::new(&server.address("dns"));
    client.send(b"silent");
    eventually("its flow has a backend", secs(20), || has_it(first).then_some(()));
    mark("ready", second);
    mark("drain", first);
    eventually("it has left", secs(20), || {
        client.send(b"silent");
        (server.backend(&first.address.to_string())["in_flight"] == 0).then_some(())
    });
}

#[test]
fn each_datagram_of_a_burst_that_finds_no_backend_is_counted() {
    let echo = Echo::start();
    let server = Server::start(&config("", &backends(&[&echo])));
    let address = server.address("dns");
    let (first, second) = (Client::new(&address), Client::new(&address));
    server.ctl(&["drain", &echo.address.to_string()]);
    // All arrive in one batch.
    server.signal(Signal::SIGSTOP);
    for number in 0..5 {
        first.send(format!("a{number}").as_bytes());
    }
    for number in 0..7 {
        second.send(format!("b{number}").as_bytes());
    }
    server.signal(Signal::SIGCONT);
    eventually("twelve are dropped", secs(20), || {
        (listener(&server)["datagrams_dropped"].as_u64() == Some(12)).then_some(())
    });
    assert_eq!(listener(&server)["endings"]["no-backend-available"], 12);
}

#[test]
fn a_refusal_is_told_also_where_no_reply_is_due() {
    let nobody = port::free();
    let pool = format!("backends = [\"127.0.0.1:{nobody}\"]");
    let server = Server::start(&config("replies = 0\nidle-timeout = \"100ms\"", &pool));
    let client = Client::new(&server.address("dns"));
    client.send(b"a line for syslog");
    server.stdout.wait_for(" udp - connect-failed ", secs(20));
}

#[test]
fn a_refused_flow_ends_soon_and_lasted_until_the_refusal() {
    let nobody = port::free();
    let pool = format!("backends = [\"127.0.0.1:{nobody}\"]");
    let server = Server::start(&config("replies = 1\nidle-timeout = \"300s\"", &pool));
    let client = Client::new(&server.address("dns"));
    client.send(b"a question");
    server.stdout.wait_for(" udp - connect-failed ", secs(40));
    let worst = listener(&server)["latency"]["p99_ms"].as_f64().unwrap();
    assert!(worst < 3000.0, "{worst} ms: the wait for the client is none of its duration");
}

#[test]
fn a_half_open_backend_that_owes_no_reply_gets_its_share_again() {
    let (other, port) = (Echo::start(), port::free());
    let address = format!("127.0.0.1:{port}");
    let pool = format!(
        "backends = [\"{address}\", \"{}\"]\npassive = {{ failures = 10000, error-rate = 50, least-sessions = 1, \
         window = \"1s\", ejection = \"1s\", trial-sessions = 2 }}",
        other.address
    );
    let server = Server::start(&config("replies = 0\nidle-timeout = \"100ms\"", &pool));
    let listener = server.address("dns");
    let send_until = |said: &str| {
        eventually(said, secs(30), || {
            let clients: Vec<Client> = (0..4).map(|_| Client::new(&listener)).collect();
            for _ in 0..2 {
                clients.iter().for_each(|client| client.send(b"a line for syslog"));
            }
            String::from_utf8_lossy(&server.ctl(&["events"]).stdout).contains(said).then_some(())
        });
    };
    send_until("ejected: ");
    let _back = Echo::at(address.parse().unwrap());
    send_until("half-open after");
    // Those that ended together are counted together.
    send_until(" sessions on trial went well");
}

#[test]
fn a_flow_leaves_a_backend_that_a_reload_removed_once_it_is_silent() {
    let (one, other) = (Echo::start(), Echo::start());
    let text = config("", &backends(&[&one]));
    let server = Server::start(&text);
    let client = Client::new(&server.address("dns"));
    let flow = client.ask("hello");
    server.write_config(&text.replace(&one.address.to_string(), &other.address.to_string()));
    assert!(server.ctl(&["reload"]).status.success());
    assert_eq!(client.ask("again"), flow, "it answers, and the flow stays");
    eventually("it moves", secs(20), || {
        client.send(b"silent");
        (server.backend(&other.address.to_string())["in_flight"] == 1).then_some(())
    });
    assert_eq!(client.ask("there").0, other.address);
}

#[test]
fn a_wildcard_listener_replies_from_the_address_that_the_client_used() {
    let echo = Echo::start();
    let text = config("", &backends(&[&echo])).replace("127.0.0.1:0", ":0");
    let server = Server::start(&text);
    let port = server.address("dns").rsplit_once(':').unwrap().1.to_owned();
    for to in ["127.0.0.1", "127.0.0.7"] {
        Client::new(&format!("{to}:{port}")).ask("hello");
    }
    let six = UdpSocket::bind("[::1]:0").unwrap();
    six.connect(format!("[::1]:{port}")).unwrap();
    six.set_read_timeout(Some(secs(20))).unwrap();
    let six = Client(six);
    six.ask("hello");
    // One socket of a client that speaks with two of our addresses has two flows.
    let both = UdpSocket::bind("127.0.0.1:0").unwrap();
    both.set_read_timeout(Some(secs(20))).unwrap();
    let mut seen = BTreeSet::new();
    for to in ["127.0.0.1", "127.0.0.7"] {
        both.send_to(b"hi", format!("{to}:{port}")).unwrap();
        let mut room = [0; 100];
        let (length, from) = both.recv_from(&mut room).unwrap();
        assert_eq!(from.to_string(), format!("{to}:{port}"));
        seen.insert(String::from_utf8_lossy(&room[..length]).into_owned());
    }
    assert_eq!(seen.len(), 2);
}

#[test]
fn a_reload_keeps_flows_and_a_removed_listener_gives_its_port_back() {
    let (one, other) = (Echo::start(), Echo::start());
    let shared = port::free();
    let text = config("", &backends(&[&one]));
    let tcp = format!("[listener.tcp]\nbind = \"127.0.0.1:{shared}\"\nprotocol = \"tcp\"\npool = \"app\"\n");
    let udp = format!("[listener.udp]\nbind = \"127.0.0.1:{shared}\"\nprotocol = \"udp\"\npool = \"app\"\n");
    let server = Server::start(&format!("{text}{tcp}{udp}"));
    let client = Client::new(&server.address("dns"));
    let flow = client.ask("hello");
    Client::new(&format!("127.0.0.1:{shared}")).ask("the same port as TCP");
    server.write_config(&text.replace(&one.address.to_string(), &other.address.to_string()));
    let reloaded = server.ctl(&["reload"]);
    assert!(reloaded.status.success(), "{reloaded:?}");
    assert_eq!(client.ask("again"), flow, "its backend is no longer configured, and the flow stays");
    assert_eq!(Client::new(&server.address("dns")).ask("new").0, other.address);
    drop(eventually("its port is free", secs(20), || UdpSocket::bind(("127.0.0.1", shared)).ok()));
    // The same name and address with the other protocol is another socket.
    server.write_config(&format!("{text}{}", udp.replace("listener.udp", "listener.tcp")));
    assert!(server.ctl(&["reload"]).status.success());
    Client::new(&format!("127.0.0.1:{shared}")).ask("hello");
}

/// Hands over a UDP socket on every address and a TCP socket under one name, as a unit with `ListenDatagram=` and
/// `ListenStream=` does.
const PASS: &str = r#"
import os, socket, sys
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(("0.0.0.0", 0))
tcp = socket.socket(); tcp.bind(("127.0.0.1", 0)); tcp.listen(16)
print("ports", udp.getsockname()[1], tcp.getsockname()[1], file=sys.stderr, flush=True)
os.dup2(udp.fileno(), 23); os.dup2(tcp.fileno(), 24)
os.dup2(23, 3); os.dup2(24, 4); os.closerange(5, 30)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="2", LISTEN_FDNAMES="dns:dns")
os.execv(sys.argv[1], sys.argv[1:])
"#;

#[test]
fn a_socket_of_systemd_is_served_by_one_worker_beside_the_tcp_socket_of_its_unit() {
    let (one, other) = (Echo::start(), Echo::start());
    let text = config("", &backends(&[&one, &other])).replace("127.0.0.1:0", "systemd:dns");
    let text = text.replace("workers = 1", "workers = 2");
    let web = "[listener.web]\nbind = \"systemd:dns\"\nredirect-to-https = true\n";
    let python = program("python3");
    let setup = Setup::new(&format!("{text}{web}"));
    let server = setup.through([python.to_str().unwrap(), "-c", PASS]).start();
    let ports = server.stderr.wait_for("ports ", secs(5));
    let ports: Vec<&str> = ports.split_whitespace().skip(1).collect();
    let mut seen = BTreeSet::new();
    for _ in 0..20 {
        for to in ["127.0.0.1", "127.0.0.7"] {
            let client = Client::new(&format!("{to}:{}", ports[0]));
            let flow = client.ask("hello");
            assert_eq!(client.ask("again"), flow, "two workers would have two flows");
            seen.insert(flow.0);
        }
    }
    assert_eq!(seen.len(), 2);
    assert_eq!(testing::Client::connect(&format!("127.0.0.1:{}", ports[1])).get("/", &[]).status, 308);
    // A reload gives it back, and takes it again.
    for (there, text) in [(1, web.to_owned()), (2, format!("{text}{web}"))] {
        server.write_config(&text);
        assert!(server.ctl(&["reload"]).status.success());
        assert_eq!(server.ctl_json(&["status"])["listeners"].as_array().unwrap().len(), there);
    }
    Client::new(&format!("127.0.0.1:{}", ports[0])).ask("hello");
}

#[test]
fn a_socket_that_serves_a_second_flow_has_another_port_and_no_late_reply_reaches_its_client() {
    let backend = UdpSocket::bind("127.0.0.1:0").unwrap();
    backend.set_read_timeout(Some(secs(20))).unwrap();
    let pool = format!("backends = [\"{}\"]", backend.local_addr().unwrap());
    let server = Server::start(&config("replies = 1", &pool));
    let address = server.address("dns");
    let flows = || server.ctl_json(&["status"])["descriptors"]["by_use"]["flows"].as_u64();
    let mut room = [0; 100];
    let mut ask = |client: &Client, question: &[u8]| {
        client.send(question);
        backend.recv_from(&mut room).unwrap().1
    };
    // Again if a loaded machine takes longer than a socket rests.
    eventually("a socket rests, and is used again", secs(20), || {
        let (first, second) = (Client::new(&address), Client::new(&address));
        let of_first = ask(&first, b"first");
        backend.send_to(b"reply", of_first).unwrap();
        assert_eq!(first.receive(), b"reply");
        let rested = flows();
        let of_second = ask(&second, b"second");
        let during = flows();
        // By chance the kernel gives the same port again, one time in 28,000; a socket that keeps its port has it each time.
        let is_same = of_first == of_second;
        backend.send_to(b"late", of_first).unwrap();
        backend.send_to(b"own", of_second).unwrap();
        assert!(is_same || second.receive() == b"own");
        ((rested, during, is_same) == (Some(1), Some(1), false)).then_some(())
    });
    eventually("it is closed when it is not used", secs(20), || (flows() == Some(0)).then_some(()));
}

/// A backend sends two replies where one is due, and both wait in the socket when the first one ends the flow.
#[test]
fn a_reply_too_many_that_waits_in_a_socket_does_not_reach_its_next_client() {
    let backend = UdpSocket::bind("127.0.0.1:0").unwrap();
    backend.set_read_timeout(Some(secs(20))).unwrap();
    let pool = format!("backends = [\"{}\"]", backend.local_addr().unwrap());
    let server = Server::start(&config("replies = 1", &pool));
    let address = server.address("dns");
    let mut room = [0; 100];
    for round in 0..20 {
        let (first, second) = (Client::new(&address), Client::new(&address));
        first.send(b"first");
        let of_first = backend.recv_from(&mut room).unwrap().1;
        server.signal(Signal::SIGSTOP);
        backend.send_to(b"reply", of_first).unwrap();
        backend.send_to(b"extra", of_first).unwrap();
        server.signal(Signal::SIGCONT);
        assert_eq!(first.receive(), b"reply", "{round}");
        // It takes longer than the shortest rest of a socket.
        server.ctl_json(&["status"]);
        second.send(b"second");
        let of_second = backend.recv_from(&mut room).unwrap().1;
        backend.send_to(b"own", of_second).unwrap();
        assert_eq!(second.receive(), b"own", "{round}");
    }
}

#[test]
fn a_stop_delivers_the_replies_that_are_due() {
    let backend = UdpSocket::bind("127.0.0.1:0").unwrap();
    backend.set_read_timeout(Some(secs(20))).unwrap();
    let pool = format!("backends = [\"{}\"]", backend.local_addr().unwrap());
    let mut server = Server::start(&config("replies = 1", &pool));
    let client = Client::new(&server.address("dns"));
    client.send(b"query");
    let mut room = [0; 100];
    let (length, flow) = backend.recv_from(&mut room).unwrap();
    server.signal(Signal::SIGTERM);
    server.stderr.wait_for("stopping", secs(20));
    backend.send_to(&room[..length], flow).unwrap();
    assert_eq!(client.receive(), b"query");
    assert!(server.wait_end(secs(20)).success());
    server.stdout.wait_for(" udp - ok ", secs(20));
}

/// Unbound with one record.
struct Unbound {
    process: Option<Process>,
    address: String,
    _directory: tempfile::TempDir,
}

impl Unbound {
    fn start() -> Self {
        Self::with(|_| "access-control: 127.0.0.0/8 allow".to_owned())
    }

    /// Starts it with more settings, which may need its port.
    fn with(settings: impl Fn(u16) -> String) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let port = port::free();
        let shown = directory.path().display();
        let text = format!(
            "server:\n  interface: 127.0.0.1@{port}\n  chroot: \"\"\n  username: \"\"\n  directory: \"{shown}\"\n  \
             pidfile: \"\"\n  use-syslog: no\n  do-daemonize: no\n  {}\n  \
             local-zone: \"lan.\" static\n  local-data: \"web.lan. A 192.0.2.1\"\nremote-control:\n  control-enable: no\n",
            settings(port)
        );
        let config = directory.path().join("unbound.conf");
        std::fs::write(&config, text).unwrap();
        let process = Process::start(Command::new(program("unbound")).arg("-d").arg("-c").arg(config));
        Self { process: Some(process), address: format!("127.0.0.1:{port}"), _directory: directory }
    }
}

/// Asks as `kdig` does with one second and two further tries.
fn resolves(address: &str) -> bool {
    let (ip, port) = address.rsplit_once(':').unwrap();
    let output = Command::new(program("kdig"))
        .args([&format!("@{ip}"), "-p", port, "+short", "+time=1", "+retry=2", "web.lan.", "A"])
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).trim() == "192.0.2.1"
}

#[test]
fn a_pool_of_dns_servers_answers_through_a_drain_a_kill_and_a_stop_of_one() {
    let mut servers: Vec<Unbound> = (0..4).map(|_| Unbound::start()).collect();
    let all: Vec<String> = servers.iter().map(|server| format!("{:?}", server.address)).collect();
    let pool = format!(
        "backends = [{}]\nhealth = {{ dns = \"web.lan\", interval = \"200ms\", timeout = \"1s\", rise = 1, fall = 2 }}",
        all.join(", ")
    );
    let server = Server::start(&config("replies = 1\nidle-timeout = \"1s\"", &pool));
    for backend in &servers {
        eventually("it is up", secs(20), || (server.health(&backend.address) == "up").then_some(()));
    }
    let address = server.address("dns");
    let ask_all = |when: &str| (0..8).for_each(|_| assert!(resolves(&address), "{when}"));
    ask_all("all are up");
    server.ctl(&["drain", &servers[0].address]);
    ask_all("one is drained");
    // One that ends refuses the next datagram: a client asks once more, and the check takes it out.
    servers[1].process = None;
    ask_all("one was ended");
    eventually("it is down", secs(20), || (server.health(&servers[1].address) == "down").then_some(()));
    let verdicts = server.backend(&servers[1].address)["last_verdicts"].to_string();
    assert!(verdicts.contains("connect refused"), "{verdicts}");
    // One that is frozen answers nothing until two checks have failed.
    servers[2].process.as_ref().unwrap().signal(Signal::SIGSTOP);
    ask_all("one is frozen");
    eventually("it is down", secs(20), || (server.health(&servers[2].address) == "down").then_some(()));
    let verdicts = server.backend(&servers[2].address)["last_verdicts"].to_string();
    assert!(verdicts.contains("no answer within"), "{verdicts}");
    let before = server.backend(&servers[3].address)["sessions"].as_u64().unwrap();
    ask_all("one is left");
    let after = server.backend(&servers[3].address)["sessions"].as_u64().unwrap();
    assert!(after - before >= 8, "the others get none: {before} and {after}");
}
