//! Descriptors and memory under clients that make the process hold as many as they can: clients from other addresses are
//! served, admin and control clients get their answers, and everything is given back.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use testing::account::{count, descriptors, start};
use testing::attack::{self, Attack, Kind, STREAMS};
use testing::client::request;
use testing::pki::{Time, self_signed};
use testing::server::Setup;
use testing::{Client, Scripted, Server, eventually, millis, peers, secs};

/// Each attack takes the processor and the descriptors of this test: one at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Two pools, so that the backend of the measured requests is not the attacked one.
fn config(good: &str, held: &str, more: &str) -> String {
    format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[admin]\nbind = \"127.0.0.1:0\"\n\
         [process]\nworkers = 2\n[access-log]\ntarget = \"off\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n{more}\n\
         [[listener.web.route]]\npath = \"/held/\"\npool = \"held\"\n\
         [pool.app]\nbackends = [\"{good}\"]\n[pool.held]\nbackends = [\"{held}\"]\n"
    )
}

fn open(server: &Server) -> usize {
    fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count()
}

/// How many are open as soon as their number stays the same: "ready" is written before the last threads have opened
/// theirs, and the last connection may still be closing.
fn settled(server: &Server) -> usize {
    let (mut last, mut times) = (0, 0);
    eventually("the number of open descriptors stays the same", secs(10), || {
        let now = open(server);
        times = if now == last { times + 1 } else { 0 };
        last = now;
        (times == 60).then_some(now)
    })
}

/// Memory that the process has allocated and touched, in KiB. Pages of the program file, which the first use of some code
/// brings in, are not of clients.
fn allocated(server: &Server) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// What traffic holds and would not give up for others.
fn held(server: &Server) -> usize {
    let descriptors = descriptors(server);
    let places = &descriptors["by_use"];
    count(&descriptors["used"]) - count(&places["idle"]) - count(&places["spare"])
}

#[track_caller]
fn everything_is_given_back(server: &Server) {
    eventually("every place is given back", secs(30), || (held(server) == 0).then_some(()));
}

/// The middle one of five.
fn middle(mut measure: impl FnMut()) -> u128 {
    let mut took: Vec<_> = (0..5)
        .map(|_| {
            let began = Instant::now();
            measure();
            began.elapsed().as_millis()
        })
        .collect();
    took.sort_unstable();
    took[2]
}

/// Where an attack comes from.
#[derive(Clone, Copy, Debug)]
enum From {
    One(&'static str),
    /// Each connection from an address of its own.
    Many,
}

/// How long other clients wait during an attack, in milliseconds.
#[derive(Debug)]
struct Times {
    p99: u128,
    healthz: u128,
    status: u128,
}

impl Times {
    /// Every request must be answered.
    fn taken(server: &Server, address: &str, elsewhere: &str) -> Self {
        let met = attack::ask(address, elsewhere, 400);
        assert_eq!(met.failures, [] as [String; 0], "{:#}", descriptors(server));
        Self {
            p99: met.p99,
            healthz: middle(|| assert_eq!(Client::connect(&server.admin()).get("/healthz", &[]).status, 200)),
            status: middle(|| assert!(server.ctl(&["status"]).status.success())),
        }
    }

