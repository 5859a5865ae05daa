use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::pem_file;

/// Makes a key and a certificate with openssl, a program independent of the parser under test.
fn openssl(arguments: &[&str]) {
    let output = std::process::Command::new("openssl").args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

fn certificate(directory: &Path, stem: &str, names: &[&str]) {
    let file = |ending: &str| directory.join(format!("{stem}.{ending}")).to_str().unwrap().to_owned();
    let alternatives: Vec<_> = names.iter().map(|name| format!("DNS:{name}")).collect();
    let alternatives = format!("subjectAltName={}", alternatives.join(","));
    let (key, crt) = (file("key"), file("crt"));
    openssl(&[
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "9",
        "-subj",
        "/CN=x",
        "-addext",
        &alternatives,
        "-keyout",
        &key,
        "-out",
        &crt,
    ]);
    fs::set_permissions(key, fs::Permissions::from_mode(0o600)).unwrap();
}

fn store(directory: &Path) -> Store {
    Store::new(
        Source {
            directory: directory.to_owned(),
            passphrase_file: None,
            ocsp: Ocsp::On,
            filler: Filler::People,
        },
        Arc::new(Staples::new(None)),
        Arc::default(),
    )
}

#[test]
fn ten_thousand_pairs_are_found_by_hash_and_a_second_look_reads_none_again() {
    let directory = tempfile::tempdir().unwrap();
    certificate(directory.path(), "pair0", &["host.example", "*.wild.example"]);
    let text = |ending: &str| fs::read(directory.path().join(format!("pair0.{ending}"))).unwrap();
    let (crt, key) = (text("crt"), text("key"));
    for at in 1..10_000 {
        let path = |ending: &str| directory.path().join(format!("pair{at}.{ending}"));
        fs::write(path("crt"), &crt).unwrap();
        fs::write(path("key"), &key).unwrap();
        fs::set_permissions(path("key"), fs::Permissions::from_mode(0o600)).unwrap();
    }
    let store = store(directory.path());
    let begun = Instant::now();
    store.scan(Removal::AtOnce);
    let first = begun.elapsed();
    assert_eq!(store.count()[0], (CertificateState::Ok, 10_000));
    // A file that changed just now is read again.
    let last = directory.path().join("pair9999.key");
    while pem_file::file_stamp(&last, SystemTime::now()).is_none() {
        std::thread::yield_now();
    }
    store.scan(Removal::AtOnce);
    let before = store.report();
    let begun = Instant::now();
    store.scan(Removal::AtOnce);
    println!("10,000 pairs: first look {first:?}, the same again {:?}", begun.elapsed());
    let after = store.report();
    let same = |(a, b): (&Certificate, &Certificate)| {
        Arc::ptr_eq(a.pair.as_ref().unwrap(), b.pair.as_ref().unwrap())
    };
    assert!(before.iter().zip(&after).all(same), "what has not changed is not read again");
    let lookup = store.lookup();
    assert!(lookup.find("host.example").is_some() && lookup.find("HOST.example.").is_some());
    assert!(lookup.find("a.wild.example").is_some() && lookup.find("a.b.wild.example").is_none());
    assert_eq!(lookup.names(), 2, "a name has one entry, however many certificates are for it");
}

#[test]
fn a_broken_pair_leaves_the_one_from_before_and_a_vanished_directory_all_of_them() {
    let directory = tempfile::tempdir().unwrap();
    let certs = directory.path().join("certs");
    fs::create_dir(&certs).unwrap();
    certificate(&certs, "a", &["a.example"]);
    certificate(&certs, "b", &["b.example"]);
    let store = store(&certs);
    store.scan(Removal::Settled);
    let served = |name: &str| store.lookup().find(name).map(|slot| slot[0].chain()[0].clone());
    let (a, b) = (served("a.example"), served("b.example"));
    assert!(a.is_some() && b.is_some());
    fs::rename(certs.join("b.key"), certs.join("a.key")).unwrap();
    store.scan(Removal::Settled);
    assert_eq!((served("a.example"), served("b.example")), (a.clone(), b.clone()));
    let faults = store.faults().join("\n");
    assert!(faults.contains("do not belong together") && faults.contains("its key is missing"), "{faults}");
    fs::rename(&certs, directory.path().join("away")).unwrap();
    store.scan(Removal::Settled);
    assert_eq!((served("a.example"), served("b.example")), (a, b));
    fs::create_dir(&certs).unwrap();
    store.scan(Removal::Settled);
    assert!(served("a.example").is_some() && !store.faults().is_empty(), "an empty directory is a mistake");
    certificate(&certs, "c", &["c.example"]);
    store.scan(Removal::AtOnce);
    assert!(served("c.example").is_some() && served("a.example").is_none());
    assert_eq!(store.faults(), Vec::<String>::new());
}

#[test]
fn of_two_for_one_name_the_one_that_was_issued_last_is_served_and_the_other_says_so() {
    let directory = tempfile::tempdir().unwrap();
    certificate(directory.path(), "a", &["x.example"]);
    certificate(directory.path(), "b", &["x.example"]);
    let store = store(directory.path());
    store.scan(Removal::AtOnce);
    let notes: Vec<_> = store.report().into_iter().map(|it| (it.name, it.notes.len())).collect();
    assert_eq!(notes.iter().map(|(_, notes)| notes).sum::<usize>(), 1, "{notes:?}");
    assert_eq!(store.lookup().find("x.example").unwrap().len(), 1);
}

#[test]
fn a_new_fault_is_told_before_those_that_people_know() {
    let faults = |all: &[&str]| all.iter().map(|fault| (*fault).to_owned()).collect::<Vec<_>>();
    let mut told = Vec::new();
    assert_eq!(newest_first(&mut told, faults(&["a", "b"])), ["a", "b"]);
    assert_eq!(newest_first(&mut told, faults(&["a", "b", "z"])), ["z", "a", "b"]);
    assert_eq!(
        newest_first(&mut told, faults(&["a", "b", "z"])),
        ["z", "a", "b"],
        "nothing changed, nothing is said"
    );
    assert_eq!(newest_first(&mut told, faults(&["a", "z"])), ["z", "a"]);
}

#[test]
fn a_key_that_was_cut_off_is_said_in_words() {
    let directory = tempfile::tempdir().unwrap();
    certificate(directory.path(), "a", &["a.example"]);
    let key = directory.path().join("a.key");
    let text = fs::read(&key).unwrap();
    fs::write(&key, &text[..60]).unwrap();
    let store = store(directory.path());
    store.scan(Removal::AtOnce);
    let wanted = "a.key: cannot be understood: it ends before an -----END line: is the file whole?";
    assert!(store.faults().iter().any(|fault| fault.ends_with(wanted)), "{:?}", store.faults());
}

#[test]
fn faults_are_announced_with_the_new_ones_first() {
    let directory = tempfile::tempdir().unwrap();
    let state = State::new(1);
    let store = store(directory.path());
    for name in ["a.pem", "b.pem"] {
        fs::write(directory.path().join(name), "x").unwrap();
        let scan = store.scan(Removal::AtOnce);
        store.announce(&scan, &state);
    }
    let (_, told) = state.degraded().remove(0);
    assert!(told.find("b.pem").unwrap() < told.find("a.pem").unwrap(), "{told}");
}
