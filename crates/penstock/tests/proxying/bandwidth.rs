//! Limits of bytes a second. No assertion says that something is fast: a busy machine may only make a transfer slower.

use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use testing::client::{Stream, request};
use testing::peers::{Process, nginx};
use testing::pki::server_pair;
use testing::server::Setup;
use testing::websocket::WebSocket;
use testing::{Client, Scripted, Server, eventually, millis, peers, secs, tools};

const KIB: usize = 1024;

/// Takes whole requests and answers how long their bodies are.
fn counter() -> Scripted {
    Scripted::start(|talk| {
        while let Some(request) = talk.request() {
            if talk.answer(200, &[], request.body.len().to_string().as_bytes()).is_err() {
                return;
            }
        }
    })
}

/// nginx that serves `size` bytes, a backend that takes requests, and listeners for both; `limit` is the bandwidth of
/// all but `free`.
struct Bench {
    _nginx: Process,
    _counter: Scripted,
    server: Server,
    size: usize,
}

impl Bench {
    fn start(size: usize, limit: &str, more: &str) -> Self {
        let setup = Setup::new("");
        let nginx = nginx(setup.dir(), "");
        std::fs::write(setup.dir().join("www/big"), pattern(size)).unwrap();
        std::fs::write(setup.dir().join("upload"), pattern(size)).unwrap();
        std::fs::create_dir(setup.dir().join("tls")).unwrap();
        server_pair(&setup.dir().join("tls/pair.pem"), &["localhost"]);
        let counter = counter();
        let listener =
            |name: &str, keys: &str| format!("[listener.{name}]\nbind = \"127.0.0.1:0\"\n{keys}\n");
        let limited = format!("pool = \"app\"\nbandwidth = {{ {limit} }}");
        let taking = format!("pool = \"up\"\nbandwidth = {{ {limit} }}");
        let tls = "tls = { certificates = \"@DIR@/tls\" }";
        let config = [
            "[control]\nsocket = \"@DIR@/control.sock\"\n[admin]\nbind = \"127.0.0.1:0\"\n".to_owned(),
            listener("free", "pool = \"app\""),
            listener("http", &limited),
            listener("secure", &format!("{limited}\n{tls}")),
            listener("tcp", &format!("{limited}\nprotocol = \"tcp\"")),
            listener("http-up", &taking),
            listener("secure-up", &format!("{taking}\n{tls}")),
            listener("tcp-up", &format!("{taking}\nprotocol = \"tcp\"")),
            format!("[pool.app]\nbackends = [\"{}\"]\n", nginx.address),
            format!("[pool.up]\nbackends = [\"{}\"]\n", counter.address),
            more.to_owned(),
        ];
        let server = setup.configured(&config.concat()).start();
        Self { _nginx: nginx, _counter: counter, server, size }
    }

    fn download(&self, listener: &str, arguments: &[&str]) -> Transfer {
        let scheme = if listener == "secure" { "https" } else { "http" };
        Transfer::start(&format!("{scheme}://{}/big", self.server.address(listener)), arguments)
    }

    fn upload(&self, listener: &str, arguments: &[&str]) -> Transfer {
        let scheme = if listener == "secure-up" { "https" } else { "http" };
        let file = self.server.dir.path().join("upload");
        let url = format!("{scheme}://{}/", self.server.address(listener));
        Transfer::start(&url, &[&["-H", "Expect:", "-T", file.to_str().unwrap()], arguments].concat())
    }
}

fn pattern(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at % 251) as u8).collect()
}

/// curl, with the time since its start.
struct Transfer {
    child: Child,
    began: Instant,
}

impl Transfer {
    fn start(url: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(tools::program("curl"));
        command.args(["-sSk", "--fail", "--max-time", "100"]).args(arguments).arg(url);
        let began = Instant::now();
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Self { child, began }
    }

    /// What came, and how long it took.
    fn end(self) -> (Vec<u8>, Duration) {
        let output = self.child.wait_with_output().unwrap();
        let took = self.began.elapsed();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (output.stdout, took)
    }
}

/// The shortest time in which `bytes` may go.
fn least(bytes: usize, rate: usize, burst: usize) -> Duration {
    Duration::from_secs_f64(bytes.saturating_sub(burst) as f64 / rate as f64)
}

fn counted(server: &Server, metric: &str, listener: &str) -> u64 {
    let begins = format!("penstock_listener_{metric}_total{{listener=\"{listener}\"}} ");
    let metrics = server.metrics();
    metrics.lines().find_map(|line| line.strip_prefix(&begins)).unwrap_or("0").parse().unwrap()
}

