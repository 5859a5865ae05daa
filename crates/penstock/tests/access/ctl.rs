//! `penstock ctl --host` and `penstock user`.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use testing::server::{binary, run_to_end};
use testing::{secs, tools};

use super::site::Site;

pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

pub(crate) fn penstock(arguments: &[&str]) -> Ran {
    let mut command = Command::new(binary());
    let Output { status, stdout, stderr } =
        run_to_end(command.args(arguments).stdin(Stdio::null()), secs(30));
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: status.code(), out: text(stdout), err: text(stderr) }
}

/// Runs `ctl` over the network.
pub(crate) fn ctl(site: &Site, arguments: &[&str]) -> Ran {
    let (host, ca) = (format!("localhost:{}", site.port), site.file("ca.pem"));
    penstock(&[&["ctl", "--host", &host, "--ca", ca.to_str().unwrap()], arguments].concat())
}

pub(crate) fn password(site: &Site, text: &str) -> String {
    let file = site.file("password");
    fs::write(&file, format!("{text}\n")).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn ctl_logs_in_with_a_password_over_the_network_and_uses_what_is_bound() {
    let site = Site::start("");
    let file = password(&site, "pencil");
    let ann = ["--user", "ann", "--password-file", &file];
    let said = ctl(&site, &[&ann[..], &["backends", "--json"]].concat());
    let backends: Value =
        serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{} {}", said.out, said.err));
    assert_eq!(backends[0]["name"], "app");
    site.logged("user:ann logged in (SCRAM-SHA-256-PLUS, bound to its connection)");
    assert_eq!(ctl(&site, &[&ann[..], &["drain", "127.0.0.1:9"]].concat()).code, Some(0));
    let refused = ctl(&site, &[&ann[..], &["reload"]].concat());
    assert_eq!(refused.code, Some(1));
    assert!(refused.err.contains("user:ann has the role operate: `reload` needs admin"), "{}", refused.err);
    let plain = ctl(&site, &[&ann[..], &["--mechanism", "SCRAM-SHA-256", "status"]].concat());
    assert_eq!(plain.code, Some(0), "{}", plain.err);
    site.logged("user:ann logged in (SCRAM-SHA-256, not bound to its connection)");
    let file = password(&site, "wrong");
    let wrong = ctl(&site, &["--user", "ann", "--password-file", &file, "status"]);
    assert_eq!(wrong.code, Some(1));
    assert!(wrong.err.contains("refused the log-in: 535 5.7.8 authentication failed"), "{}", wrong.err);
}

#[test]
fn ctl_logs_in_with_a_certificate_and_with_starttls() {
    let site = Site::start("tls-start = \"starttls\"");
    let pair = site.certificate("root");
    let [certificate, key] = [&pair.certificate, &pair.key].map(|path| path.to_str().unwrap());
    let options = ["--starttls", "--certificate", certificate, "--key", key];
    let said = ctl(&site, &[&options[..], &["show", "pool.app"]].concat());
    assert!(said.code == Some(0) && said.out.contains("127.0.0.1:9"), "{} {}", said.out, said.err);
    site.logged("certificate:root logged in (EXTERNAL, bound to its connection): role admin");
    // A follower, which reads until the server ends.
    let said = ctl(&site, &[&options[..], &["events", "-n", "5"]].concat());
    assert!(said.out.contains("certificate:root logged in"), "{} {}", said.out, said.err);
}

#[test]
fn a_key_that_others_can_read_is_refused_and_one_with_a_passphrase_is_opened() {
    let site = Site::start("");
    let pair = site.certificate("root");
    let [certificate, key] = [&pair.certificate, &pair.key].map(|path| path.to_str().unwrap());
    let log_in = |key: &str, more: &[&str]| {
        ctl(&site, &[&["--certificate", certificate, "--key", key], more, &["show", "pool.app"]].concat())
    };
    assert_eq!(log_in(key, &[]).code, Some(0));
    fs::set_permissions(&pair.key, fs::Permissions::from_mode(0o604)).unwrap();
    let refused = log_in(key, &[]);
    assert!(
        refused.code == Some(1) && refused.err.contains("other users can read this private key"),
        "{}",
        refused.err
    );
    fs::set_permissions(&pair.key, fs::Permissions::from_mode(0o600)).unwrap();
    let sealed = site.file("sealed.key");
    let mut openssl = Command::new("openssl");
    openssl
        .args(["pkcs8", "-topk8", "-v2", "aes256", "-passout", "pass:pencil", "-in", key, "-out"])
        .arg(&sealed);
    assert!(run_to_end(openssl.stdin(Stdio::null()), secs(30)).status.success());
    let sealed = sealed.to_str().unwrap();
    let without = log_in(sealed, &[]);
    assert!(without.err.contains("the key is encrypted"), "{}", without.err);
    let phrase = password(&site, "pencil");
    fs::set_permissions(&phrase, fs::Permissions::from_mode(0o600)).unwrap();
    let opened = log_in(sealed, &["--key-passphrase-file", &phrase]);
    assert_eq!(opened.code, Some(0), "{}", opened.err);
}

#[test]
fn a_server_that_is_not_known_gets_no_password() {
    let site = Site::start("");
    let host = format!("localhost:{}", site.port);
    let file = password(&site, "pencil");
    let user = ["--user", "ann", "--password-file", &file];
    let clients = site.file("clients.pem");
    let said = penstock(
        &[&["ctl", "--host", &host, "--ca", clients.to_str().unwrap()][..], &user, &["status"]].concat(),
    );
    assert!(said.code == Some(1) && said.err.contains("TLS with localhost"), "{}", said.err);
    let named = ctl(&site, &[&user[..], &["--server-name", "other", "status"]].concat());
    assert!(named.code == Some(1) && named.err.contains("TLS with other"), "{}", named.err);
    let nobody = penstock(&[&["ctl", "--host", "127.0.0.1:1"][..], &user, &["status"]].concat());
    assert!(nobody.code == Some(1) && nobody.err.contains("cannot connect to 127.0.0.1:1"), "{}", nobody.err);
    for wrong in [
        &["--host", "a:0"][..],
        &["--host", "a", "--socket", "/x"],
        &["--user", "ann"],
        &["--host", "a", "--mechanism", "PLAIN"],
    ] {
        assert_eq!(penstock(&[&["ctl"], wrong, &["status"]].concat()).code, Some(2), "{wrong:?}");
    }
}

#[test]
fn options_of_a_log_in_stand_before_or_behind_the_command() {
    let site = Site::start("");
    let (host, ca) = (format!("localhost:{}", site.port), site.file("ca.pem").display().to_string());
    let file = password(&site, "pencil");
    let options = [["--host", &host], ["--ca", &ca], ["--user", "ann"], ["--password-file", &file]];
    for before in 0..16 {
        let is_before = |at: usize| before & (1 << at) != 0;
        let part = |wanted: bool| -> Vec<&str> {
            let chosen = options.iter().enumerate().filter(|(at, _)| is_before(*at) == wanted);
            chosen.flat_map(|(_, option)| *option).collect()
        };
        let said = penstock(&[&["ctl"][..], &part(true), &["status"], &part(false)].concat());
        assert_eq!(said.code, Some(0), "{before:04b}: {}", said.err);
    }
    for (wrong, why) in [
        (&["status", "--ca", &*ca][..], "--ca needs --host HOST"),
        (&["--otp-file", "-", "status"], "--otp-file needs --host HOST"),
        (&["--host", &host, "status", "--key", &file], "--key needs --certificate FILE"),
        (&["--host", &host, "--certificate", &file, "status"], "--certificate needs --key FILE"),
        (&["--host", &host, "--token-file", &file, "status", "--password-file", &file], "does not go with"),
    ] {
        let refused = penstock(&[&["ctl"], wrong].concat());
        assert!(refused.code == Some(2) && refused.err.contains(why), "{wrong:?}: {}", refused.err);
    }
}

#[test]
fn an_ipv4_client_of_an_ipv6_socket_has_its_ipv4_address_in_events() {
    let site = Site::with("", "", &[("PENSTOCK_CONTROL_LISTEN", ":0")]);
    let (host, ca, file) =
        (format!("127.0.0.1:{}", site.port), site.file("ca.pem"), password(&site, "pencil"));
    let name = ["--server-name", "localhost", "--user", "ann", "--password-file", &file, "status"];
    let said = penstock(&[&["ctl", "--host", &host, "--ca", ca.to_str().unwrap()][..], &name].concat());
    assert_eq!(said.code, Some(0), "{}", said.err);
    site.logged(" 127.0.0.1: user:ann logged in");
}

#[test]
fn the_self_signed_certificate_of_the_manual_is_trusted_if_it_is_named() {
    let site = Site::prepared("", "", &[], |dir| {
        // The command of docs/tls.md.
        let made = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 90 -subj /CN=localhost \
                    -addext subjectAltName=DNS:localhost";
        let at = |name: &str| dir.join("certs").join(name).display().to_string();
        let (key, certificate) = (at("localhost.key"), at("localhost.crt"));
        let files = ["-keyout", &key, "-out", &certificate];
        tools::openssl(&made.split_whitespace().chain(files).collect::<Vec<_>>());
    });
    let (host, file) = (format!("localhost:{}", site.port), password(&site, "pencil"));
    let status = |authority: &str| {
        let authority = site.file(authority);
        let ca = ["ctl", "--host", &host, "--ca", authority.to_str().unwrap()];
        penstock(&[&ca[..], &["--user", "ann", "--password-file", &file, "status"]].concat())
    };
    let named = status("certs/localhost.crt");
    assert_eq!(named.code, Some(0), "{}", named.err);
    let other = status("ca.pem");
    assert!(other.code == Some(1) && other.err.contains("is self-signed, or that of a CA"), "{}", other.err);
}

#[test]
fn users_are_added_changed_listed_and_removed_and_the_server_follows() {
    let site = Site::start("");
    let (file, secret) = (site.file("users"), password(&site, "correct horse"));
    let user =
        |arguments: &[&str]| penstock(&[&["user", "--file", file.to_str().unwrap()], arguments].concat());
    let status = || ctl(&site, &["--user", "eve", "--password-file", &secret, "status"]).code;
    assert_eq!(status(), Some(1));
    let added = user(&["add", "eve", "--role", "view", "--group", "ops", "--password-file", &secret]);
    assert_eq!((added.code, added.out.as_str()), (Some(0), "added eve\n"), "{}", added.err);
    assert_eq!(status(), Some(0));
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o600);
    let listed: Value = serde_json::from_str(&user(&["list", "--json"]).out).unwrap();
    assert_eq!(listed[3]["name"], "eve");
    assert_eq!(
        (&listed[3]["role"], &listed[3]["groups"][0], &listed[3]["password"]),
        (&"view".into(), &"ops".into(), &true.into())
    );
    let text = user(&["list"]).out;
    assert!(text.contains("eve ") && text.contains("groups ops") && !text.contains("SCRAM"), "{text}");
    assert_eq!(user(&["add", "eve", "--role", "admin", "--no-password"]).out, "changed eve\n");
    assert_eq!(status(), Some(0), "the password stays");
    site.logged(
        "user:eve logged in (SCRAM-SHA-256-PLUS, bound to its connection): role admin by the file of users",
    );
    assert_eq!(user(&["remove", "eve"]).code, Some(0));
    assert_eq!(status(), Some(1));
    assert!(fs::read_to_string(&file).unwrap().contains("# people\nann "), "other lines stay");
    for (arguments, why) in [
        (&["remove", "eve"][..], "has no user eve"),
        (&["add", "a:b", "--no-password"], "is not a valid name"),
        (&["add", "eve", "--role", "root", "--no-password"], "view, operate or admin"),
        (&["add", "eve", "--password-file", "/nowhere"], "cannot read the password"),
        (&["add", "eve", "--principal", "eve", "--no-password"], "has no realm"),
        (&["add", "eve"], "cannot ask for the password"),
    ] {
        let refused = user(arguments);
        assert!(refused.code == Some(2) && refused.err.contains(why), "{arguments:?}: {}", refused.err);
    }
    fs::write(&file, "ann role=root\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let broken = user(&["list"]);
    assert!(broken.err.contains("line 1: role role=root is none of"), "{}", broken.err);
}
