//! WebSockets to backends that speak HTTP/2 (RFC 8441): hypercorn and HAProxy, which take them, nghttpd, which does not,
//! and scripted ones that begin late or break off.

use std::process::{Command, Stdio};

use testing::client::{Client, End, request};
use testing::http2::{DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, Http2, RST_STREAM, block, frame};
use testing::peers::{Latch, Process};
use testing::pki::{Pki, Time};
use testing::server::run_to_end;
use testing::websocket::WebSocket;
use testing::{Scripted, Server, eventually, peers, port, secs, tools};

use crate::backend_http2::{backend, gated_backend};

const HYPERCORN: &str = r#"
import asyncio, socket, sys
from hypercorn.asyncio import serve
from hypercorn.config import Config
async def app(scope, receive, send):
    if scope["type"] != "websocket":
        return
    fields = sorted(name.decode() + "=" + value.decode() for name, value in scope["headers"])
    print("asked", scope["http_version"], scope["scheme"], scope["raw_path"].decode(), *fields, flush=True)
    await receive()
    if scope["path"] == "/refused":
        head = {"status": 404, "headers": [(b"x-why", b"closed"), (b"content-length", b"12")]}
        await send({"type": "websocket.http.response.start", **head})
        await send({"type": "websocket.http.response.body", "body": b"no such room"})
        return
    await send({"type": "websocket.accept", "subprotocol": (scope["subprotocols"] or [None])[0]})
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            print("left", scope["path"], message["code"], flush=True)
            return
        await send({**message, "type": "websocket.send"})
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
config = Config()
config.bind = [f"fd://{listener.fileno()}"]
config.websocket_max_message_size = 64 * 1024 * 1024
if len(sys.argv) > 1:
    config.keyfile, config.certfile = sys.argv[1:]
print("port", listener.getsockname()[1], flush=True)
asyncio.run(serve(app, config))
"#;

/// Echoes messages, tells what it was asked and who has left. With TLS if `files` are a key and a certificate.
fn hypercorn(files: &[&std::path::Path]) -> Process {
    let mut command = Command::new(tools::python("hypercorn"));
    let mut process = Process::start(command.args(["-u", "-c", HYPERCORN]).args(files));
    let line = process.stdout.wait_for("port ", secs(20));
    process.address = format!("127.0.0.1:{}", line.trim_start_matches("port "));
    process.stderr.wait_for("Running on", secs(20));
    process
}

/// HAProxy, which speaks HTTP/2 to Penstock and HTTP/1.1 to the server at `echo`.
fn haproxy(dir: &std::path::Path, echo: &str) -> Process {
    let (port, file) = (port::free(), dir.join("haproxy.cfg"));
    let text = format!(
        "defaults\n mode http\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n timeout tunnel 60s\n\
         frontend web\n bind 127.0.0.1:{port} proto h2\n default_backend app\n\
         backend app\n server echo {echo}\n"
    );
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new(tools::program("haproxy"));
    let mut process = Process::start(command.arg("-db").arg("-f").arg(&file));
    process.address = format!("127.0.0.1:{port}");
    eventually("HAProxy listens", secs(10), || std::net::TcpStream::connect(&process.address).ok());
    process
}

fn nghttpd(dir: &std::path::Path) -> Process {
    std::fs::write(dir.join("index.html"), "page").unwrap();
    let port = port::free();
    let mut command = Command::new(tools::program("nghttpd"));
    command.args(["--no-tls", "-a", "127.0.0.1", "-d"]).arg(dir).arg(port.to_string());
    let mut process = Process::start(&mut command);
    process.address = format!("127.0.0.1:{port}");
    eventually("nghttpd listens", secs(10), || std::net::TcpStream::connect(&process.address).ok());
    process
}

fn front(backends: &[&str], more: &str) -> Server {
    Server::start(&format!(
        "[process]\nworkers = 1\n[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"stdout\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
         [pool.app]\nbackends = {backends:?}\nhttp2 = \"on\"\n{more}\n"
    ))
}

const UPGRADE: [(&str, &str); 4] = [
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
];

