use proptest::prelude::*;

use super::*;
use crate::ssh::key::Fingerprint;

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJKRYUVfuEFUGyOJ4Ub4j8kXhVwPkN7SrvI9QeYwHyEq";

fn web1() -> Name {
    "web1".parse().unwrap()
}

fn read(text: &str) -> HostFile {
    HostFile::parse(&web1(), text).unwrap_or_else(|faults| panic!("{faults:?}"))
}

fn fault(text: &str) -> String {
    HostFile::parse(&web1(), text).unwrap_err().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn whole() -> String {
    let key: PublicKey = KEY.parse().unwrap();
    let fingerprint = key.fingerprint();
    format!(
        "# web1, rack 3\nid      web1\nalias   www www2\naddr    dns:web1.example.com  10.0.7.9  port=22  via=gate     # hints\n\n\
         pin     {KEY} {fingerprint} from=rotation(proved by {fingerprint}) 2026-09-02 by=ivan\n\
         ca      @fleet-ca principals=web1,web1.example.com\nsshfp   require-secure\n\
         seen    10.0.5.2 → 10.0.7.9 2026-10-30 (same key)\ncolour  blue # from a later version\n"
    )
}

#[test]
fn file_reads_back_byte_by_byte_with_comments_and_unknown_lines() {
    let host = read(&whole());
    assert_eq!(host.to_string(), whole());
    assert_eq!(host.unknown_lines().collect::<Vec<_>>(), [(10, "colour  blue # from a later version")]);
    assert_eq!(host.address().via, Some("gate".parse().unwrap()));
    assert_eq!(
        host.names().map(Name::as_str).collect::<Vec<_>>(),
        ["web1", "www", "www2", "web1.example.com"]
    );
    assert_eq!(host.sshfp(), Sshfp::RequireSecure);
}

#[test]
fn change_touches_only_the_line_it_concerns() {
    let mut host = read(&whole());
    host.record_move("10.0.7.9".parse().unwrap(), "10.0.8.1".parse().unwrap(), "2026-11-20".parse().unwrap());
    let expected = whole()
        .replace(
            "addr    dns:web1.example.com  10.0.7.9  port=22  via=gate     # hints",
            "addr    dns:web1.example.com  10.0.8.1  port=22  via=gate  # hints",
        )
        .replace(
            "2026-10-30 (same key)\n",
            "2026-10-30 (same key)\nseen    10.0.7.9 → 10.0.8.1 2026-11-20 (same key)\n",
        );
    assert_eq!(host.to_string(), expected);
}

#[test]
fn retired_and_revoked_keys_stay_known_and_a_retired_one_can_come_back() {
    let key: PublicKey = KEY.parse().unwrap();
    let date = "2026-11-20".parse().unwrap();
    let mut host = read(&whole());
    let pin = host.pin(&key).unwrap().clone();
    host.retire_key(&key, date);
    assert_eq!((host.pins().count(), host.retired_keys().count()), (0, 1));
    host.pin_key(pin);
    assert_eq!((host.pins().count(), host.retired_keys().count()), (1, 0));
    host.revoke(&key, date);
    assert_eq!((host.pins().count(), host.revoked().count()), (0, 1));
    assert_eq!(read(&host.to_string()), host);
}

#[test]
fn moves_are_kept_up_to_a_number() {
    let mut host = HostFile::new(web1());
    let address = |last: u8| std::net::IpAddr::from([10, 0, 0, last]);
    for last in 0..40 {
        host.record_move(address(last), address(last + 1), "2026-11-20".parse().unwrap());
    }
    assert_eq!(host.moves().count(), MOVES_KEPT);
    assert_eq!(host.moves().last().unwrap().to, address(40));
}

#[test]
fn renamed_host_keeps_its_old_name_as_an_alias() {
    let mut host = read(&whole());
    host.rename("web9".parse().unwrap());
    let again = HostFile::parse(&"web9".parse().unwrap(), &host.to_string()).unwrap();
    assert!(again.names().any(|name| name.as_str() == "web1"));
}

#[test]
fn damaged_lines_are_refused_with_their_number_and_what_to_do() {
    let key: PublicKey = KEY.parse().unwrap();
    let pin = format!("pin {KEY} {}", key.fingerprint());
    let other = Fingerprint([7; 32]);
    for (text, expected) in [
        (String::new(), "the file is empty: restore it, or remove it and enrol the host anew"),
        ("# nothing\n".into(), "there is no line \"id web1\": add it, or restore the file"),
        ("id web2\n".into(), "line 1: the file is that of web1, but says id web2: rename one of them"),
        ("id web1\nid web1\n".into(), "line 2: a second id: remove one of the lines"),
        (
            "id web1".into(),
            "line 1: the last line has no end: the file may be cut; if the line is whole, end it with a newline",
        ),
        (
            "id web1\n\0\0\n".into(),
            "line 2: a control character: the file is damaged; restore it, or take the line out",
        ),
        (
            format!("id web1\n{pin} from=console\n"),
            "line 2: the pin does not say when it was proved: a date such as 2026-11-20 is missing",
        ),
        (
            format!("id web1\n{pin} 2026-11-20\n"),
            "line 2: the pin does not say how it was proved: from=… is missing",
        ),
        (
            format!("id web1\n{pin} from=console 2026-02-30\n"),
            "line 2: \"2026-02-30\" is not a date: dates are written 2026-11-20",
        ),
        (
            "id web1\npin ssh-ed25519 AAAA from=console 2026-02-03\n".into(),
            "line 2: the key's data does not begin with the name of an algorithm: is it truncated?",
        ),
        (
            "id web1\naddr somewhere\n".into(),
            "line 2: \"somewhere\" is not an address: 10.0.7.9, 2001:db8::9, dns:NAME, port=N or via=HOST are allowed here",
        ),
        (
            "id web1\naddr dns:127.10.0.22:41893\n".into(),
            "line 2: dns:127.10.0.22:41893: \"127.10.0.22:41893\" is neither an address nor a name in the DNS, such as \
             10.0.7.9, 2001:db8::9 or web1.example.com; write the port beside it, as port=N",
        ),
        ("id web1\nsshfp maybe\n".into(), "line 2: sshfp is require-secure or off"),
        (
            format!("id web1\n{pin} from=console 2026-02-03\n{pin} from=key 2026-02-03\n"),
            "line 3: this key is pinned twice: remove one of the lines",
        ),
    ] {
        assert_eq!(fault(&text), expected, "{text:?}");
    }
    assert_eq!(
        fault(&format!("id web1\npin {KEY} {other} from=console 2026-02-03\n")),
        format!(
            "line 2: the fingerprint {other} is not that of the key, {}: the line is damaged or was edited in part",
            key.fingerprint()
        )
    );
    assert!(
        fault(&format!("id web1\n{pin} from=hearsay 2026-02-03\n"))
            .starts_with("line 2: from=hearsay is not a proof: it is ")
    );
}

#[test]
fn every_cut_of_a_file_is_refused_or_says_less_but_never_pins_another_key() {
    let text = whole();
    let pins: Vec<PublicKey> = read(&text).pins().map(|pin| pin.key.clone()).collect();
    for cut in (0..text.len()).filter(|cut| text.is_char_boundary(*cut)) {
        if let Ok(host) = HostFile::parse(&web1(), &text[..cut]) {
            assert!(text[..cut].ends_with('\n'));
            assert!(host.pins().all(|pin| pins.contains(&pin.key)));
        }
    }
}

fn proof() -> impl Strategy<Value = Proof> {
    let name = || "[a-z][a-z0-9.-]{0,12}".prop_map(|name| name.parse().unwrap());
    prop_oneof![
        Just(Proof::Fingerprint),
        Just(Proof::Key),
        Just(Proof::Console),
        Just(Proof::Sshfp),
        Just(Proof::KnownHosts),
        Just(Proof::FirstUse),
        "[a-z]{1,9}".prop_map(Proof::Authority),
        name().prop_map(Proof::Copy),
        prop::collection::vec(name(), 1..4).prop_map(Proof::Witness),
        (any::<[u8; 32]>(), any::<bool>()).prop_map(|(by, proved)| {
            Proof::Rotation(Fingerprint(by), if proved { Root::Proved } else { Root::FirstUse })
        }),
    ]
}

proptest! {
    #[test]
    fn whatever_is_written_reads_back(
        seeds in prop::collection::btree_set(any::<[u8; 32]>(), 1..8), proof in proof(), by in proptest::option::of("[a-z@.]{1,9}")
    ) {
        let mut host = HostFile::new(web1());
        for seed in seeds {
            let mut blob = b"\0\0\0\x0bssh-ed25519\0\0\0\x20".to_vec();
            blob.extend_from_slice(&seed);
            let key = PublicKey::from_blob(&blob).unwrap();
            host.pin_key(Pin { key, proof: proof.clone(), date: "2026-11-20".parse().unwrap(), by: by.clone(), absent: None });
        }
        prop_assert_eq!(&read(&host.to_string()), &host);
    }

    #[test]
    fn any_text_is_read_or_refused_and_kept_as_it_was(text in "(id web1\n)?([ -~→]{0,60}\n){0,6}") {
        if let Ok(host) = HostFile::parse(&web1(), &text) {
            prop_assert_eq!(host.to_string(), text);
        }
    }

    #[test]
    fn any_bytes_after_a_keyword_do_no_harm(keyword in "(pin|ca|seen|retired|revoked|addr|alias|sshfp)", rest in "\\PC{0,80}") {
        let _ = HostFile::parse(&web1(), &format!("id web1\n{keyword} {rest}\n"));
    }
}
