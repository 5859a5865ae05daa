//! A backend falls silent while requests wait there: when it is judged down, those that may be repeated go to another
//! backend at once, and the others get an answer within `timeouts.down`. The response timeout of these tests is so long
//! that a request which waits for it fails its test.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use testing::client::request;
use testing::{Client, End, Scripted, Server, descriptors, eventually, port, secs};

use crate::freezing::{Freezing, Silence};

fn front(backends: &[&str], pool: &str) -> Server {
    Server::start(&format!(
        "[process]\nworkers = 2\n[control]\nsocket = \"@DIR@/control.sock\"\n[admin]\nbind = \"127.0.0.1:0\"\n\
         [access-log]\ntarget = \"stdout\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n\
         [pool.app]\nbackends = {backends:?}\n\
         health = {{ http = \"/healthz\", interval = \"2s\", timeout = \"2s\", rise = 1, fall = 2 }}\n{pool}\n"
    ))
}

/// Clients that have sent a request each and not read the answer.
pub(crate) fn send(server: &Server, method: &str, count: usize) -> Vec<Client> {
    send_with(server, method, &[], count)
}

fn send_with(server: &Server, method: &str, headers: &[(&str, &str)], count: usize) -> Vec<Client> {
    let body: &[u8] = if matches!(method, "POST" | "PUT") { b"body" } else { b"" };
    let all = (0..count).map(|number| {
        let mut client = server.client("web");
        client.send(request(method, &format!("/{number}"), headers, body));
        client
    });
    all.collect()
}

#[track_caller]
pub(crate) fn bodies(clients: &mut [Client]) -> Vec<(u16, String)> {
    let read = |client: &mut Client| {
        let answer = client.try_response(secs(60)).unwrap();
        (answer.status, answer.text())
    };
    clients.iter_mut().map(read).collect()
}

/// A request may have moved away before the silent one has read it.
#[track_caller]
fn all_that_it_held_moved(server: &Server, silent: &Freezing) -> u64 {
    eventually("what moved was held", secs(20), || {
        let held = silent.held() as u64;
        (server.backend(silent.address())["moved"].as_u64() == Some(held)).then_some(held)
    })
}

pub(crate) const LONG: &str = "timeouts = { response = \"10m\", down = \"10m\" }";

