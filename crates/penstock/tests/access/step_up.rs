//! One-time passwords for changes over the network.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use testing::server::binary;
use testing::{eventually, secs};

use super::ctl::{ctl, password};
use super::peer::Peer;
use super::site::Site;

/// The secret of RFC 4226, appendix D, and its first codes.
const SECRET: &str = "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ";
const CODES: [&str; 5] = ["755224", "287082", "359152", "969429", "338314"];

const NEEDED: &str =
    "error a one-time password is needed for changes: `otp PASSWORD` gives it (penstock ctl asks for it)";
const NOT_GOOD: &str = "error the one-time password is not good";

fn otp(dir: &Path, arguments: &[&str], input: &str) {
    let mut command = Command::new(binary());
    command.arg("otp").arg("--store").arg(dir.join("otp")).arg("--key-file").arg(dir.join("otp.key"));
    let mut child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{arguments:?}");
}

/// `ann` has a token that makes codes.
fn site(more: &str) -> Site {
    let sections = "[otp]\nstore = \"@DIR@/otp\"\nkey-file = \"@DIR@/otp.key\"\n";
    Site::prepared(&format!("step-up = \"writes\"\n{more}"), sections, &[], |dir| {
        otp(dir, &["init"], "");
        otp(dir, &["enrol", "hotp", "--user", "ann", "--secret-file", "-"], SECRET);
    })
}

fn ann(site: &Site, from: [u8; 4]) -> Peer {
    let mut peer = Peer::connect_from(site, from, None);
    assert_eq!(peer.scram("SCRAM-SHA-256", "ann", "pencil"), "235 2.7.0 user:ann, role operate");
    peer
}

#[test]
fn a_change_needs_a_one_time_password_and_reading_none() {
    let site = site("");
    let mut peer = ann(&site, [127, 0, 0, 1]);
    for reading in ["status", "backends json", "events 5", "log-level", "sessions"] {
        assert_eq!(peer.command(reading).0, "ok", "{reading}");
    }
    for change in
        ["drain 127.0.0.1:9", "kill 1", "log-level debug", "\"drain\" 127.0.0.1:9", "json ready 127.0.0.1:9"]
    {
        assert_eq!(peer.command(change).0, NEEDED, "{change}");
    }
    // What the role does not allow is refused as before: no password would change that.
    assert!(peer.command("reload").0.contains("`reload` needs admin"));
    assert_eq!(peer.command("otp 000000").0, NOT_GOOD);
    site.logged("user:ann: one-time password refused: token ann-hotp: the code is wrong");
    assert_eq!(peer.command("drain 127.0.0.1:9").0, NEEDED);
    assert_eq!(peer.command(&format!("otp {}", CODES[0])).0, "ok");
    site.logged("user:ann: one-time password of token ann-hotp was good: changes for 300 s");
    assert_eq!(peer.command("drain 127.0.0.1:9").0, "ok");
    assert_eq!(peer.command("ready 127.0.0.1:9").0, "ok", "one is enough for a time");
    assert_eq!(ann(&site, [127, 0, 0, 1]).command("drain 127.0.0.1:9").0, "ok", "on another connection too");
    // At another address it counts for nothing, and cannot be used a second time.
    let mut other = ann(&site, [127, 0, 0, 9]);
    assert_eq!(other.command("ready 127.0.0.1:9").0, NEEDED);
    assert_eq!(other.command(&format!("otp {}", CODES[0])).0, NOT_GOOD);
    let reused = site.logged("127.0.0.9: user:ann: one-time password refused: ");
    assert!(reused.contains("wrong") || reused.contains("used before"), "{reused}");
    assert_eq!(other.command("ready 127.0.0.1:9").0, NEEDED);
    assert_eq!(other.command(&format!("otp {}", CODES[1])).0, "ok");
    assert_eq!(other.command("ready 127.0.0.1:9").0, "ok");
    assert!(!site.server.stderr.all().iter().any(|line| CODES.iter().any(|code| line.contains(code))));
    // The control socket of the machine itself asks for none.
    site.server.said(&["drain", "127.0.0.1:9"]);
}

