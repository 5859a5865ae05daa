//! What a log-in through PAM must prove: an OTP, a password of the file of users, either, or both; by an option of the module, and
//! by a rule of the server.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use testing::secs;
use testing::server::penstock;
use testing::tools::{Root, root};

use crate::pam::{Daemon, Sshd, asked_by, daemon, daemon_with, expect, log_in};

pub(crate) const PASSWORD: &str = "correct horse";

/// Gives a user a password.
pub(crate) fn password(directory: &Path, user: &str) {
    let file = directory.join("password");
    fs::write(&file, format!("{PASSWORD}\n")).unwrap();
    let (users, file) = (directory.join("users"), file.to_str().unwrap().to_owned());
    let output = penstock(&[
        "user",
        "--file",
        users.to_str().unwrap(),
        "add",
        user,
        "--password-file",
        &file,
        "--iterations",
        "4096",
    ]);
    assert!(output.status.success(), "{output:?}");
}

fn with_users(more: &str) -> Daemon {
    let daemon = daemon_with(&format!("users = \"@DIR@/users\"\n{more}"));
    password(daemon.server.dir.path(), "alice");
    password(daemon.server.dir.path(), "dave");
    daemon
}

fn options(daemon: &Daemon, auth: &str) -> String {
    format!("socket={} auth={auth}", daemon.socket().display())
}