#[test]
fn what_may_be_repeated_leaves_a_backend_that_falls_silent_and_its_late_answer_is_thrown_away() {
    let (silent, good) = (Freezing::start("silent"), Freezing::start("good"));
    let server = front(&[silent.address(), good.address()], LONG);
    eventually("both are up", secs(20), || {
        (server.health(silent.address()) == "up" && server.health(good.address()) == "up").then_some(())
    });
    silent.fall_silent();
    // One worker gets them all, or both get some: at least four of twelve wait at the silent one.
    let mut clients = send(&server, "GET", 12);
    eventually("some are held", secs(20), || (silent.held() >= 4).then_some(()));
    silent.fail_checks();
    assert_eq!(bodies(&mut clients), vec![(200, "good".to_owned()); 12]);
    let held = all_that_it_held_moved(&server, &silent);
    let pool = server.metrics();
    let line =
        format!("penstock_backend_moved_total{{pool=\"app\",backend=\"{}\"}} {held}", silent.address());
    assert!(pool.contains(&line), "{line} in:\n{pool}");
    eventually("the log says so", secs(20), || {
        (server.stdout.count(" moved=1 ") as u64 == held).then_some(())
    });
    // What a request waited for at the silent one is no response time of the other.
    let seconds = |name: &str, of: &str| {
        let text = server.metrics();
        let line = text.lines().find(|line| line.starts_with(name) && line.contains(of)).unwrap();
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let waited = seconds("penstock_listener_session_seconds_sum", "web");
    let answered = seconds("penstock_backend_response_seconds_sum", good.address());
    assert!(answered < waited / 2.0, "{answered} of {waited} s");
    // The late answers belong to requests that have had another answer.
    silent.answer_late();
    for client in &mut clients {
        assert_eq!(client.get("/again", &[]).text(), "good");
    }
    eventually("the connections to it are closed", secs(20), || {
        (silent.backend.open.load(SeqCst) == 0).then_some(())
    });
}

#[test]
fn a_put_whose_body_came_with_its_head_moves_with_its_body_and_the_next_request_follows_it() {
    let silent = Freezing::start("silent");
    let good = Scripted::start(|talk| {
        while let Some(request) = talk.request() {
            let seen = format!("{} {} {}", request.method, request.target, request.body.escape_ascii());
            if talk.answer(200, &[], seen.as_bytes()).is_err() {
                return;
            }
        }
    });
    let server = front(&[silent.address(), &good.address], LONG);
    silent.fall_silent();
    let mut clients: Vec<Client> = (0..8)
        .map(|number| {
            let mut client = server.client("web");
            let put = request("PUT", &format!("/{number}"), &[], b"body");
            client.send([put, request("GET", &format!("/next/{number}"), &[], b"")].concat());
            client
        })
        .collect();
    eventually("some are held", secs(20), || (silent.held() >= 2).then_some(()));
    silent.fail_checks();
    for (number, client) in clients.iter_mut().enumerate() {
        for wanted in [format!("PUT /{number} body"), format!("GET /next/{number} ")] {
            let answer = client.try_response(secs(30)).unwrap();
            assert_eq!((answer.status, answer.text()), (200, wanted));
        }
    }
    all_that_it_held_moved(&server, &silent);
    // What came in is counted once.
    eventually("each has its line", secs(20), || (server.stdout.count(" method=PUT ") == 8).then_some(()));
    let length = request("PUT", "/0", &[], b"body").len().to_string();
    for line in server.stdout.all().iter().filter(|line| line.contains(" method=PUT ")) {
        assert_eq!(testing::server::field(line, "bytes_in").as_ref(), Some(&length), "{line}");
    }
}

/// Where it is executed after all, it could undo a later request: its backend sees that no client waits for it.
#[test]
fn the_connection_of_a_put_or_delete_that_moves_is_reset_before() {
    for method in ["PUT", "DELETE"] {
        let checks_fail = Arc::new(AtomicBool::new(false));
        let (fail, ends) = (checks_fail.clone(), Arc::new(Mutex::new(Vec::new())));
        let (held, seen) = (Arc::new(AtomicUsize::new(0)), ends.clone());
        let holds = held.clone();
        let silent = Scripted::start(move |talk| {
            while let Some(request) = talk.request() {
                if request.target != "/healthz" {
                    holds.fetch_add(1, SeqCst);
                    let (_, end) = talk.client.read_to_end_within(secs(60));
                    seen.lock().unwrap().push(end);
                    return;
                }
                if fail.load(SeqCst) || talk.answer(200, &[], b"well").is_err() {
                    return;
                }
            }
        });
        let good = Scripted::answering("good");
        let server = front(&[&silent.address, &good.address], LONG);
        let mut clients = send(&server, method, 8);
        eventually("some are held", secs(20), || (held.load(SeqCst) >= 2).then_some(()));
        checks_fail.store(true, SeqCst);
        assert_eq!(bodies(&mut clients), vec![(200, "good".to_owned()); 8]);
        eventually("all have ended", secs(20), || {
            let ends = ends.lock().unwrap();
            (ends.len() == held.load(SeqCst)).then_some(())
        });
        let ends = ends.lock().unwrap();
        assert!(ends.iter().all(|end| *end == End::Reset), "{method}: {ends:?}");
    }
}

#[test]
fn a_body_that_a_fallback_gets_after_another_backend_is_counted_once() {
    let closes = Scripted::start(|talk| drop(talk.request()));
    let sorry = Scripted::answering("sorry");
    let server = Server::start(&format!(
        "[process]\nworkers = 1\n[access-log]\ntarget = \"stdout\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n\
         [pool.app]\nbackends = [{:?}, \"127.0.0.1:{}\"]\nretries = 1\npassive = \"off\"\nhealth = \"off\"\n\
         fallback = \"sorry\"\n[pool.sorry]\nbackends = [{:?}]\n",
        closes.address,
        port::free(),
        sorry.address
    ));
    let mut clients = send(&server, "PUT", 8);
    let served = bodies(&mut clients).iter().filter(|(_, body)| body == "sorry").count();
    // Of the others, the backend that closes is the last one.
    assert!(served >= 2, "{served}");
    let length = request("PUT", "/0", &[], b"body").len().to_string();
    eventually("each has its line", secs(20), || (server.stdout.count(" method=PUT ") == 8).then_some(()));
    for line in server.stdout.all().iter().filter(|line| line.contains(" pool=sorry ")) {
        assert_eq!(testing::server::field(line, "bytes_in").as_ref(), Some(&length), "{line}");
    }
}

/// The key is for the application, which may be at work: only the client may repeat such a request.
#[test]
fn a_post_stays_also_with_an_idempotency_key_and_gets_the_late_answer() {
    for headers in [&[][..], &[("Idempotency-Key", "\"8e03978e-40d5-43e8-bc93-6894a57f9324\"")]] {
        let (silent, good) = (Freezing::start("silent"), Freezing::start("good"));
        let server = front(&[silent.address(), good.address()], LONG);
        silent.fall_silent();
        let mut clients = send_with(&server, "POST", headers, 8);
        eventually("some are held", secs(20), || (silent.held() >= 2).then_some(()));
        silent.fail_checks();
        eventually("it is down", secs(20), || (server.health(silent.address()) == "down").then_some(()));
        silent.answer_late();
        let late =
            bodies(&mut clients).iter().filter(|(status, body)| *status == 200 && body == "silent").count();
        assert_eq!(late, silent.held(), "each answer of the silent one arrived");
        assert_eq!(server.backend(silent.address())["moved"].as_u64(), Some(0));
    }
}

#[test]
fn a_get_that_has_half_of_a_response_head_moves_as_well() {
    let (silent, good) = (Freezing::with("silent", Silence::HalfAHead), Freezing::start("good"));
    let server = front(&[silent.address(), good.address()], LONG);
    silent.fall_silent();
    let mut clients = send(&server, "GET", 8);
    eventually("some are held", secs(20), || (silent.held() >= 2).then_some(()));
    silent.fail_checks();
    assert_eq!(bodies(&mut clients), vec![(200, "good".to_owned()); 8]);
    all_that_it_held_moved(&server, &silent);
}

/// More than the sockets of both connections can hold.
const LARGE_BODY: usize = 64 * 1024 * 1024;

/// Sends a POST with [`LARGE_BODY`] bytes. The thread returns how many of them the socket of the client took.
fn post_large_body(server: &Server) -> (Client, JoinHandle<usize>) {
    let mut client = server.client("web");
    client.send(format!("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: {LARGE_BODY}\r\n\r\n"));
    let mut sending = client.stream.again();
    let sender = std::thread::spawn(move || {
        sending.set_write_timeout(Some(secs(60)));
        let chunk = vec![b'x'; 64 * 1024];
        (0..LARGE_BODY / chunk.len()).take_while(|_| sending.write_all(&chunk).is_ok()).count() * chunk.len()
    });
    (client, sender)
}

#[test]
fn a_post_whose_body_fills_the_socket_of_a_silent_backend_ends_within_the_limit() {
    let silent = Freezing::with("silent", Silence::ReadsNoBody);
    let limit = "timeouts = { response = \"10m\", body = \"10m\", down = \"300ms\" }";
    let server = front(&[silent.address()], limit);
    eventually("it is up", secs(20), || (server.health(silent.address()) == "up").then_some(()));
    silent.fall_silent();
    let (mut client, sender) = post_large_body(&server);
    silent.until_it_holds(1);
    silent.fail_checks();
    let answer = client.try_response(secs(30)).unwrap();
    assert_eq!(answer.status, 504, "{answer:?}");
    assert!(answer.text().contains("has stopped answering"), "{answer:?}");
    server.stdout.wait_for(" 504 backend-down ", secs(20));
    assert!(sender.join().unwrap() < LARGE_BODY, "the body was not taken to its end");
}

#[test]
fn a_backend_that_reads_no_body_costs_the_limit_of_bodies_and_not_that_of_responses_as_well() {
    let silent = Freezing::with("silent", Silence::ReadsNoBody);
    let server = front(&[silent.address()], "timeouts = { response = \"10m\", body = \"300ms\" }");
    eventually("it is up", secs(20), || (server.health(silent.address()) == "up").then_some(()));
    silent.fall_silent();
    let (mut client, sender) = post_large_body(&server);
    let answer = client.try_response(secs(30)).unwrap();
    assert_eq!(answer.status, 504, "{answer:?}");
    assert!(answer.text().contains("did not answer in time"), "{answer:?}");
    server.stdout.wait_for(" 504 backend-timeout ", secs(20));
    assert!(sender.join().unwrap() < LARGE_BODY, "the body was not taken to its end");
}

#[test]
fn a_post_that_stays_gets_504_at_its_own_limit() {
    let (silent, good) = (Freezing::start("silent"), Freezing::start("good"));
    let limit = "timeouts = { response = \"10m\", down = \"300ms\" }";
    let server = front(&[silent.address(), good.address()], limit);
    silent.fall_silent();
    let mut clients = send(&server, "POST", 8);
    eventually("some are held", secs(20), || (silent.held() >= 2).then_some(()));
    silent.fail_checks();
    let answers = bodies(&mut clients);
    let refused = answers.iter().filter(|(status, _)| *status == 504).count();
    eventually("the silent one has read each of them", secs(20), || (silent.held() == refused).then_some(()));
    assert!(answers.iter().any(|(_, body)| body.contains("has stopped answering")), "{answers:?}");
    assert_eq!(server.backend(silent.address())["failures"].as_u64(), Some(refused as u64));
    eventually("the log has the reason", secs(20), || {
        (server.stdout.count(" 504 backend-down ") == refused).then_some(())
    });
}

#[test]
fn requests_wait_for_room_elsewhere_as_the_queue_allows_and_none_is_refused() {
    let (silent, good) = (Freezing::start("silent"), Freezing::start("good"));
    let backends = [silent.address().to_owned(), good.address().to_owned()];
    let few = format!(
        "[process]\nworkers = 2\n[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n\
         [pool.app]\nbackends = [{:?}, {{ address = {:?}, max-connections = 2 }}]\nqueue = 3\n\
         health = {{ http = \"/healthz\", interval = \"2s\", timeout = \"2s\", rise = 1, fall = 2 }}\n{LONG}\n",
        backends[0], backends[1],
    );
    let server = Server::start(&few);
    silent.fall_silent();
    good.fall_silent();
    // Two are held by the good one for now; all others wait at the silent one. Both ends of most connections are ours.
    descriptors::at_least(3000);
    let mut clients = send(&server, "GET", 1002);
    good.until_it_holds(2);
    silent.until_it_holds(1000);
    silent.fail_checks();
    let queued = || server.ctl_json(&["backends"])[0]["queued"].as_u64().unwrap();
    // Each of the two workers has a queue of three, which two that left a backend at the same moment exceed by one.
    eventually("the queue is full", secs(20), || {
        let queued = queued();
        assert!(queued <= 8, "{queued} wait");
        (queued >= 6).then_some(())
    });
    good.answer_late();
    let answers = bodies(&mut clients);
    assert_eq!(answers, vec![(200, "good".to_owned()); 1002]);
    assert_eq!(good.most(), 2, "requests at a time at the one that works");
    assert_eq!(server.backend(silent.address())["moved"].as_u64(), Some(1000));
}

#[test]
fn where_all_backends_are_silent_each_request_ends_within_the_limit() {
    let backends = [Freezing::start("one"), Freezing::start("two")];
    let limit = "timeouts = { response = \"10m\", down = \"200ms\" }";
    let server = front(&[backends[0].address(), backends[1].address()], limit);
    backends.iter().for_each(Freezing::fall_silent);
    let mut clients = send(&server, "GET", 20);
    eventually("all are held", secs(20), || {
        (backends.iter().map(Freezing::held).sum::<usize>() == 20).then_some(())
    });
    backends.iter().for_each(Freezing::fail_checks);
    for (status, body) in bodies(&mut clients) {
        assert!(status == 504 || status == 503, "{status} {body}");
    }
}
