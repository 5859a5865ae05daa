//! `penstock run --again`: what it repeats, on which hosts, what it refuses, and when a run offers it.

use std::fs;

use testing::fleet::{Fleet, sorted};
use testing::sshd::Sshd;

#[test]
fn never_started_hosts_run_again_and_only_they() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    let first = fleet.run(&["-w", "h1,away,h2", "echo ran"]);
    assert_eq!(sorted(&first.stdout)[1..], ["h1   -> ran", "h2   -> ran"], "{first:?}");
    assert_eq!(fleet.journals().len(), 1);
    let again = fleet.run(&["--again", "not-started"]);
    assert_eq!((again.code, again.stdout.matches("-> ran").count()), (Some(3), 0), "{again:?}");
    assert!(again.stdout.starts_with("away =: connection-refused"), "{again:?}");
    let well = fleet.run(&["-w", "h1", "true"]);
    assert_eq!(well.code, Some(0));
    let told = fleet.run(&["--again", "failed"]);
    assert_eq!(told.code, Some(2), "{told:?}");
}

#[test]
fn again_is_done_as_it_was_the_first_time() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    let order = |told: testing::fleet::RunResult| {
        let mut journals = fleet.journals();
        journals.sort();
        let text = fs::read_to_string(journals.pop().unwrap()).unwrap();
        let head: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        let mut order = head["order"].clone();
        order.as_object_mut().unwrap().remove("again");
        (journals.len(), order, told)
    };
    let options = "--waves 1,50%,all --stop-if failed>90% --pause=0.01 --timeout 61.5 --connect-timeout 17 -p 3 --delay 2";
    for engine in [["--engine", "openssh"], ["-S", "/bin/false"]] {
        let mut arguments: Vec<&str> = options.split(' ').collect();
        arguments.extend(engine);
        arguments.extend(["-w", "h1,h2", "exit 3"]);
        let (count, first, _) = order(fleet.run(&arguments));
        let (after, again, told) = order(fleet.run(&["--again", "failed"]));
        assert_eq!((after, &again), (count + 1, &first), "{told:?}");
        for (name, value) in [("waves", "1,50%,all"), ("stop_if", "failed>90%")] {
            assert_eq!(first[name], value);
        }
        let (_, other, _) = order(fleet.run(&["--again", "failed", "-p", "2", "--connect-timeout", "10"]));
        assert_eq!((&other["parallel"], &other["connect_timeout"]), (&2.into(), &10.0.into()));
        assert_eq!(other["delay"], first["delay"]);
    }
}

#[test]
fn again_is_offered_only_where_it_can_be_done() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    let offer = "again: penstock run --again not-started";
    let away = fleet.run(&["-w", "away", "true"]);
    assert!(away.stderr.contains(offer), "{away:?}");
    let held = fleet.run(&["-w", "h1,h2", "--waves", "1", "--stop-if", "failed>0", "false"]);
    let begin = "again, in the same waves: penstock run --again not-started --id ";
    let offered = held.stderr.lines().find(|line| line.starts_with(begin)).unwrap();
    // What is offered is this run, also if others ran since.
    fleet.run(&["-w", "away", "echo another"]);
    let words: Vec<&str> = offered.split(' ').skip_while(|word| *word != "--again").collect();
    let again = fleet.run(&words);
    assert!(again.stderr.contains(": false\n  on 1 host: h2\n"), "{again:?}");
    assert!(again.stderr.contains("\n  1 not started; in waves 1,all, stopping if failed>0\n"), "{again:?}");
    let twice = fleet.run(&words);
    let hint = ": nothing to repeat\n  hint: it was run again since: penstock run --last --id 2";
    assert!(twice.code == Some(2) && twice.stderr.contains(hint), "{twice:?}");
    let input = fleet.run(&["-w", "away", "--stdin", "true"]);
    assert!(!input.stderr.contains(offer), "{input:?}");
    fs::remove_dir_all(fleet.home.path().join("state")).unwrap();
    fs::write(fleet.home.path().join("state"), "").unwrap();
    let unrecorded = fleet.run(&["-w", "away", "true"]);
    assert!(
        unrecorded.stderr.contains("not recorded") && !unrecorded.stderr.contains(offer),
        "{unrecorded:?}"
    );
}

