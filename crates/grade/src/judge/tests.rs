use super::*;
use crate::group::Group;
use crate::observed::{GroupSeen, Key, Policy, VersionSeen};
use crate::suite::Suite;

const NOW: Duration = Duration::from_hours(24 * 20_000);

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + NOW
}

fn days(days: u64) -> Duration {
    Duration::from_hours(24 * days)
}

fn version(version: Version, suites: &[u16]) -> VersionSeen {
    let suites = suites.iter().map(|number| SuiteSeen::from(Suite(*number))).collect();
    VersionSeen { version, suites, order: Default::default() }
}

fn key(kind: &str, rsa_bits: u32) -> Key {
    Key { kind: kind.to_owned(), rsa_bits }
}

fn policy(max_age: u64, include_sub_domains: Feature, preload: Feature) -> Hsts {
    Hsts::Sent(Policy { value: String::new(), max_age, include_sub_domains, preload })
}

/// Observations of a Penstock listener with default settings.
fn ours() -> Observed {
    Observed {
        versions: vec![
            version(Version::Tls13, &[0x1301, 0x1302, 0x1303]),
            version(Version::Tls12, &[0xc02b, 0xc02c, 0xcca9]),
        ],
        groups: [0x11ec, 0x001d, 0x0017, 0x0018].map(|number| GroupSeen { group: Group(number) }).to_vec(),
        chains: vec![ChainSeen {
            names: vec!["a.example".to_owned()],
            key: key("ECDSA P-256", 3072),
            signature: "ECDSA with SHA-256".to_owned(),
            weakest_hash: Hash::Strong,
            issuer: "CN=ca".to_owned(),
            not_before: now() - days(30),
            not_after: now() + days(60),
            length: 2,
            order: ChainOrder::InOrder,
            name: NameMatch::Yes,
            trust: Trusted::Yes,
            responder: Feature::No,
            must_staple: Feature::No,
            staple: Staple::None,
        }],
        post_quantum: Feature::Yes,
        compression: Feature::No,
        secure_renegotiation: Feature::Yes,
        fallback_scsv: Feature::Yes,
        extended_master_secret: Feature::Yes,
        heartbeat: Feature::No,
        resumption_tls13: Feature::Yes,
        resumption_tls12: Feature::Yes,
        alpn: vec!["h2".to_owned()],
        hsts: policy(31_536_000, Feature::No, Feature::No),
        incomplete: Vec::new(),
    }
}

/// Returns the grade after `change`, and the codes of the findings that lower it.
fn after(change: impl FnOnce(&mut Observed)) -> (Option<Letter>, Vec<&'static str>) {
    let mut observed = ours();
    change(&mut observed);
    let verdict = judge(&observed, now());
    let costly = |finding: &&Finding| matches!(finding.effect, Effect::Cap { .. } | Effect::NoPlus);
    (verdict.grade, verdict.findings.iter().filter(costly).map(|finding| finding.code).collect())
}

#[track_caller]
fn assert_costs(letter: Letter, code: &str, change: impl FnOnce(&mut Observed)) {
    let (grade, codes) = after(change);
    assert_eq!((grade, codes.as_slice()), (Some(letter), &[code][..]));
}

fn points_of(change: impl FnOnce(&mut Observed)) -> [f64; 4] {
    let mut observed = ours();
    change(&mut observed);
    let score = score(&observed).unwrap();
    [score.total, score.protocols, score.key_exchange, score.ciphers]
}

#[test]
fn an_untouched_listener_has_an_a_plus_with_the_points_of_the_guide() {
    assert_eq!(after(|_| ()), (Some(Letter::APlus), Vec::new()));
    assert_eq!(points_of(|_| ()), [93.0, 100.0, 90.0, 90.0]);
}