fn open(server: &Server, path: &str) -> Client {
    let mut client = server.client("web");
    let answer = client.get(path, &UPGRADE);
    assert_eq!(answer.status, 101, "{answer:?}");
    client
}

/// Asks for a WebSocket over a stream of HTTP/2.
fn connect(client: &mut Http2, stream: u32, path: &str) {
    let fields = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "http"),
        (":authority", "test"),
        (":path", path),
        ("sec-websocket-version", "13"),
    ];
    client.request(stream, 0, &fields);
}

/// A text message of a client: "hello" with the mask 0.
const HELLO: &[u8] = b"\x81\x85\0\0\0\0hello";

/// Its echo.
const ECHO: &[u8] = b"\x81\x05hello";

const CLIENT: &str = r#"
import asyncio, sys, websockets
async def main():
    for compression in None, "deflate":
        async with websockets.connect(sys.argv[1], compression=compression, max_size=None, proxy=None,
                                      subprotocols=["chat", "other"], close_timeout=1) as ws:
            assert ws.subprotocol == "chat", ws.subprotocol
            extensions = ws.response.headers.get("Sec-WebSocket-Extensions", "")
            assert (compression is not None) == ("permessage-deflate" in extensions), extensions
            for size in (0, 1, 125, 126, 65535, 65536, 3_000_000):
                message = bytes(i * 7 % 251 for i in range(1000)) * (size // 1000) + b"z" * (size % 1000)
                await ws.send(message)
                assert await ws.recv() == message, size
            await ws.send("grüße"); assert await ws.recv() == "grüße"
    print("all came back")
asyncio.run(main())
"#;

fn talk_from_python(server: &Server, path: &str) {
    let url = format!("ws://{}{path}", server.address("web"));
    let mut command = Command::new(tools::python("websockets"));
    let output = run_to_end(command.args(["-c", CLIENT, &url]).stdin(Stdio::null()), secs(60));
    assert!(String::from_utf8_lossy(&output.stdout).contains("all came back"), "{output:?}");
}

#[test]
fn a_websocket_of_http1_talks_to_a_backend_of_http2_with_tls() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::new(dir.path());
    let files = pki.issue("backend", &["127.0.0.1"], Time::Now);
    let hypercorn = hypercorn(&[&files.key, &files.certificate]);
    let tls = format!("tls = {{ ca = \"{}\" }}", pki.authority().display());
    let server = front(&[&hypercorn.address], &tls);
    talk_from_python(&server, "/chat?room=1");
    let asked = hypercorn.stdout.wait_for("asked 2 wss /chat ", secs(5));
    assert!(
        asked.contains(" sec-websocket-version=13") && asked.contains(" sec-websocket-protocol=chat"),
        "{asked}"
    );
    assert!(asked.contains(" x-forwarded-for=127.0.0.1"), "{asked}");
    for left_behind in ["sec-websocket-key", "upgrade", "connection", "content-length"] {
        assert!(!asked.contains(&format!(" {left_behind}=")), "{asked}");
    }
    let line = server.stdout.wait_for(" 101 ", secs(10));
    assert!(
        line.contains(" bytes_in=3") && line.contains(" bytes_out=3"),
        "the log counts the messages: {line}"
    );
}

#[test]
fn a_websocket_ends_in_order_between_a_client_of_http1_and_a_backend_that_ends_its_streams() {
    let (dir, echo) = (tempfile::tempdir().unwrap(), peers::websocket_echo());
    let haproxy = haproxy(dir.path(), &echo.address);
    let server = front(&[&haproxy.address], "");
    let mut sockets: Vec<_> = (0..3).map(|_| WebSocket::open(&server.address("web"), "/")).collect();
    for round in 0..3 {
        sockets.iter_mut().for_each(|socket| socket.echo(&format!("message {round}")));
    }
    assert_eq!(server.backend(&haproxy.address)["connects"], 1, "they share a connection");
    let mut client = open(&server, "/");
    client.send(HELLO);
    assert_eq!(client.read_exactly(ECHO.len()), ECHO);
    // A close frame; the server answers with one and ends.
    client.send(b"\x88\x82\0\0\0\0\x03\xe8");
    assert_eq!(client.read_to_end(), (b"\x88\x02\x03\xe8".to_vec(), End::Closed));
    drop(client);
    server.stdout.wait_for(" 101 ok ", secs(10));
    // The others go on.
    sockets.iter_mut().for_each(|socket| socket.echo("still here"));
}