    /// Whether they are short, compared with those of a server that is not attacked.
    fn are_short_beside(&self, quiet: &Self) -> bool {
        self.p99 <= (2 * quiet.p99).max(quiet.p99 + 50)
            && self.healthz < quiet.healthz + 100
            && self.status < quiet.status + 100
    }
}

/// Attacks a server, and measures requests from `elsewhere`.
fn measure_under_attack(limit: u32, kind: Kind, from: From, elsewhere: &str) {
    let (good, bad) = (Scripted::answering("ok"), attack::backend());
    let server = start(limit, &config(&good.address, &bad.address, ""));
    let address = server.address("web");
    let calm = start(limit, &config(&good.address, &bad.address, ""));
    let warm = attack::ask(&address, elsewhere, 200);
    assert_eq!(warm.failures, [] as [String; 0]);
    let (before, open_before) = (allocated(&server), open(&server));
    let attack = match from {
        From::One(source) => Attack::begin(&address, source, kind, 300),
        From::Many => Attack::from_many(&address, kind, 300),
    };
    assert!(attack.len() > 290, "{}", attack.len());
    // As much as it gets: no more descriptors come for a while.
    let mut most = 0;
    eventually("the attack holds what it can get", secs(60), || {
        std::thread::sleep(millis(500));
        let now = open(&server);
        let grows = now > most + 5;
        most = most.max(now);
        (!grows && now > open_before + 50).then_some(())
    });
    // A machine with two cores on which others work is slow now and then; a server that holds clients up is slow each time.
    let mut times = Vec::new();
    let is_short = (0..20).any(|_| {
        let quiet = Times::taken(&calm, &calm.address("web"), elsewhere);
        let attacked = Times::taken(&server, &address, elsewhere);
        let is_short = attacked.are_short_beside(&quiet);
        times.push((quiet, attacked));
        is_short
    });
    let (grown, account) = (allocated(&server).saturating_sub(before), descriptors(&server));
    println!(
        "limit {limit}, {kind:?} from {from:?}: {times:?}; {most} descriptors, {grown} KiB more; {account}"
    );
    assert!(is_short, "without an attack, and attacked: {times:?}");
    assert!(count(&account["open"]) <= count(&account["reserve"]) + count(&account["used"]), "{account:#}");
    assert!(grown <= 300 * 1024 + 32 * 1024, "{grown} KiB");
    drop(attack);
    everything_is_given_back(&server);
}

#[test]
fn an_attack_on_a_small_process_costs_no_other_address_a_request() {
    let _one_at_a_time = ONE_AT_A_TIME.lock();
    for kind in Kind::ALL {
        measure_under_attack(1024, kind, From::One("127.0.0.2"), "127.0.0.1");
    }
}

#[test]
fn an_attack_on_a_large_process_costs_no_other_address_a_request() {
    let _one_at_a_time = ONE_AT_A_TIME.lock();
    for kind in Kind::ALL {
        measure_under_attack(20_000, kind, From::One("127.0.0.2"), "127.0.0.1");
    }
}

#[test]
fn an_attack_from_many_addresses_costs_no_other_address_a_request() {
    let _one_at_a_time = ONE_AT_A_TIME.lock();
    measure_under_attack(1024, Kind::SlowBackend, From::Many, "127.0.0.1");
    measure_under_attack(20_000, Kind::ZeroWindow, From::Many, "127.0.0.1");
}

/// Connects and says nothing, so many times.
fn silent(address: &str, count: usize) -> Vec<Client> {
    (0..count).map(|_| Client::connect(address)).collect()
}

#[test]
fn traffic_that_fills_the_account_takes_no_descriptor_of_admin_control_checks_or_a_reload() {
    let _one_at_a_time = ONE_AT_A_TIME.lock();
    let (good, bad) = (Scripted::answering("ok"), attack::backend());
    let checked = "[pool.app.health]\ntcp = true\ninterval = \"2s\"\ntimeout = \"2s\"\nfall = 2\n";
    let text = config(&good.address, &bad.address, "");
    let server = start(1024, &format!("{text}{checked}"));
    // More connections than the account has places for, each from an address of its own.
    let attack = Attack::from_many(&server.address("web"), Kind::SlowBackend, 600);
    eventually("traffic has every place", secs(60), || {
        let account = descriptors(&server);
        (count(&account["used"]) + 3 >= count(&account["traffic_limit"])).then_some(())
    });
    let admin = silent(&server.admin(), 80);
    let control = silent(server.control_socket().to_str().unwrap(), 80);
    let calm = start(1024, &text);
    let mut times = Vec::new();
    let is_short = (0..20).any(|_| {
        let healthz = |server: &Server| {
            middle(|| assert_eq!(Client::connect(&server.admin()).get("/healthz", &[]).status, 200))
        };
        let status = |server: &Server| middle(|| assert!(server.ctl(&["status"]).status.success()));
        let quiet = (healthz(&calm), status(&calm));
        let full = (healthz(&server), status(&server));
        times.push((quiet, full));
        full.0 < quiet.0 + 200 && full.1 < quiet.1 + 200
    });
    assert!(is_short, "/healthz and ctl status without clients, and with all: {times:?}");
    drop(calm);
    assert!(open(&server) <= 1024);
    // Checks go on: the end of a backend is noticed.
    let gone = good.address.clone();
    eventually("the check passes", secs(20), || (server.health(&gone) == "up").then_some(()));
    let more: String =
        (0..3).map(|n| format!("[listener.more{n}]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n")).collect();
    server.write_config(&format!("{text}{checked}{more}"));
    let reloaded = server.ctl(&["reload"]);
    assert!(reloaded.status.success(), "{reloaded:?}");
    drop(good);
    eventually("the check fails", secs(20), || (server.health(&gone) == "down").then_some(()));
    assert_eq!(server.stderr.count("Too many open files"), 0, "{:#?}", server.stderr.tail(20));
    drop((attack, admin, control));
    everything_is_given_back(&server);
}

#[test]
fn silent_admin_and_control_clients_of_a_small_process_take_no_descriptor_of_traffic() {
    let _one_at_a_time = ONE_AT_A_TIME.lock();
    let good = Scripted::answering("ok");
    let server = start(64, &config(&good.address, &good.address, ""));
    let admin = silent(&server.admin(), 100);
    let control = silent(server.control_socket().to_str().unwrap(), 100);
    assert_eq!(attack::ask(&server.address("web"), "127.0.0.1", 50).failures, [] as [String; 0]);
    assert_eq!(Client::connect(&server.admin()).get("/healthz", &[]).status, 200);
    assert!(server.ctl(&["status"]).status.success());
    assert!(open(&server) <= 64);
    assert_eq!(server.stderr.count("Too many open files"), 0, "{:#?}", server.stderr.tail(20));
    drop((admin, control));
    everything_is_given_back(&server);
}

#[test]
fn idle_backend_connections_are_closed_before_a_client_is_refused_or_closed() {
    const IDLE: usize = 24;
    // Until as many requests have come as there are to be connections.
    let (backend, gate) = Scripted::gated();
    // They expire only long after the test.
    let text = config(&backend.address, &backend.address, "")
        .replace("[pool.app]\n", "[pool.app]\ntimeouts = { keep-alive = \"600s\" }\n");
    let server = start(256, &text);
    let address = server.address("web");
    let get = request("GET", "/", &[], b"");
    let client = |number: usize| {
        let stream = attack::connect_from(&format!("127.0.0.{}", number + 10), &address).unwrap();
        Client::over(testing::client::Stream::Tcp(stream))
    };
    let mut first: Vec<_> = (0..IDLE).map(client).collect();
    first.iter_mut().for_each(|client| client.send(&get));
    eventually("each has a backend connection", secs(20), || {
        (backend.open.load(SeqCst) == IDLE).then_some(())
    });
    gate.open();
    first.iter_mut().for_each(|client| assert_eq!(client.response().status, 200));
    drop(first);
    let account = eventually("the backend connections are idle", secs(20), || {
        Some(descriptors(&server)).filter(|account| count(&account["by_use"]["clients"]) == 0)
    });
    assert_eq!(count(&account["by_use"]["idle"]), IDLE, "{account:#}");
    // As many as there are places for, if nothing is idle; a few less, for what workers cache.
    let most = count(&account["traffic_limit"]) / 2 - 4;
    let mut clients: Vec<_> = (0..most).map(client).collect();
    for client in &mut clients {
        client.send(&get);
        assert_eq!(client.response().status, 200);
    }
    for client in &mut clients {
        assert_eq!(client.get("/", &[]).status, 200, "it was not closed for another");
    }
    let account = descriptors(&server);
    assert!(count(&account["idle_closed"]) > 0, "{account:#}");
    assert_eq!(count(&account["refused"]["no-descriptors"]), 0, "{account:#}");
    drop(clients);
    everything_is_given_back(&server);
}

#[test]
fn bulk_flows_of_tcp_sessions_take_a_part_of_the_descriptors_and_go_on_without_pipes() {
    const SESSIONS: usize = 150;
    let _one_at_a_time = ONE_AT_A_TIME.lock();
    let good = Scripted::answering("ok");
    let bulk = Scripted::start(|talk| {
        let bytes = vec![b'x'; 64 * 1024];
        while talk.send(&bytes) {}
    });
    let listener = "[listener.raw]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"held\"\n";
    let text =
        config(&good.address, &bulk.address, "").replace("[pool.app]", &format!("{listener}[pool.app]"));
    let server = start(1024, &text);
    let address = server.address("raw");
    // They read what makes a flow one of bulk, and then nothing.
    let mut sessions: Vec<_> = (0..SESSIONS)
        .map(|_| {
            Client::over(testing::client::Stream::Tcp(attack::connect_from("127.0.0.2", &address).unwrap()))
        })
        .collect();
    for session in &mut sessions {
        assert_eq!(session.read_exactly(1024 * 1024).len(), 1024 * 1024);
    }
    let account = descriptors(&server);
    println!("{account}");
    assert!(count(&account["by_use"]["pipes"]) > 0, "{account:#}");
    assert!(count(&account["by_use"]["pipes"]) <= count(&account["traffic_limit"]) / 4, "{account:#}");
    assert!(count(&account["open"]) <= count(&account["reserve"]) + count(&account["used"]), "{account:#}");
    assert_eq!(attack::ask(&server.address("web"), "127.0.0.1", 50).failures, [] as [String; 0]);
    assert_eq!(Client::connect(&server.admin()).get("/healthz", &[]).status, 200);
    // Those without a pipe are moved as well.
    for session in &mut sessions {
        assert_eq!(session.read_exactly(1024 * 1024).len(), 1024 * 1024);
    }
    drop(sessions);
    everything_is_given_back(&server);
}

#[test]
fn a_closed_window_stops_the_backend_until_it_opens() {
    let _one_at_a_time = ONE_AT_A_TIME.lock();
    let written = Arc::new(AtomicUsize::new(0));
    const LENGTH: usize = 64 * 1024 * 1024;
    let backend = Scripted::start({
        let written = written.clone();
        move |talk| {
            if talk.request().is_none()
                || !talk.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n"))
            {
                return;
            }
            let bytes = vec![b'x'; 64 * 1024];
            for _ in 0..LENGTH / bytes.len() {
                if !talk.send(&bytes) {
                    return;
                }
                written.fetch_add(bytes.len(), SeqCst);
            }
        }
    });
    let server = start(1024, &config(&backend.address, &backend.address, ""));
    let before = allocated(&server);
    let mut client = testing::http2::Http2::connect(&server.address("web"));
    client.get(1, "/");
    // The window of the connection is closed after so many bytes; what follows fills sockets, and then nothing.
    let mut last = 0;
    eventually("the backend is stopped", secs(30), || {
        std::thread::sleep(millis(500));
        let now = written.load(SeqCst);
        (std::mem::replace(&mut last, now) == now && now > 0).then_some(())
    });
    assert!(last < LENGTH, "the backend wrote all of it");
    let grown = allocated(&server).saturating_sub(before);
    // What the allocator takes for its first objects of each size is most of it.
    assert!(grown < 8 * 1024, "{grown} KiB of {} KiB", LENGTH / 1024);
    let more = (64 * 1024 * 1024u32).to_be_bytes();
    for stream in [0, 1] {
        client.send(testing::http2::WINDOW_UPDATE, 0, stream, &more);
    }
    let mut read = 0;
    while read < LENGTH {
        read += client.wait_for("more", |frame| frame.kind == testing::http2::DATA).payload.len();
    }
    eventually("the backend has counted all", secs(10), || (written.load(SeqCst) == LENGTH).then_some(()));
    drop(client);
    everything_is_given_back(&server);
}

#[test]
fn behind_a_proxy_header_the_address_in_it_has_the_share() {
    let backend = Scripted::answering("ok");
    let listener = "proxy-protocol-from = [\"127.0.0.1\"]";
    let server = start(256, &config(&backend.address, &backend.address, listener));
    let address = server.address("web");
    let come = |source: &str| {
        let mut client = Client::connect(&address);
        client.send(format!("PROXY TCP4 {source} 192.0.2.9 4000 80\r\n"));
        client.send(request("GET", "/", &[], b""));
        let answer = client.try_response(secs(10));
        (client, answer.is_ok_and(|answer| answer.status == 200))
    };
    let held: Vec<_> = (0..80).map(|_| come("192.0.2.1")).collect();
    let refused = held.iter().filter(|(_, served)| !served).count();
    assert!((1..73).contains(&refused), "{refused} of 80");
    for _ in 0..4 {
        assert!(come("192.0.2.2").1, "another address behind the same proxy is served");
    }
    let account = descriptors(&server);
    assert!(count(&account["refused"]["source-share"]) >= refused, "{account:#}");
    drop(held);
    everything_is_given_back(&server);
}

#[test]
fn neighbours_behind_the_address_of_an_attack_are_served_where_descriptors_are_not_few() {
    let _one_at_a_time = ONE_AT_A_TIME.lock();
    measure_under_attack(20_000, Kind::SlowBackend, From::One("127.0.0.1"), "127.0.0.1");
}

#[test]
fn a_connection_from_before_the_attack_goes_on_even_from_its_address() {
    let _one_at_a_time = ONE_AT_A_TIME.lock();
    let (good, bad) = (Scripted::answering("ok"), attack::backend());
    let server = start(1024, &config(&good.address, &bad.address, ""));
    let address = server.address("web");
    let mut early = server.client("web");
    assert_eq!(early.get("/", &[]).status, 200);
    let attack = Attack::begin(&address, "127.0.0.1", Kind::SlowBackend, 300);
    eventually("the attack holds what it can get", secs(30), || (open(&server) > 400).then_some(()));
    for _ in 0..50 {
        assert_eq!(early.get("/", &[]).status, 200);
    }
    // The address has its share: a new client gets 503, with when to ask again.
    let refused = Client::connect(&address).request("GET", "/", &[], b"");
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("5")));
    let account = descriptors(&server);
    assert!(count(&account["refused"]["source-share"]) > 0, "{account:#}");
    let endings = server.ctl_json(&["status"])["listeners"][0]["endings"].clone();
    assert!(count(&endings["source-share"]) > 0, "{endings:#}");
    server.stderr.wait_for("refused descriptors: ", secs(10));
    let metrics = server.metrics();
    for line in [
        "penstock_descriptors_traffic{kind=\"additional\"}",
        "penstock_descriptors_refused_total{reason=\"source-share\"}",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    drop(attack);
    drop(early);
    everything_is_given_back(&server);
    assert_eq!(attack::ask(&address, "127.0.0.1", 20).failures, [] as [String; 0]);
}

