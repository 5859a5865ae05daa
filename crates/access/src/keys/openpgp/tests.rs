use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};

use super::*;

fn packet(tag: u8, body: &[u8]) -> Vec<u8> {
    [&[0xc0 | tag, 255], &(body.len() as u32).to_be_bytes()[..], body].concat()
}

fn pair(last: u8) -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[last; 32]).unwrap()
}

/// A key of version 4 and algorithm 27 (Ed25519), made at second 100.
fn key_body(last: u8) -> Vec<u8> {
    [&[4, 0, 0, 0, 100, 27][..], pair(last).public_key().as_ref()].concat()
}

/// What is signed besides the primary key.
enum About<'a> {
    Key,
    User(&'a [u8]),
    Subkey(u8),
}

/// A signature by the key `by` in the name of the key `named`, with the time of the end of the key if it is not 0.
fn signed(kind: u8, (key, by): (u8, u8), about: &About<'_>, created: u8, ends: u8) -> Vec<u8> {
    let mut hashed = vec![5, 2, 0, 0, 0, created];
    if ends != 0 {
        hashed.extend([5, 9, 0, 0, 0, ends]);
    }
    hashed.extend([22, 33, 4]);
    hashed.extend(fingerprint(by));
    let head = [&[4, kind, 27, 8, 0, hashed.len() as u8], &hashed[..]].concat();
    let key_part = |body: Vec<u8>| [&[0x99, 0, body.len() as u8], &body[..]].concat();
    let mut message = key_part(key_body(key));
    match about {
        About::Key => {}
        About::User(user) => message.extend([&[0xb4, 0, 0, 0, user.len() as u8], *user].concat()),
        About::Subkey(last) => message.extend(key_part(key_body(*last))),
    }
    message.extend(&head);
    message.extend([4, 0xff, 0, 0, 0, head.len() as u8]);
    let signature = pair(by).sign(digest(&SHA256, &message).as_ref());
    packet(2, &[&head[..], &[0, 0, 1, 2], signature.as_ref()].concat())
}

fn fingerprint(last: u8) -> Vec<u8> {
    read(&packet(6, &key_body(last))).unwrap()[0].fingerprint().to_vec()
}

const ALICE: &[u8] = b"Alice <alice@example.org>";

fn minimal(packets: &[Vec<u8>], address: &str, now: u64) -> Result<Vec<u8>, KeyFault> {
    read(&packets.concat()).unwrap()[0].minimal(&Address::parse(address).unwrap(), now)
}

#[test]
fn smallest_form_has_the_address_asked_for_and_the_newest_signatures_of_the_key_itself() {
    let (alice, bob) = (About::User(ALICE), About::User(b"bob@example.org"));
    let (old, new) = (signed(0x13, (1, 1), &alice, 1, 0), signed(0x13, (1, 1), &alice, 2, 0));
    let foreign = signed(0x10, (1, 2), &alice, 9, 0);
    let of_bob = signed(0x13, (1, 1), &bob, 2, 0);
    let (primary, alice, bob) = (packet(6, &key_body(1)), packet(13, ALICE), packet(13, b"bob@example.org"));
    let (subkey, bound) = (packet(14, &key_body(3)), signed(0x18, (1, 1), &About::Subkey(3), 1, 0));
    let revoked = packet(14, &key_body(4));
    let (bound_too, revocation) =
        (signed(0x18, (1, 1), &About::Subkey(4), 1, 0), signed(0x28, (1, 1), &About::Subkey(4), 1, 0));
    let packets = [
        primary.clone(),
        packet(12, &[1]),
        alice.clone(),
        old,
        foreign,
        new.clone(),
        bob,
        of_bob,
        packet(17, &[1]),
        new.clone(),
        subkey.clone(),
        bound.clone(),
        revoked,
        bound_too,
        revocation,
    ];
    let wanted = [primary, alice, new, subkey, bound].concat();
    assert_eq!(minimal(&packets, "Alice@Example.org", 0).unwrap(), wanted);
    let fault = minimal(&packets, "carol@example.org", 0).unwrap_err().to_string();
    assert!(fault.ends_with("carol@example.org; it has alice@example.org, bob@example.org"), "{fault}");
}

