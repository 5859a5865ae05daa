//! What is wrong with a zone is found, each fault by its name, at the server that has it.

use std::collections::BTreeSet;
use std::net::{TcpListener, UdpSocket};
use std::process::Output;

use serde_json::Value;
use testing::{eventually, secs};

use crate::domain::{Domain, Home, Settings};
use crate::push::{certificate, push};

/// Findings as `severity problem place`.
fn findings(output: &Output) -> Vec<String> {
    let json: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let word = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let finding =
        |one: &Value| format!("{} {} {}", word(&one["severity"]), word(&one["problem"]), word(&one["place"]));
    json["findings"].as_array().unwrap().iter().map(finding).collect()
}

fn check(domain: &Domain, home: &Home, what: &[&str]) -> Output {
    let path = domain.path();
    let words: Vec<&str> = what.iter().copied().chain(path.iter().map(String::as_str)).collect();
    check_alone(home, &words)
}

/// The same without resolver and keys of a domain.
fn check_alone(home: &Home, what: &[&str]) -> Output {
    home.penstock(&[&["dns", "check", "--json", "--no-services"], what].concat())
}

#[test]
fn records_that_are_everywhere_are_good_and_a_server_that_is_not_updated_is_named() {
    let mut domain = Domain::with(&Settings { servers: 3, ..Settings::default() });
    let home = Home::new();
    let file = certificate(&home, "www", "www.example.test");
    let wanted = ["--next", &file];
    let none = check(&domain, &home, &wanted);
    assert_eq!(none.status.code(), Some(1));
    let of_none = findings(&none);
    assert_eq!(of_none.iter().filter(|one| one.contains("bad missing ns")).count(), 3, "{of_none:?}");
    let text = String::from_utf8_lossy(&none.stdout).into_owned();
    assert!(text.contains("NXDOMAIN"), "{text}");

    home.said(&push(&domain, &wanted, &["--ttl", "1"]));
    eventually("all servers have it", secs(30), || {
        let good = check(&domain, &home, &wanted);
        (good.status.success() && findings(&good).is_empty()).then_some(())
    });

    // One that does not get the next change.
    domain.stop_server(2);
    let next = certificate(&home, "next", "www.example.test");
    home.said(&push(&domain, &["--next", &file, "--next", &next], &[]));
    let silent = eventually("the other one has it", secs(30), || {
        let found = findings(&check(&domain, &home, &["--next", &file, "--next", &next]));
        (found.iter().filter(|one| one.starts_with("bad")).count() == 1).then_some(found)
    });
    assert!(silent[0].starts_with("bad silent ns2.example.test"), "{silent:?}");
    home.said(&push(&domain, &["--next", &file], &[]));
    let stale = eventually("they have only the old one again", secs(30), || {
        let found = findings(&check(&domain, &home, &["--next", &next]));
        let has = |part: &str| found.iter().any(|one| one.starts_with(part));
        (has("weak stale ns1") && has("bad missing ns0")).then_some(found)
    });
    assert!(stale.iter().any(|one| one.starts_with("bad missing ns0")), "{stale:?}");
}

#[test]
fn name_that_exists_without_the_record_is_told_apart_and_a_server_behind_is_found() {
    let records = "_443._tcp.www TXT here\n";
    let domain = Domain::with(&Settings { records, ..Settings::default() });
    let other = Domain::with(&Settings { records, signing: false, ..Settings::default() });
    let home = Home::new();
    let file = certificate(&home, "www", "www.example.test");
    let servers = [domain.servers[0].to_string(), other.servers[0].to_string()];
    let both = ["--next", &file, "--server", &servers[0], "--server", &servers[1]];
    let text = String::from_utf8(check(&domain, &home, &both).stdout).unwrap();
    assert!(text.contains("the name exists, and has no TLSA record") && !text.contains("NXDOMAIN"), "{text}");
    home.said(&push(&domain, &["--next", &file], &[]));
    let found = eventually("the path has it", secs(30), || {
        let found = findings(&check(&domain, &home, &both));
        (!found.iter().any(|one| one.contains("differs"))).then_some(found)
    });
    assert!(found.contains(&format!("bad behind {}", servers[1])), "{found:?}");

    // The other one has the record too, and no signature.
    home.said(&push(&other, &["--next", &file], &[]));
    let found = findings(&check(&domain, &home, &both));
    assert!(found.contains(&format!("bad unsigned {}", servers[1])), "{found:?}");
    // It is another zone: it refuses.
    let elsewhere = certificate(&home, "e", "www.elsewhere.test");
    let refused = home.refused(&["dns", "check", "--next", &elsewhere, "--server", &servers[0]], 1);
    assert!(refused.contains("no zone is found for _443._tcp.www.elsewhere.test"), "{refused}");
}

