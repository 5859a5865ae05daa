//! Upgrades in a row under a load of every kind: no request fails, no connection is reset, every transfer is whole.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;

use testing::load::{Connections, Load};
use testing::peers::{Pattern, websocket_echo};
use testing::pki::{Time, self_signed};
use testing::server::run_to_end;
use testing::websocket::WebSocket;
use testing::{Client, Scripted, eventually, millis, secs, tools};

use crate::front::Front;

const UPGRADES: usize = 20;

/// A download goes on over several upgrades.
const DOWNLOAD: u64 = 64 * 1024 * 1024;

/// Bytes of one transfer, each way.
const TRANSFER: u64 = 300_000;

/// Sends back what it gets.
pub(crate) fn echo() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for client in listener.incoming() {
            let Ok(mut client) = client else { return };
            thread::spawn(move || {
                let mut back = client.try_clone().unwrap();
                let _ = std::io::copy(&mut client, &mut back);
                let _ = back.shutdown(std::net::Shutdown::Write);
            });
        }
    });
    address
}

fn downloads() -> Scripted {
    let pattern = Arc::new(Pattern::new());
    Scripted::start(move |talk| {
        while talk.request().is_some() {
            talk.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {DOWNLOAD}\r\n\r\n"));
            let mut at = 0;
            while at < DOWNLOAD {
                let piece = pattern.slice(at, 256 * 1024);
                if !talk.send(piece) {
                    return;
                }
                at += piece.len() as u64;
            }
        }
    })
}

/// Reads a download slowly. Returns the number of bytes that are as they were sent.
fn download(address: &str, pattern: &Pattern, stop: &AtomicBool) -> u64 {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(secs(30))).unwrap();
    stream.write_all(b"GET /download HTTP/1.1\r\nHost: a.example\r\n\r\n").unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut one = [0];
        stream.read_exact(&mut one).unwrap();
        head.push(one[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&head));
    let (mut at, mut bytes) = (0, vec![0; 128 * 1024]);
    while at < DOWNLOAD {
        let count = stream.read(&mut bytes).unwrap();
        assert!(count > 0, "the download ends after {at} bytes");
        assert!(pattern.is_at(at, &bytes[..count]), "wrong bytes after {at}");
        at += count as u64;
        if !stop.load(SeqCst) {
            // As a client with a slow line.
            thread::sleep(millis(10));
        }
    }
    at
}

/// One connection that sends and gets the same bytes.
fn transfer(address: &str, pattern: &Pattern) -> Result<(), String> {
    let mut stream = TcpStream::connect(address).map_err(|error| format!("connect: {error}"))?;
    stream.set_read_timeout(Some(secs(30))).unwrap();
    let mut sending = stream.try_clone().unwrap();
    thread::scope(|scope| {
        let sent = scope.spawn(move || {
            pattern.write_to(&mut sending, TRANSFER)?;
            sending.shutdown(std::net::Shutdown::Write)
        });
        let mut back = Vec::new();
        stream.read_to_end(&mut back).map_err(|error| format!("read: {error}"))?;
        sent.join().unwrap().map_err(|error| format!("send: {error}"))?;
        let is_whole = back.len() as u64 == TRANSFER && pattern.is_at(0, &back);
        is_whole.then_some(()).ok_or_else(|| format!("{} of {TRANSFER} bytes came back", back.len()))
    })
}

/// Does something again and again on some threads, and keeps what fails.
struct Again {
    stop: Arc<AtomicBool>,
    good: Arc<AtomicUsize>,
    threads: Vec<thread::JoinHandle<Vec<String>>>,
}

impl Again {
    fn start(count: usize, one: impl Fn() -> Result<(), String> + Clone + Send + 'static) -> Self {
        let (stop, good) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let threads = (0..count).map(|_| {
            let (stop, good, one) = (stop.clone(), good.clone(), one.clone());
            thread::spawn(move || {
                let mut failures = Vec::new();
                while !stop.load(SeqCst) {
                    match one() {
                        Ok(()) => drop(good.fetch_add(1, SeqCst)),
                        Err(why) => failures.push(why),
                    }
                }
                failures
            })
        });
        Self { threads: threads.collect(), stop, good }
    }

    #[track_caller]
    fn assert_clean(self, what: &str) -> usize {
        self.stop.store(true, SeqCst);
        let failures: Vec<_> = self.threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        let shown = &failures[..failures.len().min(5)];
        let good = self.good.load(SeqCst);
        assert!(failures.is_empty() && good > 0, "{what}: {} of {good} failed: {shown:#?}", failures.len());
        good
    }
}

fn curl(arguments: &[&str], codes: &str) -> Result<(), String> {
    let mut command = Command::new(tools::program("curl"));
    command.args(["-sS", "-k", "--max-time", "20", "-o", "/dev/null", "-w", "%{http_code}"]).args(arguments);
    let output = run_to_end(&mut command, secs(30));
    match output.status.success() && output.stdout == codes.as_bytes() {
        true => Ok(()),
        false => Err(format!("curl {arguments:?}: {output:?}")),
    }
}

