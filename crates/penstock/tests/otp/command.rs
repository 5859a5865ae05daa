//! `penstock otp`.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use testing::secs;
use testing::tools::run;

use crate::token::Tokens;

#[test]
fn a_yubikey_is_good_once_and_as_its_owner_only() {
    let tokens = Tokens::new();
    let key = tokens.yubikey("cccccccccccb", Some("alice"));
    let verify =
        |user: &str, otp: &str| tokens.run(&["verify", "--user", user], &format!("{otp}\n")).status.success();
    assert!(!verify("bob", &key.otp(1, 1)));
    assert!(verify("alice", &key.otp(1, 1)));
    assert!(!verify("alice", &key.otp(1, 1)));
    assert!(!verify("alice", &key.otp(1, 0)));
    let said = tokens.said(&["verify"], &format!("{}\n", key.otp(1, 2).to_uppercase()));
    assert_eq!(said, "good: token cccccccccccb of alice (typed in capitals (caps lock))\n");
    tokens.said(&["revoke", "cccccccccccb"], "");
    assert!(tokens.refused(&["verify"], &key.otp(1, 3)).contains("token cccccccccccb is revoked"));
    tokens.said(&["restore", "cccccccccccb"], "");
    assert!(verify("alice", &key.otp(1, 3)));
    tokens.said(&["give", "cccccccccccb", "bob"], "");
    assert!(verify("bob", &key.otp(2, 0)));
    let list = tokens.said(&["list"], "");
    assert!(list.contains("cccccccccccb") && list.contains("bob") && list.contains("2/0"), "{list}");
    let json: serde_json::Value = serde_json::from_str(&tokens.said(&["list", "--json"], "")).unwrap();
    assert_eq!((&json["tokens"][0]["session"], &json["tokens"][0]["user"]), (&2.into(), &"bob".into()));
    tokens.said(&["remove", "cccccccccccb"], "");
    assert!(tokens.said(&["list"], "").contains("no tokens yet"));
}

/// A code of oathtool, which is another program than ours.
fn oathtool(arguments: &[&str]) -> String {
    let output = run("oathtool", arguments, secs(10));
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn codes_of_oathtool_are_good_once() {
    let tokens = Tokens::new();
    let said =
        tokens.said(&["enrol", "totp", "--user", "alice", "--digits", "8", "--algorithm", "SHA256"], "");
    let uri = said.lines().find(|line| line.starts_with("otpauth://totp/Penstock:alice?")).unwrap();
    let secret = uri.split("secret=").nth(1).unwrap().split('&').next().unwrap();
    let code = oathtool(&["--totp=sha256", "--base32", "--digits=8", secret]);
    assert!(tokens.said(&["verify", "--user", "alice"], &code).contains("token alice-totp of alice"));
    assert!(tokens.refused(&["verify", "--user", "alice"], &code).contains("used before"));
    let base32 = "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ";
    tokens.said(&["enrol", "hotp", "--user", "bob", "--secret-file", "-"], base32);
    let hotp = |counter: u32| oathtool(&["--base32", "--counter", &counter.to_string(), base32]);
    assert!(tokens.said(&["verify", "--user", "bob"], &hotp(4)).contains("token bob-hotp of bob"));
    assert!(tokens.refused(&["verify", "--user", "bob"], &hotp(4)).contains("used before"));
    assert!(tokens.refused(&["verify", "--user", "bob"], &hotp(200)).contains("wrong"));
    tokens.said(&["resync", "bob-hotp"], &format!("{}\n{}\n", hotp(200), hotp(201)));
    assert!(tokens.said(&["verify", "--user", "bob"], &hotp(202)).contains("good"));
}

#[test]
fn tokens_of_other_programs_are_imported() {
    let tokens = Tokens::new();
    let file = tokens.directory.join("export.csv");
    fs::write(&file, "# ykksm 1\n1,cccccccccccb,0123456789ab,87fe7c2b3d4f5a6b8c9d0e1f2a3b4c5d,000000000000,2009-12-03T22:44:31,\n2,xx,y,z\n").unwrap();
    let output = tokens.run(&["import", "ksm", file.to_str().unwrap()], "");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "imported 1 of 2 lines\n");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("line 3: "), "{said}");
    assert!(!said.contains("87fe"), "no secret is told");
    tokens.said(&["import", "ykval", "-"], "1,1383728711,1383733691,cccccccccccb,7,3,500,2,fa9d8e7a,\n");
    let key = crate::token::YubiKey::named("cccccccccccb");
    assert!(tokens.refused(&["verify"], &key.otp(7, 3)).contains("used before"));
    assert!(tokens.said(&["verify"], &key.otp(7, 4)).contains("good"));
    tokens.said(&["import", "oath", "-"], "HOTP carol - 3132333435363738393031323334353637383930 3\n");
    assert!(tokens.said(&["verify", "--user", "carol"], "969429").contains("carol-hotp"));
}