#[test]
fn a_zero_window_holds_at_most_a_mebibyte_of_each_connection() {
    let _one_at_a_time = ONE_AT_A_TIME.lock();
    // As many as get a backend for each of their streams: what the allocator takes once is shared by all.
    let bad = attack::backend();
    windows_hold_at_most(1024, Kind::ZeroWindow, 60, &bad.address, "");
}

#[test]
fn a_tiny_window_holds_at_most_a_mebibyte_of_each_connection() {
    let _one_at_a_time = ONE_AT_A_TIME.lock();
    let bad = attack::backend();
    windows_hold_at_most(1024, Kind::TinyWindow, 60, &bad.address, "");
}

#[test]
fn a_zero_window_holds_at_most_2560_kib_of_each_connection_with_backends_of_http2() {
    let _one_at_a_time = ONE_AT_A_TIME.lock();
    let directory = tempfile::tempdir().unwrap();
    let (_backend, address) = nginx(directory.path());
    let pool = "http2 = \"on\"\n[pool.held.timeouts]\nkeep-alive = \"1s\"\n";
    // Two requests of each connection with windows of 64 KiB at the backend, the others with 4 KiB.
    windows_hold_at_most(2560, Kind::ZeroWindow, 40, &address, pool);
}

/// nginx with a large file, over HTTP/2 in the clear.
fn nginx(directory: &std::path::Path) -> (peers::Process, String) {
    fs::create_dir(directory.join("held")).unwrap();
    fs::write(directory.join("held/big"), vec![b'x'; 3_000_000]).unwrap();
    let port = testing::port::free();
    let (file, address) = (directory.join("nginx.conf"), format!("127.0.0.1:{port}"));
    let root = directory.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {root}/{name};\n"))
        .concat();
    let text = format!(
        "daemon off; master_process off; pid {root}/pid; error_log {root}/errors;\n\
         events {{ worker_connections 1000; }}\n\
         http {{ access_log off; {temporary} http2_max_concurrent_streams 128;\n\
         server {{ listen {address} http2; root {root}; }} }}\n"
    );
    fs::write(&file, text).unwrap();
    let mut command = std::process::Command::new(testing::tools::program("nginx"));
    let process = peers::Process::start(command.arg("-c").arg(&file).arg("-p").arg(directory));
    eventually("nginx listens", secs(10), || std::net::TcpStream::connect(&address).ok());
    (process, address)
}

