//! Log-ins by Kerberos: GS2-KRB5 and -PLUS with MIT Kerberos, and what must be refused.

use std::process::{Command, Output, Stdio};

use access::sasl::gs2::{BindingFlag, Header, TLS_EXPORTER, TokenForm};
use access::sasl::krb5::{First, INITIATOR_FLAGS, application_data, judge};
use base64ct::{Base64, Encoding};
use sys::gssapi::{Keys, Library, Progress};
use testing::server::{binary, run_to_end};
use testing::{secs, tools};

use super::ctl::password;
use super::kdc::Realm;
use super::peer::Peer;
use super::site::Site;

const FAILED: &str = "535 5.7.8 authentication failed";

pub(crate) fn site(realm: &Realm, more: &str) -> Site {
    let more = format!(
        "kerberos = {{ keytab = \"{}\", host = \"localhost\" }}\n{more}",
        realm.file("keytab").display()
    );
    Site::with(
        &more,
        "[process]\nstate-directory = \"@DIR@/state\"\n",
        &[("KRB5_CONFIG", realm.file("krb5.conf").to_str().unwrap())],
    )
}

fn header(flag: BindingFlag, authzid: Option<&str>) -> Header {
    Header { form: TokenForm::Standard, flag, authzid: authzid.map(str::to_owned) }
}

fn auth(mechanism: &str, message: &[u8]) -> String {
    format!("AUTH {mechanism} {}", Base64::encode_string(message))
}

/// Logs in with a token for this header and these bindings of the connection; returns the last answer.
fn log_in(peer: &mut Peer, mechanism: &str, header: &Header, token: &[u8]) -> String {
    let first = First::encode(header, token).unwrap();
    match peer.challenge(&auth(mechanism, &first)) {
        Ok(_) => peer.ask(""),
        Err(answer) => answer,
    }
}

/// Logs ann in with a ticket that is not bound to the connection; returns the last answer.
pub(crate) fn ticket(realm: &Realm, peer: &mut Peer) -> String {
    let header = header(BindingFlag::Cannot, None);
    let token = realm.token("ann", "host@localhost", Some(&application_data(&header, None)));
    log_in(peer, "GS2-KRB5", &header, &token)
}

#[test]
fn a_ticket_logs_in_bound_to_the_connection_and_unbound() {
    let realm = Realm::start();
    let site = site(&realm, "");
    let mut peer = Peer::connect(&site, None);
    assert_eq!(peer.mechanisms(), "GS2-KRB5-PLUS SCRAM-SHA-256-PLUS GS2-KRB5 SCRAM-SHA-256");
    let plus = header(BindingFlag::Uses(TLS_EXPORTER.to_owned()), None);
    let data = application_data(&plus, Some(&peer.exporter()));
    let token = realm.token("ann", "host@localhost", Some(&data));
    let answer = log_in(&mut peer, "GS2-KRB5-PLUS", &plus, &token);
    assert_eq!(answer, "235 2.7.0 principal:ann@TEST.LOCAL, role admin");
    site.logged("principal:ann@TEST.LOCAL logged in (GS2-KRB5-PLUS, bound to its connection): role admin by principal:ann@TEST.LOCAL");
    let mut peer = Peer::connect(&site, None);
    let plain = header(BindingFlag::Cannot, Some("ann"));
    let token = realm.token("ann", "host@localhost", Some(&application_data(&plain, None)));
    let answer = log_in(&mut peer, "GS2-KRB5", &plain, &token);
    assert_eq!(answer, "235 2.7.0 principal:ann@TEST.LOCAL, role admin");
    // Seen before.
    let mut peer = Peer::connect(&site, None);
    assert_eq!(log_in(&mut peer, "GS2-KRB5", &plain, &token), FAILED);
    site.logged("replay");
}

