use super::*;

fn operator(uid: u32) -> Operator {
    Operator { uid, name: (uid == 0).then(|| "root".to_owned()), pid: Some(7), login: None }
}

fn now(seconds: u64) -> Now {
    // The only clock of these tests; its value does not matter.
    static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(start);
    Now {
        wall: SystemTime::UNIX_EPOCH + Duration::from_secs(seconds),
        monotonic: *START + Duration::from_secs(seconds),
    }
}

#[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
fn start() -> Instant {
    Instant::now()
}

fn words(refused: &Refused) -> String {
    let seconds = |at: SystemTime| at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs().to_string();
    refused.words(seconds).0
}

fn change(ledger: &mut Ledger, text: &str) -> u64 {
    ledger.changed(text, operator(0), format!("set {text}"), now(1))
}

fn undo(ledger: &mut Ledger, number: Option<u64>) -> String {
    let target = ledger.to_undo(number, Extent::AndLater, &operator(0)).unwrap();
    ledger.undone(&target, Some(operator(0)), now(2));
    ledger.served().to_string()
}

#[test]
fn undo_goes_back_change_by_change_and_an_undo_can_be_undone() {
    let mut ledger = Ledger::new("a");
    for text in ["b", "c", "d"] {
        change(&mut ledger, text);
    }
    assert_eq!(ledger.unsaved(), 3);
    assert_eq!(undo(&mut ledger, None), "c");
    assert_eq!(undo(&mut ledger, None), "b");
    assert_eq!(ledger.unsaved(), 1);
    assert_eq!(undo(&mut ledger, Some(4)), "d", "change 4 is the first undo");
    assert_eq!(ledger.unsaved(), 3);
    assert_eq!(undo(&mut ledger, None), "c");
    assert_eq!(undo(&mut ledger, Some(1)), "a");
    assert_eq!(ledger.unsaved(), 0);
    let nothing = ledger.to_undo(None, Extent::One, &operator(0)).unwrap_err();
    assert_eq!(
        words(&nothing),
        "there is no change to undo: change 2 was undone by 8, and `undo 8` serves it again"
    );
    let missing = ledger.to_undo(Some(99), Extent::One, &operator(0)).unwrap_err();
    assert_eq!(words(&missing), "there is no change 99: the history has 1 to 8");
    let in_effect = |entry: &&Entry| matches!(ledger.history().standing(entry), Standing::InEffect);
    assert_eq!(ledger.history().iter().filter(in_effect).count(), 0);
}

#[test]
fn an_undo_that_takes_later_changes_with_it_is_refused_and_names_them() {
    let mut ledger = Ledger::new("a");
    for text in ["b", "c", "d", "e"] {
        change(&mut ledger, text);
    }
    let refused = ledger.to_undo(Some(2), Extent::One, &operator(0)).unwrap_err();
    assert_eq!(words(&refused), "undo 2 would undo changes 3 and 4 too, made after it: nothing was undone");
    let refused = ledger.to_undo(Some(3), Extent::One, &operator(0)).unwrap_err();
    assert_eq!(words(&refused), "undo 3 would undo change 4 too, made after it: nothing was undone");
    let last = ledger.to_undo(Some(4), Extent::One, &operator(0)).unwrap();
    assert_eq!((last.words().as_str(), &*last.text), ("undo 4", "d"));
    let all = ledger.to_undo(Some(2), Extent::AndLater, &operator(0)).unwrap();
    assert_eq!((all.words().as_str(), &*all.text), ("undo 2, and with it 3 and 4", "b"));
    ledger.undone(&all, Some(operator(0)), now(2));
    assert_eq!(ledger.history().get(5).unwrap().what, "undo 2, and with it 3 and 4");
    // The undo of that undo takes nothing with it.
    assert_eq!(ledger.to_undo(Some(5), Extent::One, &operator(0)).unwrap().words(), "undo 5");
    change(&mut ledger, "f");
    let refused = ledger.to_undo(Some(5), Extent::One, &operator(0)).unwrap_err();
    assert!(words(&refused).contains("would undo change 6 too"), "{refused:?}");
}