#[test]
fn points_follow_the_tables_of_the_guide() {
    let only_256 = |seen: &mut Observed| seen.versions = vec![version(Version::Tls13, &[0x1302, 0x1303])];
    assert_eq!(points_of(only_256), [97.0, 100.0, 90.0, 100.0]);
    let strong_keys = |seen: &mut Observed| {
        seen.groups = vec![GroupSeen { group: Group(0x18) }];
        seen.chains[0].key = key("RSA 4096", 4096);
    };
    assert_eq!(points_of(strong_keys), [96.0, 100.0, 100.0, 90.0]);
    assert_eq!(points_of(|seen| seen.versions.push(version(Version::Tls10, &[0xc013])))[1], 95.0);
    assert_eq!(points_of(|seen| seen.versions.push(version(Version::Tls11, &[0xc013])))[1], 97.5);
    assert_eq!(points_of(|seen| seen.versions.push(version(Version::Tls12, &[0x000a])))[3], 60.0);
    for (bits, points) in [(400, 20.0), (512, 40.0), (1024, 80.0), (2048, 90.0), (3072, 90.0)] {
        assert_eq!(points_of(|seen| seen.chains[0].key = key("RSA", bits))[2], points, "{bits}");
    }
    let short_prime = |seen: &mut Observed| {
        let mut old = version(Version::Tls12, &[0x009e]);
        old.suites[0].dh_bits = Some(1024);
        seen.versions.push(old);
    };
    assert_eq!(points_of(short_prime)[2], 80.0);
    // A category without points makes the total 0.
    assert_eq!(points_of(|seen| seen.versions.push(version(Version::Ssl2, &[])))[1], 50.0);
    assert_eq!(points_of(|seen| seen.versions.push(version(Version::Tls12, &[0xc018])))[0], 0.0);
}

#[test]
fn old_versions_and_missing_new_ones_cap_the_grade() {
    assert_costs(Letter::B, "old-version", |seen| seen.versions.push(version(Version::Tls10, &[0xc013])));
    assert_costs(Letter::B, "old-version", |seen| seen.versions.push(version(Version::Tls11, &[0xc013])));
    assert_costs(Letter::C, "ssl3", |seen| seen.versions.push(version(Version::Ssl3, &[0x002f])));
    assert_costs(Letter::F, "ssl2", |seen| seen.versions.push(version(Version::Ssl2, &[])));
    assert_costs(Letter::AMinus, "no-tls13", |seen| drop(seen.versions.remove(0)));
    let (grade, codes) = after(|seen| seen.versions = vec![version(Version::Tls11, &[0xc013])]);
    assert_eq!((grade, codes.contains(&"no-tls12")), (Some(Letter::C), true));
    assert_eq!(after(|seen| seen.versions = vec![version(Version::Ssl3, &[0x002f])]).0, Some(Letter::F));
}

#[test]
fn weak_ciphers_cap_the_grade() {
    let with = |suite| move |seen: &mut Observed| seen.versions[1].suites.push(SuiteSeen::from(Suite(suite)));
    assert_costs(Letter::C, "rc4-modern", with(0x0005));
    assert_costs(Letter::C, "small-blocks", with(0x000a));
    assert_costs(Letter::F, "no-encryption", with(0x003b));
    assert_costs(Letter::F, "anonymous", with(0x00a6));
    assert_eq!(after(with(0x0003)).0, Some(Letter::F));
    assert_eq!(after(with(0x0009)).0, Some(Letter::F));
    // Neither change alters the grade alone.
    assert_eq!(after(with(0x002f)), (Some(Letter::APlus), Vec::new()));
    assert_costs(Letter::B, "no-forward-secrecy", |seen| {
        seen.versions = vec![version(Version::Tls13, &[]), version(Version::Tls12, &[0x009c, 0x009d])];
    });
    assert_costs(Letter::B, "no-aead", |seen| {
        seen.versions = vec![version(Version::Tls13, &[]), version(Version::Tls12, &[0xc013, 0xc014])];
    });
}

#[test]
fn short_keys_cap_the_grade() {
    assert_costs(Letter::B, "weak-key", |seen| seen.chains[0].key = key("RSA 1024", 1024));
    assert_costs(Letter::F, "broken-key", |seen| seen.chains[0].key = key("RSA 512", 512));
    assert_costs(Letter::B, "weak-key", |seen| seen.groups.push(GroupSeen { group: Group(0x13) }));
}

