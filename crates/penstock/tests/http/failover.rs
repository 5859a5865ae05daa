//! One of three backends in turn is killed, stopped, resets requests and connections, swallows requests, and slows down,
//! for a minute under GETs and POSTs: no GET fails or waits for `timeouts.response`, no POST is executed twice.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use testing::client::request;
use testing::load::{Connections, Load};
use testing::peers::{Process, counting_backend};
use testing::{Client, Server, eventually, millis, secs};

const INTERVAL: Duration = millis(1000);
const TIMEOUT: Duration = millis(1000);
const FALL: u32 = 2;
const RISE: u32 = 2;

/// What a busy machine may add to a limit. A request that waits for `timeouts.response` takes 60 s.
const BUSY: Duration = secs(15);

const MINUTE: Duration = secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Killed,
    Stopped,
    /// A word that the backend reads from its file.
    Written(&'static str),
}

const FAULTS: [Fault; 6] = [
    Fault::Killed,
    Fault::Stopped,
    Fault::Written("resets-requests"),
    Fault::Written("resets-connections"),
    Fault::Written("swallows"),
    Fault::Written("slow"),
];

struct Pool {
    directory: tempfile::TempDir,
    backends: Vec<Process>,
    server: Server,
}

impl Pool {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let backends: Vec<Process> = (0..3)
            .map(|at| counting_backend(&directory.path().join(format!("log{at}")), &format!("b{at}"), 0))
            .collect();
        let addresses: Vec<_> = backends.iter().map(|backend| backend.address.clone()).collect();
        let server = Server::start(&format!(
            "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
             [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n\
             [pool.app]\nbackends = {addresses:?}\n\
             health = {{ http = \"/healthz\", interval = \"{}ms\", timeout = \"{}ms\", rise = {RISE}, fall = {FALL} }}\n",
            INTERVAL.as_millis(),
            TIMEOUT.as_millis(),
        ));
        Self { directory, backends, server }
    }

    fn log(&self, at: usize) -> PathBuf {
        self.directory.path().join(format!("log{at}"))
    }

    fn begin(&mut self, at: usize, fault: Fault) {
        match fault {
            Fault::Killed => {
                self.backends[at].signal(Signal::SIGKILL);
                self.backends[at].wait(secs(5));
            }
            Fault::Stopped => self.backends[at].signal(Signal::SIGSTOP),
            Fault::Written(word) => fs::write(self.fault_file(at), word).unwrap(),
        }
    }

    fn end(&mut self, at: usize, fault: Fault) {
        match fault {
            Fault::Killed => {
                let port: u16 = self.backends[at].address.rsplit(':').next().unwrap().parse().unwrap();
                self.backends[at] = counting_backend(&self.log(at), &format!("b{at}"), port);
            }
            Fault::Stopped => self.backends[at].signal(Signal::SIGCONT),
            Fault::Written(_) => fs::remove_file(self.fault_file(at)).unwrap(),
        }
    }

    fn fault_file(&self, at: usize) -> PathBuf {
        self.directory.path().join(format!("log{at}.fault"))
    }

    fn is_up(&self, at: usize) -> bool {
        self.server.health(&self.backends[at].address) == "up"
    }

    /// How often each POST was executed, over all backends.
    fn executed(&self) -> HashMap<String, u32> {
        let logs = (0..3).map(|at| fs::read_to_string(self.log(at)).unwrap_or_default());
        let mut seen = HashMap::new();
        for line in logs.collect::<String>().lines() {
            *seen.entry(line.to_owned()).or_insert(0) += 1;
        }
        seen
    }
}

/// Sends POSTs with a number each until `stop`, at most 80 a second; some may fail.
fn post(address: &str, next: &AtomicU32, stop: &AtomicBool) {
    let mut client: Option<Client> = None;
    let started = Instant::now();
    while !stop.load(SeqCst) {
        let number = next.fetch_add(1, SeqCst);
        std::thread::sleep((started + millis(1000) * number / 80).saturating_duration_since(Instant::now()));
        let connected = client.get_or_insert_with(|| Client::connect(address));
        let sent = connected.try_send(request("POST", &format!("/post/{number}"), &[], b"body of it"));
        let answer = sent.map_err(|error| error.to_string()).and_then(|()| connected.try_response(secs(60)));
        let closes = |value: &str| value.eq_ignore_ascii_case("close");
        if answer.as_ref().map_or(true, |answer| answer.header("connection").is_some_and(closes)) {
            client = None;
        }
        if let Err(why) = answer {
            assert!(!why.contains("time"), "a POST got no answer: {why}");
        }
    }
}

#[test]
fn a_minute_of_faults_fails_no_get_and_doubles_no_post() {
    let mut pool = Pool::start();
    eventually("all are up", secs(20), || (0..3).all(|at| pool.is_up(at)).then_some(()));
    let address = pool.server.address("web");
    let gets = Load::start(&address, "/", Connections::Kept, 160, Some(200));
    let (next, stop) = (AtomicU32::new(0), AtomicBool::new(false));
    let detection = (INTERVAL * 11 / 10 + TIMEOUT) * FALL;
    let (mut out, mut back) = (Duration::ZERO, Duration::ZERO);
    std::thread::scope(|scope| {
        for _ in 0..80 {
            scope.spawn(|| post(&address, &next, &stop));
        }
        let began = Instant::now();
        for (turn, fault) in FAULTS.into_iter().cycle().enumerate() {
            if turn >= FAULTS.len() && began.elapsed() >= MINUTE {
                break;
            }
            let at = turn % 3;
            let (since, before) = (Instant::now(), gets.good());
            pool.begin(at, fault);
            if fault != Fault::Written("slow") {
                eventually(&format!("{fault:?}: it is out"), secs(40), || (!pool.is_up(at)).then_some(()));
                out = out.max(since.elapsed());
            }
            // What is swallowed is given up only while the backend is down: longer than `timeouts.down`.
            let long = if fault == Fault::Written("swallows") { 2_000 } else { 600 };
            eventually("GETs go on", secs(60), || (gets.good() > before + long).then_some(()));
            pool.end(at, fault);
            let since = Instant::now();
            eventually(&format!("{fault:?}: it is back"), secs(40), || pool.is_up(at).then_some(()));
            back = back.max(since.elapsed());
        }
        stop.store(true, SeqCst);
    });
    let totals = gets.stop();
    println!("{} GETs, slowest {:?}; out within {out:?}, back within {back:?}", totals.good, totals.slowest);
    totals.assert_clean();
    assert!(totals.slowest <= detection + secs(1) + BUSY, "slowest {:?}", totals.slowest);
    assert!(out <= detection + BUSY, "out within {out:?}");
    assert!(back <= INTERVAL * RISE + secs(1) + BUSY, "back within {back:?}");
    let executed = pool.executed();
    let twice: Vec<_> = executed.iter().filter(|(_, count)| **count > 1).take(10).collect();
    assert!(twice.is_empty(), "executed more than once: {twice:?}");
    assert!(executed.len() as u32 > next.load(SeqCst) / 2, "{} of {next:?} POSTs arrived", executed.len());
}
