//! Names and passwords that are not ASCII: SASLprep here and in GNU SASL.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};

use access::sasl::Credential;
use base64ct::{Base64, Encoding};
use testing::server::run_to_end;
use testing::{secs, tools};

use super::ctl;
use super::peer::Peer;
use super::programs::gsasl_as;
use super::site::Site;

const SALT: &[u8] = b"salt of eve.....";

/// A password as two keyboards write it: one code point for a letter with its accent, or two.
const COMPOSED: &str = "caf\u{e9} \u{2168} stra\u{df}e";
const DECOMPOSED: &str = "cafe\u{301}\u{a0}IX stra\u{ad}\u{df}e";

/// The line of GNU SASL for a password; `None`: it refuses the password.
fn line_of(password: &str) -> Option<String> {
    let mut command = Command::new(tools::program("gsasl"));
    command.env("LC_ALL", "C.UTF-8").args(["--mkpasswd", "--mechanism", "SCRAM-SHA-256"]);
    command.args([
        "--iteration-count",
        "4096",
        "--salt",
        &Base64::encode_string(SALT),
        "--password",
        password,
    ]);
    let Output { status, stdout, .. } = run_to_end(command.stdin(Stdio::null()), secs(30));
    let line = String::from_utf8(stdout).unwrap().trim().to_owned();
    (status.success() && !line.is_empty()).then_some(line)
}

#[test]
fn every_password_is_prepared_as_gnu_sasl_prepares_it_or_is_refused_by_both() {
    for password in [
        COMPOSED,
        DECOMPOSED,
        "\u{ff41}\u{ff42}\u{ff43}",
        "\u{fb01}n\u{ad}al",
        "\u{4e2d}\u{6587}",
        "\u{627}\u{628}",
        "\u{627}\u{628}1",
        "I\u{ad}X",
        "\u{2168}",
        "\u{e000}",
        "a\u{85}b",
        "a\u{200e}b",
        "\u{1f600}",
        "\u{221}",
        "\u{1d7ca}",
    ] {
        let ours = Credential::derive(password, SALT, 4096.try_into().unwrap());
        assert_eq!(ours.ok().map(|it| it.to_string()), line_of(password), "{password:?}");
    }
}

#[test]
fn a_password_that_is_not_ascii_logs_in_in_every_form_of_it() {
    let site = Site::start("tls-start = \"starttls\"");
    let file = site.file("users");
    let text = format!(
        "{}zo\u{eb} role=view scram={}\n",
        fs::read_to_string(&file).unwrap(),
        line_of(COMPOSED).unwrap()
    );
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    for (name, password) in [("zo\u{eb}", COMPOSED), ("zoe\u{308}", DECOMPOSED)] {
        let mut peer = Peer::plain(&site);
        assert!(peer.line().starts_with("220 "));
        assert!(peer.ask("STARTTLS").starts_with("220 "));
        let mut peer = peer.start_tls(&site);
        assert!(peer.mechanisms().contains("SCRAM-SHA-256-PLUS"));
        let answer = peer.scram("SCRAM-SHA-256-PLUS", name, password);
        assert_eq!(answer, "235 2.7.0 user:zo\u{eb}, role view", "{name:?}");
        let said = gsasl_as(&site, "SCRAM-SHA-256-PLUS", name, password);
        assert!(said.contains("235 2.7.0 user:zo\u{eb}, role view"), "{name:?}: {said}");
    }
    let said = gsasl_as(&site, "SCRAM-SHA-256", "zo\u{eb}", "cafe IX strasse");
    assert!(!said.contains("235 "), "{said}");
}

#[test]
fn a_user_and_a_password_are_added_in_any_form_and_what_is_prohibited_is_refused_with_its_reason() {
    let site = Site::start("");
    let (file, secret) = (site.file("users"), ctl::password(&site, DECOMPOSED));
    let user = |arguments: &[&str]| {
        ctl::penstock(&[&["user", "--file", file.to_str().unwrap()], arguments].concat())
    };
    let added = user(&["add", "zoe\u{308}", "--role", "view", "--password-file", &secret]);
    assert_eq!((added.code, added.out.as_str()), (Some(0), "added zo\u{eb}\n"), "{}", added.err);
    assert_eq!(
        Peer::connect(&site, None).scram("SCRAM-SHA-256", "zo\u{eb}", COMPOSED),
        "235 2.7.0 user:zo\u{eb}, role view"
    );
    let said = ctl::ctl(&site, &["--user", "zoe\u{308}", "--password-file", &secret, "status"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    for (password, why) in [
        ("a\u{e000}b", "SASLprep prohibits"),
        ("a\u{1f600}b", "Unicode 3.2 does not have"),
        ("\u{627}b", "from right to left"),
    ] {
        let secret = ctl::password(&site, password);
        let refused = user(&["add", "eve", "--password-file", &secret]);
        assert!(refused.code == Some(2) && refused.err.contains(why), "{password:?}: {}", refused.err);
        assert!(!refused.err.contains(password), "{}", refused.err);
    }
}
