//! What log-ins need and cannot have: it is told as degraded before the first one fails, and by the answer about health.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

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
    let log_in = || kerberos::ticket(&realm, &mut Peer::connect(&site, None));
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

/// A keytab that KRB5_KTNAME names, in a directory that no path of the configuration leads to.
fn site_with_keytab_of_system(realm: &Realm, keytab: &Path) -> Site {
    let (conf, keytab) = (realm.file("krb5.conf"), format!("FILE:{}", keytab.display()));
    Site::with(
        "kerberos = { host = \"localhost\" }",
        "[process]\nstate-directory = \"@DIR@/state\"\n",
        &[("KRB5_CONFIG", conf.to_str().unwrap()), ("KRB5_KTNAME", &keytab)],
    )
}

/// What a check and a doctor say of the keytab. Both say the same.
fn checked(site: &Site, keytab: &Path) -> String {
    let said = |word: &str| {
        let mut command = Command::new(testing::binary());
        command.arg(word).arg(site.file("penstock.toml")).stdin(Stdio::null());
        command.env("KRB5_KTNAME", format!("FILE:{}", keytab.display()));
        let output = testing::server::run_to_end(&mut command, secs(30));
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8(text).unwrap();
        let line = text.lines().find(|line| line.contains("no ticket could be judged"));
        line.map(|line| line[line.find("control.kerberos: ").unwrap()..].to_owned()).unwrap_or_default()
    };
    assert_eq!(said("check"), said("doctor"));
    said("check")
}

#[test]
fn the_keytab_of_the_system_is_looked_at_before_the_first_ticket_comes() {
    let realm = Realm::start();
    let elsewhere = tempfile::tempdir().unwrap();
    let keytab = elsewhere.path().join("keytab");
    let part = format!("the keytab of the system {} cannot be read: No such file", keytab.display());
    {
        let site = site_with_keytab_of_system(&realm, &keytab);
        let health = degraded(&site, &part);
        assert!(health.contains("; but log-ins fail: control.kerberos.keytab: "), "{health}");
        let said = checked(&site, &keytab);
        assert!(said.contains(&part) && said.contains("no ticket could be judged"), "{said}");
    }
    fs::copy(realm.file("keytab"), &keytab).unwrap();
    let site = site_with_keytab_of_system(&realm, &keytab);
    assert_eq!(checked(&site, &keytab), "");
    let answer = kerberos::ticket(&realm, &mut Peer::connect(&site, None));
    assert!(answer.starts_with("235 "), "{answer}");
    whole(&site, "the keytab");
    // The process would be a user to whom the keytab is closed.
    if nix::unistd::geteuid().is_root() {
        let text = fs::read_to_string(site.file("penstock.toml")).unwrap();
        let text = text.replace("[process]\n", "[process]\nuser = \"nobody\"\n");
        fs::write(site.file("penstock.toml"), text).unwrap();
        fs::set_permissions(&keytab, fs::Permissions::from_mode(0o600)).unwrap();
        fs::set_permissions(elsewhere.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let said = checked(&site, &keytab);
        assert!(said.contains("no ticket could be judged: the process serves as user nobody"), "{said}");
    }
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
