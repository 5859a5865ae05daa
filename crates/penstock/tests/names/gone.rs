//! Records of hosts that are gone: who is told how they leave the DNS, and which names are refused. No server is asked here.

use testing::sshd::keygen;

use crate::domain::Home;

/// A push that is refused before it reads the key or asks the server.
fn push(home: &Home, what: &[&str], code: i32) -> String {
    let server = ["--server", "127.0.0.1:9", "--tsig", "/nonexistent/dns.key"];
    home.refused(&[&["dns", "push"], what, &server[..]].concat(), code)
}

fn add(home: &Home, name: &str, kind: &str) -> String {
    let key = home.file(&format!("{name}.{kind}"));
    keygen(key.as_ref(), &["-t", kind]);
    home.said(&["host", "add", name, "--key", &format!("{key}.pub")]);
    let listed = home.run(&["ssh-keygen", "-l", "-f", &format!("{key}.pub")]);
    listed.split(' ').nth(1).unwrap().to_owned()
}

#[test]
fn a_gone_host_outside_of_the_zone_is_refused_and_not_left_out() {
    let home = Home::new();
    let both = ["--without", "old1.example.test", "--without", "old2.elsewhere.test"];
    let refused = push(&home, &[&both[..], &["--zone", "example.test"]].concat(), 2);
    assert!(
        refused.contains("--without old2.elsewhere.test: it is not in the zone example.test (--zone)"),
        "{refused}"
    );
    // A name without a dot is below the zone.
    let refused = push(&home, &["--without", "old1", "--zone", "example.test"], 2);
    assert!(refused.contains("cannot read /nonexistent/dns.key"), "{refused}");
}

#[test]
fn a_host_that_is_named_and_not_in_the_zone_is_told() {
    let home = Home::new();
    add(&home, "web1.example.test", "ed25519");
    add(&home, "web1.elsewhere.test", "ed25519");
    let both = ["--host", "web1.example.test", "--host", "web1.elsewhere.test"];
    let output = home.penstock(&[&["dns", "records"], &both[..], &["--zone", "example.test"]].concat());
    let (said, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(said.starts_with("web1.example.test. IN SSHFP ") && said.lines().count() == 1, "{said}");
    assert_eq!(
        told,
        "note: web1.elsewhere.test: it is not in the zone example.test (--zone), which leaves it out\n"
    );
}

#[test]
fn a_host_that_is_here_and_in_service_is_not_gone_beside_any_other_choice() {
    let home = Home::new();
    add(&home, "gw1.example.test", "ed25519");
    for more in [&["--zone", "example.test"][..], &["--hosts"], &[]] {
        let refused = push(&home, &[&["--without", "gw1.example.test"], more].concat(), 2);
        assert!(refused.contains("a host of that name is here, and has records"), "{refused}");
        assert!(refused.contains("penstock host retire gw1.example.test"), "{refused}");
    }
    // One with a name of its own in the DNS is found by that.
    home.said(&["host", "move", "gw1.example.test", "vpn.example.test"]);
    let refused = push(&home, &["--without", "vpn.example.test"], 2);
    assert!(refused.contains("host retire gw1.example.test"), "{refused}");
    // So is one whose zone is not known, and one of whose names has no zone.
    add(&home, "gw2", "ed25519");
    let refused = push(&home, &["--without", "gw2.example.test"], 2);
    assert!(
        refused.contains("host retire gw2, or remove gw2; --zone names the zone of names without a dot"),
        "{refused}"
    );
    let refused = push(&home, &["--without", "gw2.example.test", "--zone", "example.test"], 2);
    assert!(refused.contains("host retire gw2, or remove gw2\n"), "{refused}");
    // What is in a file that is damaged is not known.
    let file = home.path().join(".config/penstock/hosts/gw1.example.test.host");
    let good = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{good}pin nonsense\n")).unwrap();
    let refused = push(&home, &["--without", "gw1.example.test"], 1);
    assert!(refused.contains("and its file is damaged"), "{refused}");
    let refused = push(&home, &["--without", "vpn.example.test"], 2);
    assert!(
        refused.contains("the file of host gw1.example.test is damaged: whether it has a name of --without"),
        "{refused}"
    );
    let refused = home.refused(&["dns", "records", "--hosts"], 1);
    assert!(refused.contains("note: gw1.example.test: its file is damaged, so it is left out"), "{refused}");
    std::fs::write(&file, good).unwrap();

    home.said(&["host", "retire", "gw1.example.test"]);
    let refused = push(&home, &["--without", "vpn.example.test"], 2);
    assert!(refused.contains("cannot read /nonexistent/dns.key"), "it goes on: {refused}");
    let refused = home.refused(&["dns", "records", "--host", "gw1.example.test"], 1);
    assert!(refused.contains("it is retired since ") && refused.contains("--without"), "{refused}");
}

#[test]
fn retiring_a_host_or_a_key_says_how_its_records_leave_the_dns() {
    let home = Home::new();
    let first = add(&home, "gw1", "ed25519");
    let second = add(&home, "gw1", "ecdsa");
    let said = home.said(&["host", "retire", "gw1", "--key", &first]);
    assert!(said.contains("penstock dns push --host gw1 --zone ZONE --server ADDRESS"), "{said}");
    // No record is wanted any more, so a push of the host would find nothing to do.
    let said = home.said(&["host", "retire", "gw1", "--key", &second]);
    assert!(said.contains("penstock dns push --without gw1 --zone ZONE --server ADDRESS"), "{said}");
    add(&home, "web1.example.test", "ed25519");
    let said = home.said(&["host", "retire", "web1.example.test"]);
    assert!(
        said.contains("web1.example.test may have SSHFP records in the DNS, which ssh believes"),
        "{said}"
    );
    assert!(said.contains("penstock dns push --without web1.example.test --server ADDRESS"), "{said}");
    let said = home.said(&["host", "retire", "web1.example.test", "--undo"]);
    assert_eq!(said, "web1.example.test is in service again\n");
}