#[test]
fn a_token_without_bindings_behind_an_injected_name_is_refused() {
    let realm = Realm::start();
    let site = site(&realm, "");
    let try_token = |authzid: Option<&str>, user: &str, service: &str, bindings: Option<&[u8]>| {
        let mut peer = Peer::connect(&site, None);
        let token = realm.token(user, service, bindings);
        log_in(&mut peer, "GS2-KRB5", &header(BindingFlag::Cannot, authzid), &token)
    };
    // What a protocol without bindings has made, RFC 4752 or Negotiate, behind a header that an attacker has chosen.
    assert_eq!(try_token(Some("root"), "ann", "host@localhost", None), FAILED);
    site.logged(
        "the ticket was not made for this connection and this GS2 header: its channel bindings are missing",
    );
    assert_eq!(try_token(None, "ann", "host@localhost", None), FAILED);
    // Made for another header.
    assert_eq!(try_token(Some("root"), "ann", "host@localhost", Some(b"n,,")), FAILED);
    site.logged("refused (GS2-KRB5): GSSAPI: accept the token: ");
    // For another service of this machine.
    assert_eq!(try_token(None, "ann", "other@localhost", Some(b"n,,")), FAILED);
}

#[test]
fn somebody_without_a_role_and_a_relay_are_refused() {
    let realm = Realm::start();
    let site = site(&realm, "");
    let mut peer = Peer::connect(&site, None);
    let plain = header(BindingFlag::Cannot, None);
    let token = realm.token("eve", "host@localhost", Some(b"n,,"));
    assert_eq!(log_in(&mut peer, "GS2-KRB5", &plain, &token), FAILED);
    site.logged("no rule names principal:eve@TEST.LOCAL");
    // Bound to another connection.
    let plus = header(BindingFlag::Uses(TLS_EXPORTER.to_owned()), None);
    let token = realm.token("ann", "host@localhost", Some(&application_data(&plus, Some(&[7; 32]))));
    let mut peer = Peer::connect(&site, None);
    assert_eq!(log_in(&mut peer, "GS2-KRB5-PLUS", &plus, &token), FAILED);
    // The flag says that no -PLUS was offered.
    let downgrade = header(BindingFlag::NotOffered, None);
    let token = realm.token("ann", "host@localhost", Some(b"y,,"));
    let mut peer = Peer::connect(&site, None);
    assert_eq!(log_in(&mut peer, "GS2-KRB5", &downgrade, &token), FAILED);
    site.logged("the client saw no -PLUS mechanism, but it was offered");
}

/// Handshakes of one measurement.
const ROUNDS: usize = 200;

#[test]
#[ignore = "a measurement: bench/control_guesses.py runs it"]
fn cost_of_a_handshake() {
    let realm = Realm::start();
    let mut command = Command::new(std::env::current_exe().unwrap());
    realm.as_user(&mut command, "ann");
    command.env("KRB5_KTNAME", realm.file("keytab"));
    command.args(["--exact", "kerberos::handshakes", "--ignored", "--nocapture"]).stdin(Stdio::null());
    command
        .env("PENSTOCK_TEST_REPLAYS", realm.file("replays"))
        .env("PENSTOCK_TEST_KEYTAB", realm.file("keytab"));
    let Output { stdout, .. } = run_to_end(&mut command, secs(60));
    let said = String::from_utf8_lossy(&stdout);
    println!("\n{}", said.lines().find(|line| line.starts_with("GS2-KRB5: ")).unwrap_or(&said));
}

#[test]
#[ignore = "a part of the measurement, in a process with tickets"]
fn handshakes() {
    let library = Library::load().unwrap();
    let path = |name: &str| std::path::PathBuf::from(std::env::var_os(name).unwrap());
    let (keytab, replays) = (path("PENSTOCK_TEST_KEYTAB"), path("PENSTOCK_TEST_REPLAYS"));
    let plain = header(BindingFlag::Cannot, None);
    let data = application_data(&plain, None);
    let mut times: Vec<_> = (0..ROUNDS + 5)
        .map(|_| {
            let start = std::time::Instant::now();
            let mut initiator = library.initiate("host@localhost", INITIATOR_FLAGS, &data).unwrap();
            let first = First::encode(&plain, &initiator.step(None).unwrap().token).unwrap();
            let First { token, .. } = First::parse(&first).unwrap();
            let keys = Keys { keytab: Some(&keytab), replays: Some(&replays), service: "host@localhost" };
            let accepted = library.accept(keys, &token, &data).unwrap();
            judge(accepted.flags).unwrap();
            assert_eq!(initiator.step(Some(&accepted.token)).unwrap().progress, Progress::Complete);
            start.elapsed().as_micros()
        })
        .skip(5)
        .collect();
    times.sort_unstable();
    let at = |share: usize| times[times.len() * share / 100];
    println!(
        "\nGS2-KRB5: {ROUNDS} handshakes, both sides together: median {} us, p10 {} us, p90 {} us (bar 700 us)",
        at(50),
        at(10),
        at(90)
    );
}

