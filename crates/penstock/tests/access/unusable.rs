//! What log-ins need and cannot have: it is told as degraded before the first one fails, and by the answer about health.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use access::sasl::gs2::{BindingFlag, Header, TokenForm};
use access::sasl::krb5::{First, application_data};
use base64ct::{Base64, Encoding};
use testing::pki::Authority;
use testing::{eventually, secs};

use super::ctl::penstock;
use super::kdc::Realm;
use super::kerberos;
use super::peer::Peer;
use super::site::Site;

/// Waits until the status has this text, and returns what the answer about health is then.
#[track_caller]
fn degraded(site: &Site, part: &str) -> String {
    eventually("the status tells it", secs(10), || {
        site.server.said(&["status"]).contains(part).then_some(())
    });
    let health = site.server.ctl(&["health"]);
    assert!(health.status.success(), "clients are served: {health:?}");
    String::from_utf8(health.stdout).unwrap()
}

#[track_caller]
fn whole(site: &Site, part: &str) {
    eventually("the status is good", secs(10), || {
        (!site.server.said(&["status"]).contains(part)).then_some(())
    });
    assert!(!site.server.said(&["health"]).contains("log-ins fail"));
}

#[test]
fn a_file_of_users_that_cannot_be_used_is_degraded_from_the_start_until_it_is_good() {
    let mode = |file: &std::path::Path, mode| {
        fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
    };
    let site = Site::prepared("", "", &[], |dir| mode(&dir.join("users"), 0o644));
    let health = degraded(&site, "has mode 0644: others than its owner can use it; chmod 600");
    assert!(health.contains("; but log-ins fail: users /") && health.contains("chmod 600"), "{health}");
    let json: serde_json::Value = serde_json::from_str(&site.server.said(&["health", "--json"])).unwrap();
    assert!(json["healthy"] == true && json["reason"].as_str().unwrap().contains("log-ins fail"), "{json}");
    // A reload and a log-in end it.
    mode(&site.file("users"), 0o600);
    site.server.said(&["reload"]);
    whole(&site, "chmod 600");
    fs::rename(site.file("users"), site.file("away")).unwrap();
    let said = site.server.said(&["reload"]);
    assert!(
        said.contains("is degraded: no log-in can be judged: ") && said.contains("add NAME makes it"),
        "{said}"
    );
    fs::rename(site.file("away"), site.file("users")).unwrap();
    assert!(Peer::connect(&site, None).scram("SCRAM-SHA-256", "ann", "pencil").starts_with("235 "));
    whole(&site, "add NAME makes it");
    // So does a log-in that fails begin it.
    mode(&site.file("users"), 0o640);
    assert!(Peer::connect(&site, None).scram("SCRAM-SHA-256", "ann", "pencil").starts_with("535 "));
    degraded(&site, "has mode 0640");
}

#[test]
fn a_keytab_that_cannot_be_read_is_degraded_until_a_ticket_logs_in() {
    let realm = Realm::start();
    let site = kerberos::site(&realm, "");
    let log_in = || {
        let mut peer = Peer::connect(&site, None);
        let header = Header { form: TokenForm::Standard, flag: BindingFlag::Cannot, authzid: None };
        let token = realm.token("ann", "host@localhost", Some(&application_data(&header, None)));
        let first = First::encode(&header, &token).unwrap();
        match peer.challenge(&format!("AUTH GS2-KRB5 {}", Base64::encode_string(&first))) {
            Ok(_) => peer.ask(""),
            Err(answer) => answer,
        }
    };
    let (keytab, away) = (realm.file("keytab"), realm.file("away"));
    fs::rename(&keytab, &away).unwrap();
    assert!(log_in().starts_with("535 "));
    let part = format!("the keytab {} cannot be read: No such file", keytab.display());
    let health = degraded(&site, &part);
    assert!(health.contains("; but log-ins fail: control.kerberos.keytab: "), "{health}");
    site.logged(&format!("refused (GS2-KRB5): GSSAPI: {part}"));
    fs::rename(&away, &keytab).unwrap();
    assert!(log_in().starts_with("235 "));
    whole(&site, "the keytab");
}

#[test]
fn a_store_of_one_time_passwords_that_is_gone_is_told_by_the_answer_about_health() {
    let otp = "[otp]\nstore = \"@DIR@/none\"\nkey-file = \"@DIR@/none.key\"\n";
    let site = Site::with("", otp, &[]);
    let health = degraded(&site, "penstock otp init");
    assert!(health.contains("; but log-ins fail: otp: "), "{health}");
}

#[test]
fn a_client_certificate_that_is_refused_is_told_with_its_address() {
    let site = Site::start("");
    let (directory, others) = (site.file("others"), Authority::new("others"));
    fs::create_dir(&directory).unwrap();
    let pair = others.issue(&directory, "root", |_| ());
    let (host, ca) = (format!("localhost:{}", site.port), site.file("ca.pem").display().to_string());
    let (certificate, key) = (pair.certificate.display().to_string(), pair.key.display().to_string());
    let with = ["--ca", &ca, "--certificate", &certificate, "--key", &key, "status"];
    let refused = penstock(&[&["ctl", "--host", &host][..], &with].concat());
    assert_eq!(refused.code, Some(1), "{}", refused.err);
    let told = site.logged("a client refused (TLS): its certificate");
    assert!(told.contains("client-certificate-unknown-ca") && told.contains("127.0.0.1"), "{told}");
}
