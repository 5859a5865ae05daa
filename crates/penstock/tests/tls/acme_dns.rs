//! Certificates proved in the DNS (dns-01), with Pebble and knot: wildcards, aliases, and what name servers refuse.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use nix::sys::signal::Signal;
use serde_json::Value;
use testing::dns_updates::Updatable;
use testing::pebble::{Pebble, PebbleSetup};
use testing::witness::served;
use testing::{Scripted, Server, eventually, secs, tools};

/// One TLS listener, and no other: no port of the names is connected to.
fn start(pebble: &Pebble, names: &str, server: SocketAddr, key: &Path) -> Server {
    Server::start(&config(pebble, names, server, key))
}

fn config(pebble: &Pebble, names: &str, server: SocketAddr, key: &Path) -> String {
    format!(
        "[process]\nstate-directory = \"@DIR@/state\"\n[control]\nsocket = \"@DIR@/control.sock\"\n\
         [listener.secure]\nbind = \"127.0.0.1:0\"\ntls = {{ acme = \"test\" }}\n\
         [[listener.secure.route]]\nredirect = \"https://elsewhere.example/\"\nstatus = 307\n\
         [acme.test]\ndirectory = \"{}\"\nca = \"{}\"\nterms-agreed = true\nnames = {names}\n\
         challenge = \"dns-01\"\ndns = {{ server = \"{server}\", key-file = \"{}\", wait = \"0s\" }}\n",
        pebble.directory,
        pebble.ca.display(),
        key.display()
    )
}

fn pebble(names: &Updatable) -> Pebble {
    Pebble::start(PebbleSetup { name_server: Some(names.address), ..PebbleSetup::default() })
}

pub(crate) fn order(server: &Server) -> Value {
    server.ctl_json(&["certs"])[0]["orders"][0].clone()
}

#[test]
fn a_wildcard_is_ordered_with_records_that_are_removed_afterwards() {
    let names = Updatable::start("");
    let pebble = pebble(&names);
    let server =
        start(&pebble, "[[\"*.wild.example\", \"wild.example\"]]", names.address, &names.key("penstock"));
    eventually("a certificate", secs(40), || served(&server, "any.wild.example"));
    let root = server.dir.path().join("root.pem");
    fs::write(&root, pebble.root()).unwrap();
    let port = server.address("secure").rsplit(':').next().unwrap().to_owned();
    for name in ["any.wild.example", "wild.example"] {
        let resolve = format!("{name}:{port}:127.0.0.1");
        let url = format!("https://{name}:{port}/");
        let arguments = ["--cacert", root.to_str().unwrap(), "--resolve", &resolve, "-o", "/dev/null"];
        let status = tools::curl_text(&[&arguments[..], &["--write-out", "%{http_code}", &url]].concat());
        assert_eq!(status, "307", "{name}");
    }
    assert_eq!(names.dig("_acme-challenge.wild.example.", "TXT"), "", "the records are removed");
    assert!(server.dir.path().join("state/acme/test/certificates/_wildcard.wild.example.pem").exists());
    assert_eq!(order(&server)["certificate"], "_wildcard.wild.example");
}

#[test]
fn an_alias_leads_to_the_name_of_the_record() {
    let names = Updatable::start("_acme-challenge.a CNAME a.proofs\n");
    let pebble = pebble(&names);
    let server = start(&pebble, "[\"a.example\"]", names.address, &names.key("penstock"));
    eventually("a certificate", secs(40), || served(&server, "a.example"));
    assert_eq!(names.dig("a.proofs.example.", "TXT"), "");
}

#[test]
fn what_a_name_server_refuses_is_said_with_what_to_do() {
    let names = Updatable::start("");
    let pebble = pebble(&names);
    let silent = Scripted::start(|talk| drop(talk.rest()));
    // It answers "success" to every question, without a signature.
    let liar = Scripted::start(|talk| {
        let head = talk.client.read_exactly(2);
        let question = talk.client.read_exactly(usize::from(u16::from_be_bytes([head[0], head[1]])));
        talk.send([&[0, 12, question[0], question[1], 0x84, 0][..], &[0; 8]].concat());
    });
    let at = |address: &str| address.parse::<SocketAddr>().unwrap();
    let closed = SocketAddr::from(([127, 0, 0, 1], testing::port::free()));
    let stranger = names.key("penstock").with_file_name("stranger.key");
    let known = fs::read_to_string(names.key("penstock")).unwrap();
    // The mode is copied, too: a key that others can read is refused.
    fs::copy(names.key("penstock"), &stranger).unwrap();
    fs::write(&stranger, known.replace("\"penstock\"", "\"stranger\"")).unwrap();
    let empty = stranger.with_file_name("empty.key");
    fs::copy(&stranger, &empty).unwrap();
    fs::write(&empty, "").unwrap();
    let (key, reader) = (names.key("penstock"), names.key("reader"));
    let cases: [(&str, SocketAddr, &Path, &str); 8] = [
        (
            "a.example",
            names.address,
            &names.forged_key("penstock"),
            "our signature is wrong for it: compare the secret",
        ),
        (
            "a.example",
            names.address,
            &stranger,
            "it does not know the key, or gives it no right to update this zone",
        ),
        (
            "a.example",
            names.address,
            &reader,
            "it does not know the key, or gives it no right to update this zone",
        ),
        ("a.elsewhere", names.address, &key, "it is not authoritative for _acme-challenge.a.elsewhere."),
        ("a.example", closed, &key, "does not find the zone: Connection refused"),
        ("a.example", at(&silent.address), &key, "no answer within 10 s"),
        ("a.example", at(&liar.address), &key, "its answer is not signed with the key"),
        ("a.example", names.address, &empty, "dns.key-file: "),
    ];
    let servers: Vec<_> = cases
        .iter()
        .map(|(name, address, key, words)| (start(&pebble, &format!("[{name:?}]"), *address, key), words))
        .collect();
    for (server, words) in servers {
        eventually(words, secs(40), || {
            order(&server)["reason"].as_str().is_some_and(|reason| reason.contains(words)).then_some(())
        });
    }
    assert_eq!(names.dig("_acme-challenge.a.example.", "TXT"), "");
}

#[test]
fn an_order_that_a_reload_or_the_end_aborts_leaves_no_record() {
    let names = Updatable::start("");
    let pebble = pebble(&names);
    let text = config(&pebble, "[\"a.example\"]", names.address, &names.key("penstock"));
    let waits = text.replace("wait = \"0s\"", "wait = \"10m\"");
    let record = || names.dig("_acme-challenge.a.example.", "TXT");
    let there = || Some(record()).filter(|record| !record.is_empty());
    let mut server = Server::start(&waits);
    let first = eventually("the record of an order", secs(40), there);
    server.write_config(&waits.replace("10m", "9m"));
    server.said(&["reload"]);
    eventually("the record of the next order alone", secs(40), || there().filter(|it| !it.contains(&*first)));
    server.signal(Signal::SIGTERM);
    assert!(server.wait_end(secs(30)).success());
    assert_eq!(record(), "");
}