#[test]
fn a_download_takes_the_time_that_its_limit_implies_over_every_protocol() {
    let bench = Bench::start(448 * KIB, "down = \"384KiB/s\", burst = \"64KiB\"", "");
    let kinds = [
        ("http", "--http1.1"),
        ("http", "--http2-prior-knowledge"),
        ("secure", "--http1.1"),
        ("secure", "--http2"),
        ("tcp", "--http1.1"),
    ];
    // At the same time: each session has its own limit.
    let transfers: Vec<_> =
        kinds.iter().map(|(listener, version)| bench.download(listener, &[version])).collect();
    let (bytes, _) = bench.download("free", &[]).end();
    assert!(bytes == pattern(bench.size));
    for ((listener, version), transfer) in kinds.into_iter().zip(transfers) {
        let (bytes, took) = transfer.end();
        assert!(bytes == pattern(bench.size), "{listener} {version}");
        assert!(took >= least(bench.size, 384 * KIB, 64 * KIB), "{listener} {version}: {took:?}");
    }
    for listener in ["http", "secure", "tcp"] {
        let (times, held) =
            (counted(&bench.server, "slowed", listener), counted(&bench.server, "slowed_bytes", listener));
        assert!(times > 0 && held >= times, "{listener}: {times} times, {held} bytes");
    }
    assert_eq!(counted(&bench.server, "slowed", "free"), 0);
}

#[test]
fn an_upload_takes_the_time_that_its_limit_implies_over_every_protocol() {
    let bench = Bench::start(448 * KIB, "up = \"384KiB/s\", burst = \"64KiB\"", "");
    let kinds = [
        ("http-up", "--http1.1"),
        ("secure-up", "--http1.1"),
        ("secure-up", "--http2"),
        ("tcp-up", "--http1.1"),
    ];
    let transfers: Vec<_> =
        kinds.iter().map(|(listener, version)| bench.upload(listener, &[version])).collect();
    for ((listener, version), transfer) in kinds.into_iter().zip(transfers) {
        let (answer, took) = transfer.end();
        assert_eq!(String::from_utf8_lossy(&answer), bench.size.to_string(), "{listener} {version}");
        assert!(took >= least(bench.size, 384 * KIB, 64 * KIB), "{listener} {version}: {took:?}");
    }
    let (_, took) = bench.download("http", &["--limit-rate", "1M"]).end();
    assert!(took >= millis(1), "a client that reads slowly gets all");
}

