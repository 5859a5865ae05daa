use std::net::{Ipv4Addr, SocketAddr};

use sys::socket::{DualStack, listen_tcp};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::connection::HEAD_LIMIT;
use super::*;
use crate::report::fixture;

/// Serves on a free port and returns its address.
fn serve(front: Arc<Front>) -> SocketAddr {
    let listener = bind(&BindAddress::Ip((Ipv4Addr::LOCALHOST, 0).into())).unwrap();
    let address = listener.address().unwrap();
    let logins = Arc::new(Logins::new(front.state.clone()).unwrap());
    tokio::spawn(run(listener, front, logins));
    address
}

async fn ask(address: SocketAddr, line: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn each_endpoint_answers_in_its_own_form() {
    let front = fixture::front("backends = ['127.0.0.1:1']");
    let address = serve(front.clone());
    let health = ask(address, "GET /healthz").await;
    assert!(health.starts_with("HTTP/1.1 200 ") && health.ends_with("\r\n\r\nok\n"), "{health}");
    let metrics = ask(address, "GET /metrics").await;
    assert!(metrics.contains("content-type: application/openmetrics-text") && metrics.ends_with("# EOF\n"));
    let status = ask(address, "GET /status").await;
    let json: serde_json::Value = serde_json::from_str(status.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(json["pools"][0]["name"], "app");
    front.state.draining.store(true, Relaxed);
    assert!(ask(address, "GET /healthz").await.starts_with("HTTP/1.1 503 "));
}

#[tokio::test]
async fn only_reading_is_allowed() {
    let address = serve(fixture::front("backends = ['127.0.0.1:1']"));
    assert!(ask(address, "POST /status").await.starts_with("HTTP/1.1 405 "));
    assert!(ask(address, "DELETE /metrics").await.starts_with("HTTP/1.1 405 "));
    assert!(ask(address, "GET /").await.starts_with("HTTP/1.1 404 "));
    assert!(ask(address, "HEAD /status.html").await.starts_with("HTTP/1.1 200 "));
    assert!(ask(address, "POST /status.html").await.starts_with("HTTP/1.1 405 "));
    let head = ask(address, "HEAD /healthz").await;
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
}

#[tokio::test]
async fn garbage_is_answered_or_closed_and_harms_nobody() {
    let address = serve(fixture::front("backends = ['127.0.0.1:1']"));
    for garbage in [&b"\0\0\0\0\r\n\r\n"[..], b"\x16\x03\x01\x02\x00\x01", &[b'a'; 200_000], b"GET /\r\n\r\n"]
    {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // The server may close the connection before it has read all bytes.
        let _ = stream.write_all(garbage).await;
        let _ = stream.shutdown().await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        assert!(!answer.starts_with(b"HTTP/1.1 2"));
    }
    assert!(ask(address, "GET /healthz").await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn a_client_that_never_finishes_its_head_is_closed() {
    let address = serve(fixture::front("backends = ['127.0.0.1:1']"));
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\n").await.unwrap();
    let mut answer = Vec::new();
    // The server may answer 408 or close the connection without an answer.
    let _ = timeout(HEAD_LIMIT * 2, stream.read_to_end(&mut answer)).await.expect("it is closed in time");
}

#[tokio::test]
async fn a_unix_socket_is_for_owner_and_group() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("admin.sock");
    let listener = bind(&BindAddress::Unix(path.clone())).unwrap();
    let front = fixture::front("backends = ['127.0.0.1:1']");
    let logins = Arc::new(Logins::new(front.state.clone()).unwrap());
    tokio::spawn(run(listener, front, logins));
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, UNIX_MODE);
    let mut stream = tokio::net::UnixStream::connect(&path).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("ok\n"), "{answer}");
}

#[test]
fn an_address_in_use_is_refused_though_the_option_would_share_it() {
    let holder = listen_tcp((Ipv4Addr::LOCALHOST, 0).into(), DualStack::V6Only, 1).unwrap();
    let result = bind(&BindAddress::Ip(holder.local_addr().unwrap()));
    assert!(
        matches!(result, Err(AdminError::Tcp { source, .. }) if source.kind() == io::ErrorKind::AddrInUse)
    );
}