#[test]
fn server_that_signs_with_a_key_of_its_own_lies_and_is_found() {
    let domain = Domain::start();
    let liar = Domain::with(&Settings { modules: "iterator", ..Settings::default() });
    let home = Home::new();
    let file = certificate(&home, "www", "www.example.test");
    home.said(&push(&domain, &["--next", &file], &[]));
    home.said(&push(&liar, &["--next", &file], &[]));
    let servers = [domain.servers[0].to_string(), liar.servers[0].to_string()];
    let both = ["--next", &file, "--server", &servers[0], "--server", &servers[1]];
    let found = findings(&check(&domain, &home, &both));
    assert_eq!(found, [format!("bad bogus {}", servers[1])]);

    // The whole path lies: what it says does not count, though it is what is wanted.
    let resolver = liar.resolver.to_string();
    let anchor = domain.anchor();
    let path = ["--anchor", &anchor, "--dns-server", &resolver];
    let lied = check_alone(&home, &[&["--next", &file, "--server", &servers[1]], &path[..]].concat());
    assert_eq!(findings(&lied), ["bad bogus -"]);
}

#[test]
fn zone_without_signatures_and_one_whose_signatures_end_soon_are_told() {
    let home = Home::new();
    let file = certificate(&home, "www", "www.example.test");
    let unsigned = Domain::with(&Settings { signing: false, ..Settings::default() });
    home.said(&push(&unsigned, &["--next", &file], &[]));
    let resolver = unsigned.resolver.to_string();
    let output = check_alone(&home, &["--next", &file, "--dns-server", &resolver]);
    let found = findings(&output);
    assert!(found.iter().any(|one| one.starts_with("bad unsigned ns0.example.test")), "{found:?}");

    let policy = "    rrsig-lifetime: 1d\n    rrsig-refresh: 3h\n";
    let soon = Domain::with(&Settings { policy, ..Settings::default() });
    home.said(&push(&soon, &["--next", &file], &[]));
    let found = findings(&check(&soon, &home, &["--next", &file]));
    assert!(found.len() == 1 && found[0].starts_with("bad expiring ns0"), "{found:?}");
    let later = check(&soon, &home, &["--next", &file, "--expires-within", "12h"]);
    assert!(later.status.success(), "{later:?}");
}

