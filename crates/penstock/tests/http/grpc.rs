//! gRPC through HTTP/2 on both sides, with the client and the server of grpcio.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use testing::pki::{Pair, Pki, Time};
use testing::server::run_to_end;
use testing::{Server, peers, secs, tools};

fn script(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/http/grpc").join(name)
}

fn grpc_server(files: Option<&Pair>) -> peers::Process {
    let mut command = Command::new(tools::python("grpc"));
    command.arg("-u").arg(script("server.py"));
    if let Some(files) = files {
        command.arg(&files.certificate).arg(&files.key);
    }
    let mut process = peers::Process::start(&mut command);
    let line = process.stdout.wait_for("port ", secs(30));
    process.address = format!("127.0.0.1:{}", line.trim_start_matches("port "));
    process
}

/// What came of each call.
fn calls(address: &str, tls: Option<(&Path, &str)>) -> HashMap<String, Value> {
    let mut command = Command::new(tools::python("grpc"));
    command.arg(script("client.py")).arg(address);
    if let Some((authority, name)) = tls {
        command.arg(authority).arg(name);
    }
    let output = run_to_end(&mut command, secs(60));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let lines = said.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.map(|mut line| (line["call"].take().as_str().unwrap().to_owned(), line)).collect()
}

/// What the server means, whichever proxy stands between.
fn assert_as_without_us(calls: &HashMap<String, Value>) {
    assert_eq!(calls["unary"]["answer"], "hello");
    assert_eq!(calls["unary"]["code"], "OK");
    assert_eq!(calls["unary"]["first"]["x-first"], "why");
    assert_eq!(calls["unary"]["first"]["x-first-bin"], json!([0, 255, 10]));
    assert_eq!(calls["unary"]["last"]["x-last"], "why");
    assert_eq!(calls["unary"]["last"]["x-last-bin"], json!([254, 1]));
    assert_eq!(calls["empty"]["answer"], 0);
    assert_eq!(calls["large"]["whole"], true);
    assert_eq!(calls["server-stream"]["answers"], true);
    assert_eq!(calls["client-stream"]["answer"], 100_016);
    assert_eq!(calls["bidi"]["answers"], true, "{}", calls["bidi"]);
    assert_eq!(calls["error"]["code"], "NOT_FOUND");
    assert_eq!(calls["error"]["details"], "no such thïng");
    assert_eq!(calls["error"]["more"], json!(b"\x08\x05details"));
    assert_eq!(calls["late-error"]["got"], json!(["one"]));
    assert_eq!(calls["late-error"]["code"], "DATA_LOSS");
    assert_eq!(calls["unknown"]["code"], "UNIMPLEMENTED");
    assert_eq!(calls["deadline"]["code"], "DEADLINE_EXCEEDED");
    assert_eq!(calls["cancel"]["code"], "CANCELLED");
    assert_eq!(calls["after"]["answer"], "still here");
}

fn config(listener: &str, backend: &str, pool: &str) -> String {
    format!(
        "[process]\nworkers = 1\n[admin]\nbind = \"127.0.0.1:0\"\n[control]\nsocket = \"@DIR@/control.sock\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n{listener}\n\
         [pool.app]\nbackends = [\"{backend}\"]\nhttp2 = \"on\"\n{pool}\n"
    )
}

#[test]
fn every_kind_of_call_works_as_without_us() {
    let backend = grpc_server(None);
    assert_as_without_us(&calls(&backend.address, None));
    let server = Server::start(&config("", &backend.address, ""));
    assert_as_without_us(&calls(&server.address("web"), None));
    // OK, NOT_FOUND and DATA_LOSS in trailers, UNIMPLEMENTED in a head.
    for (code, call) in [(0, "unary"), (5, "error"), (15, "late-error"), (12, "unknown")] {
        server.stdout.wait_for(&format!("grpc_status={code} "), secs(5));
        let line = format!(
            "penstock_backend_grpc_responses_total{{pool=\"app\",backend=\"{}\",code=\"{code}\"}} ",
            backend.address
        );
        assert!(server.metrics().contains(&line), "{call}: {}", server.metrics());
    }
    backend.stdout.wait_for("hanging", secs(5));
    testing::eventually("the backend hears of each cancelled call", secs(10), || {
        (backend.stdout.count("cancelled") == 4).then_some(())
    });
}

#[test]
fn every_kind_of_call_works_over_tls_on_both_sides() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::new(dir.path());
    let backend = grpc_server(Some(&pki.issue("backend", &["127.0.0.1"], Time::Now)));
    let certificates = dir.path().join("certificates");
    let front = Pki::new(&certificates);
    front.issue("front", &["front.example"], Time::Now);
    let authority = dir.path().join("front-ca.pem");
    std::fs::rename(front.authority(), &authority).unwrap();
    let server = Server::start(&config(
        &format!("tls = {{ certificates = \"{}\" }}", certificates.display()),
        &backend.address,
        &format!("tls = {{ ca = \"{}\" }}", pki.authority().display()),
    ));
    assert_as_without_us(&calls(&server.address("web"), Some((&authority, "front.example"))));
}
