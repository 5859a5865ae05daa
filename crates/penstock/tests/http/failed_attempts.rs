//! `failed` of the access log: the line says what a backend did to a session.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use testing::client::request;
use testing::{BackendConnection, Scripted, Server, port, secs};

fn front(backend: &str, pool: &str) -> Server {
    Server::start(&format!(
        "[process]\nworkers = 1\n[access-log]\ntarget = \"stdout\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
         [listener.raw]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"app\"\n\
         [listener.dns]\nbind = \"127.0.0.1:0\"\nprotocol = \"udp\"\npool = \"app\"\nidle-timeout = \"1s\"\n\
         [pool.app]\nbackends = [\"{backend}\"]\nhealth = \"off\"\npassive = \"off\"\nretries = 0\n{pool}\n"
    ))
}

#[track_caller]
fn is_told(server: &Server, what: &str, outcome: &str, failed: &str) {
    let line = server.stdout.wait_for(what, secs(20));
    assert!(line.contains(&format!(" {outcome} ")), "{outcome}: {line}");
    assert!(line.contains(&format!(" failed={failed} ")), "{failed}: {line}");
}

#[test]
fn every_outcome_that_a_backend_causes_says_how_its_attempt_failed() {
    type Deed = fn(&mut BackendConnection);
    let deeds: [(&str, &str, Deed); 4] = [
        ("502 backend-closed", "closed", |_| {}),
        ("504 backend-timeout", "timeout", |talk| drop(talk.rest())),
        ("502 backend-bad-response", "bad-response", |talk| drop(talk.client.try_send("HTTP/9 200\r\n\r\n"))),
        ("200 backend-aborted", "aborted", |talk| {
            let _ = talk.client.try_send("HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\npart");
        }),
    ];
    for (outcome, failed, deed) in deeds {
        let backend = Scripted::start(move |talk| {
            if talk.request().is_some() {
                deed(talk);
            }
        });
        // Only the one that never answers is waited for.
        let response = if failed == "timeout" { "300ms" } else { "60s" };
        let server = front(&backend.address, &format!("timeouts = {{ response = {response:?} }}"));
        for method in ["GET", "POST"] {
            let mut client = server.client("web");
            client.send(request(method, &format!("/{method}"), &[], b""));
            let _ = client.try_response(secs(20));
            is_told(&server, &format!("target=/{method} "), outcome, failed);
        }
    }
    let absent = front(&format!("127.0.0.1:{}", port::free()), "");
    let _ = absent.client("web").get("/", &[]);
    is_told(&absent, "target=/ ", "502 connect-failed", "refused");
    absent.client("raw").finish_sending();
    is_told(&absent, " raw ", "connect-failed", "refused");
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let server = front(&silent.local_addr().unwrap().to_string(), "");
    let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    for (server, outcome, failed) in
        [(&server, "no-reply", "timeout"), (&absent, "connect-failed", "refused")]
    {
        datagrams.send_to(b"question", server.address("dns")).unwrap();
        is_told(server, " dns ", outcome, failed);
    }
}

#[test]
fn a_post_on_a_kept_connection_that_the_backend_closes_says_so() {
    let asked = AtomicUsize::new(0);
    let backend = Scripted::start(move |talk| {
        while talk.request().is_some() {
            // The second one is read and not answered.
            if asked.fetch_add(1, SeqCst) == 1 || talk.answer(200, &[], b"ok").is_err() {
                break;
            }
        }
    });
    let server = front(&backend.address, "");
    let mut client = server.client("web");
    assert_eq!(client.get("/", &[]).text(), "ok");
    assert_eq!(client.request("POST", "/second", &[], b"body").status, 502);
    is_told(&server, "target=/second ", "502 backend-closed", "closed");
}