#[test]
fn what_waits_is_told_with_the_time_that_is_left() {
    let mut ledger = Ledger::new("a");
    let lines = |ledger: &Ledger, at: u64| {
        let seconds =
            |at: SystemTime| at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs().to_string();
        ledger.pending().lines(now(at).monotonic, seconds)
    };
    assert!(lines(&ledger, 1).is_empty());
    ledger.begin(operator(0), now(5)).unwrap();
    ledger.collect("b", "set x");
    let open =
        "transaction of root (uid 0, pid 7) open since 5: 1 change not served before `penstock ctl commit`";
    assert_eq!(lines(&ledger, 6), [open]);
    ledger.committed("b", Some(Duration::from_secs(60)), now(10));
    let waits = "change 1 of root (uid 0, pid 7) is undone in 24 s unless confirmed: ";
    assert!(lines(&ledger, 46)[0].starts_with(waits), "{:?}", lines(&ledger, 46));
    ledger.confirm().unwrap();
    assert!(lines(&ledger, 46).is_empty());
}

#[test]
fn a_second_operator_is_told_who_changes_and_since_when() {
    let mut ledger = Ledger::new("a");
    ledger.begin(operator(0), now(5)).unwrap();
    ledger.collect("b", "set x");
    let theirs = "root (uid 0, pid 7) has a transaction since 5 with 1 change";
    assert_eq!(words(&ledger.begin(operator(1), now(6)).unwrap_err()), theirs);
    assert_eq!(words(&ledger.goes(&operator(1)).unwrap_err()), theirs);
    assert_eq!(words(&ledger.to_commit(&operator(1)).unwrap_err()), theirs);
    assert_eq!(words(&ledger.to_undo(None, Extent::One, &operator(1)).unwrap_err()), theirs);
    assert_eq!(words(&ledger.abort(&operator(1), Whose::Own).unwrap_err()), theirs);
    assert!(
        words(&ledger.begin(operator(0), now(6)).unwrap_err()).starts_with("there is a transaction already")
    );
    assert_eq!(ledger.to_undo(None, Extent::One, &operator(0)).unwrap_err(), Refused::UndoInTransaction);
    assert_eq!(&**ledger.served(), "a");
    assert_eq!(ledger.abort(&operator(1), Whose::Any).unwrap().by.uid, 0);
    assert_eq!(ledger.to_commit(&operator(0)).unwrap_err(), Refused::None);
    ledger.begin(operator(1), now(7)).unwrap();
}

#[test]
fn a_transaction_is_one_change() {
    let mut ledger = Ledger::new("a");
    ledger.begin(operator(0), now(5)).unwrap();
    for number in 0..1000 {
        ledger.collect("b", &format!("set pool.app.number-{number}"));
    }
    assert!(matches!(ledger.goes(&operator(0)), Ok(Goes::Collected(text)) if &*text == "b"));
    let text = ledger.to_commit(&operator(0)).unwrap().text.clone();
    assert_eq!(ledger.committed(&text, None, now(6)), 1);
    let entry = ledger.history().get(1).unwrap();
    assert!(entry.what.len() < 1200 && entry.what.ends_with(" more"), "{}", entry.what);
    assert_eq!((&*entry.before, &**ledger.served()), ("a", "b"));
    assert_eq!(undo(&mut ledger, None), "a");
}

#[test]
fn a_commit_after_a_reload_is_refused() {
    let mut ledger = Ledger::new("a");
    ledger.begin(operator(0), now(5)).unwrap();
    ledger.collect("b", "set x");
    ledger.reloaded("r", None, now(6));
    assert_eq!(ledger.to_commit(&operator(0)).unwrap_err(), Refused::Overtaken { since: now(5).wall });
    assert_eq!(ledger.goes(&operator(0)).unwrap_err(), Refused::Overtaken { since: now(5).wall });
    ledger.abort(&operator(0), Whose::Own).unwrap();
    assert!(matches!(ledger.goes(&operator(0)), Ok(Goes::Served(text)) if &*text == "r"));
}

