//! Keys that must not be believed any more leave the DNS: revoked host keys, hosts that are gone, revoked OpenPGP keys.

use std::fs;

use testing::sshd::keygen;
use testing::{eventually, secs};

use crate::domain::{Domain, Home, Settings};
use crate::push::push;

#[test]
fn record_of_a_revoked_host_key_is_bad_and_a_push_removes_it() {
    let home = Home::new();
    let key = home.file("gw1");
    keygen(key.as_ref(), &["-t", "ed25519"]);
    let public = format!("{key}.pub");
    // With SHA-1 and SHA-256, and beside them a record that is of another program.
    let own = home.run(&["ssh-keygen", "-r", "gw1.example.test.", "-f", &public]);
    let foreign = format!("1 2 {}", "ab".repeat(32));
    let records = format!("{own}gw1 SSHFP {foreign}\nb A 127.0.0.1\n");
    let domain = Domain::with(&Settings { records: &records, ..Settings::default() });
    home.said(&["host", "add", "gw1.example.test", "--key", &public]);
    let check = || {
        let path = domain.path();
        let words: Vec<&str> = ["dns", "check", "--hosts", "--no-services"]
            .into_iter()
            .chain(path.iter().map(String::as_str))
            .collect();
        let output = home.penstock(&words);
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let sshfp = || domain.dig(0, "gw1.example.test.", "SSHFP");
    assert_eq!(check().0, Some(0), "{:?}", check());
    assert_eq!(sshfp().lines().count(), 3, "{}", sshfp());

    let fingerprint = home.run(&["ssh-keygen", "-l", "-f", &public]);
    let fingerprint = fingerprint.split(' ').nth(1).unwrap();
    let said = home.said(&["host", "revoke", "gw1.example.test", fingerprint]);
    assert!(said.contains("penstock dns push --host gw1.example.test --server ADDRESS"), "{said}");
    let (code, told) = check();
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("bad") && told.contains("of a key that is revoked"), "{told}");
    assert!(told.contains("0 records at 1 server"), "{told}");

    let refused = home.refused(&["dns", "records", "--host", "gw1.example.test"], 1);
    assert!(refused.contains("it has no pinned key"), "{refused}");
    let plan = home.said(&push(&domain, &["--hosts"], &["--keep-others", "--dry-run"]));
    assert_eq!(plan.lines().filter(|line| line.starts_with("- gw1.example.test.")).count(), 2, "{plan}");
    let done = home.said(&push(&domain, &["--host", "gw1.example.test"], &[]));
    assert!(done.ends_with("done: the server has no record of a revoked key\n"), "{done}");
    assert_eq!(sshfp().to_lowercase().trim(), foreign, "that of the other program stays");
    let again = home.said(&push(&domain, &["--hosts"], &[]));
    assert_eq!(again, "nothing to change: the zone has no record of a revoked key\n");
    eventually("the caches have it too", secs(90), || (check().0 == Some(0)).then_some(()));

    // A host that is gone takes all its records with it.
    let said = home.said(&["host", "remove", "gw1.example.test"]);
    assert!(said.contains("penstock dns push --without gw1.example.test --server ADDRESS"), "{said}");
    let done = home.said(&push(&domain, &["--without", "gw1.example.test"], &[]));
    assert!(done.starts_with("- gw1.example.test. 60 IN SSHFP 1 2 abab"), "{done}");
    assert_eq!(sshfp(), "");
    home.said(&["host", "add", "gw1.example.test", "--key", &{
        keygen(home.file("new").as_ref(), &["-t", "ed25519"]);
        home.file("new.pub")
    }]);
    let both = push(&domain, &["--hosts", "--without", "gw1.example.test"], &[]);
    assert!(home.refused(&both, 2).contains("a host of that name is here"));
}

