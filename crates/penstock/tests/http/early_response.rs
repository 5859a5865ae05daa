//! A backend, or Penstock itself, answers before it has read the upload: the client gets that answer whole. The clients are
//! curl over HTTP/1.1 and HTTP/2, and one that reads nothing before it has sent much.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use testing::client::Stream;
use testing::peers::Latch;
use testing::{BackendConnection, Scripted, Server, secs, tools};

const FORMS: [&str; 2] = ["--http1.1", "--http2-prior-knowledge"];

fn front(backend: &Scripted, listener: &str) -> Server {
    Server::start(&format!(
        "[process]\nworkers = 1\n[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"stdout\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n{listener}\n\
         [pool.app]\nbackends = [\"{}\"]\nhealth = \"off\"\npassive = \"off\"\n",
        backend.address
    ))
}

/// A backend that answers 413 when it has the head, and then does this.
fn refusing(then: impl Fn(&mut BackendConnection) + Send + Sync + 'static) -> Scripted {
    Scripted::start(move |talk| {
        if talk.head().is_some() {
            let _ = talk.answer(413, &[], &b"the upload is too large".repeat(100));
            then(talk);
        }
    })
}

fn upload(server: &Server, form: &str, file: &Path) -> String {
    let url = format!("http://{}/upload", server.address("web"));
    let file = format!("@{}", file.display());
    let arguments = ["-sS", "--max-time", "60", "-H", "Expect:", "-w", " %{http_code} %{exitcode}", form];
    let said = tools::run("curl", &[&arguments[..], &["--data-binary", &file, &url]].concat(), secs(90));
    format!("{}{}", String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr))
}

#[test]
fn curl_gets_the_answer_of_a_backend_that_reads_no_upload() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("upload");
    std::fs::File::create(&file).unwrap().set_len(100 << 20).unwrap();
    type Then = fn(&mut BackendConnection);
    let deeds: [(&str, Then); 3] = [
        ("closes at once", |_| {}),
        ("ends its direction and reads no more", |talk| {
            let _ = talk.client.stream.shutdown(std::net::Shutdown::Write);
            // Until the test is over: nothing opens it.
            Latch::default().wait();
        }),
        ("reads all of it", |talk| drop(talk.rest())),
    ];
    for (what, then) in deeds {
        let backend = refusing(then);
        let server = front(&backend, "");
        for form in FORMS {
            for _ in 0..3 {
                let said = upload(&server, form, &file);
                let whole = format!("{} 413 0", "the upload is too large".repeat(100));
                assert_eq!(said, whole, "{form}, the backend {what}");
            }
        }
    }
}

#[test]
fn curl_gets_our_own_answer_to_an_upload_that_is_too_large_or_denied() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("upload");
    std::fs::File::create(&file).unwrap().set_len(100 << 20).unwrap();
    let backend = Scripted::answering("app");
    for (listener, status) in [
        ("limits = { body = \"1MiB\" }", "413"),
        ("[[listener.web.route]]\nrespond = { status = 403 }", "403"),
    ] {
        let server = front(&backend, listener);
        for form in FORMS {
            for _ in 0..3 {
                let said = upload(&server, form, &file);
                assert!(said.ends_with(&format!(" {status} 0")), "{form}: {said}");
            }
        }
    }
}

#[test]
fn a_client_that_sends_on_reads_its_answer_and_is_let_go_within_a_bound() {
    let backend = refusing(|_| {});
    let server = front(&backend, "");
    let mut client = server.client("web");
    client.send("POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n");
    let began = Instant::now();
    // It reads nothing while it can send, and looks for an answer only then.
    let Stream::Tcp(socket) = &client.stream else { panic!() };
    socket.set_write_timeout(Some(testing::millis(300))).unwrap();
    let piece = vec![b'x'; 1 << 20];
    let mut socket = socket;
    let sent: usize = std::iter::from_fn(|| socket.write(&piece).ok()).take(400).sum();
    let answer = client.try_response(secs(20)).unwrap();
    assert_eq!(answer.status, 413, "after {sent} bytes");
    assert!(began.elapsed() < secs(15), "{:?}", began.elapsed());
    let (_, _) = client.read_to_end_within(secs(20));
}