#[test]
fn a_websocket_of_http2_talks_to_a_backend_of_http2() {
    let hypercorn = hypercorn(&[]);
    let server = front(&[&hypercorn.address], "");
    let mut client = Http2::connect(&server.address("web"));
    connect(&mut client, 1, "/chat");
    let answer = client.wait_for("an answer", |frame| frame.kind == HEADERS && frame.stream == 1);
    assert_eq!((answer.status(), answer.flags & END_STREAM), (Some(200), 0));
    client.send(DATA, 0, 1, HELLO);
    let back = client.wait_for("the echo", |frame| frame.kind == DATA && !frame.payload.is_empty());
    assert_eq!(back.payload, ECHO);
    connect(&mut client, 3, "/refused");
    assert_eq!(client.response(3), (Some(404), b"no such room".to_vec()));
    client.send(RST_STREAM, 0, 1, &8_u32.to_be_bytes());
    hypercorn.stdout.wait_for("left /chat 1006", secs(10));
    server.stdout.wait_for(" 101 client-closed ", secs(10));
}

#[test]
fn a_refused_websocket_gets_the_answer_of_the_backend_and_the_connection_stays() {
    let hypercorn = hypercorn(&[]);
    let server = front(&[&hypercorn.address], "");
    let mut socket = WebSocket::open(&server.address("web"), "/chat");
    let mut client = server.client("web");
    for _ in 0..3 {
        let answer = client.get("/refused", &UPGRADE);
        assert_eq!((answer.status, answer.text().as_str()), (404, "no such room"));
        assert_eq!((answer.header("x-why"), answer.header("sec-websocket-accept")), (Some("closed"), None));
    }
    socket.echo("another socket on the same connection goes on");
    assert_eq!(server.backend(&hypercorn.address)["connects"], 1);
    server.stdout.wait_for(" 404 ok ", secs(10));
}

#[test]
fn a_backend_that_takes_no_websockets_is_an_answer_of_502_and_not_to_blame() {
    let dir = tempfile::tempdir().unwrap();
    let nghttpd = nghttpd(dir.path());
    let server = front(&[&nghttpd.address], "");
    let answer = server.client("web").get("/", &UPGRADE);
    assert_eq!(answer.status, 502);
    assert!(answer.text().contains("does not take WebSockets over HTTP/2"), "{}", answer.text());
    server.stdout.wait_for(" 502 backend-no-websockets ", secs(10));
    let mut client = Http2::connect(&server.address("web"));
    connect(&mut client, 1, "/");
    client.response(1);
    eventually("the log has both", secs(10), || {
        (server.stdout.count(" 502 backend-no-websockets ") == 2).then_some(())
    });
    let shown = server.backend(&nghttpd.address);
    assert_eq!((&shown["failures"], &shown["state"]), (&0.into(), &"unchecked".into()), "{shown:#}");
    let mut ordinary = server.client("web");
    assert_eq!(ordinary.get("/", &[]).text(), "page");
    let other = ordinary.get("/", &[("Connection", "upgrade"), ("Upgrade", "other")]);
    assert_eq!(other.text(), "page", "HTTP/2 has no other upgrade");
}

#[test]
fn a_websocket_goes_to_the_backend_of_a_pool_that_takes_it() {
    let dir = tempfile::tempdir().unwrap();
    let (nghttpd, hypercorn) = (nghttpd(dir.path()), hypercorn(&[]));
    let server = front(&[&nghttpd.address, &hypercorn.address], "retries = 1");
    for _ in 0..4 {
        WebSocket::open(&server.address("web"), "/chat").echo("hello");
    }
}

