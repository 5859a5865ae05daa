use std::sync::Arc;

use logic::health::{Health, PassiveRule, Rule, State as HealthState};
use tokio::net::{TcpListener, UnixListener};

use super::*;
use state::State;
use tokio::net::UnixStream;

fn backend(address: &BackendAddress) -> Arc<BackendState> {
    State::new(1)
        .known()
        .backend(&"app".into(), address, || Health::new(None, PassiveRule::DEFAULT, Instant::now(), 0.5))
}

fn http(timeout: Duration) -> ActiveCheck {
    let check = Check::Http {
        path: "/healthz?x=1".into(),
        host: None,
        method: CheckMethod::Get,
        expect: StatusRange::default(),
    };
    ActiveCheck { check, rule: Rule { timeout, ..Rule::DEFAULT } }
}

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_secs(1);

/// Accepts one connection and sends `answer` after a complete request. The task returns the request.
async fn server(answer: &'static [u8], then: Then) -> (BackendAddress, tokio::task::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = BackendAddress::Ip(listener.local_addr().unwrap());
    let asked = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut question = Vec::new();
        while !question.ends_with(b"\r\n\r\n") && stream.read_buf(&mut question).await.unwrap() > 0 {}
        // The check may already have closed the connection.
        let _ = stream.write_all(answer).await;
        if then == Then::Hang {
            let _ = stream.read_to_end(&mut Vec::new()).await;
        }
        String::from_utf8(question).unwrap()
    });
    (address, asked)
}

#[derive(PartialEq, Eq)]
enum Then {
    Close,
    Hang,
}

async fn verdict(address: &BackendAddress, active: &ActiveCheck) -> (VerdictOutcome, Cause) {
    match run(&backend(address), active, &plain(None)).await {
        Finding::Verdict(verdict) => (verdict.outcome, verdict.cause),
        other => panic!("{other:?}"),
    }
}

fn plain(send_proxy: Option<proxy_header::Version>) -> Way {
    Way { send_proxy, tls: None, outgoing: Outgoing::default(), http: BackendHttp::Http1 }
}

#[tokio::test]
async fn every_kind_of_answer_has_its_verdict() {
    use VerdictOutcome::{Fail, Pass};
    let long_head: &'static [u8] = Box::leak(
        format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(20_000)).into_boxed_str().into_boxed_bytes(),
    );
    let endless: &'static [u8] = Box::leak(b"HTTP/1.1 100 Continue\r\n\r\n".repeat(1000).into_boxed_slice());
    let broken = |why: &str| Cause::BadResponse(why.to_owned());
    let cases: Vec<(&'static [u8], Then, VerdictOutcome, Cause)> = vec![
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", Then::Close, Pass, Cause::Passed),
        (b"HTTP/1.0 204 No Content\r\n\r\n", Then::Close, Pass, Cause::Passed),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\nhalf", Then::Hang, Pass, Cause::Passed),
        (b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", Then::Close, Pass, Cause::Passed),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", Then::Close, Fail, Cause::HttpStatus(403)),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", Then::Close, Fail, Cause::HttpStatus(503)),
        (
            b"SSH-2.0-OpenSSH_9.2\r\n",
            Then::Close,
            Fail,
            broken(
                "backend sent something that is not an HTTP/1 response: if it speaks HTTP/2 only (gRPC), set http2 = \"on\" in its pool",
            ),
        ),
        (b"\x15\x03\x01\x00\x02\x02\x46", Then::Close, Fail, broken("the backend expects TLS")),
        (b"", Then::Close, Fail, Cause::ClosedEarly),
        (b"HTTP/1.1 200 OK\r\nConte", Then::Close, Fail, Cause::ClosedEarly),
        (endless, Then::Hang, Fail, broken("no final answer within 16 KiB")),
    ];
    for (answer, then, outcome, cause) in cases {
        let (address, _) = server(answer, then).await;
        let found = verdict(&address, &http(LONG)).await;
        assert_eq!(found, (outcome, cause), "{}", String::from_utf8_lossy(&answer[..answer.len().min(60)]));
    }
    let (address, _) = server(long_head, Then::Hang).await;
    let found = verdict(&address, &http(LONG)).await;
    assert!(matches!(found, (Fail, Cause::BadResponse(_))), "{found:?}");
}