/// `each`: KiB for each connection; 10 MiB are for the process, whose allocator keeps some freed memory (57 to 64 MiB were
/// measured for 60 connections with tiny windows).
fn windows_hold_at_most(each: u64, kind: Kind, connections: usize, backend: &str, pool: &str) {
    let good = Scripted::answering("ok");
    let text = format!("{}{pool}", config(&good.address, backend, ""));
    let server = start(20_000, &text);
    // Everything that a request needs once is there.
    assert_eq!(attack::ask(&server.address("web"), "127.0.0.1", 50).failures, [] as [String; 0]);
    let before = allocated(&server);
    let attack = Attack::begin(&server.address("web"), "127.0.0.2", kind, connections);
    let streams = connections * STREAMS as usize;
    eventually("every stream has its backend", secs(60), || {
        (count(&server.backend(backend)["in_flight"]) == streams).then_some(())
    });
    // What would be read beyond the bound would be read now: until the process has stopped growing.
    let mut last = 0;
    eventually("the process has stopped growing", secs(60), || {
        std::thread::sleep(secs(1));
        let now = allocated(&server);
        (now <= std::mem::replace(&mut last, now) + 64).then_some(())
    });
    let grown = allocated(&server).saturating_sub(before);
    println!("{grown} KiB for {connections} connections");
    assert!(grown <= 10 * 1024 + connections as u64 * each, "{grown} KiB for {connections} connections");
    drop(attack);
    everything_is_given_back(&server);
}

