//! Backends: recording and scripted backends inside the test, and real servers as processes.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::audit::{self, Audited, Reading};
use crate::client::{Client, End, Stream, request};
use crate::port;
use crate::server::{Lines, clear_environment};
use crate::shown::show;
use crate::tools;
use crate::{eventually, secs};

pub struct Scripted {
    pub address: String,
    stop: Arc<AtomicBool>,
    pub accepted: Arc<AtomicUsize>,
    /// Connections whose script has not ended.
    pub open: Arc<AtomicUsize>,
}

/// A gate that stays closed until the test opens it, for good.
#[derive(Clone, Default)]
pub struct Latch(Arc<(Mutex<bool>, Condvar)>);

impl Latch {
    pub fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    pub fn wait(&self) {
        let is_open = self.0.0.lock().unwrap();
        drop(self.0.1.wait_while(is_open, |is_open| !*is_open).unwrap());
    }
}

/// A connection, for the script of a backend.
pub struct BackendConnection {
    pub client: Client,
    /// Index of the connection at this backend, from 0.
    pub number: usize,
    pending: Vec<u8>,
}

enum Listening {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Scripted {
    /// Listens on a free TCP port, which no other test gets after it.
    pub fn start(script: impl Fn(&mut BackendConnection) + Send + Sync + 'static) -> Self {
        let listener = port::listener();
        let address = listener.local_addr().unwrap().to_string();
        Self::serve(Listening::Tcp(listener), address, script)
    }

    /// Listens at an address that is free.
    pub fn start_at(
        address: SocketAddr,
        script: impl Fn(&mut BackendConnection) + Send + Sync + 'static,
    ) -> Self {
        Self::serve(Listening::Tcp(TcpListener::bind(address).unwrap()), address.to_string(), script)
    }

    pub fn start_unix(path: &Path, script: impl Fn(&mut BackendConnection) + Send + Sync + 'static) -> Self {
        let listener = UnixListener::bind(path).unwrap();
        Self::serve(Listening::Unix(listener), format!("unix:{}", path.display()), script)
    }

    /// Answers every request with 200 and `body`.
    pub fn answering(body: &str) -> Self {
        Self::start(answers(body))
    }

    /// The same at a port of 127.0.0.1, as a server that comes back. Waits until the port is free.
    #[track_caller]
    pub fn answering_at(port: u16, body: &str) -> Self {
        let bind = || TcpListener::bind(("127.0.0.1", port)).ok();
        let listener = eventually("the port is free", secs(5), bind);
        Self::serve(Listening::Tcp(listener), format!("127.0.0.1:{port}"), answers(body))
    }

    /// Answers every request with 200 after the gate is opened.
    pub fn gated() -> (Self, Latch) {
        let gate = Latch::default();
        let seen = gate.clone();
        let backend = Self::start(move |talk| {
            while talk.request().is_some() {
                seen.wait();
                if talk.answer(200, &[], b"ok").is_err() {
                    break;
                }
            }
        });
        (backend, gate)
    }

    /// Answers the first request of every connection with `bytes`, then closes the connection.
    pub fn saying(bytes: &[u8]) -> Self {
        let bytes = bytes.to_owned();
        Self::start(move |talk| {
            if talk.request().is_some() {
                let _ = talk.client.try_send(&bytes);
            }
        })
    }