#[test]
fn certificates_that_clients_refuse_have_letters_of_their_own_and_the_other_is_told() {
    assert_costs(Letter::T, "expired", |seen| seen.chains[0].not_after = now() - days(1));
    assert_costs(Letter::T, "not-yet-valid", |seen| seen.chains[0].not_before = now() + days(1));
    assert_costs(Letter::T, "self-signed", |seen| seen.chains[0].trust = Trusted::SelfSigned);
    assert_costs(Letter::T, "unknown-issuer", |seen| {
        seen.chains[0].trust = Trusted::UnknownIssuer("CN=x".to_owned());
    });
    assert_costs(Letter::T, "sha1", |seen| seen.chains[0].weakest_hash = Hash::Sha1);
    assert_costs(Letter::T, "revoked", |seen| seen.chains[0].staple = Staple::Revoked);
    assert_costs(Letter::F, "md5", |seen| seen.chains[0].weakest_hash = Hash::Md5);
    assert_costs(Letter::M, "name-mismatch", |seen| seen.chains[0].name = NameMatch::No);
    let mut observed = ours();
    observed.chains[0].trust = Trusted::SelfSigned;
    assert_eq!(judge(&observed, now()).grade_if_trusted, Some(Letter::APlus));
}

#[test]
fn the_plus_needs_a_long_hsts_and_no_warning() {
    assert_costs(Letter::A, "no-hsts", |seen| seen.hsts = Hsts::Missing);
    assert_costs(Letter::A, "bad-hsts", |seen| seen.hsts = Hsts::Malformed("x".to_owned()));
    assert_costs(Letter::A, "hsts-unknown", |seen| seen.hsts = Hsts::Unknown("x".to_owned()));
    assert_costs(Letter::A, "short-hsts", |seen| {
        seen.hsts = policy(LONG_HSTS - 1, Feature::No, Feature::No);
    });
    assert_eq!(after(|seen| seen.hsts = policy(LONG_HSTS, Feature::No, Feature::No)).0, Some(Letter::APlus));
    assert_costs(Letter::A, "must-staple", |seen| seen.chains[0].must_staple = Feature::Yes);
    assert_costs(Letter::A, "staple-unusable", |seen| {
        seen.chains[0].staple = Staple::Unusable("it is old".to_owned());
    });
    assert_costs(Letter::AMinus, "no-secure-renegotiation", |seen| seen.secure_renegotiation = Feature::No);
    assert_costs(Letter::C, "compression", |seen| seen.compression = Feature::Yes);
}

#[test]
fn what_the_guide_does_not_rate_is_advice() {
    let advice = |change: fn(&mut Observed)| {
        let mut observed = ours();
        change(&mut observed);
        let verdict = judge(&observed, now());
        assert_eq!(verdict.grade, Some(Letter::APlus));
        verdict
            .findings
            .iter()
            .filter(|finding| finding.effect == Effect::Advice)
            .map(|one| one.code)
            .collect::<Vec<_>>()
    };
    assert_eq!(advice(|_| ()), [""; 0]);
    assert_eq!(advice(|seen| seen.post_quantum = Feature::No), ["no-post-quantum"]);
    assert_eq!(advice(|seen| seen.chains[0].order = ChainOrder::OutOfOrder), ["chain-order"]);
    assert_eq!(advice(|seen| seen.chains[0].not_after = now() + days(3)), ["expires-soon"]);
    assert_eq!(advice(|seen| seen.hsts = policy(PRELOAD_HSTS, Feature::No, Feature::Yes)), ["hsts-preload"]);
    assert_eq!(advice(|seen| seen.hsts = policy(PRELOAD_HSTS, Feature::Yes, Feature::Yes)), [""; 0]);
    // TLS 1.2 and 1.3 protect each other without TLS_FALLBACK_SCSV.
    assert_eq!(advice(|seen| seen.fallback_scsv = Feature::No), [""; 0]);
}

#[test]
fn nothing_is_graded_that_was_not_learnt_as_a_whole() {
    let (grade, _) = after(|seen| seen.incomplete.push("the cipher suites of TLS 1.2: no answer".to_owned()));
    assert_eq!(grade, None);
}

#[test]
fn every_finding_says_what_and_why_and_what_to_do() {
    let mut observed = ours();
    observed.versions.push(version(Version::Tls10, &[0x0005, 0x000a, 0xc018, 0x003b]));
    observed.versions.push(version(Version::Ssl2, &[]));
    observed.chains[0].trust = Trusted::SelfSigned;
    observed.hsts = Hsts::Missing;
    for finding in judge(&observed, now()).findings {
        for text in [&finding.what, &finding.why, &finding.penstock, &finding.other_servers] {
            assert!(text.len() > 10 && !text.ends_with('.'), "{}: {text}", finding.code);
        }
    }
}
