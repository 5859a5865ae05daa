//! 500 live changes under a mixed load of HTTP, TCP, WebSocket and UDP: no request fails, no connection ends.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Instant;

use testing::client::get;
use testing::load::{Connections, Load};
use testing::peers::{self, Scripted};
use testing::server::Setup;
use testing::websocket::WebSocket;
use testing::{Client, Server, millis, port, secs};

const CHANGES: usize = 500;

/// Longest time of the changes: an operator must not wait long for one.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(300);

/// A backend that answers each datagram with itself.
struct UdpEcho {
    address: String,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl UdpEcho {
    fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(millis(50))).unwrap();
        let address = socket.local_addr().unwrap().to_string();
        let ended = Arc::new(AtomicBool::new(false));
        let seen = ended.clone();
        let thread = std::thread::spawn(move || {
            let mut room = [0; 2000];
            while !seen.load(SeqCst) {
                if let Ok((length, from)) = socket.recv_from(&mut room) {
                    let _ = socket.send_to(&room[..length], from);
                }
            }
        });
        Self { address, ended, thread: Some(thread) }
    }
}

impl Drop for UdpEcho {
    fn drop(&mut self) {
        self.ended.store(true, SeqCst);
        let _ = self.thread.take().unwrap().join();
    }
}

fn tcp_echo() -> Scripted {
    Scripted::start(|talk| {
        let mut word = Vec::new();
        while let Ok(part) = talk.client.take_until(b"\n", Instant::now() + secs(120)) {
            word.clear();
            word.extend_from_slice(&part);
            if !talk.send(&word) {
                return;
            }
        }
    })
}

/// Clients that each keep one connection and use it until the end.
struct Kept {
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Kept {
    fn new() -> Self {
        Self { stop: Arc::default(), answers: Arc::default(), threads: Vec::new() }
    }

    /// `turn` does one exchange and panics if it fails.
    fn client(&mut self, mut turn: impl FnMut(u64) + Send + 'static) {
        let (stop, answers) = (self.stop.clone(), self.answers.clone());
        self.threads.push(std::thread::spawn(move || {
            let mut number = 0;
            while !stop.load(SeqCst) {
                turn(number);
                number += 1;
                answers.fetch_add(1, SeqCst);
                std::thread::sleep(millis(10));
            }
        }));
    }

    /// Waits for the end of each client. The number of its answers.
    fn end(self) -> u64 {
        self.stop.store(true, SeqCst);
        for thread in self.threads {
            thread.join().expect("a client that kept its connection");
        }
        self.answers.load(SeqCst)
    }
}

/// Numbers from a seed (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % most as u64) as usize
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }
}

struct Operator(Client);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    /// The pool has that backend already.
    Twice,
}

impl Operator {
    fn ask(&mut self, line: &str) -> String {
        // A person is slower; the load must go on between the changes.
        std::thread::sleep(millis(10));
        self.0.send(format!("{line}\n"));
        String::from_utf8_lossy(&self.0.read_until(b"\n.\n")).into_owned()
    }

    #[track_caller]
    fn does(&mut self, line: &str) -> String {
        let answer = self.ask(line);
        assert!(answer.starts_with("ok\n"), "{line}: {answer}");
        answer
    }

    #[track_caller]
    fn tries(&mut self, line: &str) -> Outcome {
        let answer = self.ask(line);
        if answer.starts_with("ok\n") {
            return Outcome::Done;
        }
        assert!(answer.contains("for a larger share give it a weight"), "{line}: {answer}");
        Outcome::Twice
    }
}

/// A change, in the words of the control protocol. `spare` is a second backend for each pool that serves.
fn change(random: &mut Random, number: usize, spare: &[(&str, String)]) -> String {
    let (pool, address) = &spare[random.below(spare.len())];
    let address_of_nobody = format!("198.51.{}.{}", number / 256 % 256, number % 256);
    match random.below(15) {
        0 | 1 => format!("add pool.{pool}.backends {address}"),
        2 => format!("set pool.{pool}.backends \"[\\\"{address}\\\"]\""),
        3 => format!(
            "set pool.{pool}.balance {}",
            random.one(&["round-robin", "least-connections", "two-choices", "hash"])
        ),
        4 => format!("set pool.{pool}.backends.1.weight {}", 1 + random.below(9)),
        5 => format!("set pool.{pool}.backends.1.max-connections {}", 500 + random.below(500)),
        6 => format!("set pool.http.timeouts.connect {}s", 2 + random.below(8)),
        7 => format!("add pool.new-{number} \"{{ backends = [\\\"{address}\\\"] }}\""),
        8 => format!("add listener.web.route \"{{ path = \\\"/new-{number}\\\", pool = \\\"http\\\" }}\""),
        9 => format!(
            "add listener.new-{number} \"{{ bind = \\\"127.0.0.1:{}\\\", protocol = \\\"tcp\\\", pool = \\\"tcp\\\" }}\"",
            port::free()
        ),
        // The clients come from 127.0.0.1, which the first entry permits: no list denies them.
        11 => format!("add acl.office.entries \"deny {address_of_nobody}\""),
        12 => format!(
            "set acl.office.entries \"[\\\"permit 127.0.0.0/8\\\", \\\"deny {address_of_nobody}\\\"]\""
        ),
        13 => format!("set acl.office.default {}", random.one(&["deny", "permit"])),
        10 => format!("set listener.web.response-headers \"{{ set = {{ X-Number = \\\"{number}\\\" }} }}\""),
        _ => format!("set access-log.format {}", random.one(&["\"json\"", "text"])),
    }
}