    fn serve(
        listener: Listening,
        address: String,
        script: impl Fn(&mut BackendConnection) + Send + Sync + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (accepted, open) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let scripted = Self { address, stop: stop.clone(), accepted: accepted.clone(), open: open.clone() };
        let script = Arc::new(script);
        std::thread::spawn(move || {
            loop {
                let stream = match &listener {
                    Listening::Tcp(listener) => listener.accept().map(|(stream, _)| {
                        let _ = stream.set_nodelay(true);
                        Stream::Tcp(stream)
                    }),
                    Listening::Unix(listener) => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
                };
                if stop.load(SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let number = accepted.fetch_add(1, SeqCst);
                open.fetch_add(1, SeqCst);
                let (script, open) = (script.clone(), open.clone());
                std::thread::spawn(move || {
                    let mut talk =
                        BackendConnection { client: Client::over(stream), number, pending: Vec::new() };
                    let _ = std::panic::catch_unwind(AssertUnwindSafe(|| script(&mut talk)));
                    drop(talk);
                    open.fetch_sub(1, SeqCst);
                });
            }
        });
        scripted
    }
}

/// The script that answers every request with 200 and `body`.
fn answers(body: &str) -> impl Fn(&mut BackendConnection) + Send + Sync + 'static {
    let body = body.to_owned();
    move |talk| {
        while talk.request().is_some() {
            if talk.answer(200, &[], body.as_bytes()).is_err() {
                break;
            }
        }
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        // This connection wakes the accepting thread, which then closes its socket.
        let _ = Stream::connect(&self.address);
    }
}

impl BackendConnection {
    /// The next request, parsed strictly; `None` if the peer closed the connection or the request is not valid.
    pub fn request(&mut self) -> Option<Audited> {
        let deadline = Instant::now() + secs(120);
        self.pending.extend_from_slice(self.client.unused());
        self.client.forget();
        loop {
            match audit::read(&self.pending) {
                Reading::Request(request, length) => {
                    self.pending.drain(..length);
                    return Some(*request);
                }
                Reading::Fault(_) => return None,
                Reading::Incomplete => {}
            }
            if self.client.fill(deadline).unwrap_or(0) == 0 {
                return None;
            }
            self.pending.extend_from_slice(self.client.unused());
            self.client.forget();
        }
    }

    /// Only the head of the next request, with its empty line. The body is not read.
    pub fn head(&mut self) -> Option<String> {
        let deadline = Instant::now() + secs(120);
        self.pending.extend_from_slice(self.client.unused());
        self.client.forget();
        loop {
            if let Some(at) = self.pending.windows(4).position(|window| window == b"\r\n\r\n") {
                let head: Vec<u8> = self.pending.drain(..at + 4).collect();
                // The start of the body stays for the next read of the script.
                self.client.put_back(std::mem::take(&mut self.pending));
                return Some(String::from_utf8_lossy(&head).into_owned());
            }
            if self.client.fill(deadline).unwrap_or(0) == 0 {
                return None;
            }
            self.pending.extend_from_slice(self.client.unused());
            self.client.forget();
        }
    }

    /// Reads until the peer closes or sends data. Returns the data.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut rest = std::mem::take(&mut self.pending);
        rest.extend(self.client.read_to_end_within(secs(120)).0);
        rest
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.client.try_send(bytes).is_ok()
    }

