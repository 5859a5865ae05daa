//! Keys in the DNS, against knot and unbound: only what is validated here, up to the trust anchor, proves anything.

use std::fs;
use std::process::{Command, Output, Stdio};

use ssh::identity::{Anchor, Answer, Asked, Dns, Identities, Places, Store};
use ssh::{HostVerifier as _, Offered, Place, Verdict};
use testing::dns::Zones;
use testing::secs;
use testing::server::run_to_end;
use testing::sshd::Sshd;

/// The SSHFP record of a key (RFC 7479: 4 is Ed25519; RFC 6594: 2 is SHA-256).
fn record(name: &str, sshd: &Sshd) -> String {
    let key: hosts::ssh::key::PublicKey = sshd.host_key().parse().unwrap();
    let digest: String = key.fingerprint().0.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{name} SSHFP 4 2 {digest}\n")
}

#[test]
fn only_a_signed_record_of_the_key_that_is_shown_enrols_a_host() {
    let (web1, other) = (Sshd::start(), Sshd::start());
    let zones = Zones::start(&format!("{}{}", record("web1", &web1), record("other", &other)));
    let home = tempfile::tempdir().unwrap();
    let penstock = |arguments: &[&str]| -> Output {
        let mut command = Command::new(testing::binary());
        command.args(arguments).env("HOME", home.path()).stdin(Stdio::null());
        command.env_remove("XDG_CONFIG_HOME").env_remove("XDG_STATE_HOME");
        run_to_end(&mut command, secs(60))
    };
    let (anchor, server) = (zones.anchor().display().to_string(), zones.resolver.to_string());
    let (address, port) = (web1.address.to_string(), web1.port.to_string());
    let add = |name: &str, dns: &str, anchor: &str| {
        let place = ["--address", &address, "--address", dns, "--port", &port];
        let whom = ["--sshfp", "--anchor", anchor, "--dns-server", &server];
        // The DNS name is where its records are; the address, where the server is.
        penstock(&[&["host", "add", name][..], &place, &whom].concat())
    };
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();

    let insecure = add("plain", "web1.plain.lan", &anchor);
    assert!(
        said(&insecure).contains("they are not signed with DNSSEC, and so prove nothing"),
        "{insecure:?}"
    );
    let bogus = add("bogus", "web1.bogus.lan", &anchor);
    assert!(said(&bogus).contains("its SSHFP records fail DNSSEC validation"), "{bogus:?}");
    let mismatch = add("other", "other.fleet.lan", &anchor);
    assert!(said(&mismatch).contains("its signed SSHFP records, which are of other keys"), "{mismatch:?}");
    let none = add("nobody", "nobody.fleet.lan", &anchor);
    assert!(said(&none).contains("it has no SSHFP records"), "{none:?}");
    assert!(penstock(&["host", "list"]).stdout.starts_with(b"no hosts yet"), "nothing was enrolled");

    let good = add("web1", "web1.fleet.lan", &anchor);
    assert!(good.status.success(), "{good:?}");
    let file = String::from_utf8(penstock(&["host", "show", "web1"]).stdout).unwrap();
    assert!(file.contains("from=sshfp") && file.contains("sshfp   require-secure"), "{file}");

    // A key that comes later is taken on the word of the DNS, and pinned.
    let places = Places {
        configuration: home.path().join(".config/penstock"),
        state: home.path().join(".local/state/penstock"),
    };
    let store = Store::new(places);
    let path = store.path(&"web1".parse().unwrap());
    let text = fs::read_to_string(&path).unwrap();
    let without: Vec<&str> = text.lines().filter(|line| !line.starts_with("pin")).collect();
    fs::write(&path, without.join("\n") + "\n").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let judged = |sshd: &Sshd| {
        runtime.block_on(async {
            let dns = Dns::new(&Anchor::File(zones.anchor()), Some(zones.resolver)).unwrap();
            let identities = Identities::load(store.clone()).unwrap().with_dns(dns);
            let offered = Offered::Key(sshd.host_key().parse().unwrap());
            let place = Place::Address((sshd.address, sshd.port).into());
            identities.judge("web1", &place, &offered).await
        })
    };
    // A look-up that takes longer than penstock waits for it is no proof.
    testing::eventually("the DNS vouches for the key", testing::secs(60), || {
        matches!(judged(&web1), Verdict::Accepted { .. }).then_some(())
    });
    assert!(matches!(judged(&other), Verdict::Refused { .. }), "the DNS speaks for another key");
    let file = fs::read_to_string(&path).unwrap();
    assert!(file.contains("from=sshfp"), "{file}");

    // The same where `ssh` asks: one line, of the key that the DNS speaks for, which is pinned.
    fs::write(&path, without.join("\n") + "\n").unwrap();
    let answered = |sshd: &Sshd| {
        let key = sshd.host_key().parse().unwrap();
        let asked = Asked { name: "web1", port: sshd.port, pattern: "web1", shown: Some(&key) };
        assert_eq!(store.known_hosts_quickly(&asked).unwrap(), None, "one file cannot tell");
        runtime.block_on(async {
            let dns = Dns::new(&Anchor::File(zones.anchor()), Some(zones.resolver)).unwrap();
            Identities::load(store.clone()).unwrap().with_dns(dns).known_hosts(&asked).await.0
        })
    };
    let refused = answered(&other);
    assert!(matches!(refused, Answer::Refused { .. }), "{refused:?}");
    let lines = testing::eventually("the DNS vouches for it", testing::secs(60), || match answered(&web1) {
        Answer::Lines(lines) => Some(lines),
        _ => None,
    });
    assert_eq!(lines, [format!("web1 {}", web1.host_key())]);
    let file = fs::read_to_string(&path).unwrap();
    assert!(file.contains(&web1.host_key()) && file.contains("from=sshfp"), "{file}");

    let missing =
        penstock(&["host", "audit", "--sshfp", "--anchor", "/nonexistent", "--dns-server", &server]);
    assert!(said(&missing).contains("cannot read the trust anchor /nonexistent"), "{missing:?}");
    let audit = penstock(&["host", "audit", "--sshfp", "--anchor", &anchor, "--dns-server", &server]);
    assert!(audit.status.success(), "{audit:?}");
}