#[test]
fn again_says_what_it_will_do_and_takes_an_earlier_run() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    let recorded = |arguments: &[&str]| -> serde_json::Value {
        let told = fleet.run(&[&["--last", "--json"], arguments].concat());
        assert_eq!(told.code, Some(0), "{told:?}");
        serde_json::from_str(&told.stdout).unwrap()
    };
    fleet.run(&["-w", "h1,away", "echo first; exit 3"]);
    let first = recorded(&[]);
    assert_eq!(
        (&first["state"], &first["exit_code"], &first["order"]["command"][0]),
        (&"ended".into(), &3.into(), &"echo first; exit 3".into())
    );
    let [h1, away] = [&first["hosts"][0], &first["hosts"][1]];
    assert_eq!((&h1["host"], &h1["result"], &h1["exit_status"]), (&"h1".into(), &"failed".into(), &3.into()));
    assert_eq!(h1["sha256"].as_str().map(str::len), Some(64));
    assert_eq!(
        (&away["result"], &away["reason"], &away["phase"]),
        (&"not-started".into(), &"connection-refused".into(), &"connect".into())
    );
    let id = first["id"].as_str().unwrap();
    fleet.run(&["-w", "h2", "echo second"]);
    assert_ne!(recorded(&[])["id"], id);
    assert_eq!(recorded(&["--id", id]), first);
    let again = fleet.run(&["--again", "failed", "--id", id]);
    assert_eq!(sorted(&again.stdout)[1..], ["h1   -> first", "h1   =: exit 3"], "{again:?}");
    assert!(
        again.stderr.starts_with(&format!(
            "again, as run {id}: echo first; exit 3\n  on 2 hosts: away,h1\n  1 failed, 1 not started\n"
        )),
        "{again:?}"
    );
    let quiet = fleet.run(&["--again", "h1", "--id", id, "-q"]);
    assert!(!quiet.stderr.contains("again, as run"), "{quiet:?}");
    for wrong in [&["--again", "failed", "--id", "no-such-run"][..], &["--id", id, "-w", "h1", "true"]] {
        let told = fleet.run(wrong);
        assert_eq!((told.code, told.stdout.as_str()), (Some(2), ""), "{told:?}");
    }
}

#[test]
fn what_again_cannot_do_is_refused_and_not_left_out() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    assert_eq!(fleet.run(&["-w", "h1,h2", "exit 3"]).code, Some(1));
    for (option, value) in [("-x", "h2"), ("--script", "/dev/null")] {
        let told = fleet.run(&["--again", "failed", option, value]);
        assert_eq!(told.code, Some(2), "{told:?}");
        assert!(told.stdout.is_empty() && told.stderr.contains("cannot be used with"), "{told:?}");
    }
    let told = fleet.run(&["--hosts", "-", "--stdin", "cat"]);
    assert_eq!(told.code, Some(2), "{told:?}");
    assert!(told.stderr.contains("nothing is left for --stdin"), "{told:?}");
}

#[test]
fn no_configuration_at_all_means_the_same_again() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    let first = fleet.run(&["-F", "none", "-w", "nobody.invalid", "true"]);
    assert_eq!(first.code, Some(3), "{first:?}");
    let again = fleet.run(&["--again", "not-started"]);
    assert!(again.stderr.contains("look up") && !again.stderr.contains("no such file"), "{again:?}");
}

#[test]
fn run_with_failures_ends_with_how_to_repeat_it_there() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    let failed = fleet.run(&["-w", "h1", "false"]);
    assert!(failed.stderr.contains("\nagain: penstock run --again failed --id "), "{failed:?}");
    let both = fleet.run(&["-w", "h1,away", "false"]);
    let mut hints = both.stderr.lines().filter(|line| line.starts_with("again"));
    assert!(hints.next().unwrap().starts_with("again: penstock run --again not-started --id "), "{both:?}");
    let hint = hints.next().unwrap();
    let command = hint.strip_prefix("again, also where it failed: penstock run ").unwrap();
    let words: Vec<&str> = command.split(' ').collect();
    let again = fleet.run(&words);
    assert_eq!(again.code, Some(3), "{again:?}");
    assert!(again.stderr.contains("on 2 hosts: away,h1"), "{again:?}");
    let well = fleet.run(&["-w", "h1", "true"]);
    assert!(!well.stderr.contains("again"), "{well:?}");
}