#[test]
fn record_of_a_key_that_only_the_file_of_another_host_revokes_stays() {
    let home = Home::new();
    let key = home.file("gw1");
    keygen(key.as_ref(), &["-t", "ed25519"]);
    let public = format!("{key}.pub");
    home.said(&["host", "add", "gw1.example.test", "--key", &public]);
    let record = home.said(&["dns", "records", "--host", "gw1.example.test"]);
    let fingerprint = home.run(&["ssh-keygen", "-l", "-f", &public]);
    let fingerprint = fingerprint.split(' ').nth(1).unwrap();
    let text = fs::read_to_string(&public).unwrap();
    let words: Vec<&str> = text.split_whitespace().take(2).collect();
    let file = home.path().join(".config/penstock/hosts/gw2.example.test.host");
    let line = format!("revoked {} {fingerprint} 2026-11-03", words.join(" "));
    fs::write(&file, format!("id gw2.example.test\n{line}\n")).unwrap();
    // As `ssh` and `penstock run` accept it from this host, and from no other.
    home.said(&["host", "why", "gw1.example.test", "--key", &words.join(" ")]);
    assert_eq!(home.said(&["dns", "records", "--hosts"]), record);

    let own = home.run(&["ssh-keygen", "-r", "gw1.example.test.", "-f", &public]);
    let elsewhere = own.replace("gw1.example", "gw2.example");
    let records = format!("{own}{elsewhere}b A 127.0.0.1\n");
    let domain = Domain::with(&Settings { records: &records, ..Settings::default() });
    let kept = home.said(&push(&domain, &["--hosts"], &["--keep-others", "--dry-run"]));
    let gone: Vec<&str> = kept.lines().filter(|line| line.starts_with("- ")).collect();
    assert_eq!(gone.len(), 2, "with SHA-1 and SHA-256, of the host whose file revokes it: {kept}");
    assert!(gone.iter().all(|line| line.starts_with("- gw2.example.test.")), "{kept}");
    let path = domain.path();
    let words = ["dns", "check", "--host", "gw1.example.test", "--no-services"];
    let output =
        home.penstock(&words.iter().copied().chain(path.iter().map(String::as_str)).collect::<Vec<_>>());
    let told = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert!(!told.contains("revoked"), "{told}");
}

#[test]
fn records_of_a_revoked_openpgp_key_are_bad_and_a_push_removes_them() {
    let domain = Domain::start();
    let home = Home::new();
    let key = home.openpgp(&["Alice <alice@example.test>"]);
    home.said(&push(&domain, &["--openpgp", &key, "--cert", "--ipgp", "https://example.test/k"], &[]));
    let owner = "2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db._openpgpkey.example.test.";
    assert!(!domain.dig(0, owner, "OPENPGPKEY").is_empty());

    // gpg makes the revocation beside each key; a colon before it keeps it from being used by mistake.
    let directory = home.path().join("gnupg/openpgp-revocs.d");
    let file = fs::read_dir(&directory).unwrap().next().unwrap().unwrap().path();
    let text = fs::read_to_string(&file).unwrap().replace(":-----BEGIN", "-----BEGIN");
    fs::write(&file, text).unwrap();
    home.run(&["gpg", "--batch", "--import", &file.display().to_string()]);
    home.run(&["gpg", "--batch", "--yes", "--output", &key, "--export", "alice@example.test"]);

    let refused = home.refused(&["dns", "records", "--openpgp", &key], 1);
    assert!(
        refused.contains("is revoked: `penstock dns push --openpgp FILE` takes its records"),
        "{refused}"
    );
    let path = domain.path();
    let words = ["dns", "check", "--openpgp", &key].into_iter().chain(path.iter().map(String::as_str));
    let output = home.penstock(&words.collect::<Vec<_>>());
    let told = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("OPENPGPKEY") && told.contains("of a key that is revoked"), "{told}");
    let done = home.said(&push(&domain, &["--openpgp", &key], &[]));
    assert_eq!(done.lines().filter(|line| line.starts_with("- ")).count(), 3, "{done}");
    assert_eq!(domain.dig(0, owner, "OPENPGPKEY"), "");
    assert_eq!(domain.dig(0, "alice.example.test.", "CERT"), "");
}

#[test]
fn zone_that_leaves_out_every_host_is_told() {
    let home = Home::new();
    keygen(home.file("k").as_ref(), &["-t", "ed25519"]);
    home.said(&["host", "add", "web1.example.test", "--key", &home.file("k.pub")]);
    let refused = home.refused(&["dns", "records", "--hosts", "--zone", "example.net"], 1);
    assert!(
        refused.contains("--zone example.net leaves out all names, such as web1.example.test"),
        "{refused}"
    );
}