#[test]
fn a_store_that_has_lost_its_content_is_refused_and_what_it_says_makes_a_new_one() {
    let tokens = Tokens::new();
    let key = tokens.yubikey("cccccccccccb", Some("alice"));
    assert!(tokens.said(&["verify"], &key.otp(1, 1)).contains("good"));
    let journal = tokens.directory.join("otp/journal");
    fs::write(&journal, "").unwrap();
    for arguments in [&["list"][..], &["verify"], &["enrol", "totp", "--user", "alice"]] {
        let said = tokens.refused(arguments, &key.otp(1, 1));
        assert!(said.contains(&format!("{} has lost its content", journal.display())), "{said}");
        assert!(said.contains("restore it from a backup") && said.contains("penstock otp init"), "{said}");
    }
    assert_eq!(fs::read(&journal).unwrap(), b"", "nothing was written");
    assert!(tokens.refused(&["init"], "").contains("already"));
    fs::rename(&journal, tokens.directory.join("otp/journal.lost")).unwrap();
    tokens.said(&["init"], "");
    assert!(tokens.said(&["list"], "").contains("no tokens yet"));
}

#[test]
fn faults_say_what_to_do() {
    let tokens = Tokens::new();
    let key = tokens.directory.join("otp.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(tokens.refused(&["list"], "").contains("chmod 600"));
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(tokens.refused(&["init"], "").contains("already"));
    let (named, empty) = (tokens.directory.join("named.toml"), tokens.directory.join("empty.toml"));
    let rest = "[listener.web]\nbind = \":0\"\npool = \"app\"\n[pool.app]\nbackends = [\"127.0.0.1:9\"]\n";
    let own = tokens.directory.display();
    let otp = format!("{rest}[otp]\nstore = \"{own}/otp\"\nkey-file = \"{own}/otp.key\"\n");
    fs::write(&named, otp).unwrap();
    fs::write(&empty, rest).unwrap();
    let with = |file: &std::path::Path| {
        testing::server::penstock(&["otp", "--config", file.to_str().unwrap(), "list"])
    };
    assert!(with(&named).status.success(), "{:?}", with(&named));
    assert!(String::from_utf8_lossy(&with(&empty).stderr).contains("has no [otp]"));
    assert!(tokens.refused(&["revoke", "nobody"], "").contains("there is no token nobody"));
    assert!(tokens.refused(&["enrol", "totp"], "").contains("--user"));
    let hotp = ["enrol", "hotp", "--user", "bob", "--secret-file", "-"];
    assert!(tokens.refused(&hotp, "MZXW6").contains("the secret in - has 3 bytes: 16 to 128 are needed"));
    assert!(tokens.refused(&hotp, "MZXW6YTBO1").contains("the secret in - is no base32"));
    assert!(
        tokens
            .refused(&["enrol", "yubikey", "--secret-file", "-"], "cccb zz 00")
            .contains("AES key must be 32")
    );
    fs::remove_dir_all(tokens.directory.join("otp")).unwrap();
    assert!(tokens.refused(&["list"], "").contains("penstock otp init"));
}
