//! A backend that works and fails in turns of 300 ms for ten seconds: no GET fails, it is ejected a few times and out
//! longer each time, `ctl backends` says until when and why, and it is back soon after its last turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use testing::load::{Connections, Load};
use testing::{Scripted, Server, eventually, millis, secs};

const TURN: Duration = millis(300);
const FLAPPING: Duration = secs(10);
const INTERVAL: Duration = millis(500);
/// With more than one, its checks alone would keep it out: they meet each of its turns.
const RISE: u32 = 1;

/// What a busy machine may add to a limit.
const BUSY: Duration = secs(15);

#[test]
fn a_backend_that_flaps_for_ten_seconds_fails_no_get_and_is_back_soon_after() {
    let works = Arc::new(AtomicBool::new(true));
    let failed = Arc::new(AtomicUsize::new(0));
    let (now, failures) = (works.clone(), failed.clone());
    let flapping = Scripted::start(move |talk| {
        while let Some(request) = talk.request() {
            if !now.load(SeqCst) {
                failures.fetch_add(usize::from(request.target != "/healthz"), SeqCst);
                return;
            }
            if talk.answer(200, &[], b"flapping").is_err() {
                return;
            }
        }
    });
    let good = [Scripted::answering("good"), Scripted::answering("good")];
    let server = Server::start(&format!(
        "[process]\nworkers = 2\n[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n\
         [pool.app]\nbackends = [{:?}, {:?}, {:?}]\npassive = {{ ejection = \"1s\" }}\n\
         health = {{ http = \"/healthz\", interval = \"{}ms\", timeout = \"500ms\", rise = {RISE}, fall = 3 }}\n",
        flapping.address,
        good[0].address,
        good[1].address,
        INTERVAL.as_millis(),
    ));
    let state = || server.health(&flapping.address);
    eventually("it is up", secs(20), || (state() == "up").then_some(()));
    let gets = Load::start(&server.address("web"), "/", Connections::Kept, 40, Some(400));
    // The turns are what is tested: they come by the clock.
    let began = Instant::now();
    let mut told = String::new();
    let until_when = format!("{} returns after ", flapping.address);
    let until_when_and_why = [&*until_when, " and when ", "  traffic  fail  "];
    for turn in 1.. {
        std::thread::sleep((began + TURN * turn).saturating_duration_since(Instant::now()));
        if began.elapsed() >= FLAPPING {
            break;
        }
        works.store(turn % 2 == 0, SeqCst);
        let text = server.said(&["backends"]);
        if until_when_and_why.iter().all(|part| text.contains(part)) {
            told = text;
        }
    }
    works.store(true, SeqCst);
    let ended = Instant::now();
    let left = server.backend(&flapping.address)["returns_after"]["seconds"].as_u64().unwrap_or_default();
    eventually("it is back", secs(60), || (state() == "up").then_some(()));
    let took = ended.elapsed();
    let limit = (INTERVAL.mul_f64(1.1) * RISE + secs(1)).max(secs(left));
    assert!(took <= limit + BUSY, "back after {took:?}, limit {limit:?}");
    let before = gets.good();
    eventually("it gets its share again", secs(20), || (gets.good() > before + 400).then_some(()));
    assert_eq!(state(), "up");
    let totals = gets.stop();
    totals.assert_clean();
    let ejections = server.said(&["events"]).matches(": ejected: ").count();
    println!(
        "{ejections} ejections, {} failures, back after {took:?}, {left} s were left",
        failed.load(SeqCst)
    );
    // With 1 s for the second: at most 0, 1, 2, 4 and 8 s, and not once in each of 33 turns.
    assert!((2..=6).contains(&ejections), "{ejections} ejections");
    // Five in a row eject it; others are under way, and turns that end before five are seen.
    assert!(failed.load(SeqCst) <= 33 * 20, "{} failures", failed.load(SeqCst));
    assert!(
        !told.is_empty(),
        "no text has each of {until_when_and_why:?}; now: {}",
        server.said(&["backends"])
    );
}