#[test]
fn the_heads_of_open_requests_are_bounded_together_and_what_is_beyond_may_be_asked_again() {
    let bad = attack::backend();
    let server = start(1024, &config(&bad.address, &bad.address, ""));
    let mut client = testing::http2::Http2::connect(&server.address("web"));
    let value = "x".repeat(170);
    let mut fields = testing::http2::get("/held/slow");
    fields.extend(std::iter::repeat_n(("x-long", value.as_str()), 88));
    let bytes = testing::http2::block(&fields);
    assert!((15_000..16_384).contains(&bytes.len()), "one frame: {}", bytes.len());
    let most = 1024 * 1024 / bytes.len();
    assert!(most < 80, "a connection has a hundred streams");
    for number in 0..100 {
        let flags = testing::http2::END_STREAM | testing::http2::END_HEADERS;
        client.send(testing::http2::HEADERS, flags, 2 * number + 1, &bytes);
    }
    let mut refused = 0;
    while refused < 100 - most - 2 {
        let end = client.wait_for("a refusal", |frame| frame.kind == testing::http2::RST_STREAM);
        assert_eq!(end.code(), 7, "REFUSED_STREAM");
        refused += 1;
    }
    let endings = server.ctl_json(&["status"])["listeners"][0]["endings"].clone();
    assert!(count(&endings["h2-headers-too-large"]) >= refused, "{endings:#}");
    drop(client);
    everything_is_given_back(&server);
}

