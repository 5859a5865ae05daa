//! `hedge`: a request that waits long for its response is sent to a second backend as well. The timeouts of these tests
//! are so long that a request which waits for a silent backend fails its test.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use testing::client::{Stream, request};
use testing::http2::{block, frame};
use testing::{Client, Scripted, Server, eventually, secs};

use crate::freezing::Freezing;

/// Longer than a backend that answers at once takes on a machine that does other work too: a request of its own is not
/// copied.
const LONG: &str = "3s";

/// A front door with one worker, whose budget is one.
fn front(backends: &[&str], pool: &str) -> Server {
    front_with_limit(backends, "10m", pool)
}

/// The same, with a time limit of responses.
fn front_with_limit(backends: &[&str], response: &str, pool: &str) -> Server {
    Server::start(&format!(
        "[process]\nworkers = 1\n[control]\nsocket = \"@DIR@/control.sock\"\n[admin]\nbind = \"127.0.0.1:0\"\n\
         [access-log]\ntarget = \"stdout\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n\
         [pool.app]\nbackends = {backends:?}\ntimeouts = {{ response = {response:?} }}\n{pool}\n"
    ))
}

/// Clients that have sent a request each and not read the answer.
fn send(server: &Server, method: &str, headers: &[(&str, &str)], count: usize) -> Vec<Client> {
    let all = (0..count).map(|number| {
        let mut client = server.client("web");
        client.send(request(method, &format!("/{number}"), headers, b""));
        client
    });
    all.collect()
}

#[track_caller]
fn bodies(clients: &mut [Client]) -> Vec<(u16, String)> {
    let read = |client: &mut Client| {
        let answer = client.try_response(secs(60)).unwrap();
        (answer.status, answer.text())
    };
    clients.iter_mut().map(read).collect()
}

fn copies(server: &Server, backend: &str) -> (u64, u64) {
    let backend = server.backend(backend);
    (backend["hedges"].as_u64().unwrap(), backend["hedge_wins"].as_u64().unwrap())
}

#[test]
fn a_slow_request_is_sent_to_a_second_backend_and_the_first_response_is_used() {
    let (silent, good) = (Freezing::start("silent"), Freezing::start("good"));
    let server = front(&[silent.address(), good.address()], &format!("hedge = {LONG:?}"));
    silent.fall_silent();
    let mut clients = send(&server, "GET", &[], 8);
    assert_eq!(bodies(&mut clients), vec![(200, "good".to_owned()); 8]);
    assert_eq!(silent.held(), 4, "the pool is balanced in turns");
    assert_eq!(copies(&server, good.address()), (4, 4));
    assert_eq!(copies(&server, silent.address()), (0, 0));
    eventually("the log says which request was copied, and who answered", secs(20), || {
        let of_copies = format!(" backend={} attempts=2 hedged=1 ", good.address());
        (server.stdout.count(&of_copies) == 4 && server.stdout.count(" attempts=1 ") == 4).then_some(())
    });
    let metrics = server.metrics();
    for name in ["hedges", "hedge_wins"] {
        let line =
            format!("penstock_backend_{name}_total{{pool=\"app\",backend=\"{}\"}} 4\n", good.address());
        assert!(metrics.contains(&line), "{line} in:\n{metrics}");
    }
    // The late answers belong to requests that have had another answer.
    silent.answer_late();
    eventually("the connections to the slow one are closed", secs(20), || {
        (silent.backend.open.load(SeqCst) == 0).then_some(())
    });
    for client in &mut clients {
        assert_eq!(client.request("GET", "/again", &[], b"").status, 200);
    }
}

