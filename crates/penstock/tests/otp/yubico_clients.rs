//! Programs of Yubico against our validation server, as Debian has them: ykclient, and pam_yubico through pamtester.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

use testing::secs;
use testing::tools::{program, run};

use crate::validation::{Verifier, verifier};

fn url(verifier: &Verifier) -> String {
    format!("http://{}/wsapi/2.0/verify", verifier.server.address("web"))
}

#[test]
fn ykclient_takes_a_good_otp_and_tells_a_replay_garbage_and_a_wrong_key() {
    let verifier = verifier();
    let url = format!("{}?id=%d&otp=%s", url(&verifier));
    // 0: good; 1: a fault; 2: a replay; 3: another refusal, such as of a wrong signature.
    let ask = |otp: &str, key: &str| {
        let output = run("ykclient", &["--url", &url, "--apikey", key, &verifier.client.0, otp], secs(20));
        output.status.code().unwrap()
    };
    let good = verifier.key.otp(1, 1);
    let key = &verifier.client.1;
    assert_eq!(ask(&good, key), 0);
    assert_eq!(ask(&good, key), 2);
    assert_eq!(ask(&"c".repeat(44), key), 3);
    assert_eq!(ask(&verifier.key.otp(1, 2), "AAAAAAAAAAAAAAAAAAAAAAAAAAA="), 3);
    assert_eq!(ask(&verifier.key.otp(1, 3), key), 0);
}

#[test]
fn pam_yubico_logs_a_user_in_once_for_each_otp() {
    let verifier = verifier();
    let directory = tempfile::tempdir().unwrap();
    let (services, mapping) = (directory.path().join("services"), directory.path().join("mapping"));
    fs::create_dir(&services).unwrap();
    fs::write(&mapping, "alice:cccccccccccb\n").unwrap();
    let (id, key) = &verifier.client;
    let rules = format!(
        "auth required pam_yubico.so id={id} key={key} urllist={} authfile={} \naccount required pam_permit.so\n",
        url(&verifier),
        mapping.display()
    );
    fs::write(services.join("penstock-test"), rules).unwrap();
    let log_in = |user: &str, otp: &str| {
        let mut child = Command::new(program("pamtester"))
            .args(["penstock-test", user, "authenticate"])
            .env("LD_PRELOAD", "libpam_wrapper.so")
            .env("PAM_WRAPPER", "1")
            .env("PAM_WRAPPER_SERVICE_DIR", &services)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(format!("{otp}\n").as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        (output.status.success(), format!("{output:?}"))
    };
    let first = verifier.key.otp(1, 1);
    for (user, otp, expected) in [
        ("alice", &first, true),
        ("alice", &first, false),
        ("bob", &verifier.key.otp(1, 2), false),
        ("alice", &verifier.key.otp(1, 3), true),
        ("alice", &"c".repeat(44), false),
        ("alice", &String::new(), false),
    ] {
        let (accepted, said) = log_in(user, otp);
        assert_eq!(accepted, expected, "{user} {otp}: {said}");
    }
}
