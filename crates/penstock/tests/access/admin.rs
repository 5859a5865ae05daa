//! The admin listener with log-ins: bearer tokens, and passwords over TLS, with curl as the client.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};

use testing::server::run_to_end;
use testing::{secs, tools};

use super::site::Site;
use super::tokens::{token, user};

const ACCESS: &str = "[admin]\nbind = \"127.0.0.1:0\"\nusers = \"@DIR@/users\"\n\
                      access = { metrics = \"view\", status = \"operate\" }\n";
const TLS: &str = "tls = { certificates = \"@DIR@/certs\" }\n";

/// Asks for a page; returns its status and the head of the answer.
fn get(site: &Site, scheme: &str, path: &str, more: &[&str]) -> (String, String) {
    let port = site.server.admin();
    let port = port.rsplit(':').next().unwrap().to_owned();
    let mut curl = Command::new(tools::program("curl"));
    curl.args(["--silent", "--include", "--ipv4", "--max-time", "20", "--cacert"])
        .arg(site.file("ca.pem"))
        .args(more);
    curl.arg(format!("{scheme}://localhost:{port}{path}"));
    let Output { stdout, stderr, .. } = run_to_end(curl.stdin(Stdio::null()), secs(30));
    let text = String::from_utf8_lossy(&stdout).into_owned();
    let status = text.split(' ').nth(1).unwrap_or_else(|| panic!("{text} {stderr:?}")).to_owned();
    (status, text)
}

#[test]
fn a_bearer_token_reads_what_its_role_allows_and_health_needs_none() {
    let site = Site::with("", ACCESS, &[]);
    let secret = token(&site, "prometheus", &["--role", "view"]);
    let bearer = format!("Authorization: Bearer {secret}");
    let with = ["--header", &bearer];
    assert_eq!(get(&site, "http", "/healthz", &[]).0, "200");
    let (status, text) = get(&site, "http", "/metrics", &[]);
    assert!(status == "401" && text.contains("www-authenticate: Bearer realm=\"penstock\""), "{text}");
    assert!(!text.contains("Basic") && !text.contains("Negotiate"), "{text}");
    let (status, text) = get(&site, "http", "/metrics", &with);
    assert!(status == "200" && text.contains("# EOF"), "{text}");
    site.logged(
        "admin: token:prometheus logged in: role view by the file of users; more of these are not told",
    );
    for path in ["/status", "/status.html"] {
        assert_eq!(get(&site, "http", path, &with).0, "403", "{path}");
    }
    site.logged("admin: token:prometheus refused: it needs the role operate");
    for _ in 0..5 {
        assert_eq!(get(&site, "http", "/metrics", &with).0, "200");
    }
    assert_eq!(site.server.stderr.count("token:prometheus logged in"), 1, "a monitor fills no log");
    let (status, _) = get(&site, "http", "/metrics", &["--user", "ann:pencil"]);
    assert_eq!(status, "401");
    site.logged("it has sent a password without encryption");
    assert_eq!(
        get(&site, "http", "/metrics", &["--header", &bearer, "--header", "Authorization: Bearer x"]).0,
        "401"
    );
    assert_eq!(user(&site, &["token", "revoke", "prometheus"]).code, Some(0));
    assert_eq!(get(&site, "http", "/metrics", &with).0, "401");
    site.logged("the token is not known");
}

#[test]
fn a_password_over_tls_is_checked_against_the_file_of_users_and_guesses_wait() {
    let site = Site::with("", &format!("{ACCESS}{TLS}"), &[]);
    let (status, text) = get(&site, "https", "/status", &[]);
    assert!(status == "401" && text.contains("Basic realm=\"penstock\", charset=\"UTF-8\""), "{text}");
    for _ in 0..2 {
        // The second one is remembered.
        assert_eq!(get(&site, "https", "/status", &["--user", "ann:pencil"]).0, "200");
    }
    assert_eq!(get(&site, "https", "/status", &["--user", "bob:eraser"]).0, "403", "his role is view");
    assert_eq!(get(&site, "https", "/metrics", &["--user", "bob:eraser"]).0, "200");
    let guess =
        |from: &str, pair: &str| get(&site, "https", "/metrics", &["--interface", from, "--user", pair]).0;
    let mut wrong = 0;
    loop {
        let pair = if wrong % 2 == 0 { "ann:wrong" } else { "ghost:pencil" };
        match guess("127.0.0.9", pair).as_str() {
            "401" => wrong += 1,
            other => {
                assert_eq!(other, "429", "the address waits");
                break;
            }
        }
        assert!(wrong < 20, "guesses go on and on");
    }
    // It waits for a second then: a slow machine may come later.
    assert!((6..=8).contains(&wrong), "{wrong} were tried");
    site.logged("admin: user:ann refused: wrong password");
    site.logged("admin: user:ghost refused: there is no user of this name with a password");
    assert_eq!(guess("127.0.0.8", "ann:pencil"), "200", "another one does not");
    assert_eq!(get(&site, "https", "/healthz", &["--interface", "127.0.0.9"]).0, "200");
    // A changed password counts at once.
    let secret = super::ctl::password(&site, "new");
    assert_eq!(user(&site, &["add", "ann", "--password-file", &secret]).code, Some(0));
    assert_eq!(get(&site, "https", "/status", &["--user", "ann:pencil"]).0, "401");
    assert_eq!(get(&site, "https", "/status", &["--user", "ann:new"]).0, "200");
}

#[test]
fn guesses_that_come_at_once_are_not_all_tried() {
    let site = Site::with("", &format!("{ACCESS}{TLS}"), &[]);
    let guess = |_| get(&site, "https", "/metrics", &["--interface", "127.0.0.9", "--user", "ann:wrong"]).0;
    let answers: Vec<String> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..30).map(|at| scope.spawn(move || guess(at))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let wrong = answers.iter().filter(|status| *status == "401").count();
    assert!(answers.iter().all(|status| status == "401" || status == "429"), "{answers:?}");
    // Two are computed at once, and it waits for a second then: a slow machine may come later.
    assert!((6..=14).contains(&wrong), "{wrong} were tried");
}

#[test]
fn a_file_of_users_that_cannot_be_used_is_not_held_against_a_monitor() {
    let site = Site::with("", &format!("{ACCESS}{TLS}"), &[]);
    let secret = token(&site, "prometheus", &["--role", "view"]);
    let bearer = format!("Authorization: Bearer {secret}");
    let mode = |mode| fs::set_permissions(site.file("users"), fs::Permissions::from_mode(mode)).unwrap();
    mode(0o644);
    for _ in 0..10 {
        let (status, text) = get(&site, "https", "/metrics", &["--header", &bearer]);
        assert!(status == "503" && text.contains("log-ins cannot be judged now"), "{text}");
        assert_eq!(get(&site, "https", "/metrics", &["--user", "ann:pencil"]).0, "503");
    }
    site.logged("admin: no log-in can be judged: the file of users cannot be used: ");
    mode(0o600);
    assert_eq!(get(&site, "https", "/metrics", &["--header", &bearer]).0, "200");
}