#[test]
fn the_first_backend_wins_if_it_responds_before_the_second() {
    let (one, two) = (Freezing::start("one"), Freezing::start("two"));
    let server = front(&[one.address(), two.address()], "hedge = \"50ms\"");
    one.fall_silent();
    two.fall_silent();
    let mut clients = send(&server, "GET", &[], 1);
    one.until_it_holds(1);
    two.until_it_holds(1);
    // One of the two has got the copy: the other responds.
    let (first, second) = if copies(&server, two.address()).0 == 1 { (&one, &two) } else { (&two, &one) };
    first.answer_late();
    let name = if first.address() == one.address() { "one" } else { "two" };
    assert_eq!(bodies(&mut clients), [(200, name.to_owned())]);
    assert_eq!(copies(&server, second.address()), (1, 0));
    second.answer_late();
    eventually("the connection of the copy is closed", secs(20), || {
        (second.backend.open.load(SeqCst) == 0).then_some(())
    });
}

#[test]
fn a_copy_is_a_session_of_its_backend_and_no_retry_whoever_responds_first() {
    let (one, two) = (Freezing::start("one"), Freezing::start("two"));
    let rules = format!("hedge = {LONG:?}\nretry-budget = 0\nretry-least-rate = 0\nretries = 0");
    let server = front(&[one.address(), two.address()], &rules);
    one.fall_silent();
    let mut clients = send(&server, "GET", &[], 2);
    assert_eq!(
        bodies(&mut clients),
        vec![(200, "two".to_owned()); 2],
        "one of them is the response of a copy"
    );
    two.fall_silent();
    one.answer_late();
    let mut clients = send(&server, "GET", &[], 2);
    assert_eq!(bodies(&mut clients), vec![(200, "one".to_owned()); 2]);
    let counted = |name: &str| {
        [one.address(), two.address()].map(|backend| server.backend(backend)[name].as_u64().unwrap())
    };
    eventually("all sessions are counted", secs(20), || (counted("sessions") == [3, 3]).then_some(()));
    assert_eq!(counted("hedges"), [1, 1]);
    assert_eq!(counted("hedge_wins"), [1, 1]);
    // Both are silent: the copy is under way when the first responds.
    let (first, second) = (Freezing::start("first"), Freezing::start("second"));
    let server = front(&[first.address(), second.address()], &rules);
    first.fall_silent();
    second.fall_silent();
    let mut clients = send(&server, "GET", &[], 1);
    first.until_it_holds(1);
    second.until_it_holds(1);
    let copied = copies(&server, second.address()).0 == 1;
    let (to_answer, copy) = if copied { (&first, &second) } else { (&second, &first) };
    to_answer.answer_late();
    assert_eq!(bodies(&mut clients)[0].0, 200);
    for backend in [to_answer, copy] {
        let told = eventually("the session is counted", secs(20), || {
            let told = server.backend(backend.address());
            (told["sessions"].as_u64() == Some(1)).then_some(told)
        });
        assert_eq!((told["retries"].as_u64(), told["failures"].as_u64()), (Some(0), Some(0)), "{told}");
    }
    assert_eq!(server.ctl_json(&["status"])["pools"][0]["retries_refused"].as_u64(), Some(0));
}

#[test]
fn copies_stay_within_the_budget() {
    let (one, two) = (Freezing::start("one"), Freezing::start("two"));
    let server = front(&[one.address(), two.address()], "hedge = \"1ms\"\nhedge-budget = 1");
    one.fall_silent();
    two.fall_silent();
    let mut clients = send(&server, "GET", &[], 60);
    // Ten copies are saved up; 60 requests do not earn another one.
    eventually("all requests and ten copies are held", secs(20), || {
        (one.held() + two.held() == 70).then_some(())
    });
    one.answer_late();
    two.answer_late();
    assert!(bodies(&mut clients).iter().all(|(status, _)| *status == 200));
    assert_eq!(copies(&server, one.address()).0 + copies(&server, two.address()).0, 10);
}

#[test]
fn a_percentile_is_that_of_the_latest_responses() {
    let (silent, good) = (Freezing::start("silent"), Freezing::start("good"));
    let server = front(&[silent.address(), good.address()], "hedge = \"p95\"");
    let mut client = server.client("web");
    // Before a hundred responses are known, no request is copied.
    for _ in 0..200 {
        assert_eq!(client.get("/", &[]).status, 200);
    }
    silent.fall_silent();
    let mut clients = send(&server, "GET", &[], 8);
    assert_eq!(bodies(&mut clients), vec![(200, "good".to_owned()); 8]);
    assert!(copies(&server, good.address()).1 >= 4);
}

