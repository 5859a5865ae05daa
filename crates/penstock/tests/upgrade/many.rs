//! Upgrades in a row under a load of every kind: no request fails, no connection is reset, every transfer is whole.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Instant;

use testing::load::{Connections, Load};
use testing::peers::{Pattern, websocket_echo};
use testing::pki::{Time, self_signed};
use testing::server::run_to_end;
use testing::websocket::WebSocket;
use testing::{Client, Scripted, eventually, millis, secs, tools};

use crate::front::Front;

const UPGRADES: usize = 20;

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

fn downloads(size: u64) -> Scripted {
    let pattern = Arc::new(Pattern::new());
    Scripted::start(move |talk| {
        while talk.request().is_some() {
            talk.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n"));
            let mut at = 0;
            while at < size {
                let left = usize::try_from(size - at).unwrap();
                let piece = pattern.slice(at, left.min(256 * 1024));
                if !talk.send(piece) {
                    return;
                }
                at += piece.len() as u64;
            }
        }
    })
}

/// Reads a download slowly. Returns the number of bytes that are as they were sent.
fn download(address: &str, pattern: &Pattern, size: u64, stop: &AtomicBool) -> u64 {
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
    while at < size {
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

/// Sends and gets pieces of one connection until it is told to stop. Returns the number of bytes that came back.
fn talk(address: &str, pattern: &Pattern, stop: &AtomicBool) -> Result<u64, String> {
    let mut stream = TcpStream::connect(address).map_err(|error| format!("connect: {error}"))?;
    stream.set_read_timeout(Some(secs(30))).unwrap();
    let (mut at, mut back) = (0, vec![0; 20_000]);
    while !stop.load(SeqCst) {
        stream.write_all(pattern.slice(at, back.len())).map_err(|error| format!("after {at}: {error}"))?;
        stream.read_exact(&mut back).map_err(|error| format!("after {at}: {error}"))?;
        if !pattern.is_at(at, &back) {
            return Err(format!("wrong bytes after {at}"));
        }
        at += back.len() as u64;
        // As a client that has not always something to say.
        thread::sleep(millis(50));
    }
    Ok(at)
}

/// The counters of listeners and backends, by name and labels.
fn counters(front: &Front) -> BTreeMap<String, u64> {
    let metrics = front.server.metrics();
    let is_one = |name: &str| {
        ["penstock_listener_", "penstock_backend_"].iter().any(|part| name.starts_with(part))
            && name.split('{').next().unwrap().ends_with("_total")
    };
    let all = metrics.lines().filter_map(|line| line.rsplit_once(' ')).filter(|(name, _)| is_one(name));
    all.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
}

/// How much there is of what goes on meanwhile.
struct Scale {
    /// Bytes of one download. It goes on over several upgrades.
    download: u64,
    downloads: usize,
    /// Transfers that are made at least.
    transfers: usize,
    /// TCP sessions and WebSockets that go on over all upgrades.
    lasting: usize,
}

#[test]
fn twenty_upgrades_in_a_row_fail_no_request_and_cut_no_transfer() {
    upgrade_in_a_row(&Scale { download: 64 * 1024 * 1024, downloads: 2, transfers: 1, lasting: 2 });
}

/// The same with downloads of a gigabyte and a thousand transfers:
///
/// ```console
/// $ cargo test --locked --workspace --test upgrade -- --ignored --nocapture in_a_row_of_full_size
/// ```
#[test]
#[ignore = "it takes minutes, and both cores"]
fn twenty_upgrades_in_a_row_of_full_size() {
    upgrade_in_a_row(&Scale { download: 1_000_000_000, downloads: 4, transfers: 1000, lasting: 50 });
}

fn upgrade_in_a_row(scale: &Scale) {
    let (web, echo_server, files, sockets) =
        (Scripted::answering("x"), echo(), downloads(scale.download), websocket_echo());
    let refuses = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
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
         [pool.app]\nhealth = {{ tcp = true, interval = \"500ms\", fall = 1 }}\nbackends = [\"{}\", \"{refuses}\"]\n\
         [pool.echo]\nhealth = \"off\"\nbackends = [\"{echo_server}\"]\n\
         [pool.files]\nhealth = \"off\"\nbackends = [\"{}\"]\n[pool.ws]\nhealth = \"off\"\nbackends = [\"{}\"]\n",
        certificates.path().display(),
        web.address,
        files.address,
        sockets.address,
    ));
    let [address, secure, raw, local] =
        ["web", "secure", "raw", "local"].map(|name| front.server.address(name));
    let pattern = Arc::new(Pattern::new());
    // One that serves is checked once more by each process.
    let are_known = |front: &Front| {
        let [serves, down] = [&*web.address, &*refuses].map(|backend| front.server.health(backend));
        ["up", "unchecked"].contains(&&*serves) && down == "down"
    };
    eventually("both are judged", secs(20), || are_known(&front).then_some(()));

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
    let short_sockets = {
        let address = address.clone();
        Again::start(1, move || {
            let mut socket = WebSocket::open(&address, "/ws");
            socket.echo("short");
            thread::sleep(millis(100));
            Ok(())
        })
    };
    let done = Arc::new(AtomicBool::new(false));
    let slow: Vec<_> = (0..scale.downloads)
        .map(|_| {
            let (address, pattern, done) = (address.clone(), pattern.clone(), done.clone());
            let size = scale.download;
            thread::spawn(move || download(&address, &pattern, size, &done))
        })
        .collect();
    let lasting: Vec<_> = (0..scale.lasting)
        .map(|_| {
            let (raw, pattern, done) = (raw.clone(), pattern.clone(), done.clone());
            thread::spawn(move || talk(&raw, &pattern, &done))
        })
        .collect();
    let mut lasting_sockets: Vec<_> = (0..scale.lasting).map(|_| WebSocket::open(&address, "/ws")).collect();

    let mut earlier = Vec::new();
    let mut counted = counters(&front);
    let began = Instant::now();
    for number in 0..UPGRADES {
        earlier.push(front.pid());
        front.upgrade(&["--drain-for", "1h"]);
        assert_eq!(front.serving(), front.pid(), "upgrade {number}");
        assert!(are_known(&front), "upgrade {number}");
        lasting_sockets.iter_mut().for_each(|socket| socket.echo(&format!("after upgrade {number}")));
        let now = counters(&front);
        for (name, before) in &counted {
            assert!(
                now.get(name).is_some_and(|now| now >= before),
                "upgrade {number}: {name}: {before}, then {now:?}"
            );
        }
        counted = now;
        eventually("requests come through", secs(20), {
            let before = kept.good();
            let kept = &kept;
            move || (kept.good() > before + 5).then_some(())
        });
    }
    let took = began.elapsed();
    eventually("there were enough transfers", secs(600), || {
        (transfers.good.load(SeqCst) >= scale.transfers).then_some(())
    });
    done.store(true, SeqCst);
    for thread in slow {
        assert_eq!(thread.join().unwrap(), scale.download);
    }
    let talked: u64 = lasting.into_iter().map(|thread| thread.join().unwrap().unwrap()).sum();
    let [tls, http2, transfers, short_sockets] =
        [("TLS", tls), ("HTTP/2", http2), ("transfers", transfers), ("WebSockets", short_sockets)]
            .map(|(what, again)| again.assert_clean(what) as u64);
    let [kept, new, unix] = [kept, new, unix].map(|load| {
        let totals = load.stop();
        totals.assert_clean();
        totals.good
    });
    lasting_sockets.iter_mut().for_each(|socket| socket.echo("end"));
    for pid in earlier {
        front.wait_gone(pid);
    }
    lasting_sockets.iter_mut().for_each(|socket| socket.echo("in the last process alone"));
    let lasting = lasting_sockets.len() as u64;
    drop(lasting_sockets);
    let web_sessions = kept + new + short_sockets + lasting + scale.downloads as u64;
    for (listener, wanted) in
        [("web", web_sessions), ("raw", transfers + lasting), ("local", unix), ("secure", tls + 2 * http2)]
    {
        let name = format!("penstock_listener_sessions_total{{listener=\"{listener}\"}}");
        let (mut last, mut since) = (0, Instant::now());
        let counted = eventually("the counters stand still", secs(20), || {
            let now = counters(&front)[&name];
            if now != last {
                (last, since) = (now, Instant::now());
            }
            (since.elapsed() > secs(2)).then_some(now)
        });
        assert_eq!(counted, wanted, "sessions of {listener}");
    }
    eprintln!(
        "{UPGRADES} upgrades in {took:.1?}: {kept} requests on kept connections, {new} on new ones, {unix} on a Unix socket, \
         {tls} with TLS, {http2} pairs of HTTP/2, {transfers} transfers, {short_sockets} short WebSockets; {lasting} WebSockets \
         and {lasting} TCP sessions ({talked} bytes each way) went on over all of them"
    );
    let mut last = Client::connect(&address);
    assert_eq!(last.get("/", &[]).text(), "x");
}
