//! What `penstock check` says of `[otp]`.

use std::fs;

use testing::server::penstock;

use crate::token::Tokens;

fn said(tokens: &Tokens, more: &str) -> String {
    let own = tokens.directory.display();
    let file = tokens.directory.join("penstock.toml");
    let text = format!(
        "[listener.web]\nbind = \":80\"\npool = \"app\"\n[pool.app]\nbackends = [\"127.0.0.1:9\"]\n\
         [otp]\nstore = \"{own}/otp\"\nkey-file = \"{own}/otp.key\"\nusers = \"{own}/users\"\n{more}"
    );
    fs::write(&file, text).unwrap();
    let output = penstock(&["check", file.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_store_that_is_missing_is_made_by_otp_init_and_not_by_mkdir() {
    let tokens = Tokens::new();
    assert!(!said(&tokens, "").contains("otp.store"), "{}", said(&tokens, ""));
    fs::remove_dir_all(tokens.directory.join("otp")).unwrap();
    for directory_is_there in [false, true] {
        if directory_is_there {
            fs::create_dir(tokens.directory.join("otp")).unwrap();
        }
        let said = said(&tokens, "");
        let own = tokens.directory.display();
        assert!(said.contains("otp.store: there is no store of tokens in"), "{said}");
        let hint = format!("penstock otp init --store {own}/otp --key-file {own}/otp.key");
        assert!(said.contains(&hint) && !said.contains("mkdir"), "{said}");
    }
}

#[test]
fn files_that_the_server_would_not_use_are_named() {
    let tokens = Tokens::new();
    let set_mode = |name: &str, mode| {
        let path = tokens.directory.join(name);
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    let (users, key) = ("otp.users: ", "otp.key-file: ");
    let missing = said(&tokens, "");
    assert!(missing.contains(users) && missing.contains("there is no file"), "{missing}");
    fs::write(tokens.directory.join("users"), "alice\n").unwrap();
    set_mode("users", 0o640);
    set_mode("otp.key", 0o604);
    let open = said(&tokens, "");
    assert!(open.contains("users has mode 0640, and others than its owner can use it"), "{open}");
    assert!(open.contains(key) && open.contains("chmod 600"), "{open}");
    set_mode("users", 0o600);
    set_mode("otp.key", 0o600);
    let good = said(&tokens, "");
    assert!(!good.contains(users) && !good.contains(key), "{good}");
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(tokens.directory.join("users"), Some(12_345), None).unwrap();
        let foreign = said(&tokens, "");
        assert!(foreign.contains("users belongs to user 12345 (mode 0600), who could have"), "{foreign}");
        std::os::unix::fs::chown(tokens.directory.join("users"), Some(0), None).unwrap();
    }
    fs::write(tokens.directory.join("users"), "alice role=root\n").unwrap();
    let wrong = said(&tokens, "");
    assert!(wrong.contains("line 1: role role=root is none of view, operate, admin"), "{wrong}");
}

#[test]
fn users_without_a_token_are_named_where_a_log_in_needs_one() {
    let tokens = Tokens::new();
    let users = tokens.directory.join("users");
    fs::write(&users, "alice\nbob\ncarol\n").unwrap();
    fs::set_permissions(&users, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    tokens.yubikey("cccccccccccb", Some("alice"));
    tokens.yubikey("cccccccccccd", Some("carol"));
    tokens.said(&["revoke", "cccccccccccd"], "");
    for rule in ["otp", "both"] {
        let said = said(&tokens, &format!("log-in = \"{rule}\"\n"));
        assert!(
            said.contains("otp.log-in: ") && said.contains("no token that may be used: bob, carol"),
            "{said}"
        );
        assert!(said.contains("penstock otp enrol totp --user bob"), "{said}");
    }
    for rule in ["", "log-in = \"password\"\n", "log-in = \"either\"\n"] {
        assert!(!said(&tokens, rule).contains("otp.log-in"), "{rule}");
    }
    tokens.said(&["restore", "cccccccccccd"], "");
    tokens.said(&["enrol", "totp", "--user", "bob"], "");
    assert!(!said(&tokens, "log-in = \"both\"\n").contains("otp.log-in"));
}
