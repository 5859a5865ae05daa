//! Certificates from a real ACME server (Pebble): ordered, served without a reload, renewed, kept; and everything that an
//! authority can do wrong.
#![allow(clippy::unwrap_used)]

mod support;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use support::pebble::{Pebble, PebbleSetup};
use support::{Server, eventually, secs, tools};

/// A plain listener that redirects, a TLS listener, and an authority.
fn config(pebble: &Pebble, challenge: &str, names: &str, more: &str) -> String {
    format!(
        "[process]\nstate-directory = \"@DIR@/state\"\n[control]\nsocket = \"@DIR@/control.sock\"\n\
         [admin]\nbind = \"127.0.0.1:0\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nredirect-to-https = true\n\
         [listener.secure]\nbind = \"127.0.0.1:0\"\npool = \"app\"\ntls = {{ acme = \"test\" }}\n\
         [acme.test]\ndirectory = \"{}\"\nca = \"{}\"\nterms-agreed = true\ncontact = \"admin@example.org\"\n\
         challenge = \"{challenge}\"\nnames = {names}\n{more}\n\
         [pool.app]\nbackends = [\"127.0.0.1:9\"]\n",
        pebble.directory,
        pebble.ca.display()
    )
}

/// Starts a server, and leads the authority's challenges to it.
fn start(pebble: &Pebble, config: &str) -> Server {
    let server = Server::start(config);
    lead(pebble, &server);
    server
}

fn lead(pebble: &Pebble, server: &Server) {
    pebble.web.lead_to(Some(server.address("web")));
    pebble.secure.lead_to(Some(server.address("secure")));
}

/// The leaf that a client gets for a name, as DER; `None` if there is no handshake.
fn served(server: &Server, name: &str) -> Option<Vec<u8>> {
    let address = server.address("secure");
    let output = tools::run("openssl", &["s_client", "-connect", &address, "-servername", name], secs(20));
    CertificateDer::from_pem_slice(&output.stdout).ok().map(|leaf| leaf.to_vec())
}

#[track_caller]
fn wait_for_certificate(server: &Server, name: &str) -> Vec<u8> {
    eventually(&format!("a certificate for {name}"), secs(30), || served(server, name))
}

#[test]
fn a_certificate_is_ordered_by_http_01_and_served_without_a_reload() {
    let pebble = Pebble::start(PebbleSetup::default());
    let server = start(&pebble, &config(&pebble, "http-01", r#"[["one.example", "two.example"]]"#, ""));
    let leaf = wait_for_certificate(&server, "one.example");
    assert_eq!(served(&server, "two.example"), Some(leaf));
    assert_eq!(served(&server, "three.example"), None);
}
