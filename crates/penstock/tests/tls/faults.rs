//! Clients that break the TLS protocol, and the alerts that they get.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;

use rustls::version::{TLS12, TLS13};
use rustls::{AlertDescription, Error};
use testing::forger::Forger;
use testing::pki::{Pki, Time};
use testing::{Server, eventually, hello, secs, tools};

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;

const UNEXPECTED_MESSAGE: u8 = 10;
const RECORD_OVERFLOW: u8 = 22;
const HANDSHAKE_FAILURE: u8 = 40;
const DECODE_ERROR: u8 = 50;
const PROTOCOL_VERSION: u8 = 70;
const INAPPROPRIATE_FALLBACK: u8 = 86;

const TLS_AES_128_GCM_SHA256: u16 = 0x1301;
const ECDHE_ECDSA_AES128_GCM_SHA256: u16 = 0xc02b;
const FALLBACK_SCSV: u16 = 0x5600;

const RENEGOTIATION_INFO: u16 = 0xff01;
const PADDING: u16 = 21;

/// A listener with the certificate of `a.example`, and its authority.
struct Door {
    server: Server,
    pki: Pki,
    /// Backend of the listener `relayed`. It takes connections and says nothing.
    _backend: TcpListener,
    _dirs: [tempfile::TempDir; 2],
}

impl Door {
    fn open() -> Self {
        let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [certificates, authority] = dirs.each_ref().map(tempfile::TempDir::path);
        let pki = Pki::new(authority);
        pki.issue("a", &["a.example"], Time::Now);
        for file in ["a.crt", "a.key"] {
            std::fs::copy(authority.join(file), certificates.join(file)).unwrap();
        }
        let backend = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Server::start(&config(certificates, backend.local_addr().unwrap()));
        Self { server, pki, _backend: backend, _dirs: dirs }
    }

    /// Sends these bytes at once, and returns what comes until the server ends the connection.
    fn answer(&self, bytes: &[u8]) -> Vec<u8> {
        let mut client = TcpStream::connect(self.server.address("secure")).unwrap();
        client.set_read_timeout(Some(secs(20))).unwrap();
        client.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        answer
    }
}

fn config(certificates: &Path, backend: SocketAddr) -> String {
    let tls = format!(
        "tls = {{ certificates = \"{}\", policy = \"compatible\", handshake-timeout = \"5s\" }}\n",
        certificates.display()
    );
    format!(
        "[listener.secure]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\n\
         route = [{{ redirect = \"https://a.example/there\" }}]\n\
         {tls}[listener.relayed]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"silent\"\n{tls}\
         [pool.silent]\nbackends = [\"{backend}\"]\n"
    )
}

fn vector16(bytes: &[u8]) -> Vec<u8> {
    [&u16::try_from(bytes.len()).unwrap().to_be_bytes()[..], bytes].concat()
}

fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    [&[kind, 3, 3][..], &vector16(content)].concat()
}

fn fatal(alert: u8) -> Vec<u8> {
    record(ALERT, &[2, alert])
}

/// A ClientHello of TLS 1.2 in one record.
fn tls12_hello(suites: &[u16]) -> Vec<u8> {
    let suites: Vec<u8> = suites.iter().flat_map(|suite| suite.to_be_bytes()).collect();
    // supported_groups with x25519 and secp256r1, signature_algorithms with ecdsa_secp256r1_sha256.
    let extensions = [&[0, 10, 0, 6, 0, 4, 0, 29, 0, 23][..], &[0, 13, 0, 4, 0, 2, 4, 3]].concat();
    let body = [&[3, 3][..], &[7; 32], &[0], &vector16(&suites), &[1, 0], &vector16(&extensions)].concat();
    record(HANDSHAKE, &[&[1, 0][..], &vector16(&body)].concat())
}

#[test]
fn a_client_hello_that_no_server_may_answer_gets_the_alert_that_its_rfc_names() {
    let door = Door::open();
    let tls13 = |more: &[(u16, Vec<u8>)]| hello::message(Some(b"a.example"), &[b"http/1.1"], more);
    let mut ssl = tls13(&[]);
    ssl[4..6].copy_from_slice(&[3, 0]);
    let long = tls13(&[(PADDING, vec![0; 1 << 14])]);
    let cases = [
        ("renegotiation", record(HANDSHAKE, &tls13(&[(RENEGOTIATION_INFO, vec![1, 7])])), HANDSHAKE_FAILURE),
        ("SSL 3.0 in legacy_version", record(HANDSHAKE, &ssl), PROTOCOL_VERSION),
        ("a long record", record(HANDSHAKE, &long), RECORD_OVERFLOW),
        ("the header of a long record", vec![HANDSHAKE, 3, 1, 0x40, 1], RECORD_OVERFLOW),
        (
            "fallback with a suite of TLS 1.3",
            tls12_hello(&[ECDHE_ECDSA_AES128_GCM_SHA256, TLS_AES_128_GCM_SHA256, FALLBACK_SCSV]),
            INAPPROPRIATE_FALLBACK,
        ),
    ];
    for (name, bytes, alert) in cases {
        assert_eq!(door.answer(&bytes), fatal(alert), "{name}");
    }
    // The same client without a fault.
    let good = hello::records(&tls13(&[(RENEGOTIATION_INFO, vec![0]), (PADDING, vec![0; 1 << 14])]), 1 << 14);
    let mut client = TcpStream::connect(door.server.address("secure")).unwrap();
    client.set_read_timeout(Some(secs(20))).unwrap();
    client.write_all(&good).unwrap();
    let mut first = [0; 6];
    client.read_exact(&mut first).unwrap();
    assert_eq!((first[0], first[5]), (HANDSHAKE, 2), "a ServerHello");
}