    /// Sends a response with `Content-Length`.
    pub fn answer(&mut self, status: u16, headers: &[(&str, &str)], body: &[u8]) -> std::io::Result<()> {
        let mut bytes = format!("HTTP/1.1 {status} Status\r\n");
        for (name, value) in headers {
            bytes.push_str(&format!("{name}: {value}\r\n"));
        }
        if status != 204 && status != 304 && status >= 200 {
            bytes.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        bytes.push_str("\r\n");
        let mut bytes = bytes.into_bytes();
        bytes.extend_from_slice(body);
        self.client.try_send(bytes)
    }
}

/// A backend that keeps every byte, parses requests strictly, and answers 200 to each complete request.
pub struct Recorder {
    scripted: Scripted,
    records: Arc<Mutex<Vec<Record>>>,
    /// Complete requests of all connections, in the order of arrival.
    order: Arc<Mutex<Vec<Audited>>>,
}

/// Record of one connection.
#[derive(Clone, Debug, Default)]
pub struct Record {
    pub bytes: Vec<u8>,
    /// Complete requests, in order.
    pub requests: Vec<Audited>,
    /// Why the bytes after the last request are not a request.
    pub fault: Option<String>,
    /// Bytes of a last request that is not complete.
    pub unfinished: usize,
}

impl Recorder {
    pub fn start() -> Self {
        let records: Arc<Mutex<Vec<Record>>> = Arc::default();
        let order: Arc<Mutex<Vec<Audited>>> = Arc::default();
        let (kept, arrived) = (records.clone(), order.clone());
        let scripted = Scripted::start(move |talk| {
            let mut record = Record::default();
            let mut at = 0;
            let slot = {
                let mut all = kept.lock().unwrap();
                all.push(Record::default());
                all.len() - 1
            };
            let deadline = Instant::now() + secs(300);
            loop {
                while record.fault.is_none() {
                    match audit::read(&record.bytes[at..]) {
                        Reading::Request(request, length) => {
                            at += length;
                            let body = format!("{} {}", request.method, request.target);
                            let body = if request.method == "HEAD" { "" } else { &body };
                            arrived.lock().unwrap().push((*request).clone());
                            record.requests.push(*request);
                            record.unfinished = 0;
                            if let Some(place) = kept.lock().unwrap().get_mut(slot) {
                                *place = record.clone();
                            }
                            let _ = talk.answer(200, &[("X-Backend", "recorder")], body.as_bytes());
                        }
                        Reading::Incomplete => break,
                        Reading::Fault(fault) => record.fault = Some(fault),
                    }
                }
                record.unfinished = record.bytes.len() - at;
                if let Some(place) = kept.lock().unwrap().get_mut(slot) {
                    *place = record.clone();
                }
                if talk.client.fill(deadline).unwrap_or(0) == 0 {
                    return;
                }
                record.bytes.extend_from_slice(talk.client.unused());
                talk.client.forget();
            }
        });
        Self { scripted, records, order }
    }

    pub fn address(&self) -> &str {
        &self.scripted.address
    }

    pub fn records(&self) -> Vec<Record> {
        self.records.lock().unwrap().clone()
    }

    /// Waits until every connection has ended, then takes the records of those on which something was sent.
    #[track_caller]
    pub fn take_when_quiet(&self) -> Vec<Record> {
        // Connections are accepted in their order: where this one has ended, none of those before it waits in the queue.
        let mut last = Client::connect(&self.scripted.address);
        last.finish_sending();
        assert_eq!(last.read_to_end(), (Vec::new(), End::Closed));
        eventually("the connections to the backend end", secs(15), || {
            (self.scripted.open.load(SeqCst) == 0).then_some(())
        });
        let mut records = std::mem::take(&mut *self.records.lock().unwrap());
        records.retain(|record| !record.bytes.is_empty());
        records
    }

    /// All complete requests so far, in the order of arrival.
    pub fn requests(&self) -> Vec<Audited> {
        self.order.lock().unwrap().clone()
    }

    #[track_caller]
    pub fn last(&self) -> Audited {
        self.requests().pop().expect("a request arrived")
    }
}

pub struct Process {
    child: Child,
    pub stdout: Lines,
    pub stderr: Lines,
    /// Address of its listener, once known.
    pub address: String,
}

impl Process {
    pub fn start(command: &mut Command) -> Self {
        clear_environment(command);
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = Lines::follow(child.stdout.take().unwrap());
        let stderr = Lines::follow(child.stderr.take().unwrap());
        Self { child, stdout, stderr, address: String::new() }
    }

    pub fn signal(&self, signal: Signal) {
        let _ = kill(self.pid(), signal);
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap())
    }

