//! The admin listener beside silent, slow and flooding clients: a client that asks gets its answer soon.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use testing::attack::connect_from;
use testing::client::Stream;
use testing::tools::run;
use testing::{Client, Scripted, Server, eventually, millis, secs};

fn start(bind: &str, backends: usize) -> (Server, Scripted) {
    let backend = Scripted::answering("x");
    let list: String = (1..=backends).map(|n| format!(", \"10.0.{}.{}:80\"", n / 250, n % 250 + 1)).collect();
    let server = Server::start(&format!(
        "[admin]\nbind = \"{bind}\"\n[access-log]\ntarget = \"off\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"{}\"{list}]\nhealth = \"off\"\n",
        backend.address
    ));
    (server, backend)
}

/// Asks with curl on a connection of its own; gives the status and how long it took.
fn asked(address: &str, path: &str) -> (String, Duration) {
    let started = Instant::now();
    let mut words = vec!["-sS", "-m", "120", "-o", "/dev/null", "-w", "%{http_code}"];
    let url = match address.strip_prefix("unix:") {
        Some(socket) => {
            words.extend(["--unix-socket", socket]);
            format!("http://localhost{path}")
        }
        None => format!("http://{address}{path}"),
    };
    words.push(&url);
    let status = String::from_utf8(run("curl", &words, secs(130)).stdout).unwrap();
    (status, started.elapsed())
}

/// Clients that begin anew as often as they can, on threads of their own.
struct Crowd {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
    begun: Arc<AtomicUsize>,
}

impl Crowd {
    fn new(count: usize, address: &str, visit: impl Fn(&mut Client) + Send + Sync + 'static) -> Self {
        let address = address.to_owned();
        Self::of(count, move || {
            let Ok(mut client) = Client::try_connect(&address) else { return };
            client.stream.set_write_timeout(Some(secs(2)));
            visit(&mut client);
        })
    }

    fn of(count: usize, visit: impl Fn() + Send + Sync + 'static) -> Self {
        let (stop, begun, visit) =
            (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)), Arc::new(visit));
        let threads = (0..count)
            .map(|_| {
                let (stop, begun, visit) = (stop.clone(), begun.clone(), visit.clone());
                std::thread::spawn(move || {
                    while !stop.load(SeqCst) {
                        begun.fetch_add(1, SeqCst);
                        visit();
                    }
                })
            })
            .collect();
        Self { stop, threads, begun }
    }

    fn end(self) -> usize {
        self.stop.store(true, SeqCst);
        for thread in self.threads {
            thread.join().unwrap();
        }
        self.begun.load(SeqCst)
    }
}

/// Every answer comes while `crowd` is there, that of `/healthz` soon, and little of the processor is used.
#[track_caller]
fn watched(server: &Server, address: &str, crowd: Crowd, paths: &[&str]) {
    let (cpu, started) = (server.cpu_time(), Instant::now());
    let mut slowest = Duration::ZERO;
    for path in paths.iter().cycle().take(9) {
        let (status, took) = asked(address, path);
        assert_eq!(status, "200", "{path} after {took:?}");
        if *path == "/healthz" {
            slowest = slowest.max(took);
        }
    }
    std::thread::sleep(secs(2).saturating_sub(started.elapsed()));
    let (used, time) = (server.cpu_time() - cpu, started.elapsed());
    let begun = crowd.end();
    eprintln!("slowest {slowest:?}, {used:?} of the processor in {time:?}, {begun} connections");
    assert!(slowest < SOON, "{slowest:?}");
    // A tenth each for what is asked, for pages and for new clients, with the debts of a pause; the kernel counts in ticks.
    assert!(used < time * 2 / 5 + millis(300), "{used:?} of the processor in {time:?}");
}

/// A bound that the machine's other work does not break: before there was no answer at all, and now it takes some 60 ms beside
/// silent clients, and up to a second beside those that ask without end.
const SOON: Duration = Duration::from_secs(30);

fn beside_silent_and_returning_clients(bind: &str) {
    let (server, _backend) = start(bind, 0);
    let address = match bind.strip_prefix("unix:@DIR@") {
        Some(file) => format!("unix:{}{file}", server.dir.path().display()),
        None => server.admin(),
    };
    // On threads: where the kernel's queue is full, connecting takes long.
    let silent: Vec<_> = (0..20)
        .map(|_| {
            let address = address.clone();
            std::thread::spawn(move || {
                (0..50).filter_map(|_| Stream::connect(&address).ok()).collect::<Vec<Stream>>()
            })
        })
        .collect();
    let crowd = Crowd::new(100, &address, |client| drop(client.read_to_end_within(secs(1))));
    watched(&server, &address, crowd, &["/healthz"]);
    let silent: Vec<Stream> = silent.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    assert_eq!(silent.len(), 1000);
}

