use super::*;

const RSA: &str = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAYQCAERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERERE=";

fn key(seed: u8) -> PublicKey {
    let mut blob = b"\0\0\0\x0bssh-ed25519\0\0\0\x20".to_vec();
    blob.extend_from_slice(&[seed; 32]);
    PublicKey::from_blob(&blob).unwrap()
}

fn host(name: &str, lines: &str) -> HostFile {
    let name: Name = name.parse().unwrap();
    HostFile::parse(&name, &format!("id {name}\n{lines}")).unwrap()
}

#[test]
fn every_weakness_is_found_worst_first() {
    let shared = format!("pin {} from=console 2026-01-01\n", key(1));
    let hosts = vec![
        host("a", &shared),
        host("b", &shared),
        host("c", &format!("pin {} from=first-use 2026-01-01\n", key(3))),
        host("d", &format!("pin {RSA} from=console 2026-01-01\n")),
        host("e", "addr 10.0.0.1\n"),
        host("f", &format!("pin {} from=console 2026-01-01 absent=2026-11-01\nreovked x\n", key(6))),
        host(
            "h",
            &format!(
                "pin {} from=console 2026-01-01\npin {} from=rotation(proved by {}, first use) 2026-01-01\n",
                key(8),
                key(9),
                key(3).fingerprint()
            ),
        ),
        host("g", &format!("pin {} from=first-use 2026-01-01\nretired 2026-02-02\n", key(7))),
    ];
    let now = Moment(1_795_176_000);
    let facts = Facts {
        kex: Some("curve25519-sha256".into()),
        strict: Some(Strict::No),
        certificate_until: Some(now.0 + 3 * 86_400),
        sshfp: Some(SshfpAnswer::Insecure(Vec::new())),
        refused: None,
    };
    let refused = |seed: u8| {
        let refused =
            RefusedKey { fingerprint: key(seed).fingerprint(), date: "2026-11-19".parse().unwrap() };
        Facts { refused: Some(refused), ..Facts::default() }
    };
    // The key of f was pinned after it was refused.
    let facts = HashMap::from([
        ("a".parse().unwrap(), facts),
        ("d".parse().unwrap(), refused(9)),
        ("f".parse().unwrap(), refused(6)),
    ]);
    let found = audit(&Index::new(hosts, Vec::new(), Vec::new(), []), &facts, now);
    let shown: Vec<String> =
        found.iter().map(|one| format!("{} {} {}", one.severity.word(), one.host, one.text)).collect();
    let expected = [
        format!("bad a ssh-ed25519 {} is also a key of b: each can pose as the other", key(1).fingerprint()),
        format!("bad b ssh-ed25519 {} is also a key of a: each can pose as the other", key(1).fingerprint()),
        "bad c its keys were trusted on first use and never proved: penstock host add c --console FILE"
            .into(),
        format!(
            "bad d it was refused on 2026-11-19: it showed {}, which is not pinned; if it was reinstalled, read the \
             fingerprint on its console, then: penstock host add d --replace --fingerprint SHA256:...",
            key(9).fingerprint()
        ),
        "bad e no key is enrolled: it is refused until one is".into(),
        format!(
            "bad h ssh-ed25519 {0} was trusted on first use and never proved: prove it (penstock host add h --fingerprint \
             SHA256:...), or penstock host retire h --key {0}",
            key(9).fingerprint()
        ),
        "weak a its SSHFP records are not signed: they prove nothing".into(),
        "weak a its certificate expires on 2026-11-23, in 3 days".into(),
        "weak a key exchange curve25519-sha256 is not post-quantum: OpenSSH 9.9 has mlkem768x25519-sha256"
            .into(),
        "weak a no strict key exchange (CVE-2023-48795): update its SSH server".into(),
        "weak d its RSA key has 768 bits: 3072 are the minimum today".into(),
        "weak d only RSA is pinned: create an Ed25519 key on it".into(),
        "weak f line 3 begins with \"reovked\", which means nothing here".into(),
        format!(
            "note f ssh-ed25519 {} has not been announced by the host since 2026-11-01",
            key(6).fingerprint()
        ),
    ];
    assert_eq!(shown, expected);
}
