//! A store on a disk: torn, damaged, full, used by two at once, and with processes that are killed.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod crash;
mod full;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::mpsc;

use access::otp::ledger::Accepted;
use access::otp::token::{Kind, Refusal, Standing, Token};
use access::otp::yubico::{Counter, Otp, Press, Secret};
use credentials::{GroupCommit, Place, Store, StoreError, job, peek};

fn secret() -> Secret {
    Secret::new([1; 16], [2; 6])
}

fn place(directory: &Path) -> Place {
    Place { directory: directory.join("otp"), key_file: directory.join("key") }
}

/// The OTP with this number, of the token with this name.
fn otp(name: &str, number: u32) -> Otp {
    let session = u16::try_from(number / 256 + 1).unwrap();
    let counter = Counter { session, press: u8::try_from(number % 256).unwrap() };
    Otp::read(&secret().typed_by(name, Press { counter, timestamp: 0, random: 0 })).unwrap()
}

fn enrol(store: &mut Store, name: &str) {
    let sealed = store.ledger().key().seal(name, &secret().bytes(), credentials::random().unwrap());
    let token = Token::new(name.to_owned(), None, Kind::Yubico { last: None }, sealed, 1);
    store
        .run_one(move |ledger, _| {
            let record = ledger.enrol(&token).unwrap();
            ledger.take(record.clone()).unwrap();
            ((), vec![record])
        })
        .unwrap();
}

fn press(store: &mut Store, name: &str, number: u32) -> Result<Result<Accepted, Refusal>, String> {
    let otp = otp(name, number);
    let done = store.run_one(move |ledger, now| match ledger.press(&otp, "nonce", now / 1000) {
        Ok((accepted, record)) => (Ok(accepted), vec![record]),
        Err(why) => (Err(why), Vec::new()),
    });
    done.map_err(|error| error.to_string())
}

/// Number of the OTP that was accepted last.
fn last(store: &Store, name: &str) -> Option<u32> {
    match &store.ledger().token(name)?.kind {
        Kind::Yubico { last } => {
            last.as_ref().map(|last| (u32::from(last.session) - 1) * 256 + u32::from(last.press))
        }
        _ => None,
    }
}

#[test]
fn what_was_accepted_is_known_to_the_next_process() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::create(place(directory.path()), None).unwrap();
    enrol(&mut store, "cccc");
    assert!(press(&mut store, "cccc", 5).unwrap().is_ok());
    drop(store);
    let mut store = Store::open(place(directory.path())).unwrap();
    assert_eq!(last(&store, "cccc"), Some(5));
    assert!(press(&mut store, "cccc", 5).unwrap().is_err());
    assert!(press(&mut store, "cccc", 6).unwrap().is_ok());
    assert!(matches!(Store::create(place(directory.path()), None), Err(StoreError::Exists { .. })));
    let missing = Place { directory: directory.path().join("none"), ..place(directory.path()) };
    assert!(Store::open(missing).unwrap_err().to_string().contains("penstock otp init"));
}

#[test]
fn two_that_use_one_store_see_what_the_other_did_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut one = Store::create(place(directory.path()), None).unwrap();
    let mut other = Store::open(place(directory.path())).unwrap();
    enrol(&mut one, "cccc");
    for number in 0..50 {
        let (first, second) = if number % 2 == 0 { (&mut one, &mut other) } else { (&mut other, &mut one) };
        assert!(press(first, "cccc", number).unwrap().is_ok(), "{number}");
        assert!(press(second, "cccc", number).unwrap().is_err(), "{number}");
    }
    let record = |ledger: &mut access::otp::ledger::Ledger, _| {
        let record = ledger.set_standing("cccc", Standing::Revoked).unwrap();
        ledger.take(record.clone()).unwrap();
        ((), vec![record])
    };
    one.run_one(record).unwrap();
    assert!(matches!(press(&mut other, "cccc", 60).unwrap(), Err(Refusal::Revoked { .. })));
}

#[test]
fn a_journal_torn_at_any_byte_keeps_every_whole_line_and_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::create(place(directory.path()), None).unwrap();
    enrol(&mut store, "cccc");
    for number in 1..4 {
        assert!(press(&mut store, "cccc", number).unwrap().is_ok());
    }
    drop(store);
    let path = directory.path().join("otp/journal");
    let whole = fs::read(&path).unwrap();
    let ends: Vec<usize> =
        whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at).collect();
    for cut in 0..whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        if cut < ends[0] {
            // The first line is there before the journal has its name: without it the journal has lost its content.
            for said in
                [Store::open(place(directory.path())).map(drop), peek(&place(directory.path())).map(drop)]
            {
                let said = said.unwrap_err().to_string();
                assert!(
                    said.contains("has lost its content") && said.contains("penstock otp init"),
                    "{cut}: {said}"
                );
            }
            continue;
        }
        let mut store = Store::open(place(directory.path())).unwrap_or_else(|error| panic!("{cut}: {error}"));
        // The last two lines before the cut are what was accepted last.
        let accepted = ends.iter().filter(|end| **end <= cut).count().checked_sub(2);
        let known = last(&store, "cccc").unwrap_or(0);
        assert_eq!(known as usize, accepted.unwrap_or(0), "{cut}");
        if store.ledger().token("cccc").is_some() {
            assert!(press(&mut store, "cccc", known).unwrap().is_err() || known == 0, "{cut}");
            assert!(press(&mut store, "cccc", 100).unwrap().is_ok(), "{cut}");
            drop(store);
            assert_eq!(last(&Store::open(place(directory.path())).unwrap(), "cccc"), Some(100), "{cut}");
        }
    }
}