#[test]
fn twenty_upgrades_in_a_row_fail_no_request_and_cut_no_transfer() {
    let (web, echo_server, files, sockets) =
        (Scripted::answering("x"), echo(), downloads(), websocket_echo());
    let certificates = tempfile::tempdir().unwrap();
    self_signed(certificates.path(), "a", &["a.example"], Time::Now);
    let mut front = Front::start(&format!(
        "[process]\nworkers = 2\nstate-directory = \"@DIR@/state\"\n[control]\nsocket = \"@DIR@/control.sock\"\n\
         [admin]\nbind = \"127.0.0.1:0\"\n[access-log]\ntarget = \"off\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\n\
         [[listener.web.route]]\npath = \"/download\"\npool = \"files\"\n\
         [[listener.web.route]]\npath = \"/ws\"\npool = \"ws\"\n\
         [[listener.web.route]]\npool = \"app\"\n\
         [listener.secure]\nbind = \"127.0.0.1:0\"\npool = \"app\"\ntls = {{ certificates = \"{}\" }}\n\
         [listener.raw]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"echo\"\n\
         [listener.local]\nbind = \"unix:@DIR@/web.sock\"\npool = \"app\"\n\
         [pool.app]\nhealth = \"off\"\nbackends = [\"{}\"]\n[pool.echo]\nhealth = \"off\"\nbackends = [\"{echo_server}\"]\n\
         [pool.files]\nhealth = \"off\"\nbackends = [\"{}\"]\n[pool.ws]\nhealth = \"off\"\nbackends = [\"{}\"]\n",
        certificates.path().display(),
        web.address,
        files.address,
        sockets.address,
    ));
    let [address, secure, raw, local] =
        ["web", "secure", "raw", "local"].map(|name| front.server.address(name));
    let pattern = Arc::new(Pattern::new());

    let kept = Load::start(&address, "/", Connections::Kept, 4, Some(200));
    let new = Load::start(&address, "/", Connections::New, 2, Some(100));
    let unix = Load::start(&local, "/", Connections::New, 1, Some(30));
    let url = format!("https://{secure}/");
    let tls = Again::start(1, move || curl(&["--http1.1", &url], "200"));
    let (once, twice) = (format!("https://{secure}/1"), format!("https://{secure}/2"));
    // Two requests on one connection.
    let http2 = Again::start(1, move || curl(&["--http2", &once, "-o", "/dev/null", &twice], "200200"));
    let transfers = {
        let (raw, pattern) = (raw.clone(), pattern.clone());
        Again::start(2, move || transfer(&raw, &pattern))
    };
    let done = Arc::new(AtomicBool::new(false));
    let slow: Vec<_> = (0..2)
        .map(|_| {
            let (address, pattern, done) = (address.clone(), pattern.clone(), done.clone());
            thread::spawn(move || download(&address, &pattern, &done))
        })
        .collect();
    let mut socket = WebSocket::open(&address, "/ws");
    socket.echo("begin");

    let mut earlier = Vec::new();
    let mut sessions = 0;
    for number in 0..UPGRADES {
        earlier.push(front.pid());
        front.upgrade(&["--drain-for", "1h"]);
        assert_eq!(front.serving(), front.pid(), "upgrade {number}");
        socket.echo(&format!("after upgrade {number}"));
        let metrics = front.server.metrics();
        let line = metrics
            .lines()
            .find(|line| line.starts_with("penstock_listener_sessions_total{listener=\"web\"}"));
        let now: u64 = line.unwrap().rsplit(' ').next().unwrap().parse().unwrap();
        assert!(now >= sessions, "upgrade {number}: {sessions} sessions, then {now}");
        sessions = now;
        eventually("requests come through", secs(20), {
            let before = kept.good();
            let kept = &kept;
            move || (kept.good() > before + 5).then_some(())
        });
    }
    done.store(true, SeqCst);
    for thread in slow {
        assert_eq!(thread.join().unwrap(), DOWNLOAD);
    }
    let counts = [
        ("TLS", tls.assert_clean("TLS")),
        ("HTTP/2", http2.assert_clean("HTTP/2")),
        ("transfers", transfers.assert_clean("transfers")),
    ];
    for (what, load) in [("kept", kept), ("new", new), ("unix", unix)] {
        let totals = load.stop();
        totals.assert_clean();
        eprintln!("{what}: {} requests", totals.good);
    }
    eprintln!("{counts:?}");
    for pid in earlier {
        front.wait_gone(pid);
    }
    // The WebSocket has been in all of them.
    socket.echo("end");
    let mut last = Client::connect(&address);
    assert_eq!(last.get("/", &[]).text(), "x");
}