#[test]
fn streams_beyond_the_share_wait_for_those_before_them_and_all_are_served() {
    let (release, held) = std::sync::mpsc::channel::<()>();
    let gate = Mutex::new(held);
    let backend = Scripted::start(move |talk| {
        while talk.request().is_some() {
            // The first of them holds the others up until the test has seen them wait.
            let _ = gate.lock().unwrap().recv_timeout(millis(200));
            if talk.answer(200, &[], b"ok").is_err() {
                break;
            }
        }
    });
    let text = config(&backend.address, &backend.address, "");
    let server = start(256, &format!("{text}[pool.app.timeouts]\nqueue = \"60s\"\n"));
    let mut client = testing::http2::Http2::connect(&server.address("web"));
    for number in 0..40 {
        client.get(2 * number + 1, "/");
    }
    let account = eventually("the share is used up", secs(20), || {
        Some(descriptors(&server)).filter(|account| count(&account["by_use"]["additional"]) > 0)
    });
    assert!(backend.open.load(SeqCst) < 25, "{account:#}");
    drop(release);
    for _ in 0..40 {
        let end = client.wait_for("the end of a response", |frame| {
            assert_ne!(frame.kind, testing::http2::RST_STREAM, "{frame:?}");
            frame.kind == testing::http2::DATA && frame.flags & testing::http2::END_STREAM != 0
        });
        assert_eq!(end.payload, b"ok");
    }
    drop(client);
    everything_is_given_back(&server);
}