#[test]
fn an_ordinary_user_cannot_make_the_host_of_another_wait() {
    if root("asks as another user") == Root::LeftOut {
        return;
    }
    let daemon = with_users("");
    fs::set_permissions(daemon.server.dir.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let user = testing::sshd::ordinary_user();
    let ask = |by: &str, about: &str, password: &str| {
        let question = format!(
            "{{\"user\":\"{about}\",\"from\":\"192.0.2.7\",\"auth\":\"password\",\"password\":\"{password}\"}}"
        );
        asked_by(by, &daemon.socket(), &question)
    };
    for _ in 0..7 {
        let said = ask(&user, &user, "wrong");
        assert!(["bad", "no-token"].iter().any(|word| said.contains(word)), "{said}");
    }
    assert_eq!(ask("root", "alice", PASSWORD), "{\"result\":\"good\"}", "alice comes from there");
    daemon.server.stderr.wait_for("from 192.0.2.7, asked by user ", secs(10));
    // What root says of a host counts: sshd asks.
    (0..5).for_each(|_| drop(ask("root", "dave", "wrong")));
    // It waits for a second then, and twice as long after each further one: a slow machine may come later.
    let waits = (0..5).any(|_| {
        ask("root", "dave", "wrong");
        ask("root", "alice", PASSWORD) == "{\"result\":\"bad\"}"
    });
    assert!(waits, "the host does not wait");
}

#[test]
fn a_password_is_that_of_the_file_of_users() {
    let daemon = with_users("");
    let options = options(&daemon, "password");
    expect(&options, "alice", PASSWORD, true);
    expect(&options, "alice", PASSWORD, true);
    expect(&options, "alice", "wrong", false);
    expect(&options, "alice", "", false);
    expect(&options, "alice", &daemon.key.otp(1, 1), false);
    expect(&options, "nobody", PASSWORD, false);
    // A change of the file counts at once.
    let users = daemon.server.dir.path().join("users");
    let removed = penstock(&["user", "--file", users.to_str().unwrap(), "remove", "dave"]);
    assert!(removed.status.success(), "{removed:?}");
    expect(&options, "dave", PASSWORD, false);
    daemon.server.stderr.wait_for("alice (penstock-test): good, by password", secs(10));
    daemon.server.stderr.wait_for("alice (penstock-test): refused: the password is wrong", secs(10));
    daemon.server.stderr.wait_for(
        "dave (penstock-test): refused: the user has no password (penstock user add dave)",
        secs(10),
    );
    let said = daemon.server.stderr.all().join("\n");
    assert!(!said.contains(PASSWORD));
}

#[test]
fn either_factor_is_enough_where_either_is_asked_for() {
    let daemon = with_users("");
    let options = options(&daemon, "either");
    expect(&options, "alice", PASSWORD, true);
    expect(&options, "alice", &daemon.key.otp(1, 1), true);
    expect(&options, "alice", &daemon.key.otp(1, 1), false);
    expect(&options, "alice", "wrong", false);
    expect(&options, "dave", PASSWORD, true);
    expect(&options, "dave", &daemon.key.otp(1, 2), false);
    // A user with a token is not one without: what is wrong is not left to other modules.
    daemon.tokens.said(&["enrol", "totp", "--user", "erin"], "");
    expect(&format!("{options} nullok"), "erin", "wrong", false);
}

#[test]
fn both_factors_are_needed_where_both_are_asked_for() {
    let daemon = with_users("");
    let options = options(&daemon, "both");
    let otp = |press| daemon.key.otp(1, press);
    // An OTP of a YubiKey may stand behind the password, or is asked for.
    expect(&options, "alice", &format!("{PASSWORD}{}", otp(1)), true);
    expect(&options, "alice", &format!("{PASSWORD}\n{}", otp(2)), true);
    expect(&options, "alice", &format!("{PASSWORD}\n{}", otp(2)), false);
    expect(&options, "alice", &format!("wrong\n{}", otp(3)), false);
    expect(&options, "alice", &format!("wrong{}", otp(4)), false);
    expect(&options, "alice", &format!("{PASSWORD}\n"), false);
    expect(&options, "alice", &otp(5), false);
    expect(&options, "dave", &format!("{PASSWORD}\n{}", otp(6)), false);
    expect(&format!("{options} use_first_pass"), "alice", &format!("{PASSWORD}{}", otp(7)), false);
    expect(&options, "alice", &format!("{PASSWORD}\n{}", otp(8)), true);
    daemon
        .server
        .stderr
        .wait_for("alice (penstock-test): good, by password and token cccccccccccb", secs(10));
}

#[test]
fn a_rule_of_the_server_counts_above_the_option_of_a_module() {
    let daemon = with_users("log-in = \"both\"\n");
    expect(&options(&daemon, "otp"), "alice", &daemon.key.otp(1, 1), false);
    expect(&options(&daemon, "password"), "alice", PASSWORD, false);
    expect(&options(&daemon, "either"), "alice", PASSWORD, false);
    expect(&options(&daemon, "both"), "alice", &format!("{PASSWORD}{}", daemon.key.otp(1, 2)), true);
    daemon.server.stderr.wait_for("log-in = \"both\" in [otp] asks for more than auth=otp", secs(10));
}

#[test]
fn a_revoked_user_is_refused_with_every_proof() {
    let daemon = with_users("");
    let users = daemon.server.dir.path().join("users");
    expect(&options(&daemon, "otp"), "alice", &daemon.key.otp(1, 1), true);
    let revoked = penstock(&["user", "--file", users.to_str().unwrap(), "revoke", "alice"]);
    assert!(revoked.status.success(), "{revoked:?}");
    let both = format!("{PASSWORD}{}", daemon.key.otp(1, 4));
    for (auth, typed) in [
        ("otp", daemon.key.otp(1, 2)),
        ("either", daemon.key.otp(1, 3)),
        ("both", both),
        ("password", PASSWORD.to_owned()),
    ] {
        expect(&options(&daemon, auth), "alice", &typed, false);
    }
    daemon.server.stderr.wait_for("alice (penstock-test): refused: the user was revoked on ", secs(10));
    // A file that cannot be read does not say who is revoked.
    fs::write(&users, "no line of users\n").unwrap();
    expect(&options(&daemon, "otp"), "alice", &daemon.key.otp(1, 6), false);
    daemon.server.stderr.wait_for("refused: the file of users cannot be used: ", secs(10));
}

#[test]
fn without_users_no_password_is_good_and_the_log_says_why() {
    let daemon = daemon();
    expect(&options(&daemon, "password"), "alice", PASSWORD, false);
    expect(&format!("{} nullok", options(&daemon, "password")), "alice", PASSWORD, false);
    daemon.server.stderr.wait_for("[otp] names no users", secs(10));
}

#[test]
fn those_who_guess_passwords_must_wait() {
    let daemon = with_users("");
    let options = options(&daemon, "password");
    // For a second: a slow machine may come later, and the password that is right then forgives the wrong ones.
    let waits = (0..5).any(|_| {
        (0..6).for_each(|_| expect(&options, "alice", "wrong", false));
        !log_in(&options, "alice", PASSWORD).status.success()
    });
    assert!(waits, "those who guess do not wait");
    daemon.server.stderr.wait_for("after wrong passwords the next one must wait", secs(10));
    expect(&options, "dave", PASSWORD, true);
}

#[test]
fn sshd_asks_for_a_password_and_an_otp_by_keyboard_interactive() {
    if root("puts files in place of those in /etc, for sshd") == Root::LeftOut {
        return;
    }
    let daemon = with_users("");
    let user = testing::sshd::ordinary_user();
    daemon.tokens.said(&["give", "cccccccccccb", &user], "");
    password(daemon.server.dir.path(), &user);
    let sshd = Sshd::start(&daemon, "auth=both");
    let otp = |press| daemon.key.otp(1, press);
    for (otp, password, expected) in [
        (otp(1), PASSWORD, true),
        (otp(1), PASSWORD, false),
        (otp(2), "wrong", false),
        ("123456".to_owned(), PASSWORD, false),
        (otp(3), PASSWORD, true),
    ] {
        let (good, said) = sshd.log_in(&user, &otp, password);
        assert_eq!(good, expected, "{otp} {password}: {said}");
    }
}