#[test]
fn a_commit_that_is_not_confirmed_in_time_is_undone() {
    let mut ledger = Ledger::new("a");
    let commit = |ledger: &mut Ledger| {
        ledger.begin(operator(0), now(5)).unwrap();
        ledger.collect("b", "set x");
        ledger.committed("b", Some(Duration::from_secs(60)), now(10))
    };
    assert_eq!(ledger.confirm().unwrap_err(), Refused::NothingToConfirm);
    commit(&mut ledger);
    assert_eq!(ledger.poll_deadline(), Some(now(70).monotonic));
    assert!(ledger.goes(&operator(0)).is_err() && ledger.begin(operator(0), now(11)).is_err());
    assert!(ledger.poll_expired(now(69).monotonic).is_none());
    let target = ledger.poll_expired(now(70).monotonic).unwrap();
    ledger.undone(&target, None, now(70));
    assert_eq!((&**ledger.served(), ledger.poll_deadline(), ledger.unsaved()), ("a", None, 0));

    commit(&mut ledger);
    assert_eq!(ledger.confirm().unwrap().number, 3);
    assert!(ledger.poll_deadline().is_none() && ledger.goes(&operator(0)).is_ok());
    assert_eq!((&**ledger.served(), ledger.unsaved()), ("b", 1));

    ledger.begin(operator(0), now(80)).unwrap();
    ledger.committed("c", Some(Duration::from_secs(60)), now(80));
    assert_eq!(undo(&mut ledger, None), "b", "the operator does not wait for the end");
    assert!(ledger.poll_deadline().is_none());

    commit(&mut ledger);
    ledger.reloaded("r", None, now(90));
    assert!(
        ledger.poll_deadline().is_none(),
        "the file that an operator loads is not replaced by an older text"
    );
}

#[test]
fn an_undo_that_fails_is_tried_again_until_it_is_served_or_an_operator_decides() {
    let committed = || {
        let mut ledger = Ledger::new("a");
        ledger.begin(operator(0), now(5)).unwrap();
        ledger.collect("b", "set x");
        ledger.committed("b", Some(Duration::from_secs(60)), now(10));
        assert_eq!(ledger.poll_expired(now(70).monotonic).unwrap().number, 1);
        ledger
    };
    let mut ledger = committed();
    // Nothing says that it is served: it failed.
    assert_eq!(ledger.poll_deadline(), Some(now(75).monotonic));
    assert!(ledger.poll_expired(now(74).monotonic).is_none());
    let line = ledger.trial().unwrap().line(now(74).monotonic);
    assert!(line.contains("was not confirmed in time and cannot be undone yet"), "{line}");
    let refused = words(&ledger.begin(operator(1), now(74)).unwrap_err());
    assert!(refused.contains("was not confirmed in time, and cannot be undone yet"), "{refused}");
    let target = ledger.poll_expired(now(75).monotonic).unwrap();
    ledger.undone(&target, None, now(75));
    assert_eq!((&**ledger.served(), ledger.poll_deadline()), ("a", None));

    let mut ledger = committed();
    assert_eq!(ledger.confirm().unwrap().number, 1);
    assert_eq!((&**ledger.served(), ledger.poll_deadline()), ("b", None));
    let mut ledger = committed();
    assert_eq!(undo(&mut ledger, None), "a");
    assert_eq!(ledger.poll_deadline(), None);
}