#[test]
fn what_changes_something_or_has_a_body_or_switches_the_protocol_is_sent_once() {
    let (silent, good) = (Freezing::start("silent"), Freezing::start("good"));
    let server = front(&[silent.address(), good.address()], "hedge = \"1ms\"");
    silent.fall_silent();
    good.fall_silent();
    let upgrade = [("Connection", "Upgrade"), ("Upgrade", "websocket")];
    let mut clients = send(&server, "POST", &[], 2);
    clients.extend(send(&server, "PUT", &[], 2));
    clients.extend(send(&server, "DELETE", &[], 2));
    clients.extend(send(&server, "GET", &upgrade, 2));
    let mut with_body = server.client("web");
    with_body.send(request("GET", "/body", &[], b"body"));
    clients.push(with_body);
    // This one is copied, after the others had more time than it has.
    eventually("all are held", secs(20), || (silent.held() + good.held() == 9).then_some(()));
    clients.extend(send(&server, "GET", &[], 1));
    eventually("the copy is held", secs(20), || (silent.held() + good.held() == 11).then_some(()));
    silent.answer_late();
    good.answer_late();
    assert!(bodies(&mut clients).iter().all(|(status, _)| *status == 200));
    assert_eq!(copies(&server, silent.address()).0 + copies(&server, good.address()).0, 1);
}

#[test]
fn a_copy_that_fails_is_blamed_and_the_request_waits_on() {
    let slow = Freezing::start("slow");
    let closing = Scripted::start(|talk| drop(talk.request()));
    let rules = format!("hedge = {LONG:?}\npassive = \"off\"\nretries = 0");
    let server = front(&[slow.address(), &closing.address], &rules);
    slow.fall_silent();
    // Whoever goes to the slow one first gets a copy at the one that closes.
    let mut clients = send(&server, "GET", &[], 2);
    eventually("the copy has failed", secs(20), || {
        let failing = server.backend(&closing.address);
        (failing["failures"].as_u64() == Some(2) && failing["hedges"].as_u64() == Some(1)).then_some(())
    });
    slow.answer_late();
    let mut answers = bodies(&mut clients);
    answers.sort();
    assert_eq!((answers[0].0, answers[0].1.as_str()), (200, "slow"));
    assert_eq!(answers[1].0, 502, "the one that went to the closing backend first");
    eventually("the log has the failure of each, also that of the copy", secs(20), || {
        let of_copy = server
            .stdout
            .all()
            .iter()
            .any(|line| line.contains(" hedged=1 ") && line.contains(" failed=closed "));
        (of_copy && server.stdout.count(" failed=closed ") == 2).then_some(())
    });
}

#[test]
fn a_client_that_leaves_ends_both_requests() {
    let (one, two) = (Freezing::start("one"), Freezing::start("two"));
    let server = front(&[one.address(), two.address()], "hedge = \"10ms\"");
    one.fall_silent();
    two.fall_silent();
    let clients = send(&server, "GET", &[], 1);
    one.until_it_holds(1);
    two.until_it_holds(1);
    for client in clients {
        let Stream::Tcp(stream) = &client.stream else { panic!("the listener is TCP") };
        // Closing sends a RST: the client does not wait for the response.
        socket2::SockRef::from(stream).set_linger(Some(secs(0))).unwrap();
    }
    eventually("the log has its end", secs(20), || {
        (server.stdout.count(" client-closed ") == 1).then_some(())
    });
    one.answer_late();
    two.answer_late();
    for backend in [&one, &two] {
        eventually("the connection is closed", secs(20), || {
            (backend.backend.open.load(SeqCst) == 0).then_some(())
        });
        assert_eq!(server.backend(backend.address())["in_flight"].as_u64(), Some(0));
    }
}

