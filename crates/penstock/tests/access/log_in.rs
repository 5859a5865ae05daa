//! Log-ins that are right, and what they allow.

use std::fs;

use serde_json::Value;
use testing::{eventually, secs};

use super::peer::Peer;
use super::site::{Site, users};

#[test]
fn an_operator_logs_in_by_scram_bound_to_the_connection_and_drains_a_backend() {
    let site = Site::start("");
    let mut peer = Peer::connect(&site, None);
    assert_eq!(peer.mechanisms(), "SCRAM-SHA-256-PLUS SCRAM-SHA-256");
    let answer = peer.scram("SCRAM-SHA-256-PLUS", "ann", "pencil");
    assert_eq!(answer, "235 2.7.0 user:ann, role operate");
    site.logged(
        "user:ann logged in (SCRAM-SHA-256-PLUS, bound to its connection): role operate by group:ops",
    );
    let (first, text) = peer.command("backends json");
    let backends: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((first.as_str(), &backends[0]["name"]), ("ok", &"app".into()));
    assert_eq!(peer.command("drain 127.0.0.1:9").0, "ok");
    assert_eq!(site.server.backend("127.0.0.1:9")["admission"], "draining", "{text}");
    site.logged("user:ann: drained");
    let (refused, _) = peer.command("show");
    assert_eq!(refused, "error user:ann has the role operate: `show` needs admin");
    site.logged("user:ann: `show` refused: it needs the role admin, the client has operate");
    assert_eq!(peer.ask("NOOP"), "250 2.0.0 fine");
    assert_eq!(peer.ask("QUIT"), "221 2.0.0 bye");
    assert_eq!(peer.line(), "", "the server has closed the connection");
}

#[test]
fn who_may_view_changes_nothing_and_who_has_no_role_is_not_let_in() {
    let site = Site::start("");
    let mut peer = Peer::connect(&site, None);
    assert_eq!(peer.scram("SCRAM-SHA-256", "bob", "eraser"), "235 2.7.0 user:bob, role view");
    assert_eq!(peer.command("status").0, "ok");
    for command in ["drain 127.0.0.1:9", "kill 1", "reload", "show", "capture web for 1s size 1000"] {
        let (first, _) = peer.command(command);
        assert!(first.starts_with("error user:bob has the role view: "), "{command}: {first}");
    }
    let mut peer = Peer::connect(&site, None);
    assert_eq!(peer.scram("SCRAM-SHA-256", "nobody", "nothing"), "535 5.7.8 authentication failed");
    site.logged("user:nobody logged in (SCRAM-SHA-256, not bound to its connection) and was refused: no rule names user:nobody");
}

#[test]
fn a_client_certificate_logs_in_by_external() {
    let site = Site::start("");
    let root = site.certificate("root");
    let mut peer = Peer::connect(&site, Some(&root));
    assert_eq!(peer.mechanisms(), "EXTERNAL SCRAM-SHA-256-PLUS SCRAM-SHA-256");
    assert_eq!(peer.ask("AUTH EXTERNAL ="), "235 2.7.0 certificate:root, role admin");
    let (first, text) = peer.command("show pool.app");
    assert!(first == "ok" && text.contains("127.0.0.1:9"), "{first} {text}");
    assert_eq!(peer.command("set pool.app.retries 2").0, "ok");
    let (_, history) = peer.command("history json");
    assert!(history.contains("\"login\":\"certificate:root\""), "{history}");
    // Without an initial response the server asks with an empty challenge.
    let mut peer = Peer::connect(&site, Some(&root));
    assert_eq!(peer.challenge("AUTH EXTERNAL"), Ok(Vec::new()));
    assert_eq!(peer.ask(""), "235 2.7.0 certificate:root, role admin");
    // The user ann is not the certificate ann.
    let mut peer = Peer::connect(&site, Some(&site.certificate("ann")));
    assert_eq!(peer.ask("AUTH EXTERNAL ="), "535 5.7.8 authentication failed");
    site.logged("certificate:ann logged in (EXTERNAL, bound to its connection) and was refused");
    let mut peer = Peer::connect(&site, None);
    assert!(peer.ask("AUTH EXTERNAL =").starts_with("504 "), "without a certificate it is not offered");
}

#[test]
fn an_older_tls_has_no_bindings_and_a_site_that_demands_them_offers_it_nothing() {
    let site = Site::start("");
    assert_eq!(Peer::old(&site).mechanisms(), "SCRAM-SHA-256");
    let site = Site::start("mechanisms = [\"SCRAM-SHA-256-PLUS\"]");
    assert_eq!(Peer::old(&site).mechanisms(), "");
    let mut peer = Peer::connect(&site, None);
    assert_eq!(peer.mechanisms(), "SCRAM-SHA-256-PLUS");
    assert!(peer.scram("SCRAM-SHA-256", "ann", "pencil").starts_with("504 "));
    assert!(peer.scram("SCRAM-SHA-256-PLUS", "ann", "pencil").starts_with("235 "));
}

#[test]
fn a_user_who_is_removed_may_do_nothing_from_then_on_and_a_new_role_counts_at_once() {
    let site = Site::start("");
    let (mut ann, mut bob) = (Peer::connect(&site, None), Peer::connect(&site, None));
    assert!(ann.scram("SCRAM-SHA-256", "ann", "pencil").starts_with("235 "));
    assert!(bob.scram("SCRAM-SHA-256", "bob", "eraser").starts_with("235 "));
    let text = users().replace("bob role=view", "bob role=admin");
    let text: String =
        text.lines().filter(|line| !line.starts_with("ann")).map(|line| format!("{line}\n")).collect();
    fs::write(site.file("users"), text).unwrap();
    assert_eq!(bob.command("show pool.app.balance").0, "ok");
    assert_eq!(ann.command("status").0, "error there is no user ann any more");
    assert_eq!(ann.line(), "");
}

#[test]
fn a_file_that_others_can_read_lets_nobody_in() {
    use std::os::unix::fs::PermissionsExt;
    let site = Site::start("");
    fs::set_permissions(site.file("users"), fs::Permissions::from_mode(0o644)).unwrap();
    let mut peer = Peer::connect(&site, None);
    assert_eq!(peer.scram("SCRAM-SHA-256", "ann", "pencil"), "535 5.7.8 authentication failed");
    site.logged("others than its owner can use it; chmod 600");
    fs::set_permissions(site.file("users"), fs::Permissions::from_mode(0o600)).unwrap();
    let mut peer = Peer::connect(&site, None);
    assert!(peer.scram("SCRAM-SHA-256", "ann", "pencil").starts_with("235 "));
}

#[test]
fn a_follower_over_the_network_sees_events() {
    let site = Site::start("");
    let mut peer = Peer::connect(&site, None);
    assert!(peer.scram("SCRAM-SHA-256", "ann", "pencil").starts_with("235 "));
    peer.send(b"events 0 follow\n").unwrap();
    assert_eq!(peer.line(), "ok");
    site.server.said(&["drain", "127.0.0.1:9"]);
    eventually("the event", secs(10), || peer.line().contains("drained").then_some(()));
    peer.send(b"\n").unwrap();
    eventually("the end of the answer", secs(10), || (peer.line() == ".").then_some(()));
}
