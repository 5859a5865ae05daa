use std::os::unix::fs::PermissionsExt;

use super::*;

fn start() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)
}

fn after(hours: u64) -> SystemTime {
    start() + Duration::from_hours(hours)
}

fn put(path: &Path, secret: &[u8]) {
    fs::write(path, secret).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn secret(seed: u8) -> Vec<u8> {
    (0..48).map(|at| at ^ seed).collect()
}

fn begun(path: Option<&Path>) -> Ring {
    let ring = Ring::new(path);
    ring.begin(start());
    ring
}

fn ring(path: &Path) -> Ring {
    let ring = begun(Some(path));
    ring.replace(path, &read(path).unwrap(), start());
    ring
}

#[test]
fn a_ticket_opens_in_its_context_and_nowhere_else_and_no_change_of_it_does() {
    let ring = begun(None);
    let ticket = ring.seal(b"one", b"session", start()).unwrap();
    assert_eq!(ring.open(b"one", &ticket, start()).as_deref(), Some(&b"session"[..]));
    for other in [&b""[..], b"on", b"one2", b"two"] {
        assert_eq!(ring.open(other, &ticket, start()), None);
    }
    for at in 0..ticket.len() {
        let mut changed = ticket.clone();
        changed[at] ^= 1;
        assert_eq!(ring.open(b"one", &changed, start()), None, "{at}");
        assert_eq!(ring.open(b"one", &ticket[..at], start()), None, "{at}");
    }
    assert_eq!(begun(None).open(b"one", &ticket, start()), None, "another's key");
    assert_ne!(ring.seal(b"one", b"session", start()).unwrap(), ticket, "no nonce comes twice");
}

#[test]
fn own_keys_rotate_and_a_ticket_lives_for_twelve_hours() {
    let ring = begun(None);
    let ticket = ring.seal(b"", b"session", after(5)).unwrap();
    let next = ring.seal(b"", b"session", after(6)).unwrap();
    assert_ne!(ticket[..NAME], next[..NAME], "after six hours another key encrypts");
    assert!(ring.open(b"", &ticket, after(17)).is_some());
    assert!(ring.open(b"", &ticket, after(18)).is_none(), "too old");
    for hour in 0..200 {
        ring.seal(b"", b"", after(hour)).unwrap();
        assert!(ring.keys.load().len() <= 4, "old keys are erased");
    }
}

#[test]
fn nodes_with_the_same_file_open_each_others_tickets_and_the_key_before_opens_on() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key");
    put(&path, &secret(1));
    let (one, two) = (ring(&path), ring(&path));
    let ticket = one.seal(b"x", b"session", start()).unwrap();
    assert!(two.open(b"x", &ticket, start()).is_some());
    put(&path, &secret(2));
    two.replace(&path, &read(&path).unwrap(), after(1));
    assert!(two.open(b"x", &ticket, after(1)).is_some());
    assert_ne!(two.seal(b"x", b"session", after(1)).unwrap()[..NAME], ticket[..NAME]);
    two.replace(&path, &read(&path).unwrap(), after(19));
    assert_eq!(two.keys.load().iter().filter(|key| key.origin == Origin::File).count(), 1);
}

#[test]
fn in_a_directory_the_last_name_encrypts_and_what_is_removed_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    put(&directory.path().join("2026-11-19"), &secret(1));
    let ring = ring(directory.path());
    let ticket = ring.seal(b"", b"session", start()).unwrap();
    put(&directory.path().join("2026-11-20"), &secret(2));
    put(&directory.path().join(".2026-11-21"), b"half");
    ring.replace(directory.path(), &read(directory.path()).unwrap(), start());
    assert!(ring.open(b"", &ticket, start()).is_some());
    let newer = ring.seal(b"", b"session", start()).unwrap();
    assert_ne!(newer[..NAME], ticket[..NAME]);
    fs::remove_file(directory.path().join("2026-11-19")).unwrap();
    ring.replace(directory.path(), &read(directory.path()).unwrap(), start());
    assert!(ring.open(b"", &ticket, start()).is_none() && ring.open(b"", &newer, start()).is_some());
}

#[test]
fn bad_keys_are_refused_with_what_is_wrong() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key");
    let said = |secret: &[u8]| {
        put(&path, secret);
        check(&path).unwrap_or_default()
    };
    assert_eq!(said(&secret(1)), "");
    assert!(said(b"short").contains("holds 5 bytes, not 32 to 1024"), "{}", said(b"short"));
    assert!(said(&[7; 2000]).contains("1025 bytes"));
    assert!(said(&[0; 48]).contains("all of its bytes are the same"));
    put(&path, &secret(1));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(check(&path).unwrap().contains("key"), "{:?}", check(&path));
    assert!(check(&directory.path().join("none")).unwrap().contains("cannot be read"));
    let empty = directory.path().join("empty");
    fs::create_dir(&empty).unwrap();
    assert!(check(&empty).unwrap().contains("no key"));
}

#[test]
fn the_next_process_opens_tickets_of_generated_keys_and_goes_on_with_the_newest() {
    let rings = |now| {
        let rings = Rings::default();
        let ring = Arc::new(Ring::new(None));
        lock(&rings.by_source).insert(None, ring.clone());
        ring.begin(now);
        (rings, ring)
    };
    let (old, ring) = rings(start());
    let ticket = ring.seal(b"x", b"session", start()).unwrap();
    let newer = ring.seal(b"x", b"session", after(7)).unwrap();
    let passed = old.generated();
    assert_eq!(passed.len(), 2 * RECORD);
    let (new, ring) = rings(after(8));
    new.take_over(&passed, after(8));
    assert!(ring.open(b"x", &ticket, after(8)).is_some() && ring.open(b"x", &newer, after(8)).is_some());
    assert_eq!(ring.seal(b"x", b"session", after(8)).unwrap()[..NAME], newer[..NAME]);
    assert_ne!(ring.seal(b"x", b"session", after(14)).unwrap()[..NAME], newer[..NAME], "its time is over");
    // Keys that are too old, times to come, and half a record.
    let (other, ring) = rings(after(100));
    other.take_over(&[&passed[..], &[0xff; RECORD], &[1; 7]].concat(), after(100));
    assert!(ring.open(b"x", &ticket, after(100)).is_none());
    assert!(ring.seal(b"x", b"session", after(100)).is_some());
    Rings::default().take_over(&passed, after(8));
}

#[test]
fn a_session_that_fits_no_ticket_gets_none() {
    let tickets = Arc::new(begun(None)).for_context(&Asked::NOTHING.0);
    assert!(tickets.encrypt(&[0; MAX_SESSION]).is_some());
    assert!(tickets.encrypt(&[0; MAX_SESSION + 1]).is_none());
}