#[test]
fn a_websocket_waits_for_the_settings_of_its_backend() {
    let settings = Latch::default();
    let gate = settings.clone();
    let backend = gated_backend(
        move |_| {
            gate.wait();
            vec![0, 8, 0, 0, 0, 1]
        },
        |talk, _, stream, _| {
            talk.send(frame(HEADERS, END_HEADERS, stream, &block(&[(":status", "200")])));
            talk.send(frame(DATA, 0, stream, ECHO));
        },
    );
    let server = front(&[&backend.address], "timeouts = { connect = \"60s\" }");
    let mut client = server.client("web");
    client.send(request("GET", "/", &UPGRADE, b""));
    eventually("a connection", secs(10), || {
        (backend.accepted.load(std::sync::atomic::Ordering::SeqCst) == 1).then_some(())
    });
    settings.open();
    assert_eq!(client.response().status, 101);
    assert_eq!(client.read_exactly(ECHO.len()), ECHO);

    let never = Latch::default();
    let gate = never.clone();
    let silent = gated_backend(
        move |_| {
            gate.wait();
            Vec::new()
        },
        |_, _, _, _| {},
    );
    let server = front(&[&silent.address], "retries = 0\ntimeouts = { connect = \"200ms\" }");
    assert_eq!(server.client("web").get("/", &UPGRADE).status, 502);
    server.stdout.wait_for(" 502 connect-failed ", secs(10));
    never.open();
}

#[test]
fn a_websocket_without_a_key_of_its_client_is_refused() {
    let hypercorn = hypercorn(&[]);
    let server = front(&[&hypercorn.address], "");
    for (key, more) in [("short", None), (UPGRADE[3].1, Some(UPGRADE[3]))] {
        let mut fields = vec![UPGRADE[0], UPGRADE[1], UPGRADE[2], ("Sec-WebSocket-Key", key)];
        fields.extend(more);
        let answer = server.client("web").get("/chat", &fields);
        assert_eq!(answer.status, 400);
        assert!(answer.text().contains("Sec-WebSocket-Key"), "{}", answer.text());
    }
    eventually("the log has both", secs(10), || {
        (server.stdout.count(" 400 websocket-key ") == 2).then_some(())
    });
    assert_eq!(hypercorn.stdout.count("asked"), 0);
}

/// A backend that accepts a WebSocket, sends a message and does `then`.
fn accepting(then: impl Fn(&mut testing::BackendConnection, u32) + Send + Sync + 'static) -> Scripted {
    backend(&[(8, 1)], move |talk, _, stream| {
        talk.send(frame(HEADERS, END_HEADERS, stream, &block(&[(":status", "200")])));
        talk.send(frame(DATA, 0, stream, ECHO));
        then(talk, stream);
    })
}