    #[track_caller]
    pub fn wait(&mut self, limit: Duration) -> std::process::ExitStatus {
        eventually("the process ends", limit, || self.child.try_wait().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            show("standard error of a peer", &self.stderr.tail(20).join("\n"));
        }
        let _ = kill(self.pid(), Signal::SIGCONT);
        let _ = kill(self.pid(), Signal::SIGTERM);
        let deadline = Instant::now() + secs(3);
        while Instant::now() < deadline {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const FLASK_APP: &str = r#"from flask import Flask, request
app = Flask(__name__)

@app.route("/")
def hello():
    return "Hello there!"

@app.route("/echo", methods=["POST", "PUT"])
def echo():
    return request.get_data(), 200, {"Content-Type": "application/octet-stream"}

@app.route("/seen")
def seen():
    return {"headers": dict(request.headers), "remote": request.remote_addr or ""}

@app.route("/stream")
def stream():
    return (f"part {n}\n" for n in range(50)), 200, {"Content-Type": "text/plain"}
"#;

pub fn flask(dir: &Path) -> Process {
    gunicorn(dir, "127.0.0.1:0")
}

pub fn flask_unix(dir: &Path) -> Process {
    gunicorn(dir, &format!("unix:{}", dir.join("gunicorn.sock").display()))
}

fn gunicorn(dir: &Path, bind: &str) -> Process {
    fs::write(dir.join("server.py"), FLASK_APP).unwrap();
    let mut command = Command::new(tools::python_script("gunicorn", "gunicorn"));
    command.args(["--bind", bind, "--worker-tmp-dir", "/tmp", "server:app"]).current_dir(dir);
    let mut process = Process::start(&mut command);
    let line = process.stderr.wait_for("Listening at: ", secs(30));
    let address = line.split("Listening at: ").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    process.address = address.strip_prefix("http://").unwrap_or(&address).to_owned();
    // It listens before its worker has loaded the application.
    eventually("gunicorn answers", secs(30), || {
        let mut client = Client::connect(&process.address);
        client.try_send(request("GET", "/", &[], b"")).ok()?;
        client.try_response(secs(20)).is_ok_and(|answer| answer.status == 200).then_some(())
    });
    process
}

/// nginx on a Unix socket in `dir`, serving `dir/www`; `extra` goes into its `server` block.
pub fn nginx(dir: &Path, extra: &str) -> Process {
    let www = dir.join("www");
    fs::create_dir_all(&www).unwrap();
    let at = dir.display();
    fs::write(
        dir.join("nginx.conf"),
        format!(
            "daemon off; master_process off; pid {at}/nginx.pid; error_log {at}/nginx.log;\n\
             events {{ worker_connections 512; }}\n\
             http {{ access_log off; client_max_body_size 0; client_body_temp_path {at}/t1; proxy_temp_path {at}/t2;\n\
             fastcgi_temp_path {at}/t3; uwsgi_temp_path {at}/t4; scgi_temp_path {at}/t5;\n\
             server {{ listen unix:{at}/nginx.sock; root {at}/www;\n{extra}\n}} }}\n"
        ),
    )
    .unwrap();
    let running = dir.join("nginx.pid");
    let _ = fs::remove_file(&running);
    let mut command = Command::new(tools::program("nginx"));
    command.arg("-p").arg(dir).arg("-c").arg(dir.join("nginx.conf")).arg("-e").arg(dir.join("nginx.log"));
    let mut process = Process::start(&mut command);
    process.address = format!("unix:{at}/nginx.sock");
    let address = process.address.clone();
    eventually("nginx listens", secs(60), || {
        assert!(process.child.try_wait().unwrap().is_none(), "nginx ended: {:?}", process.stderr.all());
        // It opens one socket after the other, and then writes the file.
        Stream::connect(&address).ok().filter(|_| running.exists())
    });
    process
}

pub fn python_http_server(dir: &Path) -> Process {
    let mut command = Command::new(tools::program("python3"));
    command.args(["-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory"]).arg(dir);
    let mut process = Process::start(&mut command);
    let line = process.stdout.wait_for("Serving HTTP on ", secs(20));
    let port = line.split(" port ").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    process.address = format!("127.0.0.1:{port}");
    process
}

const WEBSOCKET_ECHO: &str = r#"
import asyncio, websockets
async def echo(ws):
    async for message in ws:
        await ws.send(message)
async def main():
    async with websockets.serve(echo, "127.0.0.1", 0, compression=None, max_size=None, ping_interval=None) as server:
        print("port", server.sockets[0].getsockname()[1], flush=True)
        await asyncio.get_running_loop().create_future()
asyncio.run(main())
"#;

/// An echo server with the Python package `websockets`.
pub fn websocket_echo() -> Process {
    let mut process =
        Process::start(Command::new(tools::python("websockets")).args(["-u", "-c", WEBSOCKET_ECHO]));
    let line = process.stdout.wait_for("port ", secs(20));
    process.address = format!("127.0.0.1:{}", line.trim_start_matches("port "));
    process
}

const COUNTING_BACKEND: &str = r#"
import asyncio, socket, struct, sys
log = open(sys.argv[1], "ab", buffering=0)
name = sys.argv[2].encode()
def fault():
    try: return open(sys.argv[1] + ".fault").read()
    except FileNotFoundError: return ""
def reset(transport):
    linger = struct.pack("ii", 1, 0)
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    transport.abort()
class Server(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.data = transport, b""
        if fault() == "resets-connections": reset(transport)
    def data_received(self, data):
        self.data += data
        while True:
            head, sep, rest = self.data.partition(b"\r\n\r\n")
            if not sep: return
            length = 0
            for line in head.split(b"\r\n")[1:]:
                key, _, value = line.partition(b":")
                if key.lower() == b"content-length": length = int(value)
            if len(rest) < length: return
            self.data = rest[length:]
            method, target, _ = head.split(b" ", 2)
            if method == b"POST": log.write(target + b"\n")
            answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nX-Backend: %s\r\n\r\n%s" % (len(name), name, name)
            now = fault()
            if now == "resets-requests": return reset(self.transport)
            if now == "swallows": return
            if now == "slow" and target != b"/healthz":
                asyncio.get_running_loop().call_later(2.5, self.transport.write, answer)
            else: self.transport.write(answer)
async def main():
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", int(sys.argv[3]), backlog=1024)
    print("port", server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"#;

/// A backend process that appends the target of every POST to `log`, then answers with its name. `port` 0 takes a free
/// port, which no other test gets while the process is ended. A file `LOG.fault` changes what it does from the next
/// connection or request on: `resets-connections`, `resets-requests`, `swallows` (it never answers), `slow` (it answers
/// after 2.5 s, checks at once).
pub fn counting_backend(log: &Path, name: &str, port: u16) -> Process {
    let port = if port == 0 { port::free() } else { port };
    let mut command = Command::new(tools::program("python3"));
    command.args(["-u", "-c", COUNTING_BACKEND]).arg(log).arg(name).arg(port.to_string());
    let mut process = Process::start(&mut command);
    let line = process.stdout.wait_for("port ", secs(20));
    process.address = format!("127.0.0.1:{}", line.trim_start_matches("port "));
    process
}

/// A deterministic endless stream of bytes. Its period is a prime, so that any shift is detected.
pub struct Pattern(Vec<u8>);

const PERIOD: usize = 1_048_573;

impl Pattern {
    pub fn new() -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut block: Vec<u8> = (0..PERIOD)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state.to_be_bytes()[0]
            })
            .collect();
        block.extend_from_within(..);
        Self(block)
    }

    /// `length` bytes (at most one period) from offset `at`.
    pub fn slice(&self, at: u64, length: usize) -> &[u8] {
        let start = usize::try_from(at % PERIOD as u64).unwrap();
        &self.0[start..start + length.min(PERIOD)]
    }

    /// Whether `bytes` equals the stream from offset `at`.
    pub fn is_at(&self, mut at: u64, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let length = bytes.len().min(PERIOD);
            if self.slice(at, length) != &bytes[..length] {
                return false;
            }
            at += length as u64;
            bytes = &bytes[length..];
        }
        true
    }

    pub fn write_to(&self, out: &mut impl Write, length: u64) -> std::io::Result<()> {
        let mut at = 0;
        while at < length {
            let piece = self.slice(at, usize::try_from((length - at).min(256 * 1024)).unwrap());
            out.write_all(piece)?;
            at += piece.len() as u64;
        }
        Ok(())
    }
}
