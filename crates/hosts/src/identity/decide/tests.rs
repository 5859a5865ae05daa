use std::fmt::Write as _;

use super::*;
use crate::identity::{Authority, Damage, Patterns, Signature, Use};
use crate::ssh::key::PublicKey;

/// 2026-11-20T12:00:00Z
const NOW: Moment = Moment(1_795_176_000);

/// Builds a well-formed key that differs by `seed`.
fn key(algorithm: &str, seed: u8) -> PublicKey {
    let mut blob = Vec::new();
    let exponent = (algorithm == "ssh-rsa").then_some(&[3][..]);
    for part in [algorithm.as_bytes()].into_iter().chain(exponent).chain([&[seed; 32][..]]) {
        blob.extend_from_slice(&u32::try_from(part.len()).unwrap().to_be_bytes());
        blob.extend_from_slice(part);
    }
    PublicKey::from_blob(&blob).unwrap()
}

fn ed25519(seed: u8) -> PublicKey {
    key("ssh-ed25519", seed)
}

fn host(name: &str, lines: &str) -> HostFile {
    let name: Name = name.parse().unwrap();
    HostFile::parse(&name, &format!("id {name}\n{lines}")).unwrap()
}

fn pin(key: &PublicKey) -> String {
    format!("pin {key} {} from=console 2026-03-01 by=ivan\n", key.fingerprint())
}

/// web1 (Ed25519), db2 (Ed25519), old3 (RSA and Ed25519), gone4 (retired), dns5 (SSHFP), ca6 (its own authority).
fn index() -> Index {
    let hosts = vec![
        host("web1", &format!("alias www\naddr dns:web1.example.com 10.0.5.2 port=22\n{}", pin(&ed25519(1)))),
        host("db2", &format!("addr 10.0.5.3\n{}", pin(&ed25519(2)))),
        host(
            "old3",
            &format!(
                "addr 10.0.5.4\n{}{}revoked {}\nretired {} 2026-01-02\n",
                pin(&key("ssh-rsa", 3)),
                pin(&ed25519(3)),
                ed25519(33),
                ed25519(34)
            ),
        ),
        host("gone4", &format!("{}retired 2026-05-06\n", pin(&ed25519(4)))),
        host(
            "dns5",
            &format!("sshfp require-secure\n{}retired {} 2026-01-02\n", pin(&ed25519(5)), ed25519(35)),
        ),
        host("ca6", &format!("ca {} principals=ca6,ca6.example.com\n", ed25519(60))),
        host("lost7", "ca @missing\n"),
        host("twin8", "addr 10.0.9.9\n"),
        host("twin9", "addr 10.0.9.9\n"),
        host("port10", &format!("addr port=2201\n{}", pin(&ed25519(10)))),
    ];
    let fleet = Authority {
        name: "fleet-ca".parse().unwrap(),
        names: Patterns::parse("*.fleet.example,!db.fleet.example"),
        keys: vec![ed25519(70)],
    };
    let fault =
        crate::identity::Fault { line: 3, message: "the second word of the key is not base64".into() };
    let damage = Damage { path: "/hosts/cut.host".into(), faults: vec![fault] };
    Index::new(hosts, vec![("cut".parse().unwrap(), damage)], vec![Ok(fleet)], [ed25519(99)])
}

fn certificate(authority: PublicKey, principals: &[&str]) -> HostCertificate {
    HostCertificate {
        key: ed25519(50),
        serial: 1,
        usage: Use::Host,
        id: "a certificate".into(),
        principals: principals.iter().map(|name| (*name).to_owned()).collect(),
        valid_after: 0,
        valid_before: u64::MAX,
        critical: Vec::new(),
        authority,
        signed_with: "ssh-ed25519".into(),
        signature: Signature::Holds,
    }
}

struct Asked {
    name: &'static str,
    address: Option<&'static str>,
    port: u16,
    offered: Offered,
    sshfp: SshfpAnswer,
    changed: usize,
    last_good: Option<&'static str>,
}