#[test]
fn what_comes_together_with_the_client_hello_is_answered_at_once_and_each_fault_with_an_alert() {
    let door = Door::open();
    let hello = tls12_hello(&[ECDHE_ECDSA_AES128_GCM_SHA256]);
    let warning = record(ALERT, &[1, 43]);
    let key_exchange = [16, 0, 0, 33];
    let cases = [
        ("heartbeat", record(24, &[1, 0, 1, 7]), DECODE_ERROR),
        ("a ClientKeyExchange without a point", record(HANDSHAKE, &[16, 0, 0, 1, 0]), DECODE_ERROR),
        (
            "a record between the parts of a message",
            [record(HANDSHAKE, &key_exchange), record(20, &[1])].concat(),
            UNEXPECTED_MESSAGE,
        ),
        ("five warnings", warning.repeat(5), UNEXPECTED_MESSAGE),
    ];
    for (name, bytes, alert) in cases {
        let answer = door.answer(&[&hello[..], &bytes].concat());
        assert_eq!(answer[5], 2, "{name}: first a ServerHello");
        // The last message before the alert is ServerHelloDone.
        let end = [&[14, 0, 0, 0][..], &fatal(alert)].concat();
        assert!(answer.ends_with(&end), "{name}: {:?}", &answer[answer.len() - 11..]);
    }
}

#[test]
fn a_fault_after_the_handshake_gets_an_encrypted_alert_in_place_of_close_notify() {
    let door = Door::open();
    let (address, authority) = (door.server.address("secure"), door.pki.authority());
    let connect = |version| Forger::connect(&address, "a.example", &authority, version);
    let unexpected = Some(Error::AlertReceived(AlertDescription::UnexpectedMessage));

    let mut client = connect(&TLS13);
    client.queue(0, b"");
    client.send();
    assert_eq!(client.error(), unexpected, "a record without content type");

    for version in [&TLS12, &TLS13] {
        let mut client = connect(version);
        client.queue(HANDSHAKE, &[24, 0]);
        client.queue(DATA, b"GET / HTTP/1.1\r\n");
        client.send();
        assert_eq!(client.error(), unexpected, "data between the parts of a message");

        // The answer to the request that came before the fault is not sent; the write meets the fault.
        let mut client = connect(version);
        client.queue(DATA, b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
        client.queue(HANDSHAKE, &[24, 0]);
        client.queue(DATA, b"more");
        client.send();
        assert_eq!(client.error(), unexpected, "a request before the fault");
    }
}

#[test]
fn a_client_that_still_sends_after_its_fault_gets_the_alert_and_no_reset() {
    let door = Door::open();
    let authority = door.pki.authority();
    for (listener, begins_well) in [("secure", true), ("relayed", true), ("relayed", false)] {
        let address = door.server.address(listener);
        // TLS 1.3 would send tickets, which are no answer.
        let mut client = Forger::connect(&address, "a.example", &authority, &TLS12);
        if begins_well {
            // Half of a request: both listeners wait for the rest.
            client.queue(DATA, b"GET / HTTP/1.1\r\n");
            client.send();
        }
        client.queue(HANDSHAKE, &[24, 0]);
        client.queue(DATA, b"data between the parts of a message");
        client.send();
        client.await_answer();
        for _ in 0..100 {
            client.queue(DATA, &[b'a'; 1024]);
            client.send();
        }
        let unexpected = Some(Error::AlertReceived(AlertDescription::UnexpectedMessage));
        assert_eq!(client.error(), unexpected, "{listener} {begins_well}");
    }
}

#[test]
fn renegotiation_is_refused_at_once() {
    let door = Door::open();
    let (address, authority) = (door.server.address("secure"), door.pki.authority());
    let mut client = Forger::connect(&address, "a.example", &authority, &TLS12);
    client.queue(HANDSHAKE, &tls12_hello(&[ECDHE_ECDSA_AES128_GCM_SHA256])[5..]);
    client.send();
    let answer = client.record();
    // An alert of two bytes after the explicit nonce of 8 bytes and before the tag of 16 bytes.
    assert_eq!(answer[..5], [ALERT, 3, 3, 0, 8 + 2 + 16]);
    client.queue(DATA, b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    client.send();
    assert_eq!(client.record()[0], DATA, "the connection goes on");
}

#[test]
fn the_alert_of_a_client_that_does_not_trust_us_is_in_the_log() {
    let door = Door::open();
    let address = door.server.address("secure");
    let port = address.rsplit(':').next().unwrap();
    let name = format!("a.example:{port}:127.0.0.1");
    for version in ["1.2", "1.3"] {
        let before = door.server.stdout.all().len();
        let (least, most) = (format!("--tlsv{version}"), version.to_owned());
        let url = format!("https://a.example:{port}/");
        let output = tools::curl(&[&least, "--tls-max", &most, "--resolve", &name, &url]);
        assert_eq!(output.status.code(), Some(60), "{output:?}");
        eventually("the log has the alert", secs(20), || {
            let lines = door.server.stdout.all().split_off(before);
            lines
                .iter()
                .any(|line| line.contains(" tls-client-alert ") && line.contains(" tls_alert=unknown_ca"))
                .then_some(())
        });
    }
}