#[test]
fn a_process_that_runs_accepts_nothing_from_a_journal_that_has_lost_lines_until_it_has_them_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::create(place(directory.path()), None).unwrap();
    enrol(&mut store, "cccc");
    for number in 1..4 {
        assert!(press(&mut store, "cccc", number).unwrap().is_ok());
    }
    let path = directory.path().join("otp/journal");
    let whole = fs::read(&path).unwrap();
    let before = whole[..whole.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    for cut in [before, 0] {
        fs::write(&path, &whole[..cut]).unwrap();
        for _ in 0..3 {
            let said = press(&mut store, "cccc", 3).unwrap_err();
            assert!(said.contains("shorter than it was"), "{cut}: {said}");
        }
    }
    fs::write(&path, &whole).unwrap();
    assert!(press(&mut store, "cccc", 3).unwrap().is_err(), "it was used");
    assert!(press(&mut store, "cccc", 4).unwrap().is_ok());
    // Another process may replace it by a shorter one, with its lock.
    let replaced = fs::read(&path).unwrap();
    fs::write(&path, &replaced[..before]).unwrap();
    assert!(press(&mut store, "cccc", 5).is_err());
    fs::write(directory.path().join("otp/whole"), &replaced).unwrap();
    fs::rename(directory.path().join("otp/whole"), &path).unwrap();
    assert!(press(&mut store, "cccc", 4).unwrap().is_err());
    assert!(press(&mut store, "cccc", 5).unwrap().is_ok());
}

#[test]
fn a_new_journal_torn_at_any_byte_before_it_took_its_place_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::create(place(directory.path()), None).unwrap();
    enrol(&mut store, "cccc");
    assert!(press(&mut store, "cccc", 7).unwrap().is_ok());
    drop(store);
    let journal = directory.path().join("otp/journal");
    let whole = fs::read(&journal).unwrap();
    for cut in 0..whole.len() {
        fs::write(&journal, &whole).unwrap();
        fs::write(directory.path().join("otp/journal.new"), &whole[..cut]).unwrap();
        let mut store = Store::open(place(directory.path())).unwrap();
        assert_eq!(last(&store, "cccc"), Some(7), "{cut}");
        assert!(
            press(&mut store, "cccc", 7).unwrap().is_err() && press(&mut store, "cccc", 8).unwrap().is_ok()
        );
        // A torn line makes the next change write a new journal in its place.
        fs::write(&journal, [&fs::read(&journal).unwrap()[..], b"torn"].concat()).unwrap();
        assert!(press(&mut store, "cccc", 9).unwrap().is_ok(), "{cut}");
        assert_eq!(last(&Store::open(place(directory.path())).unwrap(), "cccc"), Some(9), "{cut}");
    }
}

#[test]
fn a_look_at_a_store_needs_no_lock_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::create(place(directory.path()), None).unwrap();
    enrol(&mut store, "cccc");
    store
        .run_one(|ledger, _| {
            let record = ledger.enrol_client(None, "vpn", Some((b"key", [1; 12]))).unwrap();
            ledger.take(record.clone()).unwrap();
            ((), vec![record])
        })
        .unwrap();
    let lock = fs::File::open(directory.path().join("otp/lock")).unwrap();
    lock.lock().unwrap();
    let journal = directory.path().join("otp/journal");
    let whole = fs::read(&journal).unwrap();
    assert!(credentials::peek(&place(directory.path())).unwrap().token("cccc").is_some());
    let keys = || credentials::client_keys(&place(directory.path()));
    assert_eq!(keys()[&1].as_slice(), b"key");
    // Of a damaged one the good lines count for the keys alone.
    fs::write(&journal, [&whole[..], b"0000000000000000 {}\n"].concat()).unwrap();
    assert!(matches!(credentials::peek(&place(directory.path())), Err(StoreError::Damaged { .. })));
    assert_eq!(keys()[&1].as_slice(), b"key");
    fs::remove_file(&journal).unwrap();
    assert!(matches!(credentials::peek(&place(directory.path())), Err(StoreError::Missing { .. })));
    assert!(keys().is_empty());
}