impl Asked {
    fn key(name: &'static str, address: &'static str, key: PublicKey) -> Self {
        Self {
            name,
            address: Some(address),
            port: 22,
            offered: Offered::Key(key),
            sshfp: SshfpAnswer::NotAsked,
            changed: 0,
            last_good: None,
        }
    }

    fn certificate(name: &'static str, certificate: HostCertificate) -> Self {
        Self {
            offered: Offered::Certificate(Box::new(certificate)),
            ..Self::key(name, "10.9.9.9", ed25519(0))
        }
    }

    fn decide(&self) -> Decision {
        let question = Question {
            port: self.port,
            sshfp: &self.sshfp,
            run: Some(Run { changed: self.changed }),
            last_good: self.last_good.map(|date| date.parse().unwrap()),
            ..question(self.name, self.address, &self.offered)
        };
        decide(question, &index())
    }

    fn reason(&self) -> Option<Reason> {
        match self.decide().verdict {
            Verdict::Accepted { .. } => None,
            Verdict::Refused { reason, .. } => Some(reason),
        }
    }
}

fn question<'a>(name: &'a str, address: Option<&str>, offered: &'a Offered) -> Question<'a> {
    Question {
        name,
        address: address.map(|address| address.parse().unwrap()),
        port: 22,
        offered,
        sshfp: &SshfpAnswer::NotAsked,
        run: Some(Run::default()),
        last_good: None,
        now: NOW,
    }
}

