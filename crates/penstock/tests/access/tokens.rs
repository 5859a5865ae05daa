//! Bearer tokens: `penstock user token`, `penstock ctl --token-file`, and curl as a client of OAUTHBEARER.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};

use base64ct::{Base64, Encoding};
use serde_json::Value;
use testing::server::run_to_end;
use testing::{eventually, secs, tools};

use super::ctl::{Ran, ctl, penstock};
use super::peer::Peer;
use super::site::Site;

pub(crate) fn user(site: &Site, arguments: &[&str]) -> Ran {
    let file = site.file("users");
    penstock(&[&["user", "--file", file.to_str().unwrap()], arguments].concat())
}

/// Adds a token and returns it.
#[track_caller]
pub(crate) fn token(site: &Site, name: &str, more: &[&str]) -> String {
    let added = user(site, &[&["token", "add", name], more].concat());
    assert_eq!(added.code, Some(0), "{}", added.err);
    let token = added.out.trim().to_owned();
    assert!(token.starts_with("pst_") && token.len() == 47, "{token}");
    token
}

/// Logs in by OAUTHBEARER; returns the last answer.
fn log_in(peer: &mut Peer, token: &str) -> String {
    let message = Base64::encode_string(format!("n,,\x01auth=Bearer {token}\x01\x01").as_bytes());
    match peer.challenge(&format!("AUTH OAUTHBEARER {message}")) {
        Ok(told) => {
            assert_eq!(told, br#"{"status":"invalid_token","scope":"control"}"#);
            peer.ask("AQ==")
        }
        Err(answer) => answer,
    }
}

#[test]
fn a_token_is_shown_once_and_logs_in_with_ctl_and_with_curl() {
    let site = Site::start("");
    assert_eq!(
        Peer::connect(&site, None).mechanisms(),
        "SCRAM-SHA-256-PLUS SCRAM-SHA-256",
        "no token, no offer"
    );
    let secret = token(&site, "ci", &["--role", "operate", "--expires", "30d"]);
    let mut peer = Peer::connect(&site, None);
    assert_eq!(peer.mechanisms(), "SCRAM-SHA-256-PLUS SCRAM-SHA-256 OAUTHBEARER");
    let stored = fs::read_to_string(site.file("users")).unwrap();
    assert!(stored.contains("@token ci role=operate expires=") && !stored.contains(&secret[4..]), "{stored}");
    let listed: Value = serde_json::from_str(&user(&site, &["token", "list", "--json"]).out).unwrap();
    assert_eq!(
        (&listed[0]["name"], &listed[0]["role"], &listed[0]["ended"]),
        (&"ci".into(), &"operate".into(), &false.into())
    );
    assert!(user(&site, &["token", "list"]).out.contains("ci "));
    let file = site.file("token");
    fs::write(&file, format!("{secret}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let with = ["--token-file", file.to_str().unwrap()];
    let exposed = ctl(&site, &[&with[..], &["status"]].concat());
    assert!(exposed.code == Some(2) && exposed.err.contains("can be used by other users"), "{}", exposed.err);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let said = ctl(&site, &[&with[..], &["drain", "127.0.0.1:9"]].concat());
    assert_eq!(said.code, Some(0), "{}", said.err);
    site.logged(
        "token:ci logged in (OAUTHBEARER, not bound to its connection): role operate by the file of users",
    );
    site.logged("token:ci: drained");
    let refused = ctl(&site, &[&with[..], &["reload"]].concat());
    assert!(refused.err.contains("token:ci has the role operate: `reload` needs admin"), "{}", refused.err);
    // Another program than ours.
    let mut curl = Command::new(tools::program("curl"));
    curl.args(["--silent", "--show-error", "--verbose", "--cacert"]).arg(site.file("ca.pem"));
    curl.args(["--user", "ci:", "--oauth2-bearer", &secret, "--request", "NOOP"]);
    curl.arg(format!("smtps://localhost:{}", site.port));
    let Output { stdout, stderr, .. } = run_to_end(curl.stdin(Stdio::null()), secs(30));
    let said = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(said.contains("AUTH OAUTHBEARER") && said.contains("235 2.7.0 token:ci, role operate"), "{said}");
    for (arguments, why) in [
        (&["token", "add", "ci", "--role", "view"][..], "there is a token ci already"),
        (&["token", "add", "x", "--role", "view", "--expires", "0s"], "longer than 0"),
        (&["token", "add", "x", "--role", "view", "--expires", "20000d"], "ten years"),
        (&["token", "add", "a:b", "--role", "view"], "is not a valid name"),
        (&["token", "add", "x"], "--role"),
        (&["token", "revoke", "x"], "has no token x"),
    ] {
        let refused = user(&site, arguments);
        assert!(refused.code == Some(2) && refused.err.contains(why), "{arguments:?}: {}", refused.err);
    }
}

#[test]
fn a_revoked_token_loses_its_session_and_a_follower_sees_none_of_what_happens_afterwards() {
    let site = Site::start("");
    let secret = token(&site, "ci", &["--role", "view", "--expires", "never"]);
    let [mut peer, mut follower] = [(), ()].map(|()| Peer::connect(&site, None));
    assert!(log_in(&mut peer, &secret).starts_with("235 "));
    assert!(log_in(&mut follower, &secret).starts_with("235 "));
    assert_eq!(peer.command("status").0, "ok");
    follower.send(b"events 0 follow\n").unwrap();
    assert_eq!(follower.line(), "ok");
    site.server.said(&["drain", "127.0.0.1:9"]);
    // In either order.
    let mut missing = vec!["every healthy backend is drained", "drained: no new sessions"];
    eventually("the events before", secs(10), || {
        let line = follower.line();
        missing.retain(|part| !line.contains(part));
        missing.is_empty().then_some(())
    });
    assert_eq!(user(&site, &["token", "revoke", "ci"]).code, Some(0));
    site.server.said(&["ready", "127.0.0.1:9"]);
    assert_eq!(follower.line(), ".", "the answer ends before what happened afterwards");
    assert_eq!(peer.command("status").0, "error there is no token ci any more");
    assert_eq!(peer.line(), "");
    assert!(log_in(&mut Peer::connect(&site, None), &secret).starts_with("504 "), "there are no tokens");
}

#[test]
fn a_token_of_a_revoked_user_ends_with_the_user() {
    let site = Site::start("");
    let secret = token(&site, "ci", &["--role", "operate", "--owner", "bob"]);
    let mut peer = Peer::connect(&site, None);
    assert!(log_in(&mut peer, &secret).starts_with("235 "));
    assert!(user(&site, &["token", "list"]).out.contains(", of bob\n"));
    let listed: Value = serde_json::from_str(&user(&site, &["token", "list", "--json"]).out).unwrap();
    assert_eq!(listed[0]["owner"], "bob");
    assert_eq!(user(&site, &["revoke", "bob"]).code, Some(0));
    assert_eq!(peer.command("status").0, "error the user bob is revoked, whose token ci is");
    assert_eq!(log_in(&mut Peer::connect(&site, None), &secret), "535 5.7.8 authentication failed");
    assert!(user(&site, &["token", "list"]).out.contains(", of bob, who may do nothing any more\n"));
    for (owner, why) in [("bob", "bob was revoked on "), ("ghost", "has no user ghost")] {
        let refused = user(&site, &["token", "add", "x", "--role", "view", "--owner", owner]);
        assert!(refused.code == Some(2) && refused.err.contains(why), "{}", refused.err);
    }
}

#[test]
fn a_follower_who_is_removed_is_disconnected_though_nothing_happens() {
    let site = Site::start("");
    let mut bob = Peer::connect(&site, None);
    assert!(bob.scram("SCRAM-SHA-256", "bob", "eraser").starts_with("235 "));
    bob.send(b"events 0 follow\n").unwrap();
    assert_eq!(bob.line(), "ok");
    assert_eq!(user(&site, &["remove", "bob"]).code, Some(0));
    assert_eq!(bob.line(), ".");
}

#[test]
fn a_token_that_has_ended_is_refused_and_one_that_is_not_known_looks_alike() {
    let site = Site::start("");
    token(&site, "other", &["--role", "view"]);
    let secret = token(&site, "short", &["--role", "view", "--expires", "15s"]);
    let mut peer = Peer::connect(&site, None);
    assert!(log_in(&mut peer, &secret).starts_with("235 "));
    eventually("the end of the token", secs(20), || {
        (peer.command("status").0 == "error the token short has ended").then_some(())
    });
    const FAILED: &str = "535 5.7.8 authentication failed";
    assert_eq!(log_in(&mut Peer::connect(&site, None), &secret), FAILED);
    site.logged("refused (OAUTHBEARER): the token short has ended");
    let unknown = format!("pst_{}", "A".repeat(43));
    assert_eq!(log_in(&mut Peer::connect(&site, None), &unknown), FAILED);
    site.logged("refused (OAUTHBEARER): the token is not known");
    assert_eq!(log_in(&mut Peer::connect(&site, None), "Bearer"), FAILED);
}