#[test]
fn a_backend_that_breaks_off_ends_the_client_with_a_reset_and_a_word_in_the_log() {
    let cancelled = accepting(|talk, stream| {
        talk.send(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
    });
    let gone_away = accepting(|talk, _| {
        // Nothing that was asked has been looked at.
        talk.send(frame(GOAWAY, 0, 0, &[0; 8]));
    });
    let closed = accepting(|talk, _| drop(talk.client.stream.shutdown(std::net::Shutdown::Both)));
    for backend in [cancelled, gone_away, closed] {
        let server = front(&[&backend.address], "");
        let mut client = open(&server, "/");
        let (_, end) = client.read_to_end();
        assert_eq!(end, End::Reset);
        server.stdout.wait_for(" 101 backend-aborted ", secs(10));
        eventually("its place is free", secs(10), || {
            (server.backend(&backend.address)["in_flight"] == 0).then_some(())
        });
    }
    let hypercorn = hypercorn(&[]);
    let server = front(&[&hypercorn.address], "");
    let mut client = open(&server, "/chat");
    hypercorn.signal(nix::sys::signal::Signal::SIGKILL);
    assert_eq!(client.read_to_end(), (Vec::new(), End::Reset));
    server.stdout.wait_for(" 101 backend-aborted ", secs(10));
}

#[test]
fn a_backend_that_ends_its_stream_ends_the_direction_of_the_client_only() {
    let backend = accepting(|talk, stream| {
        talk.send(frame(DATA, END_STREAM, stream, b""));
    });
    let server = front(&[&backend.address], "");
    let mut client = open(&server, "/");
    assert_eq!(client.read_to_end(), (ECHO.to_vec(), End::Closed));
    assert_eq!(server.stdout.count(" 101 "), 0, "the client may still send");
    client.send(HELLO);
    drop(client);
    server.stdout.wait_for(" 101 ok ", secs(10));
}

#[test]
fn a_client_that_ends_its_direction_still_gets_what_the_backend_says_then() {
    let backend = accepting(|talk, stream| {
        // Reads up to the end of the stream.
        loop {
            let head = talk.client.read_exactly(9);
            talk.client.read_exactly(usize::from(head[1]) << 8 | usize::from(head[2]));
            if head[3] == DATA && head[4] & END_STREAM != 0 {
                break;
            }
        }
        talk.send(frame(DATA, END_STREAM, stream, b"goodbye"));
    });
    let server = front(&[&backend.address], "");
    let mut client = open(&server, "/");
    client.send(HELLO);
    client.finish_sending();
    assert_eq!(client.read_to_end(), ([ECHO, b"goodbye"].concat(), End::Closed));
    server.stdout.wait_for(" 101 ok ", secs(10));
}

#[test]
fn a_client_that_leaves_ends_the_websocket_at_the_backend() {
    let hypercorn = hypercorn(&[]);
    let server = front(&[&hypercorn.address], "");
    let breaks = open(&server, "/breaks");
    let testing::client::Stream::Tcp(stream) = &breaks.stream else { panic!("no TCP") };
    socket2::SockRef::from(stream).set_linger(Some(secs(0))).unwrap();
    drop(breaks);
    hypercorn.stdout.wait_for("left /breaks 1006", secs(10));
    server.stdout.wait_for(" 101 client-closed ", secs(10));
    // One that leaves without a close frame has ended its direction in order. Hypercorn does not react to that.
    drop(open(&server, "/leaves"));
    hypercorn.stdout.wait_for("left /leaves 1006", secs(15));
    server.stdout.wait_for(" 101 ok ", secs(10));
    eventually("no stream is left", secs(10), || {
        (server.backend(&hypercorn.address)["in_flight"] == 0).then_some(())
    });
    assert_eq!(server.backend(&hypercorn.address)["connects"], 1, "the connection stays");
}

#[test]
fn a_silent_websocket_ends_at_the_tunnel_time() {
    let hypercorn = hypercorn(&[]);
    let server = front(&[&hypercorn.address], "timeouts = { tunnel = \"5s\" }");
    let mut socket = WebSocket::open(&server.address("web"), "/chat");
    socket.echo("hello");
    assert_eq!(socket.end(), End::Closed);
    hypercorn.stdout.wait_for("left /chat 1006", secs(10));
    server.stdout.wait_for(" 101 idle-timeout ", secs(10));
}

const FLOOD: &str = r#"
import asyncio, websockets
async def flood(ws):
    for number in range(1024):
        await ws.send(b"x" * 65536)
        print("sent", number, flush=True)
async def main():
    async with websockets.serve(flood, "127.0.0.1", 0, compression=None, ping_interval=None) as server:
        print("port", server.sockets[0].getsockname()[1], flush=True)
        await asyncio.get_running_loop().create_future()
asyncio.run(main())
"#;

#[test]
fn a_client_that_reads_nothing_stops_the_backend_and_later_gets_everything() {
    let dir = tempfile::tempdir().unwrap();
    let flood = Process::start(Command::new(tools::python("websockets")).args(["-u", "-c", FLOOD]));
    let line = flood.stdout.wait_for("port ", secs(20));
    let haproxy = haproxy(dir.path(), &format!("127.0.0.1:{}", line.trim_start_matches("port ")));
    let server = front(&[&haproxy.address], "");
    let mut client = open(&server, "/");
    let (mut seen, mut since) = (0, std::time::Instant::now());
    eventually("the backend stops", secs(60), || {
        let now = flood.stdout.count("sent ");
        if now != seen {
            (seen, since) = (now, std::time::Instant::now());
        }
        (seen > 0 && since.elapsed() > secs(1)).then_some(())
    });
    assert!(seen < 512, "the backend has sent {seen} of 1024 messages of 64 KiB");
    // Each has a head of 10 bytes.
    for _ in 0..1024 {
        let message = client.read_exactly(10 + 65_536);
        assert_eq!(message[..10], [0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0]);
    }
}