/// Every row of the decision table with its message.
#[test]
fn every_row_of_the_table_says_exactly_this() {
    let sshfp = |answer: fn(Vec<crate::identity::FingerprintRecord>) -> SshfpAnswer, key: &PublicKey| {
        let fingerprint = key.fingerprint().0.to_vec();
        answer(vec![crate::identity::FingerprintRecord { algorithm: 4, hash: 2, fingerprint }])
    };
    let rows = [
        ("pinned key, known address", Asked::key("web1", "10.0.5.2", ed25519(1))),
        ("pinned key, new address", Asked::key("web1", "10.0.7.9", ed25519(1))),
        ("pinned key, first IPv6 address", Asked::key("web1", "2001:db8::1", ed25519(1))),
        (
            "pinned key, through a jump host",
            Asked { address: None, ..Asked::key("web1", "10.0.7.9", ed25519(1)) },
        ),
        ("asked by alias", Asked::key("www", "10.0.5.2", ed25519(1))),
        ("asked by address", Asked::key("10.0.5.2", "10.0.5.2", ed25519(1))),
        ("key of another host", Asked::key("web1", "10.0.5.3", ed25519(2))),
        ("retired key of another host", Asked::key("web1", "10.0.5.4", ed25519(34))),
        ("key of a retired host", Asked::key("web1", "10.0.5.4", ed25519(4))),
        ("unknown name, key of a known host", Asked::key("10.0.7.9", "10.0.7.9", ed25519(1))),
        (
            "changed key",
            Asked { last_good: Some("2026-11-19"), ..Asked::key("web1", "10.0.5.2", ed25519(11)) },
        ),
        ("changed key, one more", Asked { changed: 1, ..Asked::key("web1", "10.0.5.2", ed25519(11)) }),
        ("changed key, three more", Asked { changed: 3, ..Asked::key("web1", "10.0.5.2", ed25519(11)) }),
        ("weaker type", Asked::key("web1", "10.0.5.2", key("ssh-rsa", 11))),
        ("retired key of its own", Asked::key("old3", "10.0.5.4", ed25519(34))),
        ("revoked key", Asked::key("old3", "10.0.5.4", ed25519(33))),
        ("revoked for all", Asked::key("newcomer", "10.0.5.9", ed25519(99))),
        ("retired host", Asked::key("gone4", "10.0.5.5", ed25519(4))),
        ("unknown name", Asked::key("newcomer", "10.0.5.9", ed25519(12))),
        (
            "unknown name on another port",
            Asked { port: 2222, ..Asked::key("newcomer", "10.0.5.9", ed25519(12)) },
        ),
        (
            "another server on another port",
            Asked { port: 2202, ..Asked::key("port10", "127.0.0.1", ed25519(13)) },
        ),
        ("another server on port 22", Asked::key("port10", "127.0.0.1", ed25519(13))),
        ("known host without a pin", Asked::key("twin8", "10.0.9.9", ed25519(12))),
        ("address of two hosts", Asked::key("10.0.9.9", "10.0.9.9", ed25519(12))),
        ("damaged file", Asked::key("cut", "10.0.5.9", ed25519(12))),
        ("missing authority", Asked::key("lost7", "10.0.5.9", ed25519(12))),
        (
            "secure SSHFP",
            Asked {
                sshfp: sshfp(SshfpAnswer::Secure, &ed25519(14)),
                ..Asked::key("dns5", "10.0.5.6", ed25519(14))
            },
        ),
        (
            "secure SSHFP of a retired key",
            Asked {
                sshfp: sshfp(SshfpAnswer::Secure, &ed25519(35)),
                ..Asked::key("dns5", "10.0.5.6", ed25519(35))
            },
        ),
        (
            "insecure SSHFP",
            Asked {
                sshfp: sshfp(SshfpAnswer::Insecure, &ed25519(14)),
                ..Asked::key("dns5", "10.0.5.6", ed25519(14))
            },
        ),
        (
            "bogus SSHFP",
            Asked {
                sshfp: SshfpAnswer::Bogus("RRSIG is\u{1b}expired".into()),
                ..Asked::key("dns5", "10.0.5.6", ed25519(14))
            },
        ),
        (
            "secure SSHFP, no policy",
            Asked {
                sshfp: sshfp(SshfpAnswer::Secure, &ed25519(14)),
                ..Asked::key("web1", "10.0.5.2", ed25519(14))
            },
        ),
        ("certificate", Asked::certificate("ca6", certificate(ed25519(60), &["ca6"]))),
        (
            "certificate of the fleet, unknown host",
            Asked::certificate("web7.fleet.example", certificate(ed25519(70), &["web7.fleet.example"])),
        ),
        ("bare key where a certificate is required", Asked::key("ca6", "10.0.5.7", ed25519(50))),
        ("certificate of another authority", Asked::certificate("ca6", certificate(ed25519(70), &["ca6"]))),
        (
            "certificate for another name",
            Asked::certificate("ca6", certificate(ed25519(60), &["db2", "\u{1b}[2J"])),
        ),
        ("certificate without names", Asked::certificate("ca6", certificate(ed25519(60), &[]))),
        (
            "certificate of a user",
            Asked::certificate(
                "ca6",
                HostCertificate { usage: Use::User, ..certificate(ed25519(60), &["ca6"]) },
            ),
        ),
        (
            "expired certificate",
            Asked::certificate(
                "ca6",
                HostCertificate { valid_before: NOW.0, ..certificate(ed25519(60), &["ca6"]) },
            ),
        ),
        (
            "certificate of tomorrow",
            Asked::certificate(
                "ca6",
                HostCertificate { valid_after: NOW.0 + 86_400, ..certificate(ed25519(60), &["ca6"]) },
            ),
        ),
        (
            "critical option",
            Asked::certificate(
                "ca6",
                HostCertificate {
                    critical: vec!["force-command".into()],
                    ..certificate(ed25519(60), &["ca6"])
                },
            ),
        ),
        (
            "forged signature",
            Asked::certificate(
                "ca6",
                HostCertificate { signature: Signature::Wrong, ..certificate(ed25519(60), &["ca6"]) },
            ),
        ),
        (
            "SHA-1 signature",
            Asked::certificate(
                "ca6",
                HostCertificate { signed_with: "ssh-rsa".into(), ..certificate(ed25519(60), &["ca6"]) },
            ),
        ),
        ("revoked authority", Asked::certificate("ca6", certificate(ed25519(99), &["ca6"]))),
        (
            "certificate where no authority is known",
            Asked::certificate("web1", certificate(ed25519(60), &["web1"])),
        ),
        (
            "certificate around a pinned key",
            Asked::certificate("web1", HostCertificate { key: ed25519(1), ..certificate(ed25519(61), &[]) }),
        ),
    ];
    let mut text = String::new();
    for (title, asked) in rows {
        let decision = asked.decide();
        writeln!(text, "## {title}").unwrap();
        match decision.verdict {
            Verdict::Accepted { note } => {
                writeln!(text, "accepted; {}", note.unwrap_or_else(|| "nothing to say".into())).unwrap()
            }
            Verdict::Refused { reason, message, advice } => {
                assert!(message.ends_with("; nothing was sent"), "{message}");
                writeln!(text, "{reason}: {message}\n  {advice}").unwrap();
            }
        }
        for effect in decision.effects {
            writeln!(text, "  record {effect:?}").unwrap();
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/identity/decide/table.golden");
    assert!(!text.contains('\u{1b}'), "what others chose reached the terminal");
    golden(path, &text);
}

#[expect(clippy::disallowed_methods, reason = "a test compares with a file")]
fn golden(path: &str, text: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, text).unwrap();
    }
    let known = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(text, known, "\nUPDATE_GOLDEN=1 writes {path} anew: read the difference");
}