#[test]
fn healthz_answers_beside_a_thousand_silent_clients_over_tcp() {
    beside_silent_and_returning_clients("127.0.0.1:0");
}

#[test]
fn healthz_answers_beside_a_thousand_silent_clients_over_a_unix_socket() {
    beside_silent_and_returning_clients("unix:@DIR@/admin.sock");
}

#[test]
fn healthz_answers_beside_clients_that_send_byte_by_byte() {
    let (server, _backend) = start("127.0.0.1:0", 0);
    let address = server.admin();
    let crowd = Crowd::new(100, &address, |client| {
        let head = format!("GET /healthz HTTP/1.1\r\nHost: x\r\nX: {}", "y".repeat(6000));
        for byte in head.bytes() {
            if client.try_send([byte]).is_err() {
                return;
            }
        }
        // It begins anew when it was sent away, not before.
        let _ = client.read_to_end_within(secs(1));
    });
    watched(&server, &address, crowd, &["/healthz"]);
}

#[test]
fn pages_are_served_beside_clients_that_ask_without_end_and_read_nothing_or_all() {
    for reads in [false, true] {
        let (server, _backend) = start("127.0.0.1:0", 100);
        let address = server.admin();
        let crowd = Crowd::new(100, &address, move |client| {
            let request = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
            for _ in 0..200 {
                if client.try_send(request).is_err()
                    || (reads && client.read_to_end_within(millis(20)).1 != testing::End::Open)
                {
                    return;
                }
            }
            let _ = client.read_to_end_within(secs(1));
        });
        watched(&server, &address, crowd, &["/healthz", "/metrics", "/status"]);
    }
}

#[test]
fn a_client_in_the_middle_of_an_answer_keeps_its_place_beside_silent_ones() {
    let (server, _backend) = start("127.0.0.1:0", 0);
    let address = server.admin();
    let mut kept = Client::connect(&address);
    assert_eq!(kept.get("/healthz", &[]).status, 200);
    let mut silent: Vec<Stream> = Vec::new();
    // The longest idle client is closed first: it is never this one, which asks again after each few.
    for _ in 0..30 {
        silent.extend((0..10).map(|_| Stream::connect(&address).unwrap()));
        assert_eq!(kept.get("/healthz", &[]).status, 200);
    }
    eventually("room was made for most of them", secs(30), || {
        let page = kept.get("/metrics", &[]);
        assert_eq!(page.status, 200, "it was asked for on a connection that was there");
        let text = page.text();
        let mut counts =
            text.lines().filter_map(|line| line.strip_prefix("penstock_admin_clients_closed_total "));
        (counts.next().unwrap().parse::<u64>().unwrap() > 200).then_some(())
    });
    drop(silent);
}

#[test]
fn an_address_over_its_share_holds_up_no_monitor_for_a_second() {
    let (server, _backend) = start("127.0.0.1:0", 0);
    let address = server.admin();
    assert_eq!(asked(&address, "/metrics").0, "200");
    // They ask again and again, so their slots are in use, and begin anew as soon as they are sent away.
    let crowd = {
        let address = address.clone();
        Crowd::of(60, move || {
            let Ok(mut stream) = connect_from("127.0.0.7", &address) else { return };
            let _ = stream.set_read_timeout(Some(secs(1)));
            let mut room = [0; 4096];
            for _ in 0..10 {
                let is_sent = stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").is_ok();
                if !is_sent || !matches!(stream.read(&mut room), Ok(1..)) {
                    return;
                }
            }
        })
    };
    let closed = || {
        let metrics = server.metrics();
        let line = metrics.lines().find(|line| line.starts_with("penstock_admin_clients_closed_total "));
        line.unwrap().rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    eventually("clients are sent away", secs(20), || (closed() > 100).then_some(()));
    // Where each is held up for a second or more, none is answered earlier; a busy machine may be late with some of them.
    let (mut times, mut early) = (Vec::new(), 0);
    while early < 3 && times.len() < 60 {
        let (status, took) = asked(&address, "/metrics");
        assert_eq!(status, "200");
        early += usize::from(took < secs(1));
        times.push(took);
    }
    crowd.end();
    eprintln!("{times:?}");
    assert!(early >= 3, "{times:?}");
}

#[test]
fn an_address_with_hundreds_of_connections_that_have_asked_holds_up_no_other() {
    let (server, _backend) = start("127.0.0.1:0", 0);
    let address = server.admin();
    let crowd: Vec<_> = (0..900)
        .map(|_| {
            let mut stream = connect_from("127.0.0.7", &address).unwrap();
            stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            stream
        })
        .collect();
    let (status, took) = asked(&address, "/healthz");
    assert_eq!(status, "200");
    assert!(took < secs(30), "{took:?}");
    drop(crowd);
}