#[test]
fn an_undo_over_a_reload_serves_an_earlier_edition_of_the_file() {
    let mut ledger = Ledger::new("a");
    change(&mut ledger, "ab");
    assert_eq!(ledger.edition(), Edition::Newest);
    // A colleague has added a line to the file.
    assert_eq!(ledger.reloaded("a+", Some(operator(1)), now(3)), 1);
    assert_eq!(ledger.edition(), Edition::Newest);
    assert_eq!(undo(&mut ledger, None), "ab");
    assert_eq!(ledger.edition(), Edition::Earlier);
    change(&mut ledger, "abc");
    assert_eq!(ledger.edition(), Edition::Earlier, "also with further changes");
    assert_eq!(undo(&mut ledger, Some(3)), "a+", "the undo is undone");
    assert_eq!(ledger.edition(), Edition::Newest);
    // The same file again brings nothing, and has the line.
    assert_eq!(undo(&mut ledger, None), "ab");
    ledger.reloaded("a+", None, now(4));
    assert_eq!((undo(&mut ledger, None).as_str(), ledger.edition()), ("ab", Edition::Earlier));
    ledger.saved();
    assert_eq!(ledger.edition(), Edition::Newest);
    // A reload of what was written before, and an undo of what is saved, take nothing of others.
    let number = change(&mut ledger, "abd");
    ledger.saved();
    assert_eq!((undo(&mut ledger, Some(number)).as_str(), ledger.edition()), ("ab", Edition::Newest));
    ledger.reloaded("abd", None, now(5));
    assert_eq!((undo(&mut ledger, None).as_str(), ledger.edition()), ("ab", Edition::Newest));
}

#[test]
fn a_reload_drops_changes_and_undo_brings_them_back() {
    let mut ledger = Ledger::new("a");
    change(&mut ledger, "b");
    change(&mut ledger, "c");
    assert_eq!(ledger.reloaded("a", Some(operator(0)), now(3)), 2);
    assert_eq!((&**ledger.served(), ledger.unsaved()), ("a", 0));
    assert_eq!(undo(&mut ledger, None), "c");
    assert_eq!(ledger.unsaved(), 2, "those that came back");
    ledger.saved();
    assert_eq!(ledger.unsaved(), 0);
    assert_eq!(undo(&mut ledger, None), "b");
    assert_eq!(ledger.unsaved(), 1);
    assert_eq!(ledger.reloaded("c", None, now(4)), 1);
    assert_eq!(ledger.reloaded("c", None, now(4)), 0, "nothing is new");
    assert_eq!(ledger.history().newest(), Some(6));
}

#[test]
fn changes_that_a_reload_dropped_are_not_in_effect() {
    let mut ledger = Ledger::new("a");
    change(&mut ledger, "b");
    ledger.saved();
    change(&mut ledger, "c");
    change(&mut ledger, "d");
    ledger.reloaded("b", None, now(3));
    let standing = |ledger: &Ledger| -> Vec<String> {
        let history = ledger.history();
        let word = |entry: &Entry| match history.standing(entry) {
            Standing::InEffect => "in effect".to_owned(),
            Standing::Undone => "undone".to_owned(),
            Standing::Dropped(by) => format!("dropped by {}", by.number),
        };
        history.iter().map(word).collect()
    };
    assert_eq!(standing(&ledger), ["in effect", "dropped by 4", "dropped by 4", "in effect"]);
    change(&mut ledger, "e");
    assert_eq!(ledger.unsaved(), 1);
    assert_eq!(undo(&mut ledger, None), "b");
    assert_eq!(undo(&mut ledger, None), "d", "the reload is undone: they are back");
    assert_eq!(standing(&ledger)[..4], ["in effect", "in effect", "in effect", "undone"]);
    // A reload of a file that has what is served drops nothing.
    assert_eq!(ledger.reloaded("d", None, now(4)), 0);
}

#[test]
fn the_history_has_a_largest_number_and_a_largest_size() {
    let mut ledger = Ledger::new("a");
    for number in 0..200 {
        change(&mut ledger, &number.to_string());
    }
    assert_eq!(ledger.history().iter().count(), history::MOST_ENTRIES);
    let large = "x".repeat(history::MOST_BYTES / 4 + 1);
    for number in 0..20 {
        change(&mut ledger, &format!("{large}{number}"));
    }
    let bytes: usize = ledger.history().iter().map(|entry| entry.before.len()).sum();
    assert!(bytes <= history::MOST_BYTES, "{bytes}");
    assert_eq!(undo(&mut ledger, None), format!("{large}18"));
}

