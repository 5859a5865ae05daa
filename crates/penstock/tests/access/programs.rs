//! Programs of others log in: GNU SASL, swaks, Python's smtplib.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use testing::server::run_to_end;
use testing::{secs, tools};

use super::site::Site;

#[track_caller]
fn run(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = run_to_end(command.stdin(Stdio::null()), secs(30));
    let text = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    format!("{text}\n{status}")
}

fn gsasl(site: &Site, mechanism: &str, password: &str) -> String {
    gsasl_as(site, mechanism, "ann", password)
}

pub(crate) fn gsasl_as(site: &Site, mechanism: &str, name: &str, password: &str) -> String {
    let mut command = Command::new(tools::program("gsasl"));
    command.env("LC_ALL", "C.UTF-8");
    command.args(["--smtp", "--connect", &format!("localhost:{}", site.port), "--mechanism", mechanism]);
    command.args(["--authentication-id", name, "--authorization-id", "", "--password", password]);
    command.arg("--starttls").arg("--x509-ca-file").arg(site.file("ca.pem"));
    // With bindings at hand it refuses to do without.
    command.args((!mechanism.ends_with("-PLUS")).then_some("--no-cb"));
    run(&mut command)
}

#[test]
fn gnu_sasl_logs_in_by_scram_with_bindings_and_without() {
    let site = Site::start("tls-start = \"starttls\"");
    for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-256-PLUS"] {
        let said = gsasl(&site, mechanism, "pencil");
        assert!(said.contains("235 2.7.0 user:ann, role operate"), "{mechanism}: {said}");
        site.logged(&format!("user:ann logged in ({mechanism}, "));
        let said = gsasl(&site, mechanism, "wrong");
        assert!(!said.contains("235 "), "{mechanism}: {said}");
    }
}

#[test]
fn a_line_that_gnu_sasl_makes_of_a_password_lets_its_owner_in() {
    let site = Site::start("");
    let mut command = Command::new(tools::program("gsasl"));
    command.args([
        "--mkpasswd",
        "--mechanism",
        "SCRAM-SHA-256",
        "--password",
        "correct horse",
        "--iteration-count",
        "5000",
    ]);
    let Output { stdout, .. } = run_to_end(command.stdin(Stdio::null()), secs(30));
    let line = String::from_utf8(stdout).unwrap();
    assert!(line.starts_with("{SCRAM-SHA-256}5000,"), "{line}");
    let file = site.file("users");
    let text = format!("{}eve role=view scram={}\n", fs::read_to_string(&file).unwrap(), line.trim());
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let mut peer = super::peer::Peer::connect(&site, None);
    assert_eq!(peer.scram("SCRAM-SHA-256-PLUS", "eve", "correct horse"), "235 2.7.0 user:eve, role view");
}

/// Logs in by EXTERNAL, which smtplib does not know by itself, and speaks on as at the control socket.
const SMTPLIB: &str = r#"
import smtplib, ssl, sys, json
port, ca, cert, key = sys.argv[1:]
context = ssl.create_default_context(cafile=ca)
context.load_cert_chain(cert, key)
smtp = smtplib.SMTP_SSL("localhost", int(port), context=context)
smtp.ehlo()
print("auth:", smtp.esmtp_features["auth"].strip())
print("code:", smtp.auth("EXTERNAL", lambda challenge=None: "", initial_response_ok=True)[0])
smtp.send("status json\n")
print(smtp.file.readline().decode().strip())
print("pools:", len(json.loads(smtp.file.readline())["pools"]), smtp.file.readline().decode().strip())
print("quit:", smtp.quit()[0])
"#;

#[test]
fn the_mail_library_of_python_logs_in_by_its_certificate_and_reads_json() {
    let site = Site::start("");
    let root = site.certificate("root");
    let mut command = Command::new(tools::program("python3"));
    command.args(["-c", SMTPLIB, &site.port.to_string()]).arg(site.file("ca.pem"));
    command.args([&root.certificate, &root.key]);
    let said = run(&mut command);
    let expected = "auth: EXTERNAL SCRAM-SHA-256-PLUS SCRAM-SHA-256\ncode: 235\nok\npools: 1 .\nquit: 221\n";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn swaks_sees_the_offer_and_is_refused_what_is_not_offered() {
    let site = Site::start("tls-start = \"starttls\"");
    let swaks = |more: &[&str]| {
        let mut command = Command::new(tools::program("swaks"));
        command.args(["--server", "localhost", "--port", &site.port.to_string(), "--tls"]).args(more);
        run(&mut command)
    };
    let said = swaks(&["--quit-after", "EHLO"]);
    assert!(said.contains("250-AUTH SCRAM-SHA-256-PLUS SCRAM-SHA-256"), "{said}");
    let said = swaks(&[
        "--quit-after",
        "AUTH",
        "--auth",
        "PLAIN",
        "--auth-user",
        "ann",
        "--auth-password",
        "pencil",
    ]);
    assert!(!said.contains(" 235 "), "{said}");
    assert!(Path::new("/usr/bin/swaks").exists());
}
