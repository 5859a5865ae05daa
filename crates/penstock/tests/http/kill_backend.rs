//! Promise 3 and safe retries: of three backends one is killed and one is stopped under load; no GET fails, no POST is
//! sent twice, and the stopped one is out within its fall limit.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use testing::client::request;
use testing::load::{Connections, Load};
use testing::peers::{Process, counting_backend};
use testing::{Client, Server, eventually, millis, secs};

const INTERVAL: Duration = millis(1000);
const TIMEOUT: Duration = millis(1000);
const FALL: u32 = 2;

struct Stage {
    dir: tempfile::TempDir,
    backends: Vec<Process>,
    server: Server,
}

impl Stage {
    fn new(pool: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let backends: Vec<Process> = (0..3)
            .map(|n| counting_backend(&dir.path().join(format!("log{n}")), &format!("b{n}"), 0))
            .collect();
        let addresses: Vec<String> =
            backends.iter().map(|backend| format!("{:?}", backend.address)).collect();
        let server = Server::start(&format!(
            "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
             [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n\
             [pool.app]\nbackends = [{}]\n\
             health = {{ http = \"/healthz\", interval = \"{}ms\", timeout = \"{}ms\", rise = 2, fall = {FALL} }}\n\
             timeouts = {{ connect = \"2s\" }}\n{pool}\n",
            addresses.join(", "),
            INTERVAL.as_millis(),
            TIMEOUT.as_millis()
        ));
        let stage = Self { dir, backends, server };
        for backend in &stage.backends {
            stage.wait_for(&backend.address, "up");
        }
        stage
    }

    #[track_caller]
    fn wait_for(&self, backend: &str, state: &str) {
        eventually(&format!("{backend} is {state}"), secs(20), || {
            (self.server.health(backend) == state).then_some(())
        });
    }

    /// How often each POST arrived, over all backends.
    fn arrivals(&self) -> HashMap<String, u32> {
        let mut seen = HashMap::new();
        for backend in 0..3 {
            let text = fs::read_to_string(self.dir.path().join(format!("log{backend}"))).unwrap_or_default();
            for line in text.lines() {
                *seen.entry(line.to_owned()).or_insert(0) += 1;
            }
        }
        seen
    }
}

#[test]
fn a_killed_and_a_stopped_backend_fail_no_get_at_1000_a_second() {
    let mut stage = Stage::new("");
    let address = stage.server.address("web");
    let load = Load::start(&address, "/", Connections::Kept, 40, Some(1_000));
    eventually("load flows", secs(10), || (load.good() > 1_000).then_some(()));

    let killed = stage.backends[1].address.clone();
    stage.backends[1].signal(Signal::SIGKILL);
    stage.backends[1].wait(secs(5));
    stage.wait_for(&killed, "down");
    let after_kill = load.good();
    eventually("load flows after the kill", secs(10), || (load.good() > after_kill + 2_000).then_some(()));
    assert_eq!(load.failed(), 0, "after kill -9");

    let stopped = stage.backends[2].address.clone();
    stage.backends[2].signal(Signal::SIGSTOP);
    let since = Instant::now();
    eventually("the stopped backend is out", secs(10), || {
        ["down", "ejected"].contains(&stage.server.health(&stopped).as_str()).then_some(())
    });
    // The first failing check starts at most one interval (plus its jitter) later; each one takes its time limit.
    let limit = (INTERVAL * 11 / 10 + TIMEOUT) * FALL + secs(15);
    assert!(since.elapsed() <= limit, "out after {:?}, limit {limit:?}", since.elapsed());
    let after_stop = load.good();
    eventually("load flows after the stop", secs(20), || (load.good() > after_stop + 2_000).then_some(()));

    stage.backends[2].signal(Signal::SIGCONT);
    stage.wait_for(&stopped, "up");
    let totals = load.stop();
    totals.assert_clean();
    assert!(totals.good > 5_000, "{}", totals.good);
}

#[test]
fn no_post_of_20_000_arrives_twice_through_the_same_faults() {
    const POSTS: u32 = 20_000;
    const PACE: Duration = Duration::from_micros(1_200);
    let mut stage = Stage::new("passive = { failures = 5, ejection = \"300ms\" }");
    let address = stage.server.address("web");
    let started = Instant::now();
    let (next, good) = (AtomicU32::new(0), AtomicU64::new(0));
    let faults_are_over = AtomicBool::new(false);
    // What the others got, by cause.
    let failed: Mutex<BTreeMap<String, u64>> = Mutex::default();
    let fail = |cause: String| *failed.lock().unwrap().entry(cause).or_insert(0) += 1;
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let mut client: Option<Client> = None;
                loop {
                    let number = next.fetch_add(1, SeqCst);
                    if number >= POSTS && faults_are_over.load(SeqCst) {
                        break;
                    }
                    // Paced, so that they last through all faults.
                    std::thread::sleep(started + PACE * number - Instant::now().min(started + PACE * number));
                    let connected = client.get_or_insert_with(|| Client::connect(&address));
                    let sent =
                        connected.try_send(request("POST", &format!("/post/{number}"), &[], b"body of it"));
                    match sent
                        .map_err(|error| error.to_string())
                        .and_then(|()| connected.try_response(secs(20)))
                    {
                        Ok(answer) => {
                            match answer.status {
                                200 => drop(good.fetch_add(1, SeqCst)),
                                status => fail(status.to_string()),
                            }
                            if answer
                                .header("connection")
                                .is_some_and(|value| value.eq_ignore_ascii_case("close"))
                            {
                                client = None;
                            }
                        }
                        Err(why) => {
                            fail(why);
                            client = None;
                        }
                    }
                }
            });
        }
        // The faults: one killed and started again at its port, its neighbour stopped and continued, three times over.
        for victim in [0_usize, 1, 2] {
            let port: u16 = stage.backends[victim].address.rsplit(':').next().unwrap().parse().unwrap();
            stage.backends[victim].signal(Signal::SIGKILL);
            stage.backends[victim].wait(secs(5));
            let other = (victim + 1) % 3;
            stage.backends[other].signal(Signal::SIGSTOP);
            let address = stage.backends[other].address.clone();
            stage.wait_for(&address, "down");
            stage.backends[other].signal(Signal::SIGCONT);
            let log = stage.dir.path().join(format!("log{victim}"));
            stage.backends[victim] = counting_backend(&log, &format!("b{victim}"), port);
            for backend in &stage.backends {
                stage.wait_for(&backend.address, "up");
            }
        }
        faults_are_over.store(true, SeqCst);
    });
    let posts = u64::from(next.into_inner()) - 16;
    let (good, failed) = (good.into_inner(), failed.into_inner().unwrap());
    assert_eq!(good + failed.values().sum::<u64>(), posts);
    assert!(good > posts * 9 / 10, "{good} answered, failed: {failed:?}");
    let arrivals = stage.arrivals();
    let twice: Vec<_> = arrivals.iter().filter(|(_, count)| **count > 1).take(10).collect();
    assert!(twice.is_empty(), "arrived more than once: {twice:?}");
    assert!(arrivals.len() as u64 >= good, "{} arrived, {good} were answered", arrivals.len());
}

#[test]
fn passive_ejection_takes_out_a_backend_that_only_traffic_sees_failing() {
    let broken = testing::Scripted::start(|talk| {
        // Passes connect checks, breaks every request.
        talk.request();
    });
    let good = testing::Scripted::answering("good");
    let server = Server::start(&format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"{}\", \"{}\"]\npassive = {{ failures = 3, ejection = \"30s\" }}\n",
        broken.address, good.address
    ));
    eventually("the broken backend is ejected", secs(15), || {
        assert_eq!(server.client("web").get("/", &[]).text(), "good");
        (server.health(&broken.address) == "ejected").then_some(())
    });
    let seen = server.backend(&broken.address);
    assert!(seen.to_string().contains("traffic"), "the verdict says where it comes from: {seen:#}");
    let before = broken.accepted.load(SeqCst);
    for _ in 0..50 {
        assert_eq!(server.client("web").request("POST", "/", &[], b"x").text(), "good");
    }
    assert_eq!(broken.accepted.load(SeqCst), before, "an ejected backend gets nothing");
}
