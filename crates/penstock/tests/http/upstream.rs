//! What traffic does to backends and backends to traffic: ejection, the queue, kept connections, early answers.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use testing::{Scripted, Server, eventually, port, secs};

fn front(backends: &[&str], pool: &str) -> Server {
    let backends: Vec<String> = backends.iter().map(|backend| format!("\"{backend}\"")).collect();
    Server::start(&format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
         [pool.app]\nbackends = [{}]\n{pool}\n",
        backends.join(", ")
    ))
}

/// An address without a listener.
fn closed_port() -> String {
    format!("127.0.0.1:{}", port::free())
}

#[test]
fn a_backend_that_always_breaks_off_in_its_answer_is_ejected() {
    let good = Scripted::answering("good");
    let torn = Scripted::start(|talk| {
        talk.head();
        talk.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this");
    });
    let server = front(&[&good.address, &torn.address], "passive = { failures = 3, ejection = \"60s\" }");
    eventually("the torn one is ejected", secs(20), || {
        let mut client = server.client("web");
        client.send("GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        client.read_to_end();
        (server.health(&torn.address) == "ejected").then_some(())
    });
    for _ in 0..10 {
        assert_eq!(server.client("web").get("/", &[]).text(), "good");
    }
}

#[test]
fn the_last_backend_that_serves_is_never_ejected_even_if_a_drained_one_is_healthy() {
    let drained = Scripted::answering("drained");
    let gone = closed_port();
    let server =
        front(&[&drained.address, &gone], "passive = { failures = 2, ejection = \"60s\" }\nretries = 0");
    assert!(server.ctl(&["drain", "app", &drained.address]).status.success());
    for _ in 0..10 {
        // 502 says what is wrong; 503 would say that no backend is left to ask.
        assert_eq!(server.client("web").get("/", &[]).status, 502);
    }
    assert_ne!(server.health(&gone), "ejected");
    // Why it fails stands where operators look.
    let backend = server.backend(&gone);
    assert!(backend["last_verdicts"][0].to_string().contains("connect refused"), "{backend:#}");
    let events = String::from_utf8_lossy(&server.ctl(&["events"]).stdout).into_owned();
    assert!(events.contains("the last healthy one"), "{events}");
}

#[test]
fn a_pool_whose_last_backend_fails_all_sessions_is_degraded_until_one_goes_well() {
    let address = closed_port();
    let server = front(&[&address], "passive = { failures = 2 }\nretries = 0");
    let degraded = || server.ctl_json(&["status"])["degraded"].clone();
    assert_eq!(server.client("web").get("/", &[]).status, 502);
    assert_eq!(degraded(), serde_json::json!([]), "one failure may be chance");
    assert_eq!(server.client("web").get("/", &[]).status, 502);
    eventually("the pool is degraded", secs(20), || {
        let all = degraded();
        (all[0]["subject"] == "pool.app" && all[0]["reason"].to_string().contains("sessions fail"))
            .then_some(())
    });
    let port = address.rsplit(':').next().unwrap().parse().unwrap();
    let _back = Scripted::answering_at(port, "back");
    assert_eq!(server.client("web").get("/", &[]).text(), "back");
    eventually("it works again", secs(20), || (degraded() == serde_json::json!([])).then_some(()));
}

#[test]
fn who_waits_for_a_busy_backend_is_served_in_order_of_arrival() {
    let (release, held) = mpsc::channel::<()>();
    let held = Mutex::new(held);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let order = seen.clone();
    let backend = Scripted::start(move |talk| {
        while let Some(head) = talk.head() {
            order.lock().unwrap().push(head.split(' ').nth(1).unwrap().to_owned());
            held.lock().unwrap().recv().unwrap();
            if talk.answer(200, &[], b"done").is_err() {
                break;
            }
        }
    });
    let server =
        front(&[&backend.address], "max-connections = 1\nqueue = 100\ntimeouts = { queue = \"60s\" }");
    let mut clients = Vec::new();
    for number in 0..20usize {
        let mut client = server.client("web");
        client.send(format!("GET /{number} HTTP/1.1\r\nHost: test\r\n\r\n"));
        // The next one comes only when this one stands in its place.
        eventually("it waits", secs(10), || {
            let waiting = server.ctl_json(&["status"])["pools"][0]["queued"].as_u64()?;
            let busy = !seen.lock().unwrap().is_empty();
            (busy && waiting as usize == number).then_some(())
        });
        clients.push(client);
    }
    for mut client in clients {
        release.send(()).unwrap();
        assert_eq!(client.response().text(), "done");
    }
    let expected: Vec<String> = (0..20).map(|number| format!("/{number}")).collect();
    assert_eq!(*seen.lock().unwrap(), expected);
}

#[test]
fn a_kept_connection_that_was_closed_costs_no_retry() {
    let connections = Arc::new(AtomicU32::new(0));
    let count = connections.clone();
    // Each connection answers once, says nothing of closing, and closes when the next request comes.
    let fickle = Scripted::start(move |talk| {
        count.fetch_add(1, Ordering::SeqCst);
        if talk.head().is_some() {
            let _ = talk.answer(200, &[], b"once");
            talk.head();
        }
    });
    let server = front(&[&fickle.address], "retries = 0\npassive = { failures = 1, ejection = \"60s\" }");
    for _ in 0..5 {
        assert_eq!(server.client("web").get("/", &[]).text(), "once");
    }
    let backend = server.backend(&fickle.address);
    assert_eq!(backend["failures"], 0, "{backend:#}");
    assert!(connections.load(Ordering::SeqCst) >= 5);
}

#[test]
fn a_client_that_stops_its_upload_after_an_early_answer_still_gets_all_of_it() {
    let (go_on, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let backend = Scripted::start(move |talk| {
        talk.head();
        talk.send("HTTP/1.1 413 Too Much\r\nContent-Length: 10\r\n\r\n01234");
        let _ = wait.lock().unwrap().recv();
        talk.send("56789");
        talk.rest();
    });
    let server = front(&[&backend.address], "");
    // Which the front door sees first, the client's end or the rest of the answer, is up to the kernel: both must do.
    for _ in 0..50 {
        let mut client = server.client("web");
        client.send("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 1000000\r\n\r\nbeginning");
        client.read_until(b"01234");
        client.stream.shutdown(std::net::Shutdown::Write).unwrap();
        go_on.send(()).unwrap();
        let (rest, _) = client.read_to_end();
        assert!(rest.ends_with(b"56789"), "{:?}", String::from_utf8_lossy(&rest));
    }
}

#[test]
fn what_stands_behind_a_refused_upgrade_is_never_a_request() {
    let recorder = testing::Recorder::start();
    // No route takes this host, so the answer is our own.
    let server = Server::start(&format!(
        "[listener.web]\nbind = \"127.0.0.1:0\"\n[[listener.web.route]]\nhost = \"known.test\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"{}\"]\n",
        recorder.address()
    ));
    let mut client = server.client("web");
    client.send(
        "GET / HTTP/1.1\r\nHost: other.test\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n\
         GET /smuggled HTTP/1.1\r\nHost: known.test\r\n\r\n",
    );
    let (answer, _) = client.read_to_end();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert!(answer.starts_with("HTTP/1.1 404 ") && answer.matches("HTTP/1.1").count() == 1, "{answer}");
    assert!(recorder.requests().is_empty());
}

/// Closes a connection with a reset, as a client does that is killed with data on its way.
fn reset(client: testing::Client) {
    let testing::client::Stream::Tcp(stream) = &client.stream else { panic!("only TCP can be reset") };
    socket2::SockRef::from(stream).set_linger(Some(std::time::Duration::ZERO)).unwrap();
}

#[test]
fn a_client_that_breaks_off_gives_its_backend_free_at_once_waiting_or_served() {
    let (release, held) = mpsc::channel::<()>();
    let held = Mutex::new(held);
    let backend = Scripted::start(move |talk| {
        talk.head();
        let _ = held.lock().unwrap().recv();
    });
    let server =
        front(&[&backend.address], "max-connections = 1\ntimeouts = { response = \"60s\", queue = \"60s\" }");
    let counts = || {
        let status = server.ctl_json(&["status"]);
        let pool = &status["pools"][0];
        (pool["backends"][0]["in_flight"].as_u64().unwrap(), pool["queued"].as_u64().unwrap())
    };
    let ask = || {
        let mut client = server.client("web");
        client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
        client
    };
    let served = ask();
    eventually("one is served", secs(10), || (counts() == (1, 0)).then_some(()));
    let waiting = ask();
    eventually("one waits", secs(10), || (counts() == (1, 1)).then_some(()));
    reset(waiting);
    eventually("no request waits", secs(10), || (counts() == (1, 0)).then_some(()));
    reset(served);
    eventually("the backend is free", secs(10), || (counts() == (0, 0)).then_some(()));
    drop(release);
}

#[test]
fn a_backend_that_drips_its_head_has_a_time_limit() {
    let backend = Scripted::start(|talk| {
        talk.head();
        talk.send("HTTP/1.1 200 OK\r\n");
        while talk.send("X-Drip: 1\r\n") {
            std::thread::park_timeout(std::time::Duration::from_millis(100));
        }
    });
    let server = front(&[&backend.address], "timeouts = { response = \"1s\" }\nretries = 0");
    assert_eq!(server.client("web").get("/", &[]).status, 504);
}

/// The response timeout counts from the end of the request, also if that comes before the wait begins.
#[test]
fn a_request_with_a_body_waits_no_longer_than_one_without() {
    let (told, heard) = mpsc::channel();
    let told = Mutex::new(told);
    let silent = Scripted::start(move |talk| {
        let _ = told.lock().unwrap().send(talk.head());
        // Until the connection is closed.
        talk.head();
    });
    let server = Server::start(&format!(
        "[process]\nworkers = 1\n[listener.web]\nbind = \"127.0.0.1:0\"\n\
         [[listener.web.route]]\npath = \"/short\"\npool = \"short\"\n\
         [[listener.web.route]]\npool = \"long\"\n\
         [pool.short]\nbackends = [\"{0}\"]\ntimeouts = {{ response = \"1s\" }}\nretries = 0\n\
         [pool.long]\nbackends = [\"{0}\"]\ntimeouts = {{ response = \"3s\" }}\nretries = 0\n",
        silent.address
    ));
    let mut with_body = server.client("web");
    with_body.send("POST /long HTTP/1.1\r\nHost: test\r\nContent-Length: 4\r\n\r\nbody");
    heard.recv_timeout(secs(20)).unwrap();
    // Takes a second: the request without a body comes that much later.
    assert_eq!(server.client("web").get("/short", &[]).status, 504);
    let mut without = server.client("web");
    without.send("GET /long HTTP/1.1\r\nHost: test\r\n\r\n");
    let (first, second) = mpsc::channel();
    std::thread::scope(|scope| {
        for (name, client) in [("body", &mut with_body), ("none", &mut without)] {
            let first = first.clone();
            scope.spawn(move || {
                assert_eq!(client.response().status, 504);
                first.send(name).unwrap();
            });
        }
    });
    assert_eq!(second.try_iter().collect::<Vec<_>>(), ["body", "none"]);
}

#[test]
fn a_body_that_is_broken_from_its_beginning_is_a_502_and_not_an_empty_answer() {
    let backend = Scripted::saying(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n");
    let server = front(&[&backend.address], "");
    assert_eq!(server.client("web").get("/", &[]).status, 502);
}

#[test]
fn the_request_id_cannot_come_as_a_trailer() {
    let recorder = testing::Recorder::start();
    let server = front(&[recorder.address()], "");
    let mut client = server.client("web");
    client.send(
        "POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n\
         0\r\nX-Request_Id: forged\r\nX-Sum: kept\r\n\r\n",
    );
    assert_eq!(client.response().status, 200);
    let raw = recorder
        .records()
        .iter()
        .map(|record| String::from_utf8_lossy(&record.bytes).into_owned())
        .collect::<String>();
    assert!(raw.contains("X-Sum: kept") && !raw.contains("forged"), "{raw}");
}