#[test]
fn five_hundred_live_changes_under_mixed_load_fail_nothing_and_cut_nothing() {
    let seed = std::env::var("PENSTOCK_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_125);
    let (first_dir, second_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let location = "location = /small { return 200 'small answer'; } keepalive_requests 1000000;";
    let (http, http_spare) =
        (peers::nginx(first_dir.path(), location), peers::nginx(second_dir.path(), location));
    let (tcp, tcp_spare) = (tcp_echo(), tcp_echo());
    let (udp, udp_spare) = (UdpEcho::start(), UdpEcho::start());
    let (ws, ws_spare) = (peers::websocket_echo(), peers::websocket_echo());
    let server = Setup::new(&format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"@DIR@/access.log\"\n\
         [acl.office]\nentries = [\"permit 127.0.0.0/8\"]\ndefault = \"permit\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"http\"\nacl = \"office\"\n\
         [[listener.web.route]]\npath = \"/ws\"\npool = \"ws\"\n\
         [listener.tcp]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"tcp\"\nacl = \"office\"\n\
         [listener.udp]\nbind = \"127.0.0.1:0\"\nprotocol = \"udp\"\npool = \"udp\"\nacl = \"office\"\n\
         [pool.http]\nbackends = [\"{}\"]  # the first\n[pool.ws]\nbackends = [\"{}\"]\n\
         [pool.tcp]\nbackends = [\"{}\"]\n[pool.udp]\nbackends = [\n  \"{}\",\n]\n",
        http.address, ws.address, tcp.address, udp.address
    ))
    .start();
    let spare = [
        ("http", http_spare.address.clone()),
        ("ws", ws_spare.address.clone()),
        ("tcp", tcp_spare.address.clone()),
        ("udp", udp_spare.address.clone()),
    ];

    let web = server.address("web");
    let fresh = Load::start(&web, "/small", Connections::New, 2, Some(100));
    let kept = Load::start(&web, "/small", Connections::Kept, 2, Some(200));
    let mut clients = Kept::new();
    for client in 0..4 {
        let mut socket = WebSocket::open(&web, "/ws");
        clients.client(move |number| socket.echo(&format!("{client} {number}")));
        let mut stream = server.client("tcp");
        clients.client(move |number| {
            let word = format!("{client} {number}\n");
            stream.send(&word);
            assert_eq!(stream.read_until(b"\n"), word.as_bytes());
        });
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(server.address("udp")).unwrap();
        socket.set_read_timeout(Some(secs(20))).unwrap();
        clients.client(move |number| {
            let word = format!("{client} {number}");
            socket.send(word.as_bytes()).unwrap();
            let mut room = [0; 100];
            let length = socket.recv(&mut room).expect("a reply");
            assert_eq!(&room[..length], word.as_bytes());
        });
    }

    let began = Instant::now();
    let made = make_changes(&server, &mut Random(seed), &spare, seed);
    let took = began.elapsed();

    let answers = clients.end();
    let (fresh, kept) = (fresh.stop(), kept.stop());
    fresh.assert_clean();
    kept.assert_clean();
    assert!(
        made >= CHANGES && answers > 500 && fresh.good + kept.good > 500,
        "{made}, {answers}, {fresh:?}, {kept:?}"
    );
    assert!(took < LIMIT, "{made} changes took {took:?}");
    let status = server.ctl_json(&["status"]);
    for listener in status["listeners"].as_array().unwrap() {
        assert_eq!(listener["endings"], serde_json::json!({}), "seed {seed}: {listener:#}");
    }
    assert_eq!(status["unsaved_changes"], 0);
    assert_eq!(get(&web, "/small").text(), "small answer");
}

/// Makes changes alone, in transactions and with confirmation, and undoes each now or later. Returns their number.
fn make_changes(server: &Server, random: &mut Random, spare: &[(&str, String)], seed: u64) -> usize {
    let mut operator = Operator(Client::connect(server.control_socket().to_str().unwrap()));
    let start = operator.does("show");
    let (mut made, mut standing, mut confirmed, mut of_lists) = (0, 0, 0, 0);
    // The history keeps 50 entries: everything is undone before the oldest change is older.
    let mut entries = 0;
    while made < CHANGES || standing > 0 {
        entries = if standing == 0 { 0 } else { entries + 1 };
        if standing > 0 && (standing > 8 || entries > 30 || made >= CHANGES || random.below(2) == 0) {
            operator.does("undo");
            standing -= 1;
            continue;
        }
        let outcome = if random.below(5) == 0 {
            operator.does("begin");
            let count = 1 + random.below(4);
            for _ in 0..count {
                made += 1;
                operator.does(&change(random, made, spare));
            }
            let outcome = match random.below(3) {
                0 => Outcome::Twice,
                1 => operator.tries("commit confirm 10m"),
                _ => operator.tries("commit"),
            };
            if outcome == Outcome::Twice {
                operator.does("abort");
                made -= count;
            } else if operator.ask("confirm").starts_with("ok") {
                confirmed += 1;
            }
            outcome
        } else {
            made += 1;
            let line = change(random, made, spare);
            let outcome = operator.tries(&line);
            made -= usize::from(outcome == Outcome::Twice);
            of_lists += usize::from(line.contains(" acl.office"));
            if line.starts_with("add acl.") && random.below(2) == 0 {
                operator.does(&line.replacen("add", "remove", 1));
                (made, standing, entries, of_lists) = (made + 1, standing + 1, entries + 1, of_lists + 1);
            }
            outcome
        };
        standing += usize::from(outcome == Outcome::Done);
    }
    assert!(confirmed > 5 && of_lists > 40, "{confirmed}, {of_lists}");
    assert_eq!(operator.does("show"), start, "seed {seed}");
    made
}
