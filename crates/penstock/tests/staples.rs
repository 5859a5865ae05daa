//! OCSP staples: fetched from real and from misbehaving responders, kept over restarts, never wrong and never late; seen
//! by openssl and gnutls-cli.
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use support::ocsp::Authority;
use support::{Server, eventually, secs, tools};
use tempfile::TempDir;

/// A certificate directory and a state directory that outlive a server.
struct Place {
    root: TempDir,
}

impl Place {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("certs")).unwrap();
        Self { root }
    }

    fn certs(&self) -> PathBuf {
        self.root.path().join("certs")
    }

    fn config(&self, tls: &str) -> String {
        format!(
            "[process]\nstate-directory = \"{}\"\n[control]\nsocket = \"@DIR@/control.sock\"\n\
             [admin]\nbind = \"127.0.0.1:0\"\n[listener.secure]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
             tls = {{ certificates = \"{}\"{tls} }}\n[pool.app]\nbackends = [\"127.0.0.1:9\"]\n",
            self.root.path().join("state").display(),
            self.certs().display()
        )
    }

    fn start(&self) -> Server {
        Server::start(&self.config(""))
    }
}

/// What s_client says of the staple that it was sent, having verified it and the chain.
fn s_client(server: &Server, name: &str, authority: &Authority) -> String {
    let (address, ca) = (server.address("secure"), authority.path("ca.crt"));
    let arguments =
        ["s_client", "-connect", &address, "-servername", name, "-status", "-CAfile", ca.to_str().unwrap()];
    let output = tools::run("openssl", &arguments, secs(20));
    [output.stdout, output.stderr].iter().map(|bytes| String::from_utf8_lossy(bytes)).collect()
}

const GOOD: &str = "Cert Status: good";

/// One certificate from `ctl certs`, by NAME of its files.
fn staple(server: &Server, name: &str) -> Value {
    let all = server.ctl_json(&["certs"]);
    let certificates = all[0]["certificates"].as_array().unwrap().clone();
    let found = certificates.into_iter().find(|it| it["name"] == name);
    found.map(|mut certificate| certificate["staple"].take()).unwrap_or(Value::Null)
}

#[track_caller]
fn wait_for_staple(server: &Server, name: &str) -> Value {
    eventually("a staple", secs(10), || Some(staple(server, name)).filter(|it| it["state"] == "sent"))
}

#[test]
fn a_staple_is_fetched_from_openssls_responder_and_sent_within_seconds() {
    let (place, authority) = (Place::new(), Authority::new());
    let responder = authority.openssl_responder();
    let access = format!("authorityInfoAccess=OCSP;URI:http://{}/", responder.address);
    let server = {
        authority.issue(&place.certs(), "a", "a.example", &[&access]);
        place.start()
    };
    let staple = wait_for_staple(&server, "a");
    assert_eq!(staple["origin"], "responder", "{staple:#}");
    let seen = s_client(&server, "a.example", &authority);
    assert!(seen.contains(GOOD) && seen.contains("Verify return code: 0"), "{seen}");
}