#[test]
fn who_has_logged_in_is_another_than_a_user_of_this_machine() {
    let login =
        |login: &str| Operator { login: Some(login.to_owned()), name: None, pid: None, uid: u32::MAX };
    assert!(login("user:ann").is(&login("user:ann")));
    assert!(!login("user:ann").is(&login("certificate:ann")));
    assert!(!login("user:ann").is(&Operator { login: None, ..login("user:ann") }));
    assert_eq!(login("user:ann").to_string(), "user:ann");
}

#[test]
fn what_is_undone_is_not_undone_again_and_the_way_back_is_named() {
    let mut ledger = Ledger::new("a");
    let none = ledger.to_undo(None, Extent::One, &operator(0)).unwrap_err();
    assert_eq!(none, Refused::NothingToUndo);
    change(&mut ledger, "b");
    change(&mut ledger, "c");
    assert_eq!(undo(&mut ledger, Some(2)), "b");
    for extent in [Extent::One, Extent::AndLater] {
        let again = ledger.to_undo(Some(2), extent, &operator(0)).unwrap_err();
        assert_eq!(words(&again), "change 2 is undone already, by 3: `undo 3` serves it again");
    }
    assert_eq!(undo(&mut ledger, Some(3)), "c");
    let again = ledger.to_undo(Some(3), Extent::One, &operator(0)).unwrap_err();
    assert_eq!(again, Refused::UndoneAlready { number: 3, by: None });
    assert_eq!(undo(&mut ledger, Some(2)), "b", "it was in effect again");
    let again = ledger.to_undo(Some(2), Extent::One, &operator(0)).unwrap_err();
    assert_eq!(again, Refused::UndoneAlready { number: 2, by: Some(5) });
    // A commit that was not confirmed in time is undone by the server.
    let mut ledger = Ledger::new("a");
    ledger.begin(operator(0), now(1)).unwrap();
    ledger.collect("b", "set b");
    ledger.committed("b", Some(Duration::from_secs(5)), now(1));
    let target = ledger.poll_expired(now(9).monotonic).unwrap();
    ledger.undone(&target, None, now(9));
    let nothing = ledger.to_undo(None, Extent::One, &operator(0)).unwrap_err();
    assert_eq!(nothing, Refused::LastUndone { number: 1, by: 2 });
    assert_eq!(undo(&mut ledger, Some(2)), "b");
}

#[test]
fn the_owner_of_a_transaction_that_another_user_aborted_is_told_once() {
    let mut ledger = Ledger::new("a");
    ledger.begin(operator(5), now(1)).unwrap();
    ledger.abort(&operator(0), Whose::Any).unwrap();
    assert_eq!(ledger.still_has_what_it_began(&operator(0)), Ok(()));
    let refused = ledger.still_has_what_it_began(&operator(5)).unwrap_err();
    assert_eq!(
        words(&refused),
        "there is no transaction: root (uid 0, pid 7) has aborted yours, so nothing was changed"
    );
    assert_eq!(ledger.still_has_what_it_began(&operator(5)), Ok(()));
    // One's own, also by force, and one after which another was begun, need no word.
    ledger.begin(operator(5), now(2)).unwrap();
    ledger.abort(&operator(5), Whose::Any).unwrap();
    assert_eq!(ledger.still_has_what_it_began(&operator(5)), Ok(()));
    ledger.begin(operator(5), now(3)).unwrap();
    ledger.abort(&operator(0), Whose::Any).unwrap();
    ledger.begin(operator(5), now(4)).unwrap();
    assert_eq!(ledger.still_has_what_it_began(&operator(5)), Ok(()));
}