#[test]
fn bad_certificate_is_never_taken_as_the_bare_pinned_key_in_it() {
    let key = ed25519(1);
    let mut index = index();
    index.replace(host("web1", &format!("{}ca {}\n", pin(&key), ed25519(60))));
    let expired =
        HostCertificate { key: key.clone(), valid_before: 1, ..certificate(ed25519(60), &["web1"]) };
    let decide_on = |offered: &Offered| decide(question("web1", None, offered), &index).verdict;
    let refused = decide_on(&Offered::Certificate(Box::new(expired)));
    assert!(matches!(refused, Verdict::Refused { reason: Reason::KeyRefused, .. }), "{refused:?}");
    assert!(matches!(decide_on(&Offered::Key(key)), Verdict::Accepted { .. }), "a pin is a proof of its own");
}

#[test]
fn certificate_proves_the_key_in_it_that_was_trusted_on_first_use() {
    let first_use = |key: &PublicKey| format!("pin {key} from=first-use 2026-03-01\n");
    let mut index = index();
    index.replace(host("ca6", &format!("ca {}\naddr 10.0.5.7\n{}", ed25519(60), first_use(&ed25519(50)))));
    index.replace(host("web8.fleet.example", &first_use(&ed25519(51))));
    let decide_on =
        |name: &str, offered: &Offered, address: &str| decide(question(name, Some(address), offered), &index);
    let proofs = |decision: &Decision| -> Vec<String> {
        let effects = decision.effects.iter();
        let pins =
            effects.filter_map(|effect| if let Effect::Pin(_, pin) = effect { Some(pin) } else { None });
        pins.map(|pin| format!("{} {}", pin.key.fingerprint(), pin.proof)).collect()
    };
    let note = |decision: &Decision| match &decision.verdict {
        Verdict::Accepted { note } => note.clone(),
        refused => panic!("{refused:?}"),
    };
    let (own, fleet) =
        (certificate(ed25519(60), &["ca6"]), certificate(ed25519(70), &["web8.fleet.example"]));
    let by_key = decide_on("ca6", &Offered::Certificate(Box::new(own)), "10.0.7.7");
    let key = ed25519(50).fingerprint();
    let from = format!("ca({})", ed25519(60).fingerprint());
    assert_eq!(proofs(&by_key), [format!("{key} {from}")]);
    assert_eq!(
        note(&by_key),
        Some(format!(
            "ca6 moved 10.0.5.7 -> 10.0.7.7, same key; ca6: ssh-ed25519 {key}, trusted on first use so far, is proved now: \
             from={from}"
        ))
    );
    let fleet = HostCertificate { key: ed25519(51), ..fleet };
    let by_name = decide_on("web8.fleet.example", &Offered::Certificate(Box::new(fleet)), "10.0.5.8");
    assert_eq!(proofs(&by_name), [format!("{} ca(fleet-ca)", ed25519(51).fingerprint())]);

    let bare = decide_on("ca6", &Offered::Key(ed25519(50)), "10.0.5.7");
    assert_eq!((proofs(&bare), note(&bare)), (vec![], None), "a bare key proves nothing");
    index.replace(host("ca6", &format!("ca {}\n{}", ed25519(60), pin(&ed25519(50)))));
    let again = Offered::Certificate(Box::new(certificate(ed25519(60), &["ca6"])));
    let decision = decide(question("ca6", None, &again), &index);
    assert_eq!((proofs(&decision), note(&decision)), (vec![], None), "the proof that is there stays");
}