#[test]
fn a_response_that_ends_with_its_connection_and_a_chunked_one_are_limited_too() {
    let body = pattern(96 * KIB);
    let until_close = [b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", &body[..]].concat();
    let chunked =
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n18000\r\n", &body[..], b"\r\n0\r\n\r\n"]
            .concat();
    for response in [until_close, chunked] {
        let backend = Scripted::saying(&response);
        let server = Server::start(&format!(
            "[listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\nbandwidth = {{ down = \"128KiB/s\", burst = \"2KiB\" }}\n\
             [pool.app]\nbackends = [\"{}\"]\n",
            backend.address
        ));
        let (bytes, took) = Transfer::start(&format!("http://{}/", server.address("web")), &[]).end();
        assert!(bytes == body);
        assert!(took >= least(96 * KIB, 128 * KIB, 2 * KIB), "{took:?}");
    }
}

#[test]
fn sessions_of_one_source_share_one_limit_and_those_of_a_listener_too() {
    for (per, sources) in
        [("source", ["127.0.0.1"; 4]), ("listener", ["127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"])]
    {
        let limit = format!("down = \"256KiB/s\", burst = \"32KiB\", per = \"{per}\"");
        let bench = Bench::start(96 * KIB, &limit, "[process]\nworkers = 2\n");
        let began = Instant::now();
        let transfers: Vec<_> =
            sources.iter().map(|source| bench.download("http", &["--interface", source])).collect();
        // It has a limit of its own, or shares the one of the listener.
        let (bytes, _) = bench.download("http", &["--interface", "127.0.0.9"]).end();
        assert_eq!(bytes.len(), bench.size);
        for transfer in transfers {
            assert_eq!(transfer.end().0.len(), bench.size);
        }
        let took = began.elapsed();
        assert!(took >= least(4 * bench.size, 256 * KIB, 32 * KIB), "{per}: {took:?}");
        // One request after the other is no way around it, also not with bodies that fit into one read.
        let began = Instant::now();
        for _ in 0..3 {
            assert_eq!(bench.download("http", &[]).end().0.len(), bench.size);
        }
        let took = began.elapsed();
        assert!(took >= least(3 * bench.size, 256 * KIB, 32 * KIB), "{per}: {took:?}");
    }
}

#[test]
fn a_route_has_a_limit_of_its_own() {
    let backend = Scripted::answering(&"x".repeat(32 * KIB));
    let server = Server::start(&format!(
        "[admin]\nbind = \"127.0.0.1:0\"\n[listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
         [[listener.web.route]]\npath = \"/slow\"\npool = \"app\"\nbandwidth = {{ down = \"64KiB/s\", burst = \"2KiB\" }}\n\
         [pool.app]\nbackends = [\"{}\"]\n",
        backend.address
    ));
    let mut client = server.client("web");
    let began = Instant::now();
    assert_eq!(client.get("/slow", &[]).body.len(), 32 * KIB);
    assert!(began.elapsed() >= least(32 * KIB, 64 * KIB, 2 * KIB), "{:?}", began.elapsed());
    let before = counted(&server, "slowed", "web");
    assert_eq!(client.get("/", &[]).body.len(), 32 * KIB);
    assert_eq!((before > 0, counted(&server, "slowed", "web")), (true, before), "other routes have none");
}

#[test]
fn many_small_responses_of_one_source_are_limited_together() {
    let backend = Scripted::answering(&"x".repeat(1500));
    let server = Server::start(&format!(
        "[listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\nbandwidth = {{ down = \"32KiB/s\", burst = \"2KiB\", per = \"source\" }}\n\
         [pool.app]\nbackends = [\"{}\"]\n",
        backend.address
    ));
    let mut client = server.client("web");
    let began = Instant::now();
    for _ in 0..20 {
        assert_eq!(client.get("/", &[]).body.len(), 1500);
    }
    assert!(began.elapsed() >= least(20 * 1500, 32 * KIB, 2 * KIB), "{:?}", began.elapsed());
}

/// A session beyond its limit is slower than every timeout here.
#[test]
fn a_slowed_session_is_neither_idle_nor_late() {
    // A piece of 4 KiB is held for four seconds.
    const SIZE: usize = 12 * KIB;
    let timeouts = "timeouts = { body = \"2s\", write = \"2s\" }\n";
    let backend = Scripted::start(|talk| {
        while let Some(request) = talk.request() {
            let body = if request.method == "GET" {
                pattern(SIZE)
            } else {
                request.body.len().to_string().into_bytes()
            };
            if talk.answer(200, &[], &body).is_err() {
                return;
            }
        }
    });
    let limit = "bandwidth = { down = \"1KiB/s\", up = \"1KiB/s\", burst = \"1KiB\" }\npool = \"app\"\n";
    let server = Server::start(&format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\n{limit}{timeouts}\
         [listener.tcp]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\nidle-timeout = \"2s\"\n{limit}\
         [pool.app]\nbackends = [\"{}\"]\ntimeouts = {{ body = \"2s\", transfer = \"4s\" }}\n",
        backend.address
    ));
    let url = |listener| format!("http://{}/", server.address(listener));
    let file = server.dir.path().join("upload");
    std::fs::write(&file, pattern(SIZE)).unwrap();
    let upload = ["-H", "Expect:", "-T", file.to_str().unwrap()];
    let kinds = [("web", "--http1.1"), ("web", "--http2-prior-knowledge"), ("tcp", "--http1.1")];
    let transfers: Vec<_> = kinds
        .iter()
        .flat_map(|(listener, version)| {
            let down = Transfer::start(&url(listener), &[version]);
            [(down, true), (Transfer::start(&url(listener), &[&upload[..], &[version]].concat()), false)]
        })
        .collect();
    for (transfer, is_download) in transfers {
        let (bytes, took) = transfer.end();
        match is_download {
            true => assert!(bytes == pattern(SIZE)),
            false => assert_eq!(String::from_utf8_lossy(&bytes), SIZE.to_string()),
        }
        assert!(took >= least(SIZE, KIB, KIB), "{took:?}");
    }
    for listener in server.ctl_json(&["status"])["listeners"].as_array().unwrap() {
        assert_eq!(listener["endings"], serde_json::json!({}), "{listener:#}");
    }
}

fn reset(client: Client) {
    if let Stream::Tcp(stream) = client.stream {
        reset_tcp(&stream);
    }
}

fn reset_tcp(stream: &TcpStream) {
    socket2::SockRef::from(stream).set_linger(Some(secs(0))).unwrap();
}