#[test]
fn aliases_are_followed_to_the_records_and_no_further_than_a_resolver_does() {
    let home = Home::new();
    let file = certificate(&home, "www", "www.example.test");
    let line = home.said(&["dns", "records", "--next", &file]);
    let data = line.trim().split_once(" IN TLSA ").unwrap().1;
    // From www 8 aliases lead to the record, from long 9, and two lead to each other.
    let chain: String = (1..8).map(|at| format!("a{at} CNAME a{}\n", at + 1)).collect();
    let records = format!(
        "_443._tcp.www CNAME a1\n{chain}a8 TLSA {data}\n_443._tcp.long CNAME a0\na0 CNAME a1\n\
         _443._tcp.round CNAME r1\nr1 CNAME _443._tcp.round\n_443._tcp.out CNAME x.elsewhere.test.\n"
    );
    let domain = Domain::with(&Settings { records: &records, ..Settings::default() });
    let good = check(&domain, &home, &["--next", &file]);
    assert!(good.status.success() && findings(&good).is_empty(), "{good:?}");
    for name in ["long", "round"] {
        let other = certificate(&home, name, &format!("{name}.example.test"));
        let output = check(&domain, &home, &["--next", &other]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(findings(&output).iter().any(|one| one.starts_with("bad alias ns0")), "{name}: {text}");
        assert!(text.contains("more than 8 in a row, they lead in a circle"), "{text}");
    }
    // Where one leads to a zone that no server has, the others are checked all the same.
    let out = certificate(&home, "out", "out.example.test");
    let server = domain.servers[0].to_string();
    let output = check(&domain, &home, &["--next", &file, "--next", &out, "--server", &server]);
    assert_eq!(findings(&output), ["bad silent -"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("its alias leads to x.elsewhere.test: no zone is found"), "{text}");
}

#[test]
fn check_without_the_anchor_of_a_private_zone_says_what_to_do() {
    let domain = Domain::start();
    let home = Home::new();
    let file = certificate(&home, "www", "www.example.test");
    home.said(&push(&domain, &["--next", &file], &[]));
    let resolver = domain.resolver.to_string();
    let output = check_alone(&home, &["--next", &file, "--dns-server", &resolver]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(findings(&output), ["bad unsigned -"], "{text}");
    assert!(text.contains("no chain of signatures leads from the keys of the root"), "{text}");
    assert!(text.contains("--anchor FILE names its own keys"), "{text}");
}

#[test]
fn check_ends_at_its_time_limit_and_names_what_was_not_asked() {
    let home = Home::new();
    let file = certificate(&home, "www", "www.example.test");
    // It takes every question and answers none.
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let place = silent.local_addr().unwrap().to_string();
    let output = check_alone(&home, &["--next", &file, "--server", &place, "--timeout", "500ms"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(findings(&output), ["bad silent -"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("the time limit of 0.5 s is over"), "{text}");
    assert!(text.contains(&format!("asked were {place} for the records, and the resolver of")), "{text}");
}

/// Takes every question over UDP and TCP and answers none.
fn silent() -> (UdpSocket, TcpListener) {
    eventually("the same port twice", secs(10), || {
        let udp = UdpSocket::bind("127.0.0.1:0").ok()?;
        let tcp = TcpListener::bind(udp.local_addr().ok()?).ok()?;
        Some((udp, tcp))
    })
}

/// The first labels of the names that were asked for, each once.
fn asked_for(silent: &UdpSocket) -> BTreeSet<Vec<u8>> {
    silent.set_nonblocking(true).unwrap();
    let mut names = BTreeSet::new();
    let mut question = [0; 1500];
    while let Ok((length, _)) = silent.recv_from(&mut question) {
        let label = 13..13 + usize::from(question[12]);
        names.insert(question[..length][label].to_vec());
    }
    names
}

#[test]
fn a_server_that_never_answers_is_named_after_one_name_with_what_to_do() {
    let home = Home::new();
    let file = certificate(&home, "www", "www.example.test");
    for (option, hint) in [("--server", "--server ADDRESS"), ("--dns-server", "--dns-server ADDRESS")] {
        let (udp, _tcp) = silent();
        let place = udp.local_addr().unwrap().to_string();
        let output = check_alone(&home, &["--next", &file, option, &place]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("for _443._tcp.www.example.test: there is no answer ("), "{text}");
        assert!(text.contains(&place) && text.contains(hint), "{text}");
        // Names above it have no other servers.
        assert_eq!(asked_for(&udp), BTreeSet::from([b"_443".to_vec()]), "{text}");
    }
}

#[test]
fn server_whose_name_does_not_resolve_is_named_and_closes_the_gate() {
    let settings = Settings { records: "@ NS gone\nwww A 127.0.0.1\n", ttl: 1, ..Settings::default() };
    let domain = Domain::with(&settings);
    let home = Home::new();
    let file = certificate(&home, "www", "www.example.test");
    home.said(&push(&domain, &["--next", &file], &[]));
    let found = findings(&check(&domain, &home, &["--next", &file]));
    assert!(found.contains(&"bad silent gone.example.test (no address)".to_owned()), "{found:?}");

    let (next, into) = (home.file("next.pem"), home.file("www.pem"));
    testing::pki::server_pair(next.as_ref(), &["www.example.test"]);
    let resolver = domain.resolver.to_string();
    let words =
        ["dns", "roll", "--next", &next, "--into", &into, "--timeout", "2", "--dns-server", &resolver];
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).chain(domain.primary()).collect();
    let refused = home.refused(&words, 1);
    assert!(refused.contains("gone.example.test (no address) is silent"), "{refused}");
    assert!(!std::path::Path::new(&into).exists(), "it is not in use");
}