#[test]
fn a_damaged_journal_is_refused_with_its_place_and_accepts_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::create(place(directory.path()), None).unwrap();
    enrol(&mut store, "cccc");
    assert!(press(&mut store, "cccc", 1).unwrap().is_ok());
    let path = directory.path().join("otp/journal");
    let whole = fs::read(&path).unwrap();
    for at in (0..whole.len() - 1).step_by(7) {
        let mut changed = whole.clone();
        changed[at] ^= 4;
        fs::write(&path, &changed).unwrap();
        let said = Store::open(place(directory.path())).unwrap_err().to_string();
        let is_told = said.contains("is damaged") && said.contains("no OTP is accepted");
        // Where the first line names the key, another one is told.
        assert!(is_told || said.contains("was sealed with key"), "{at}: {said}");
    }
    // A process that runs: one that lost bytes which it knows, and one that got others behind them.
    fs::write(&path, &whole[..whole.len() - 10]).unwrap();
    assert!(press(&mut store, "cccc", 2).unwrap_err().contains("shorter than it was"));
    fs::write(&path, [&whole[..], b"0000000000000000 {}\n"].concat()).unwrap();
    assert!(press(&mut store, "cccc", 2).unwrap_err().contains("is damaged"));
    fs::write(&path, &whole).unwrap();
    assert!(press(&mut store, "cccc", 2).unwrap().is_ok(), "it is whole again");
}

#[test]
fn another_key_and_open_permissions_are_told_as_what_they_are() {
    let directory = tempfile::tempdir().unwrap();
    drop(Store::create(place(directory.path()), None).unwrap());
    let key = directory.path().join("key");
    fs::rename(&key, directory.path().join("old")).unwrap();
    credentials::write_key(&key, None).unwrap();
    let said = Store::open(place(directory.path())).unwrap_err().to_string();
    assert!(said.contains("was sealed with key"), "{said}");
    fs::rename(directory.path().join("old"), &key).unwrap();
    let otp = directory.path().join("otp");
    fs::set_permissions(&otp, fs::Permissions::from_mode(0o770)).unwrap();
    let said = Store::open(place(directory.path())).unwrap_err().to_string();
    assert!(said.contains("(mode 770)") && said.contains("chmod go-w"), "{said}");
    fs::set_permissions(&otp, fs::Permissions::from_mode(0o700)).unwrap();
    let mode = |name: &str| fs::metadata(otp.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("journal"), mode("lock")), (0o600, 0o600));
    assert!(Store::open(place(directory.path())).is_ok());
}

#[test]
fn a_journal_is_replaced_by_a_short_one_before_it_grows_without_end() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::create(place(directory.path()), None).unwrap();
    let mut other = Store::open(place(directory.path())).unwrap();
    enrol(&mut other, "cccc");
    let commits = GroupCommit::start(store).unwrap();
    let (tell, told) = mpsc::channel();
    let journal = directory.path().join("otp/journal");
    let (mut largest, mut shrank) = (0, 0);
    for batch in 0..40 {
        for number in batch * 500..(batch + 1) * 500 {
            let (otp, tell) = (otp("cccc", number), tell.clone());
            let decide =
                move |ledger: &mut access::otp::ledger::Ledger, _| match ledger.press(&otp, "nonce", 1) {
                    Ok((_, record)) => (true, vec![record]),
                    Err(_) => (false, Vec::new()),
                };
            commits.submit(job(decide, move |done| tell.send(done.unwrap()).unwrap())).unwrap();
        }
        assert!(told.iter().take(500).all(|good| good), "{batch}");
        let length = fs::metadata(&journal).unwrap().len();
        shrank += u32::from(length < largest);
        largest = largest.max(length);
    }
    assert!(shrank > 0 && largest < 2 << 20, "shrank {shrank} times, {largest} bytes");
    assert!(press(&mut other, "cccc", 19_999).unwrap().is_err());
    assert!(press(&mut other, "cccc", 20_000).unwrap().is_ok());
}

#[test]
fn root_uses_the_store_of_another_user_and_follows_no_link_of_that_user() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("left out: only root makes a store for another user");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let place = place(directory.path());
    drop(Store::create(place.clone(), Some("nobody")).unwrap());
    drop(Store::open(place.clone()).unwrap());
    // What that user might put in the place of a file.
    let target = directory.path().join("of root");
    for name in ["lock", "journal"] {
        fs::write(&target, "secret").unwrap();
        let path = place.directory.join(name);
        let kept = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        assert!(matches!(Store::open(place.clone()), Err(StoreError::Io { .. })), "{name}");
        assert_eq!(fs::metadata(&target).unwrap().uid(), 0, "{name}");
        assert_eq!(fs::read(&target).unwrap(), b"secret", "{name}");
        fs::remove_file(&path).unwrap();
        fs::write(&path, kept).unwrap();
        std::os::unix::fs::chown(
            &path,
            Some(nix::unistd::User::from_name("nobody").unwrap().unwrap().uid.as_raw()),
            None,
        )
        .unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }
    drop(Store::open(place).unwrap());
}