/// So many other sessions wait before it that its own piece would go minutes later.
#[test]
fn a_reset_of_either_side_ends_a_slowed_session_at_once() {
    const BEFORE: usize = 40;
    let backend = Scripted::start(|talk| {
        let Some(request) = talk.request() else { return };
        // Of those that stay, the first is not through before the test is over.
        let size = if request.target == "/reset" { 32 } else { 512 };
        let _ = talk.answer(200, &[], &pattern(size * KIB));
        match (&talk.client.stream, &*request.target) {
            (Stream::Tcp(stream), "/reset") => reset_tcp(stream),
            _ => drop(talk.rest()),
        }
    });
    let limited = "pool = \"app\"\nbandwidth = { down = \"1KiB/s\", per = \"listener\" }\n";
    let server = Server::start(&format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[admin]\nbind = \"127.0.0.1:0\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\n{limited}\
         [listener.tcp]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\n{limited}\
         [pool.app]\nbackends = [\"{}\"]\n",
        backend.address
    ));
    let sessions = || server.ctl_json(&["sessions", "--limit", "100"])["sessions"].as_array().unwrap().len();
    for listener in ["web", "tcp"] {
        let slowed = |client: &mut Client, target: &str| {
            let before = counted(&server, "slowed", listener);
            client.send(request("GET", target, &[], b""));
            eventually("it is slowed", secs(20), || {
                (counted(&server, "slowed", listener) > before).then_some(())
            });
        };
        let debtor = |_| {
            let mut debtor = server.client(listener);
            slowed(&mut debtor, "/stay");
            debtor
        };
        let debtors: Vec<_> = (0..BEFORE).map(debtor).collect();
        let mut client = server.client(listener);
        slowed(&mut client, "/stay");
        reset(client);
        eventually("the session ends with its client", secs(20), || (sessions() == BEFORE).then_some(()));
        let mut client = server.client(listener);
        slowed(&mut client, "/reset");
        eventually("the session ends with its backend", secs(20), || (sessions() == BEFORE).then_some(()));
        drop(client.read_to_end_within(secs(20)));
        debtors.into_iter().for_each(reset);
        eventually("no session is left", secs(20), || (sessions() == 0).then_some(()));
    }
    eventually("the backend has no connection", secs(20), || (backend.open.load(SeqCst) == 0).then_some(()));
}

/// Says nothing more than a FIN, which a client that only ends its sending direction sends too.
#[test]
fn a_client_that_closes_is_noticed_before_the_turn_of_its_piece() {
    const BEFORE: usize = 40;
    // The first of them is not through before the test is over.
    let body = pattern(512 * KIB);
    let chunked =
        [&b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n80000\r\n"[..], &body, b"\r\n0\r\n\r\n"]
            .concat();
    let backend = Scripted::start(move |talk| {
        let Some(request) = talk.request() else { return };
        let _ = match &*request.target {
            "/small" => talk.answer(200, &[], b"small").is_ok(),
            "/chunked" => talk.send(&chunked),
            _ => talk.answer(200, &[], &body).is_ok(),
        };
        drop(talk.rest());
    });
    let limited = "pool = \"app\"\nbandwidth = { down = \"1KiB/s\", per = \"listener\" }\n";
    let server = Server::start(&format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[admin]\nbind = \"127.0.0.1:0\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\n{limited}\
         [listener.tcp]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\n{limited}\
         [pool.app]\nbackends = [\"{}\"]\n",
        backend.address
    ));
    let sessions = || server.ctl_json(&["sessions", "--limit", "100"])["sessions"].as_array().unwrap().len();
    for (listener, targets) in [("web", &["/raw", "/chunked", "/small"][..]), ("tcp", &["/raw"])] {
        let slowed = |client: &mut Client, target: &str| {
            let before = counted(&server, "slowed", listener);
            client.send(request("GET", target, &[], b""));
            eventually("it is slowed", secs(20), || {
                (counted(&server, "slowed", listener) > before).then_some(())
            });
        };
        let debtor = |_| {
            let mut debtor = server.client(listener);
            slowed(&mut debtor, "/raw");
            debtor
        };
        let debtors: Vec<_> = (0..BEFORE).map(debtor).collect();
        for target in targets {
            let mut client = server.client(listener);
            slowed(&mut client, target);
            eventually("its session is there", secs(20), || (sessions() == BEFORE + 1).then_some(()));
            drop(client);
            eventually(target, secs(20), || (sessions() == BEFORE).then_some(()));
        }
        debtors.into_iter().for_each(reset);
        eventually("no session is left", secs(20), || (sessions() == 0).then_some(()));
    }
}