#[test]
fn guesses_at_the_password_end_the_session_and_then_keep_the_address_out() {
    let site = site("");
    let from = [127, 0, 0, 7];
    let mut wrong = 0;
    while let Some(mut peer) = Peer::try_connect_from(&site, from) {
        // The password is right each time, and forgives none of them.
        assert_eq!(peer.scram("SCRAM-SHA-256", "ann", "pencil"), "235 2.7.0 user:ann, role operate");
        for _ in 0..3 {
            let said = peer.command("otp 111111").0;
            if said != NOT_GOOD {
                assert!(said.starts_with("error too many wrong one-time passwords"), "{said}");
                break;
            }
            wrong += 1;
        }
        if wrong % 3 == 0 {
            assert_eq!(peer.line(), "", "three end it");
        }
        assert!(wrong < 20, "they go on and on");
    }
    // It waits for a second then: a slow machine may come later.
    assert!((6..=9).contains(&wrong), "{wrong} were tried");
    let mut right = ann(&site, [127, 0, 0, 8]);
    assert_eq!(right.command("status").0, "ok", "another address");
}

#[test]
fn a_log_in_without_a_user_changes_nothing_unless_it_is_excepted() {
    let check = |site: &Site| {
        let mut peer = Peer::connect(site, Some(&site.certificate("root")));
        assert_eq!(peer.ask("AUTH EXTERNAL ="), "235 2.7.0 certificate:root, role admin");
        assert_eq!(peer.command("show pool.app").0, "ok", "reading");
        let said = peer.command("set pool.app.retries 2").0;
        (said, peer.command(&format!("otp {}", CODES[0])).0)
    };
    let strict = site("");
    assert_eq!(check(&strict), (NEEDED.to_owned(), NOT_GOOD.to_owned()));
    strict.logged("certificate:root: one-time password refused: the file of users has no user for it");
    let mild = site("step-up-except = [\"certificate:root\"]");
    assert_eq!(check(&mild), ("ok".to_owned(), "ok".to_owned()));
    assert_eq!(ann(&mild, [127, 0, 0, 1]).command("drain 127.0.0.1:9").0, NEEDED);
    let group = site("step-up-except = [\"group:ops\"]");
    assert_eq!(ann(&group, [127, 0, 0, 1]).command("drain 127.0.0.1:9").0, "ok");
}

#[test]
fn a_password_is_enough_for_the_configured_time() {
    let site = site("step-up-for = \"10s\"");
    let mut peer = ann(&site, [127, 0, 0, 1]);
    assert_eq!(peer.command(&format!("otp {}", CODES[0])).0, "ok");
    assert_eq!(peer.command("drain 127.0.0.1:9").0, "ok");
    eventually("the end of its time", secs(20), || {
        (peer.command("ready 127.0.0.1:9").0 == NEEDED).then_some(())
    });
}

#[test]
fn ctl_gives_the_password_when_it_is_asked_for_and_top_shows_a_server_over_the_network() {
    let site = site("");
    let file = password(&site, "pencil");
    let code = site.file("code");
    fs::write(&code, format!("{}\n", CODES[0])).unwrap();
    fs::set_permissions(&code, fs::Permissions::from_mode(0o600)).unwrap();
    let ann = ["--user", "ann", "--password-file", &file];
    let with_code = ["--otp-file", code.to_str().unwrap()];
    let top = ctl(&site, &[&ann[..], &["top", "--once"]].concat());
    assert!(top.code == Some(0) && top.out.contains("127.0.0.1:9"), "{} {}", top.out, top.err);
    let top = ctl(&site, &[&ann[..], &["top", "--once", "--json"]].concat());
    assert!(top.out.starts_with('{'), "{} {}", top.out, top.err);
    let without = ctl(&site, &[&ann[..], &["drain", "127.0.0.1:9"]].concat());
    assert!(without.code == Some(1) && without.err.contains("--otp-file FILE"), "{}", without.err);
    let with = ctl(&site, &[&ann[..], &with_code, &["drain", "127.0.0.1:9"]].concat());
    assert_eq!(with.code, Some(0), "{}", with.err);
    let next = ctl(&site, &[&ann[..], &["ready", "127.0.0.1:9"]].concat());
    assert_eq!(next.code, Some(0), "a script needs no second one: {}", next.err);
}