#[test]
fn gnu_sasl_logs_in_with_a_ticket() {
    let realm = Realm::start();
    let site = site(&realm, "tls-start = \"starttls\"");
    let mut command = Command::new(tools::program("gsasl"));
    realm.as_user(&mut command, "ann");
    command.args(["--smtp", "--connect", &format!("localhost:{}", site.port), "--mechanism", "GS2-KRB5"]);
    command.args(["--service", "host", "--hostname", "localhost", "--authorization-id", "ann"]);
    command.arg("--starttls").arg("--x509-ca-file").arg(site.file("ca.pem")).stdin(Stdio::null());
    let Output { stdout, stderr, .. } = run_to_end(&mut command, secs(30));
    let said = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(said.contains("235 2.7.0 principal:ann@TEST.LOCAL, role admin"), "{said}");
}

#[test]
fn penstock_ctl_logs_in_with_a_ticket_and_asks_for_no_password() {
    let realm = Realm::start();
    let site = site(&realm, "");
    for mechanism in [None, Some("GS2-KRB5"), Some("GS2-KRB5-PLUS")] {
        let mut command = Command::new(binary());
        realm.as_user(&mut command, "ann");
        command.args(["ctl", "--host", &format!("localhost:{}", site.port), "--user", "ann"]);
        command.arg("--ca").arg(site.file("ca.pem"));
        command.args(mechanism.iter().flat_map(|name| ["--mechanism", name]));
        command.args(["show", "pool.app"]).stdin(Stdio::null());
        let Output { status, stdout, stderr } = run_to_end(&mut command, secs(30));
        let said = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        assert!(status.success() && said.contains("127.0.0.1:9"), "{mechanism:?}: {said}");
    }
    site.logged("principal:ann@TEST.LOCAL logged in (GS2-KRB5-PLUS, bound to its connection)");
}

#[test]
fn where_neither_a_ticket_nor_a_password_is_there_both_are_told() {
    let realm = Realm::start();
    let site = site(&realm, "");
    // In a session of its own there is no terminal to ask.
    let mut command = Command::new(tools::program("setsid"));
    command.arg("--wait").arg(binary());
    command.env("KRB5_CONFIG", realm.file("krb5.conf")).env("KRB5CCNAME", realm.file("no-tickets"));
    command.args(["ctl", "--host", &format!("localhost:{}", site.port), "--user", "ann"]);
    command.arg("--ca").arg(site.file("ca.pem")).arg("status").stdin(Stdio::null());
    let Output { status, stderr, .. } = run_to_end(&mut command, secs(30));
    let said = String::from_utf8_lossy(&stderr);
    assert!(!status.success() && said.contains("cannot ask for the password"), "{said}");
    assert!(
        said.contains("no ticket logs in either: Kerberos: ") && said.contains("kinit gets a ticket"),
        "{said}"
    );
}

#[test]
fn a_user_and_a_password_that_are_named_are_those_that_log_in() {
    let realm = Realm::start();
    let site = site(&realm, "");
    let password = password(&site, "eraser");
    let ctl = |arguments: &[&str]| {
        let mut command = Command::new(binary());
        realm.as_user(&mut command, "ann");
        command.args(["ctl", "--host", &format!("localhost:{}", site.port)]);
        command.arg("--ca").arg(site.file("ca.pem")).args(arguments).arg("status").stdin(Stdio::null());
        let Output { status, stderr, .. } = run_to_end(&mut command, secs(30));
        (status.code(), String::from_utf8_lossy(&stderr).into_owned())
    };
    let (code, said) = ctl(&["--user", "bob"]);
    assert!(code == Some(1) && said.contains("the ticket must be one of bob"), "{said}");
    let (code, said) = ctl(&["--user", "bob", "--password-file", &password]);
    assert_eq!(code, Some(0), "{said}");
    site.logged("user:bob logged in (SCRAM-SHA-256-PLUS, bound to its connection)");
    let (code, said) = ctl(&["--mechanism", "GS2-KRB5", "--kerberos-service", "nosuch"]);
    assert!(code == Some(1) && said.contains("the service is named by --kerberos-service"), "{said}");
}