#[test]
fn a_request_to_http2_backends_is_copied_as_well_and_the_slower_stream_is_reset() {
    let (held, resets) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let backend = |name: &'static str, is_silent: bool| {
        let (held, resets) = (held.clone(), resets.clone());
        Scripted::start(move |talk| {
            talk.client.read_exactly(24);
            talk.send(frame(4, 0, 0, &[]));
            loop {
                let head = talk.client.read_exactly(9);
                let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
                let payload = talk.client.read_exactly(length);
                let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
                match head[3] {
                    4 if head[4] & 1 == 0 => drop(talk.send(frame(4, 1, 0, &[]))),
                    6 if head[4] & 1 == 0 => drop(talk.send(frame(6, 1, 0, &payload))),
                    3 => drop(resets.fetch_add(1, SeqCst)),
                    1 if is_silent => drop(held.fetch_add(1, SeqCst)),
                    1 => {
                        talk.send(frame(1, 4, stream, &block(&[(":status", "200")])));
                        talk.send(frame(0, 1, stream, name.as_bytes()));
                    }
                    _ => {}
                }
            }
        })
    };
    let (silent, good) = (backend("silent", true), backend("good", false));
    // Without passive ejection nothing is learnt from requests that go on.
    let rules = format!("hedge = {LONG:?}\nhttp2 = \"on\"\npassive = \"off\"");
    let server = front(&[&silent.address, &good.address], &rules);
    let mut clients = send(&server, "GET", &[], 8);
    assert_eq!(bodies(&mut clients), vec![(200, "good".to_owned()); 8]);
    assert_eq!(copies(&server, &good.address), (4, 4));
    eventually("the silent streams are reset", secs(20), || {
        (held.load(SeqCst) == 4 && resets.load(SeqCst) == 4).then_some(())
    });
}

/// Sends requests one by one until `seen`. Each gets the response of the good backend.
#[track_caller]
fn ask_until(server: &Server, limit: usize, mut seen: impl FnMut() -> bool) {
    let mut client = server.client("web");
    for _ in 0..limit {
        if seen() {
            return;
        }
        let answer = client.get("/", &[]);
        assert_eq!((answer.status, answer.text().as_str()), (200, "good"));
    }
    panic!("{limit} requests were not enough: {:?}", server.ctl(&["backends"]));
}

#[test]
fn a_backend_that_never_answers_is_ejected_although_every_copy_wins() {
    let (silent, good) = (Freezing::start("silent"), Freezing::start("good"));
    let rules = "hedge = \"10ms\"\nhedge-budget = 100";
    let server = front_with_limit(&[silent.address(), good.address()], "2s", rules);
    silent.fall_silent();
    let of_silent = |name: &str| server.backend(silent.address())[name].clone();
    ask_until(&server, 10_000, || of_silent("state") == "ejected");
    let verdicts = of_silent("last_verdicts").to_string();
    assert!(verdicts.contains("no answer within 2 s"), "{verdicts}");
    assert_eq!(server.backend(good.address())["failures"].as_u64(), Some(0));
    eventually("no request waits there any more", secs(20), || (of_silent("in_flight") == 0).then_some(()));
    // A backend that is back is not blamed for what it did not answer before.
    silent.answer_late();
}

#[test]
fn a_backend_that_is_only_slow_stays_although_every_copy_wins() {
    let slow = Scripted::start(|talk| {
        while talk.request().is_some() {
            std::thread::sleep(std::time::Duration::from_secs(1));
            if talk.answer(200, &[], b"slow").is_err() {
                return;
            }
        }
    });
    let good = Freezing::start("good");
    // A single failure would eject it.
    let rules = "hedge = \"10ms\"\nhedge-budget = 100\npassive = { failures = 1, ejection = \"1h\" }";
    let server = front_with_limit(&[&slow.address, good.address()], "10s", rules);
    let of_slow = |name: &str| server.backend(&slow.address)[name].clone();
    // Time for several requests that go on, one after the other.
    ask_until(&server, 10_000, || of_slow("sessions").as_u64() >= Some(60));
    eventually("its last response began", secs(20), || (of_slow("in_flight") == 0).then_some(()));
    assert_eq!(of_slow("failures"), 0);
    assert_ne!(of_slow("state"), "ejected");
}