#[tokio::test]
async fn the_question_is_a_plain_request_that_says_who_asks() {
    let (address, asked) = server(b"HTTP/1.1 200 OK\r\n\r\n", Then::Close).await;
    verdict(&address, &http(LONG)).await;
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        asked.await.unwrap(),
        format!(
            "GET /healthz?x=1 HTTP/1.1\r\nHost: {address}\r\nUser-Agent: penstock-health/{version}\r\n\
             Accept: */*\r\nConnection: close\r\n\r\n"
        )
    );
}

#[tokio::test]
async fn a_backend_that_hangs_fails_at_the_limit() {
    let (address, _) = server(b"HTTP/1.1 200", Then::Hang).await;
    let start = Instant::now();
    assert_eq!(
        verdict(&address, &http(SHORT)).await,
        (VerdictOutcome::Fail, Cause::NoAnswer { after: SHORT })
    );
    assert!(start.elapsed() >= SHORT && start.elapsed() < LONG / 2);
}

#[tokio::test]
async fn a_port_without_listener_is_refused() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let tcp = ActiveCheck { check: Check::Tcp, rule: Rule::DEFAULT };
    assert_eq!(verdict(&BackendAddress::Ip(free), &tcp).await, (VerdictOutcome::Fail, Cause::ConnectRefused));
}

/// Answers datagrams with what `answer` makes of them.
async fn datagrams(answer: fn(&[u8]) -> Vec<u8>) -> BackendAddress {
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = BackendAddress::Ip(socket.local_addr().unwrap());
    tokio::spawn(async move {
        let mut room = [0; 2000];
        while let Ok((length, from)) = socket.recv_from(&mut room).await {
            let answer = answer(&room[..length]);
            if !answer.is_empty() {
                socket.send_to(&answer, from).await.unwrap();
            }
        }
    });
    address
}

#[tokio::test]
async fn a_dns_server_passes_with_any_answer_to_the_question_and_with_no_other() {
    let name = logic::health::dns::Name::new("web.example").unwrap();
    let check = |timeout| ActiveCheck {
        check: Check::Dns { name: name.clone() },
        rule: Rule { timeout, ..Rule::DEFAULT },
    };
    let no_such_name = |question: &[u8]| {
        let mut answer = question.to_vec();
        (answer[2], answer[3]) = (0x81, 0x83);
        answer
    };
    let address = datagrams(no_such_name).await;
    assert_eq!(verdict(&address, &check(LONG)).await, (VerdictOutcome::Pass, Cause::Passed));
    let with_another_id = |question: &[u8]| {
        let mut answer = question.to_vec();
        (answer[0], answer[2]) = (!answer[0], 0x81);
        answer
    };
    let address = datagrams(with_another_id).await;
    assert_eq!(verdict(&address, &check(SHORT)).await, (VerdictOutcome::Fail, Cause::WrongReply));
    let address = datagrams(|_| Vec::new()).await;
    let silent = (VerdictOutcome::Fail, Cause::NoReply { after: SHORT });
    assert_eq!(verdict(&address, &check(SHORT)).await, silent);
    let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refused = (VerdictOutcome::Fail, Cause::ConnectRefused);
    assert_eq!(verdict(&BackendAddress::Ip(free), &check(LONG)).await, refused);
}

