//! Signed updates of a zone at knot: only the difference, only what is ours, and every refusal by its reason.

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use access::keys::{Kind, Others, Owner, Revoked};
use dns::{Primary, Push, SignedServer, Write};
use logic::tsig_key::TsigKey;
use testing::pki::{Time, self_signed};
use testing::sshd::keygen;
use testing::{eventually, secs};

use crate::domain::{Domain, Home, Settings};

/// Makes a certificate and returns its file.
pub(crate) fn certificate(home: &Home, stem: &str, name: &str) -> String {
    self_signed(home.path(), stem, &[name], Time::Now).certificate.display().to_string()
}

pub(crate) fn push(domain: &Domain, what: &[&str], more: &[&str]) -> Vec<String> {
    let words = ["dns", "push"].iter().chain(what).chain(more).map(|word| (*word).to_owned());
    words.chain(domain.primary()).collect()
}

#[test]
fn only_the_difference_is_changed_and_only_of_names_and_types_that_are_ours() {
    let records = "www A 127.0.0.1\n_443._tcp.other TLSA 3 1 1 00\n_443._tcp.www TXT here\nalias CNAME www\n";
    let domain = Domain::with(&Settings { records, ..Settings::default() });
    let home = Home::new();
    let (old, new) =
        (certificate(&home, "old", "www.example.test"), certificate(&home, "new", "www.example.test"));
    let tlsa = || domain.dig(0, "_443._tcp.www.example.test.", "TLSA");

    let plan = home.said(&push(&domain, &["--next", &old], &["--dry-run"]));
    assert!(plan.starts_with("+ _443._tcp.www.example.test. 3600 IN TLSA 3 1 1 "), "{plan}");
    assert_eq!(tlsa(), "", "a dry run changes nothing");
    let done = home.said(&push(&domain, &["--next", &old], &["--ttl", "30"]));
    assert!(done.ends_with("done: the server has the 1 record\n"), "{done}");
    let first = tlsa();
    assert_eq!(first.lines().count(), 1, "{first}");
    let again = home.said(&push(&domain, &["--next", &old], &[]));
    assert_eq!(again, "nothing to change: the zone has the 1 record\n");

    let both = home.said(&push(&domain, &["--next", &new], &["--keep-others"]));
    assert!(both.contains(" 30 IN TLSA "), "the TTL that is there stays: {both}");
    assert_eq!(tlsa().lines().count(), 2);
    let json = home.said(&push(&domain, &["--next", &new], &["--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["changes"][0]["remove"].as_array().unwrap().len(), 1, "{json}");
    let second = tlsa();
    assert!(second.lines().count() == 1 && second != first, "{second}");
    assert_eq!(
        domain.dig(0, "_443._tcp.other.example.test.", "TLSA").trim(),
        "3 1 1 00",
        "another name stays"
    );
    assert!(domain.dig(0, "_443._tcp.www.example.test.", "TXT").contains("here"), "another type stays");

    let ttl = home.said(&push(&domain, &["--next", &new], &["--ttl", "5"]));
    assert!(ttl.contains("+ _443._tcp.www.example.test. 5 IN TLSA "), "{ttl}");
    assert_eq!(tlsa(), second);

    // A record of OpenPGP that UDP cannot carry.
    let users: Vec<String> = (0..1).map(|at| format!("A{at} <alice@example.test>")).collect();
    let key = home.openpgp(&users.iter().map(String::as_str).collect::<Vec<_>>());
    let done =
        home.said(&push(&domain, &["--openpgp", &key, "--cert", "--ipgp", "https://example.test/k"], &[]));
    assert!(done.ends_with("done: the server has the 3 records\n"), "{done}");
}

#[test]
fn every_refusal_is_told_by_its_reason() {
    let domain = Domain::with(&Settings {
        records: "alias CNAME www\n_443._tcp.alias CNAME www\n",
        ..Settings::default()
    });
    let home = Home::new();
    let file = certificate(&home, "www", "www.example.test");
    let with_file = |name: &str, code: i32| {
        let server = domain.servers[0].to_string();
        let key = domain.key(name).display().to_string();
        home.refused(&["dns", "push", "--next", &file, "--server", &server, "--tsig", &key], code)
    };
    let with_key = |name: &str| with_file(name, 1);
    let right = fs::read_to_string(domain.key("penstock")).unwrap();
    let refused = with_key("reader");
    assert!(refused.contains("gives it no right to update"), "{refused}");
    domain.write_key("unknown", &right.replace("\"penstock\"", "\"nobody\""));
    assert!(with_key("unknown").contains("it does not know the key"));
    let secret = right.split('"').nth(3).unwrap();
    domain.write_key("forged", &right.replace(secret, "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="));
    let refused = with_key("forged");
    assert!(refused.contains("our signature is wrong for it: compare the secret"), "{refused}");
    domain.write_key("broken", "key");
    assert!(with_file("broken", 2).contains("holds no key of the form"));
    domain.write_key("exposed", &right);
    fs::set_permissions(domain.key("exposed"), fs::Permissions::from_mode(0o644)).unwrap();
    let refused = with_file("exposed", 2);
    assert!(refused.contains("other users can use the secret in it (mode 0644)"), "{refused}");

    let alias = certificate(&home, "alias", "alias.example.test");
    let refused = home.refused(&push(&domain, &["--next", &alias], &[]), 1);
    assert!(refused.contains("is an alias (CNAME) of www.example.test"), "{refused}");
    let foreign = certificate(&home, "foreign", "www.elsewhere.test");
    let refused = home.refused(&push(&domain, &["--next", &foreign], &[]), 1);
    assert!(refused.contains("not authoritative for _443._tcp.www.elsewhere.test"), "{refused}");

    // One of two hosts is in another zone: nothing is changed, and it is told what to do.
    for name in ["web1.example.test", "web1.elsewhere.test"] {
        let key = home.file(name);
        keygen(key.as_ref(), &["-t", "ed25519"]);
        home.said(&["host", "add", name, "--key", &format!("{key}.pub")]);
    }
    let refused = home.refused(&push(&domain, &["--hosts"], &[]), 1);
    assert!(refused.contains("not authoritative for web1.elsewhere.test"), "{refused}");
    assert!(refused.contains("hint: nothing is changed; --zone ZONE leaves out"), "{refused}");
    assert_eq!(domain.dig(0, "web1.example.test.", "SSHFP"), "");
    home.said(&push(&domain, &["--hosts", "--zone", "example.test"], &[]));
    assert!(domain.dig(0, "web1.example.test.", "SSHFP").starts_with("4 2 "));

    // A server that accepts and says nothing.
    let silent = TcpListener::bind(("127.0.0.1", testing::port::free())).unwrap();
    let (place, key) =
        (silent.local_addr().unwrap().to_string(), domain.key("penstock").display().to_string());
    let arguments = ["dns", "push", "--next", &file, "--server", &place, "--tsig", &key, "--timeout", "1"];
    assert!(home.refused(&arguments, 1).contains("the time limit of 1 s is over"));
    drop(silent);
    let refused = home.refused(&arguments, 1);
    assert!(refused.contains("onnection refused"), "{refused}");
}

/// Replaces records that are so large that an update cannot hold the old and the new ones.
pub(crate) fn replace_large_records(server: SocketAddr, key: &Path) {
    let key = TsigKey::parse(&fs::read_to_string(key).unwrap()).unwrap();
    let primary = || Primary::new(SignedServer::new(server, key.clone()).unwrap(), secs(30));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let owner = Owner::parse("large._openpgpkey.example.test").unwrap();
    let push = |bytes: &[Vec<u8>], others: Others| {
        let wanted = BTreeMap::from([((owner.clone(), Kind::Openpgpkey), bytes.iter().cloned().collect())]);
        let revoked = Revoked::default();
        let push = Push { wanted: &wanted, others, revoked: &revoked, ttl: None, zone: None };
        runtime.block_on(primary().push(&push, Write::Yes))
    };
    let key = |byte: u8, length: usize| vec![byte; length];
    push(&[key(1, 30_000)], Others::Remove).unwrap();
    let changes = push(&[key(2, 30_000)], Others::Remove).unwrap();
    assert_eq!((changes.len(), changes[0].remove.len()), (1, 1), "the old one goes");
    push(&[key(3, 60_000)], Others::Remove).unwrap();
    assert_eq!(push(&[key(3, 60_000)], Others::Remove).unwrap(), [], "and it is there");
    push(&[key(4, 1000), key(5, 1000)], Others::Remove).unwrap();
    push(&[key(6, 50_000)], Others::Keep).unwrap();
    let refused = push(&[key(7, 30_000)], Others::Keep).unwrap_err().to_string();
    assert!(refused.contains("would have 83200 bytes together"), "{refused}");
    push(&[key(8, 10)], Others::Remove).unwrap();
}

#[test]
fn records_that_fill_an_update_are_replaced() {
    let domain = Domain::start();
    replace_large_records(SocketAddr::from((domain.servers[0], 53)), &domain.key("penstock"));
}

#[test]
fn clock_that_is_wrong_is_told() {
    // faketime starts a child, which must end with it.
    let before = &["faketime", "-f", "-20m", "setpriv", "--pdeathsig", "KILL"];
    let settings = Settings { before, signing: false, ..Settings::default() };
    let domain = Domain::with(&settings);
    let home = Home::new();
    let file = certificate(&home, "www", "www.example.test");
    let refused = home.refused(&push(&domain, &["--next", &file], &[]), 1);
    assert!(refused.contains("its clock and ours differ by more than 5 minutes"), "{refused}");
}

#[test]
fn two_who_push_at_the_same_time_lose_nothing_of_each_other() {
    let domain = Domain::start();
    let home = Home::new();
    let files: Vec<String> =
        (0..4).map(|at| certificate(&home, &format!("c{at}"), "www.example.test")).collect();
    std::thread::scope(|scope| {
        for file in &files {
            let arguments = push(&domain, &["--next", file], &["--keep-others"]);
            let home = &home;
            scope.spawn(move || {
                // A race that is lost three times is told, and nothing is lost.
                eventually("it is pushed", secs(60), || {
                    home.penstock(&arguments).status.success().then_some(())
                });
            });
        }
    });
    assert_eq!(domain.dig(0, "_443._tcp.www.example.test.", "TLSA").lines().count(), 4);
}