#[test]
fn authority_counts_only_for_the_names_it_is_bound_to() {
    let signed = |name: &'static str, principals: &[&str]| {
        Asked::certificate(name, certificate(ed25519(70), principals))
    };
    assert_eq!(signed("web7.fleet.example", &["web7.fleet.example"]).reason(), None);
    assert_eq!(
        signed("web7.fleet.example", &["*.fleet.example"]).reason(),
        Some(Reason::KeyRefused),
        "a principal is no pattern"
    );
    assert_eq!(signed("web7.fleet.example", &["web8.fleet.example"]).reason(), Some(Reason::KeyRefused));
    assert_eq!(
        signed("db.fleet.example", &["db.fleet.example"]).reason(),
        Some(Reason::UnknownHost),
        "excluded by !"
    );
    assert_eq!(signed("elsewhere.example", &["elsewhere.example"]).reason(), Some(Reason::UnknownHost));
    assert_eq!(signed("web1", &["web1"]).reason(), Some(Reason::KeyChanged));
}

#[test]
fn swapped_addresses_with_the_right_keys_are_two_moves() {
    let moved = |name, address, seed| match Asked::key(name, address, ed25519(seed)).decide().verdict {
        Verdict::Accepted { note } => note.unwrap(),
        refused => panic!("{refused:?}"),
    };
    assert_eq!(moved("web1", "10.0.5.3", 1), "web1 moved 10.0.5.2 -> 10.0.5.3, same key");
    assert_eq!(moved("db2", "10.0.5.2", 2), "db2 moved 10.0.5.3 -> 10.0.5.2, same key");
}

#[test]
fn host_that_goes_back_is_recorded_there_and_not_told_again() {
    let mut file = host("web1", &format!("addr 10.0.5.2\n{}", pin(&ed25519(1))));
    file.record_move("10.0.5.2".parse().unwrap(), "10.0.7.9".parse().unwrap(), "2026-11-20".parse().unwrap());
    let mut index = index();
    index.replace(file);
    for (address, goes_back) in [("10.0.5.2", true), ("10.0.7.9", false)] {
        let offered = Offered::Key(ed25519(1));
        let decision = decide(question("web1", Some(address), &offered), &index);
        assert_eq!(decision.verdict, Verdict::Accepted { note: None });
        let (from, to) = ("10.0.7.9".parse().unwrap(), "10.0.5.2".parse().unwrap());
        let back = Effect::WentBack { host: "web1".parse().unwrap(), from, to };
        assert_eq!(decision.effects.contains(&back), goes_back, "{address}: {:?}", decision.effects);
    }
}

#[test]
fn wanted_algorithms_begin_with_certificates_where_an_authority_counts_and_then_with_pinned_types() {
    let index = index();
    assert_eq!(index.wanted("newcomer", None), Vec::<&str>::new());
    assert_eq!(index.wanted("web1", None)[0], "ssh-ed25519");
    assert_eq!(index.wanted("old3", Some(22))[..3], ["ssh-ed25519", "rsa-sha2-512", "rsa-sha2-256"]);
    assert_eq!(index.wanted("web7.fleet.example", None)[0], "ssh-ed25519-cert-v01@openssh.com");
    assert!(index.wanted("web1", None).iter().all(|algorithm| *algorithm != "ssh-rsa"), "no SHA-1");
}
