//! `/wsapi/2.0/verify` of a listener.

use std::path::Path;

use access::otp::validation::sign;
use base64ct::{Base64, Encoding as _};
use testing::server::Setup;
use testing::{Server, client, eventually, secs};

use crate::token::{Tokens, YubiKey};

pub(crate) const CONFIG: &str = "[listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
    [listener.other]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n[pool.app]\nbackends = [\"127.0.0.1:9\"]\n\
    [otp]\nstore = \"@DIR@/otp\"\nkey-file = \"@DIR@/otp.key\"\nlisteners = [\"web\"]\n[control]\nsocket = \"@DIR@/control.sock\"\n";

pub(crate) const NONCE: &str = "0123456789abcdef0123456789abcdef";

pub(crate) struct Verifier {
    pub(crate) server: Server,
    pub(crate) tokens: Tokens,
    pub(crate) key: YubiKey,
    /// Number and key of the client, the key in base64.
    pub(crate) client: (String, String),
}

pub(crate) fn verifier() -> Verifier {
    verifier_after(|_| ())
}

/// `prepare` is called with the directory of the server before it starts.
pub(crate) fn verifier_after(prepare: impl FnOnce(&Path)) -> Verifier {
    verifier_of(CONFIG, prepare)
}

fn verifier_of(config: &str, prepare: impl FnOnce(&Path)) -> Verifier {
    let setup = Setup::new(config);
    let tokens = Tokens::below(setup.dir());
    let key = tokens.yubikey("cccccccccccb", Some("alice"));
    let said = tokens.said(&["client", "add", "vpn"], "");
    let value = |name: &str| said.lines().find_map(|line| line.strip_prefix(name)).unwrap().to_owned();
    let client = (value("id="), value("key="));
    prepare(setup.dir());
    Verifier { server: setup.start(), tokens, key, client }
}

impl Verifier {
    pub(crate) fn ask(&self, query: &str) -> Vec<(String, String)> {
        let answer = client::get(&self.server.address("web"), &format!("/wsapi/2.0/verify?{query}"));
        assert_eq!(answer.status, 200);
        let text = answer.text();
        text.split("\r\n")
            .filter_map(|line| line.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    /// The status, after the signature was checked.
    pub(crate) fn status(&self, otp: &str, nonce: &str) -> String {
        let mut lines = self.ask(&format!("id={}&otp={otp}&nonce={nonce}&timestamp=1", self.client.0));
        let key = Base64::decode_vec(&self.client.1).unwrap();
        let signature = lines.iter().position(|(name, _)| name == "h").map(|at| lines.remove(at).1).unwrap();
        lines.sort();
        let signed: Vec<_> = lines.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(signature, sign(&key, &signed.join("&")));
        let value =
            |wanted: &str| lines.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.clone());
        assert_eq!((value("otp").as_deref(), value("nonce").as_deref()), (Some(otp), Some(nonce)));
        if value("status").as_deref() == Some("OK") {
            assert!(value("sessioncounter").is_some() && value("timestamp").is_some());
        }
        value("status").unwrap()
    }
}

#[test]
fn a_token_of_a_user_who_was_revoked_is_not_good() {
    let config = CONFIG.replace("listeners =", "users = \"@DIR@/users\"\nlisteners =");
    let verifier = verifier_of(&config, |directory| {
        let added = user(directory, &["add", "alice", "--no-password"]);
        assert!(added.status.success(), "{added:?}");
    });
    let directory = verifier.server.dir.path().to_owned();
    let other = verifier.tokens.yubikey("vvvvvvvvvvvv", None);
    let nonce = |number: u8| format!("{number:032}");
    assert_eq!(verifier.status(&verifier.key.otp(1, 1), &nonce(1)), "OK");
    let revoked = user(&directory, &["revoke", "alice"]);
    assert!(revoked.status.success(), "{revoked:?}");
    assert_eq!(verifier.status(&verifier.key.otp(1, 2), &nonce(2)), "BAD_OTP");
    assert_eq!(verifier.status(&verifier.key.otp(1, 2), &nonce(3)), "REPLAYED_OTP", "it was used up");
    verifier.server.stderr.wait_for(
        "API client 1 at 127.0.0.1: refused: BAD_OTP: token cccccccccccb is of alice: the user was revoked on ",
        secs(10),
    );
    assert_eq!(verifier.status(&other.otp(1, 1), &nonce(4)), "OK", "a token of no user");
    // While it is not known who was revoked, no token of a user is good.
    let users = directory.join("users");
    let text = std::fs::read_to_string(&users).unwrap();
    std::fs::write(&users, format!("{text}alice unknown=1\n")).unwrap();
    assert_eq!(verifier.status(&verifier.key.otp(1, 3), &nonce(5)), "BACKEND_ERROR");
    assert_eq!(verifier.status(&other.otp(1, 2), &nonce(6)), "OK");
    verifier.server.stderr.wait_for("refused: BACKEND_ERROR: the file of users cannot be used", secs(10));
    std::fs::write(&users, text).unwrap();
    let removed = user(&directory, &["remove", "alice"]);
    assert!(removed.status.success(), "{removed:?}");
    assert_eq!(
        verifier.status(&verifier.key.otp(1, 4), &nonce(7)),
        "OK",
        "a user whom the file does not name"
    );
}

fn user(directory: &Path, arguments: &[&str]) -> std::process::Output {
    let file = directory.join("users");
    let own = ["user", "--file", file.to_str().unwrap()];
    testing::server::penstock(&[&own, arguments].concat())
}

#[test]
fn a_listener_may_answer_validation_and_nothing_else() {
    let setup = Setup::new(
        "[listener.web]\nbind = \"127.0.0.1:0\"\n\
         [otp]\nstore = \"@DIR@/otp\"\nkey-file = \"@DIR@/otp.key\"\nlisteners = [\"web\"]\n",
    );
    let tokens = Tokens::below(setup.dir());
    tokens.said(&["client", "add", "vpn"], "");
    let server = setup.start();
    let ask = |path: &str| client::get(&server.address("web"), path);
    let query = format!("id=1&otp={}&nonce={NONCE}", "c".repeat(44));
    assert!(ask(&format!("/wsapi/2.0/verify?{query}")).text().contains("status=BAD_OTP"));
    assert_eq!(ask("/").status, 404);
}

#[test]
fn each_status_is_given_and_signed() {
    let verifier = verifier();
    let otp = |session, press| verifier.key.otp(session, press);
    assert_eq!(verifier.status(&otp(1, 1), NONCE), "OK");
    assert_eq!(verifier.status(&otp(1, 1), NONCE), "REPLAYED_REQUEST");
    assert_eq!(verifier.status(&otp(1, 1), "fedcba9876543210"), "REPLAYED_OTP");
    assert_eq!(verifier.status(&otp(1, 0), NONCE), "REPLAYED_OTP");
    assert_eq!(verifier.status(&otp(1, 2).replace('c', "d"), NONCE), "BAD_OTP");
    assert_eq!(verifier.status("hello", NONCE), "BAD_OTP");
    assert_eq!(verifier.status(&otp(1, 2).to_uppercase(), NONCE), "OK");
    let only = |query: &str| verifier.ask(query).into_iter().find(|(name, _)| name == "status").unwrap().1;
    let good = otp(1, 3);
    assert_eq!(only(&format!("id=99&otp={good}&nonce={NONCE}")), "NO_SUCH_CLIENT");
    assert_eq!(only(&format!("id=1&otp={good}&nonce={NONCE}&h=AAAA")), "BAD_SIGNATURE");
    assert_eq!(only(&format!("id=1&otp={good}")), "MISSING_PARAMETER");
    let key = Base64::decode_vec(&verifier.client.1).unwrap();
    let signature = sign(&key, &format!("id=1&nonce={NONCE}&otp={good}")).replace('+', "%2B");
    assert_eq!(only(&format!("id=1&otp={good}&nonce={NONCE}&h={signature}")), "OK");
    // What the command does is seen at once.
    verifier.tokens.said(&["revoke", "cccccccccccb"], "");
    assert_eq!(verifier.status(&otp(2, 0), NONCE), "BAD_OTP");
    verifier.tokens.said(&["restore", "cccccccccccb"], "");
    assert_eq!(verifier.status(&otp(2, 0), NONCE), "OK");
    assert!(verifier.tokens.refused(&["verify"], &otp(2, 0)).contains("used before"));
}

#[test]
fn only_the_listeners_that_are_named_answer() {
    let verifier = verifier();
    let query = format!("/wsapi/2.0/verify?id=1&otp={}&nonce={NONCE}", verifier.key.otp(1, 1));
    assert_eq!(client::get(&verifier.server.address("other"), &query).status, 502);
    assert_eq!(client::get(&verifier.server.address("web"), "/wsapi/2.0/other").status, 502);
    assert!(client::get(&verifier.server.address("web"), &query).text().contains("status=OK\r\n"));
    let why = verifier.server.said(&["why", "--listener", "web", "http://x/wsapi/2.0/verify"]);
    assert!(why.contains("one-time password"), "{why}");
}

#[test]
fn an_otp_that_was_good_is_refused_after_a_kill_and_a_restart() {
    let mut verifier = verifier();
    let otp = verifier.key.otp(1, 1);
    assert_eq!(verifier.status(&otp, NONCE), "OK");
    verifier.server.signal(nix::sys::signal::Signal::SIGKILL);
    verifier.server.wait_end(secs(10));
    let said = verifier.tokens.refused(&["verify"], &otp);
    assert!(said.contains("used before"), "{said}");
}

#[test]
fn a_store_that_is_damaged_while_it_is_used_accepts_nothing_and_says_so() {
    let verifier = verifier();
    assert_eq!(verifier.status(&verifier.key.otp(1, 1), NONCE), "OK");
    let journal = verifier.tokens.directory.join("otp/journal");
    let whole = std::fs::read(&journal).unwrap();
    std::fs::write(&journal, &whole[..whole.len() - 9]).unwrap();
    let query = format!("id=1&otp={}&nonce={NONCE}", verifier.key.otp(1, 2));
    let lines = verifier.ask(&query);
    assert!(lines.contains(&("status".to_owned(), "BACKEND_ERROR".to_owned())), "{lines:?}");
    eventually("the server says so", secs(10), || {
        verifier.server.said(&["status"]).contains("shorter than it was").then_some(())
    });
    std::fs::write(&journal, &whole).unwrap();
    assert_eq!(verifier.status(&verifier.key.otp(1, 3), NONCE), "OK");
}

#[test]
fn a_store_that_is_not_there_is_told_and_taken_up_by_a_reload() {
    let server = Setup::new(CONFIG).start();
    let query =
        format!("/wsapi/2.0/verify?id=1&otp={}&nonce={NONCE}", YubiKey::named("cccccccccccb").otp(1, 1));
    assert!(server.said(&["status"]).contains("penstock otp init"));
    // Without a store the listener refuses by itself: no backend gets an OTP.
    let answer = client::get(&server.address("web"), &query);
    assert_eq!(answer.status, 200);
    assert!(answer.text().contains("status=BACKEND_ERROR\r\n"), "{}", answer.text());
    let tokens = Tokens::below(server.dir.path());
    tokens.yubikey("cccccccccccb", None);
    tokens.said(&["client", "add", "--unsigned"], "");
    server.said(&["reload"]);
    assert!(!server.said(&["status"]).contains("penstock otp init"));
    assert!(client::get(&server.address("web"), &query).text().contains("status=OK\r\n"));
}