#[test]
fn keys_that_nobody_should_use_are_refused() {
    let about = About::User(ALICE);
    let (primary, alice) = (packet(6, &key_body(1)), packet(13, ALICE));
    let signature = signed(0x13, (1, 1), &about, 1, 50);
    let at = |packets: &[&Vec<u8>], now| {
        let packets: Vec<_> = packets.iter().map(|packet| (*packet).clone()).collect();
        minimal(&packets, "alice@example.org", now)
    };
    assert!(at(&[&primary, &alice, &signature], 149).is_ok());
    let expired = at(&[&primary, &alice, &signature], 150);
    assert!(matches!(expired, Err(KeyFault::Expired(_))), "{expired:?}");
    let revoked = at(&[&primary, &signed(0x20, (1, 1), &About::Key, 1, 0), &alice, &signature], 0);
    assert!(matches!(revoked, Err(KeyFault::Revoked(_))), "{revoked:?}");
    let withdrawn = at(&[&primary, &alice, &signature, &signed(0x30, (1, 1), &about, 2, 0)], 0);
    assert!(matches!(withdrawn, Err(KeyFault::RevokedAddress(_))), "{withdrawn:?}");
    let foreign = at(&[&primary, &alice, &signed(0x13, (1, 2), &about, 1, 0)], 0);
    assert!(matches!(foreign, Err(KeyFault::Unsigned(_))), "{foreign:?}");
    // A user ID that another person added, with a signature that is of another user ID.
    let added = packet(13, b"eve@example.org");
    let forged = minimal(&[primary.clone(), added, signature.clone()], "eve@example.org", 0);
    assert!(matches!(forged, Err(KeyFault::Unsigned(_))), "{forged:?}");
    let mut unknown = key_body(1);
    unknown[5] = 17;
    let unknown = minimal(&[packet(6, &unknown), alice.clone(), signature.clone()], "alice@example.org", 0);
    assert!(matches!(unknown, Err(KeyFault::Algorithm(_))), "{unknown:?}");
    assert_eq!(read(&packet(5, &key_body(1))).unwrap_err(), KeyFault::Secret);
    assert_eq!(read(&packet(6, &[3, 0, 0, 0, 0, 1])).unwrap_err(), KeyFault::Version(3));
    assert_eq!(read(&alice).unwrap_err(), KeyFault::NoKey);
    assert_eq!(read(b"").unwrap_err(), KeyFault::NoKey);
    let many = vec![packet(12, &[]); MOST_PACKETS + 2].concat();
    assert_eq!(read(&many).unwrap_err(), KeyFault::TooMany);
}

#[test]
fn files_cut_at_every_byte_are_no_panic() {
    let signature = signed(0x13, (1, 1), &About::User(ALICE), 1, 0);
    let whole = [packet(6, &key_body(1)), packet(13, ALICE), signature].concat();
    for at in 0..whole.len() {
        try_all(&whole[..at]);
        for bit in 0..8 {
            let mut bent = whole.clone();
            bent[at] ^= 1 << bit;
            try_all(&bent);
        }
    }
}

#[test]
fn armor_is_removed_and_a_wrong_checksum_refused() {
    let begin = "-----BEGIN PGP PUBLIC KEY BLOCK-----\nComment: x\n\n";
    let end = "-----END PGP PUBLIC KEY BLOCK-----\n";
    let armored = |body: &str| armor::remove(format!("a\n{begin}{body}\n{end}").as_bytes());
    // The checksum of "abc" by the program of RFC 9580.
    assert_eq!(armored("YWJj").unwrap(), b"abc");
    assert_eq!(armored("YWJj\n=uhx7").unwrap(), b"abc");
    assert!(matches!(armored("YWJj\n=uhx8"), Err(KeyFault::Armor(_))));
    assert!(matches!(armored("YW"), Err(KeyFault::Armor(_))));
    assert_eq!(armor::remove(b"text"), Err(KeyFault::NoKey));
    let secret = b"-----BEGIN PGP PRIVATE KEY BLOCK-----\n";
    assert_eq!(armor::remove(secret), Err(KeyFault::Secret));
}

#[test]
fn addresses_that_are_none_are_refused() {
    for wrong in
        ["", "alice", "@a.org", "alice@", "a b@c.org", "\"a\"@c.org", "a..b@c.org", "a@b@c..d", "a,b@c"]
    {
        assert!(Address::parse(wrong).is_err(), "{wrong}");
    }
    let address = Address::parse("First.Last+tag@Example.ORG").unwrap();
    assert_eq!(address.to_string(), "First.Last+tag@example.org");
    assert_eq!(address.openpgpkey_owners().unwrap().len(), 2, "as written, and in lower case");
    assert_eq!(address.cert_owner().unwrap().to_string(), "first.last+tag.example.org");
}