#[test]
fn a_stream_that_waits_too_long_for_its_share_is_refused_and_may_be_asked_again() {
    let bad = attack::backend();
    let more = "[pool.held.timeouts]\nqueue = \"300ms\"";
    let config = config(&bad.address, &bad.address, "");
    let server = start(256, &format!("{config}{more}\n"));
    let mut client = testing::http2::Http2::connect(&server.address("web"));
    for number in 0..60 {
        client.get(2 * number + 1, "/held/slow");
    }
    let refused = client.wait_for("a refusal", |frame| frame.kind == testing::http2::RST_STREAM);
    assert_eq!(refused.code(), 7, "REFUSED_STREAM");
    drop(client);
    let account = descriptors(&server);
    assert!(count(&account["refused"]["connection-share"]) > 0, "{account:#}");
    everything_is_given_back(&server);
}

#[test]
fn sixty_four_descriptors_are_enough_to_serve_and_too_few_are_refused_with_what_to_raise() {
    let backend = Scripted::answering("ok");
    let config = config(&backend.address, &backend.address, "");
    let server = start(64, &config);
    assert_eq!(attack::ask(&server.address("web"), "127.0.0.1", 50).failures, [] as [String; 0]);
    let attack = Attack::begin(&server.address("web"), "127.0.0.2", Kind::SlowBackend, 40);
    assert_eq!(Client::connect(&server.admin()).get("/healthz", &[]).status, 200);
    assert!(server.ctl(&["status"]).status.success());
    drop(attack);
    everything_is_given_back(&server);
    drop(server);
    let output = Setup::new(&config).through(["prlimit", "--nofile=24:24", "--"]).output();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    for part in ["may open 24 descriptors", "needs at least", "LimitNOFILE=", "ulimit -n"] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

/// Leaves the process so many more than it has open. The limit is one of their numbers, and not all below are in use.
fn leave(server: &Server, more: usize) {
    let entries = fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap();
    let numbers: Vec<usize> =
        entries.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    let limit = (0..).filter(|number| !numbers.contains(number)).nth(more).unwrap();
    limit_to(server, limit);
}

fn limit_to(server: &Server, limit: usize) {
    let limit = format!("--nofile={limit}:20000");
    let output = testing::tools::run("prlimit", &[&limit, "--pid", &server.pid().to_string()], secs(10));
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_reload_that_runs_out_of_descriptors_changes_nothing() {
    let backend = Scripted::answering("ok");
    let text = config(&backend.address, &backend.address, "");
    let server = Server::start(&text);
    assert_eq!(attack::ask(&server.address("web"), "127.0.0.1", 5).failures, [] as [String; 0]);
    let more: String =
        (0..20).map(|n| format!("[listener.more{n}]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n")).collect();
    server.write_config(&format!("{text}{more}"));
    let generation = server.ctl_json(&["status"])["generation"].clone();
    // The file is read and some sockets are opened, but not all.
    leave(&server, 12);
    let refused = server.ctl(&["reload"]);
    limit_to(&server, 20_000);
    assert!(!refused.status.success(), "{refused:?}");
    let told =
        format!("{}{}", String::from_utf8_lossy(&refused.stdout), String::from_utf8_lossy(&refused.stderr));
    assert!(told.contains("listener.more") && told.contains("LimitNOFILE"), "{told}");
    let now = server.ctl_json(&["status"]);
    assert_eq!((&now["generation"], now["listeners"].as_array().unwrap().len()), (&generation, 1));
    assert_eq!(attack::ask(&server.address("web"), "127.0.0.1", 5).failures, [] as [String; 0]);
    // With descriptors the same reload goes well: nothing of the first attempt is in its way.
    assert!(server.ctl(&["reload"]).status.success());
    assert_eq!(server.ctl_json(&["status"])["listeners"].as_array().unwrap().len(), 21);
    everything_is_given_back(&server);
}

#[test]
fn a_renewal_without_descriptors_leaves_the_old_certificate_and_is_made_up_for() {
    let backend = Scripted::answering("ok");
    let setup = Setup::new(&format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[process]\nworkers = 1\n\
         [listener.secure]\nbind = \"127.0.0.1:0\"\npool = \"app\"\ntls = {{ certificates = \"@DIR@/certs\", ocsp = \"off\" }}\n\
         [pool.app]\nbackends = [\"{}\"]\n",
        backend.address
    ));
    let (certs, aside) = (setup.dir().join("certs"), setup.dir().join("aside"));
    for directory in [&certs, &aside] {
        fs::create_dir_all(directory).unwrap();
        self_signed(directory, "a", &["localhost"], Time::Now);
    }
    let wanted = fs::read(aside.join("a.crt")).unwrap();
    let server = setup.start();
    let old = serial(&server);
    assert_eq!(old, serial_of(&certs.join("a.crt")));
    everything_is_given_back(&server);
    let before = settled(&server);
    leave(&server, 0);
    for name in ["a.key", "a.crt"] {
        fs::rename(aside.join(name), certs.join(name)).unwrap();
    }
    server.stderr.wait_for("cannot be read: Too many open files", secs(10));
    limit_to(&server, 20_000);
    // The files do not change any more: the process looks again by itself.
    eventually("the new one is served", secs(20), || (serial(&server) != old).then_some(()));
    assert_eq!(fs::read(certs.join("a.crt")).unwrap(), wanted);
    assert_eq!(serial(&server), serial_of(&certs.join("a.crt")));
    server.stderr.wait_for("works again", secs(10));
    eventually("no file stays open", secs(10), || (open(&server) <= before + 2).then_some(()));
}

fn serial_of(file: &std::path::Path) -> String {
    let output = testing::tools::run(
        "openssl",
        &["x509", "-noout", "-serial", "-in", file.to_str().unwrap()],
        secs(10),
    );
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Of the certificate that is served.
fn serial(server: &Server) -> String {
    let script = "openssl s_client -connect \"$0\" -servername localhost </dev/null 2>/dev/null | openssl x509 -noout -serial";
    let output = testing::tools::run("sh", &["-c", script, &server.address("secure")], secs(20));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn an_upgrade_without_descriptors_is_answered_before_it_is_made() {
    let bad = attack::backend();
    let server = Server::start(&config(&bad.address, &bad.address, ""));
    let mut client = server.client("web");
    // The first request brings the client in; its backend closes with it, so that there is no idle one.
    assert_eq!(client.get("/", &[]).status, 200);
    let spare = descriptors(&server);
    assert_eq!(count(&spare["by_use"]["clients"]), 2, "{spare:#}");
    leave(&server, 0);
    let upgrade = request(
        "GET",
        "/held/socket",
        &[("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13")],
        b"",
    );
    // The idle connection to the other pool is closed for it, and that is enough.
    client.send(&upgrade);
    assert_eq!(client.response_to_head().status, 101);
    drop(client);
    limit_to(&server, 20_000);
    everything_is_given_back(&server);

    let mut client = server.client("web");
    client.send(&request("GET", "/", &[("X-Never", "answered")], b"")[..10]);
    eventually("the client is in", secs(10), || (held(&server) == 2).then_some(()));
    leave(&server, 0);
    client.send(&request("GET", "/", &[("X-Never", "answered")], b"")[10..]);
    let first = client.response();
    if first.status == 200 {
        // It went on an idle connection; the next one needs another.
        client.send(&upgrade);
        let answer = client.response_to_head();
        assert!([101, 503].contains(&answer.status), "{answer:?}");
    } else {
        assert_eq!((first.status, first.header("retry-after")), (503, Some("5")));
    }
    drop(client);
    limit_to(&server, 20_000);
    everything_is_given_back(&server);
    assert_eq!(attack::ask(&server.address("web"), "127.0.0.1", 5).failures, [] as [String; 0]);
}