#[tokio::test]
async fn a_datagram_passes_with_an_answer_that_begins_as_expected() {
    let check = |expect: &[u8], timeout| ActiveCheck {
        check: Check::Datagram { send: b"ping"[..].into(), expect: expect.into() },
        rule: Rule { timeout, ..Rule::DEFAULT },
    };
    let address = datagrams(|question| [question, b" pong"].concat()).await;
    for expect in [&b""[..], b"ping p"] {
        assert_eq!(verdict(&address, &check(expect, LONG)).await, (VerdictOutcome::Pass, Cause::Passed));
    }
    let wrong = (VerdictOutcome::Fail, Cause::WrongReply);
    assert_eq!(verdict(&address, &check(b"pong", SHORT)).await, wrong);
}

#[tokio::test]
async fn unix_sockets_are_checked_and_their_faults_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.sock");
    let address = BackendAddress::Unix(path.clone());
    let tcp = ActiveCheck { check: Check::Tcp, rule: Rule { timeout: SHORT, ..Rule::DEFAULT } };
    assert_eq!(verdict(&address, &tcp).await, (VerdictOutcome::Fail, Cause::SocketMissing));
    let listener = UnixListener::bind(&path).unwrap();
    assert_eq!(verdict(&address, &tcp).await, (VerdictOutcome::Pass, Cause::Passed));
    drop(listener);
    assert_eq!(verdict(&address, &tcp).await, (VerdictOutcome::Fail, Cause::ConnectRefused));
}

#[tokio::test]
async fn a_full_queue_of_a_unix_socket_is_a_timeout() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.sock");
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    socket.bind(&socket2::SockAddr::unix(&path).unwrap()).unwrap();
    socket.listen(0).unwrap();
    let mut held = Vec::new();
    while let Ok(stream) = UnixStream::connect(&path).await {
        held.push(stream);
    }
    let tcp = ActiveCheck { check: Check::Tcp, rule: Rule { timeout: SHORT, ..Rule::DEFAULT } };
    let found = verdict(&BackendAddress::Unix(path), &tcp).await;
    assert_eq!(found, (VerdictOutcome::Fail, Cause::ConnectTimeout { after: SHORT }));
}

#[tokio::test]
async fn a_name_is_checked_at_the_first_address_that_connects() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (address, _asked) = server(b"HTTP/1.1 200 OK\r\n\r\n", Then::Close).await;
    let BackendAddress::Ip(good) = address else { panic!("a TCP server") };
    let backend = backend(&BackendAddress::Name { host: "app.test".to_owned(), port: 80 });
    assert!(matches!(run(&backend, &http(LONG), &plain(None)).await, Finding::NoAddress));
    backend.addresses.store(Arc::new(vec![free, good]));
    let finding = run(&backend, &http(LONG), &plain(None)).await;
    assert!(
        matches!(&finding, Finding::Verdict(verdict) if verdict.outcome == VerdictOutcome::Pass),
        "{finding:?}"
    );
    assert_eq!(backend.health_state(), HealthState::Unchecked);
}

#[tokio::test]
async fn a_backend_that_wants_a_proxy_header_gets_one() {
    let (address, asked) = server(b"HTTP/1.1 200 OK\r\n\r\n", Then::Close).await;
    let finding = run(&backend(&address), &http(LONG), &plain(Some(proxy_header::Version::V1))).await;
    assert!(matches!(finding, Finding::Verdict(_)));
    assert!(asked.await.unwrap().starts_with("PROXY UNKNOWN\r\nGET "));
}

#[test]
fn host_names_the_backend_as_a_browser_would() {
    let cases = [
        (BackendAddress::Ip("10.0.0.1:80".parse().unwrap()), "10.0.0.1"),
        (BackendAddress::Ip("10.0.0.1:8000".parse().unwrap()), "10.0.0.1:8000"),
        (BackendAddress::Ip("[::1]:80".parse().unwrap()), "[::1]"),
        (BackendAddress::Name { host: "app.test".to_owned(), port: 80 }, "app.test"),
        (BackendAddress::Name { host: "app.test".to_owned(), port: 81 }, "app.test:81"),
        (BackendAddress::Unix("/run/app.sock".into()), "localhost"),
    ];
    for (address, host) in cases {
        assert_eq!(host_of(&address), host);
    }
}