#[test]
fn a_slowed_client_that_only_ends_its_sending_direction_gets_every_byte_once() {
    let body = pattern(6 * KIB);
    let chunked =
        [&b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1800\r\n"[..], &body, b"\r\n0\r\n\r\n"]
            .concat();
    let plain = body.clone();
    let backend = Scripted::start(move |talk| {
        // The connection to this backend is kept for the next request.
        while let Some(request) = talk.request() {
            let is_sent = match &*request.target {
                "/chunked" => talk.send(&chunked),
                _ => talk.answer(200, &[], &plain).is_ok(),
            };
            if !is_sent {
                return;
            }
        }
    });
    let limited = "pool = \"app\"\nbandwidth = { down = \"4KiB/s\", burst = \"1KiB\" }\n";
    let server = Server::start(&format!(
        "[admin]\nbind = \"127.0.0.1:0\"\n[listener.web]\nbind = \"127.0.0.1:0\"\n{limited}\
         [listener.tcp]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\n{limited}\
         [pool.app]\nbackends = [\"{}\"]\n",
        backend.address
    ));
    for (listener, target) in [("web", "/raw"), ("web", "/chunked"), ("tcp", "/raw")] {
        let mut client = server.client(listener);
        let before = counted(&server, "slowed", listener);
        client.send(request("GET", target, &[], b""));
        eventually("it is slowed", secs(20), || {
            (counted(&server, "slowed", listener) > before).then_some(())
        });
        let Stream::Tcp(stream) = &client.stream else { panic!("it is over TCP") };
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let answer = client.try_response(secs(60)).unwrap();
        assert!(answer.body == body, "{listener} {target}: {} bytes", answer.body.len());
    }
}

#[test]
fn the_end_of_the_process_waits_for_a_slowed_session_no_longer_than_for_others() {
    let mut bench = Bench::start(1024 * KIB, "down = \"1KiB/s\"", "[process]\ndrain-timeout = \"1s\"\n");
    let mut clients = Vec::new();
    for listener in ["http", "tcp"] {
        let mut client = bench.server.client(listener);
        client.send(request("GET", "/big", &[], b""));
        eventually("it is slowed", secs(20), || {
            (counted(&bench.server, "slowed", listener) > 0).then_some(())
        });
        clients.push(client);
    }
    bench.server.signal(Signal::SIGTERM);
    bench.server.wait_end(secs(20));
}

#[test]
fn a_reload_changes_the_limit_of_new_sessions() {
    let backend = Scripted::answering(&"x".repeat(64 * KIB));
    let config = |limit: &str| {
        format!(
            "[control]\nsocket = \"@DIR@/control.sock\"\n[admin]\nbind = \"127.0.0.1:0\"\n\
             [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n{limit}\n[pool.app]\nbackends = [\"{}\"]\n",
            backend.address
        )
    };
    let server = Server::start(&config(""));
    let mut client = server.client("web");
    assert_eq!(client.get("/", &[]).body.len(), 64 * KIB);
    server.write_config(&config("bandwidth = { down = \"128KiB/s\", burst = \"2KiB\", per = \"source\" }"));
    assert!(server.ctl(&["reload"]).status.success());
    let began = Instant::now();
    assert_eq!(client.get("/", &[]).body.len(), 64 * KIB, "on the same connection");
    assert!(began.elapsed() >= least(64 * KIB, 128 * KIB, 2 * KIB), "{:?}", began.elapsed());
    server.write_config(&config("bandwidth = { up = \"1KiB/s\", per = \"source\" }"));
    assert!(server.ctl(&["reload"]).status.success());
    let before = counted(&server, "slowed", "web");
    assert_eq!(client.get("/", &[]).body.len(), 64 * KIB);
    assert_eq!(counted(&server, "slowed", "web"), before, "nothing has a limit but uploads");
}

#[test]
fn a_web_socket_is_limited_in_both_directions() {
    let backend = peers::websocket_echo();
    let server = Server::start(&format!(
        "[listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\nbandwidth = {{ down = \"32KiB/s\", up = \"64KiB/s\", burst = \"2KiB\" }}\n\
         [pool.app]\nbackends = [\"{}\"]\n",
        backend.address
    ));
    let mut socket = WebSocket::open(&server.address("web"), "/");
    let began = Instant::now();
    socket.echo(&"x".repeat(24 * KIB));
    assert!(began.elapsed() >= least(24 * KIB, 32 * KIB, 2 * KIB), "{:?}", began.elapsed());
}
