use super::*;
use crate::identity::{Name, Root};

fn ed25519(seed: u8) -> PublicKey {
    let mut blob = b"\0\0\0\x0bssh-ed25519\0\0\0\x20".to_vec();
    blob.extend_from_slice(&[seed; 32]);
    PublicKey::from_blob(&blob).unwrap()
}

fn host(name: &str, keys: &[u8], from: &str) -> HostFile {
    let name: Name = name.parse().unwrap();
    let pins: String =
        keys.iter().map(|seed| format!("pin {} from={from} 2026-03-01\n", ed25519(*seed))).collect();
    HostFile::parse(&name, &format!("id {name}\n{pins}")).unwrap()
}

fn day(text: &str) -> Date {
    text.parse().unwrap()
}

#[test]
fn announced_keys_become_pins_and_old_ones_are_retired_only_after_a_while() {
    let index = Index::default();
    let web1 = host("web1", &[1], "console");
    let (web1, what) =
        rotate(&web1, &ed25519(1), &[ed25519(1), ed25519(2)], &index, day("2026-11-01")).unwrap();
    assert_eq!(what.pinned, [ed25519(2)]);
    assert_eq!(web1.pin(&ed25519(2)).unwrap().proof, Proof::Rotation(ed25519(1).fingerprint(), Root::Proved));
    assert_eq!(
        rotate(&web1, &ed25519(1), &[ed25519(1), ed25519(2)], &index, day("2026-11-02")),
        None,
        "nothing new"
    );

    // The server no longer has the old key.
    let (web1, what) = rotate(&web1, &ed25519(2), &[ed25519(2)], &index, day("2026-11-03")).unwrap();
    assert_eq!((what.absent, what.retired), (vec![ed25519(1)], vec![]));
    assert!(web1.pin(&ed25519(1)).is_some(), "a backup may still bring it");
    assert_eq!(rotate(&web1, &ed25519(2), &[ed25519(2)], &index, day("2026-11-16")), None);
    let (web1, what) = rotate(&web1, &ed25519(2), &[ed25519(2)], &index, day("2026-11-17")).unwrap();
    assert_eq!(what.retired, [ed25519(1)]);
    assert!(web1.pin(&ed25519(1)).is_none() && web1.retired_keys().count() == 1);
}

#[test]
fn key_that_is_announced_again_is_no_longer_absent() {
    let index = Index::default();
    let web1 = host("web1", &[1, 2], "console");
    let (web1, _) = rotate(&web1, &ed25519(2), &[ed25519(2)], &index, day("2026-11-03")).unwrap();
    let (web1, _) = rotate(&web1, &ed25519(2), &[ed25519(1), ed25519(2)], &index, day("2026-11-04")).unwrap();
    assert_eq!(web1.pin(&ed25519(1)).unwrap().absent, None);
}

#[test]
fn trust_on_first_use_marks_what_it_vouches_for() {
    let web1 = host("web1", &[1], "first-use");
    let (web1, _) =
        rotate(&web1, &ed25519(1), &[ed25519(1), ed25519(2)], &Index::default(), day("2026-11-01")).unwrap();
    assert_eq!(web1.pin(&ed25519(2)).unwrap().root(), Root::FirstUse);
}

#[test]
fn key_of_first_use_stays_marked_when_a_proved_key_announces_it() {
    let mut web1 = host("web1", &[1], "first-use");
    let proof = Proof::Console;
    web1.pin_key(Pin { key: ed25519(2), proof, date: day("2026-11-01"), by: None, absent: None });
    let announced = [ed25519(1), ed25519(2), ed25519(3)];
    let (web1, what) = rotate(&web1, &ed25519(2), &announced, &Index::default(), day("2026-11-02")).unwrap();
    assert_eq!(what.pinned, [ed25519(3)]);
    let roots = announced.map(|key| web1.pin(&key).unwrap().root());
    assert_eq!(roots, [Root::FirstUse, Root::Proved, Root::Proved]);
}

#[test]
fn revoked_keys_and_those_of_others_are_not_taken_and_an_unpinned_key_vouches_for_nothing() {
    let index = Index::new(vec![host("db2", &[5], "console")], Vec::new(), Vec::new(), [ed25519(6)]);
    let web1 = host("web1", &[1], "console");
    let announced = [ed25519(1), ed25519(5), ed25519(6)];
    let (same, what) = rotate(&web1, &ed25519(1), &announced, &index, day("2026-11-01")).unwrap();
    assert_eq!(same, web1);
    let why: Vec<&str> = what.refused.iter().map(|(_, why)| why.as_str()).collect();
    assert_eq!(why, ["it is a key of db2", "it is revoked"]);
    assert_eq!(rotate(&web1, &ed25519(9), &[ed25519(9)], &index, day("2026-11-01")), None);
}

#[test]
fn endless_announcement_stops_at_a_number() {
    let web1 = host("web1", &[1], "console");
    let many: Vec<PublicKey> = (0..200).map(ed25519).collect();
    let (web1, what) = rotate(&web1, &ed25519(1), &many, &Index::default(), day("2026-11-01")).unwrap();
    assert_eq!(web1.pins().count(), PINS_KEPT);
    assert_eq!(what.refused.len(), 200 - PINS_KEPT);
}

#[test]
fn key_that_is_retired_is_not_pinned_again_because_the_server_still_has_it() {
    let mut web1 = host("web1", &[1, 2], "console");
    web1.retire_key(&ed25519(2), day("2026-10-01"));
    let announced = [ed25519(1), ed25519(2)];
    let (same, what) = rotate(&web1, &ed25519(1), &announced, &Index::default(), day("2026-11-01")).unwrap();
    assert_eq!(same, web1);
    assert_eq!(what.refused, [(ed25519(2), "it is retired since 2026-10-01".to_owned())]);
}
