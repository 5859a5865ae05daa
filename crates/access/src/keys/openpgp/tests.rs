use super::*;

fn packet(tag: u8, body: &[u8]) -> Vec<u8> {
    [&[0xc0 | tag, 255], &(body.len() as u32).to_be_bytes()[..], body].concat()
}

fn key_body(last: u8) -> Vec<u8> {
    vec![4, 0, 0, 0, 100, 22, last]
}

/// A signature by the key with this fingerprint, with the time of the end of the key if it is not 0.
fn signed(kind: u8, by: &[u8], created: u8, ends: u8) -> Vec<u8> {
    let mut hashed = vec![5, 2, 0, 0, 0, created];
    if ends != 0 {
        hashed.extend([5, 9, 0, 0, 0, ends]);
    }
    hashed.extend([22, 33, 4]);
    hashed.extend(by);
    let body = [&[4, kind, 22, 8, 0, hashed.len() as u8], &hashed[..], &[0, 0, 1, 2, 0, 1, 1]].concat();
    packet(2, &body)
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
    let (own, other) = (fingerprint(1), fingerprint(2));
    let (old, new) = (signed(0x13, &own, 1, 0), signed(0x13, &own, 2, 0));
    let (primary, alice, bob) = (packet(6, &key_body(1)), packet(13, ALICE), packet(13, b"bob@example.org"));
    let (subkey, bound) = (packet(14, &key_body(3)), signed(0x18, &own, 1, 0));
    let (revoked, revocation) = (packet(14, &key_body(4)), signed(0x28, &own, 1, 0));
    let packets = [
        primary.clone(),
        packet(12, &[1]),
        alice.clone(),
        old,
        signed(0x10, &other, 9, 0),
        new.clone(),
        bob,
        new.clone(),
        packet(17, &[1]),
        new.clone(),
        subkey.clone(),
        bound.clone(),
        revoked,
        bound.clone(),
        revocation,
    ];
    let wanted = [primary, alice, new, subkey, bound].concat();
    assert_eq!(minimal(&packets, "Alice@Example.org", 0).unwrap(), wanted);
    let fault = minimal(&packets, "carol@example.org", 0).unwrap_err().to_string();
    assert!(fault.ends_with("carol@example.org; it has alice@example.org, bob@example.org"), "{fault}");
}

#[test]
fn keys_that_nobody_should_use_are_refused() {
    let own = fingerprint(1);
    let (primary, alice, signature) = (packet(6, &key_body(1)), packet(13, ALICE), signed(0x13, &own, 1, 50));
    let at = |packets: &[&Vec<u8>], now| {
        let packets: Vec<_> = packets.iter().map(|packet| (*packet).clone()).collect();
        minimal(&packets, "alice@example.org", now)
    };
    assert!(at(&[&primary, &alice, &signature], 149).is_ok());
    let expired = at(&[&primary, &alice, &signature], 150);
    assert!(matches!(expired, Err(KeyFault::Expired(_))), "{expired:?}");
    let revoked = at(&[&primary, &signed(0x20, &own, 1, 0), &alice, &signature], 0);
    assert!(matches!(revoked, Err(KeyFault::Revoked(_))), "{revoked:?}");
    let withdrawn = at(&[&primary, &alice, &signature, &signed(0x30, &own, 2, 0)], 0);
    assert!(matches!(withdrawn, Err(KeyFault::RevokedAddress(_))), "{withdrawn:?}");
    let foreign = at(&[&primary, &alice, &signed(0x13, &fingerprint(2), 1, 0)], 0);
    assert!(matches!(foreign, Err(KeyFault::Unsigned(_))), "{foreign:?}");
    assert_eq!(read(&packet(5, &key_body(1))).unwrap_err(), KeyFault::Secret);
    assert_eq!(read(&packet(6, &[3, 0, 0, 0, 0, 1])).unwrap_err(), KeyFault::Version(3));
    assert_eq!(read(&alice).unwrap_err(), KeyFault::NoKey);
    assert_eq!(read(b"").unwrap_err(), KeyFault::NoKey);
    let many = vec![packet(12, &[]); MOST_PACKETS + 2].concat();
    assert_eq!(read(&many).unwrap_err(), KeyFault::TooMany);
}

#[test]
fn files_cut_at_every_byte_are_no_panic() {
    let own = fingerprint(1);
    let whole = [packet(6, &key_body(1)), packet(13, ALICE), signed(0x13, &own, 1, 0)].concat();
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
