use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::*;

/// Starts a shell, and returns when the shell has set its traps.
fn shell(script: &str) -> (Child, OwnSession) {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]).stdout(Stdio::piped());
    let (mut child, session) = spawn(&mut command).unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    (child, session)
}

/// Waits until every process that held the output of a child open has ended.
fn until_silent(child: &mut Child) {
    child.stdout.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
}

/// Removes the process file descriptor, as on a kernel without pidfd_open(2).
fn without_descriptor(mut session: OwnSession) -> OwnSession {
    session.leader.pidfd = None;
    session
}

#[test]
fn group_of_a_session_ends_also_when_its_leader_was_waited_for() {
    for with_descriptor in [true, false] {
        let (mut child, session) = shell("sleep 600 & echo");
        let session = if with_descriptor { session } else { without_descriptor(session) };
        child.wait().unwrap();
        assert!(session.is_left());
        assert_eq!(session.signal(Signal::SIGTERM), Sent::Signalled);
        until_silent(&mut child);
        // The orphan has closed its output, and stays in the group until init has waited for the orphan.
        let begun = Instant::now();
        while session.is_left() {
            assert!(begun.elapsed() < Duration::from_secs(60), "init waits for no orphans here");
            std::thread::yield_now();
        }
        assert_ne!(session.signal(Signal::SIGTERM), Sent::Signalled, "{with_descriptor}");
    }
}

#[test]
fn number_that_was_given_to_another_process_is_not_signalled() {
    let (mut child, session) = shell("echo; exec sleep 600");
    let bystander = session.leader.process;
    // The start time that this `Process` holds is not the start time of the process with that number.
    let recycled = |pidfd| Process { process: bystander, start: Some(1), pidfd };
    assert_eq!(recycled(None).signal(Signal::SIGKILL), Sent::Unproved);
    assert_eq!(send(Target::Group(&recycled(None)), Signal::SIGKILL), Sent::Unproved);
    assert!(Process::find(ProcessId { process: bystander, start: 1 }).is_none());
    let other = OwnSession { leader: recycled(None), nonce: Nonce("another".to_owned()) };
    assert_eq!(other.signal(Signal::SIGKILL), Sent::Unproved);
    assert_eq!(child.try_wait().unwrap(), None, "it was signalled");
    assert_eq!(session.signal(Signal::SIGKILL), Sent::Signalled);
    child.wait().unwrap();
    assert_eq!(session.leader.signal(Signal::SIGKILL), Sent::Gone);
}

#[test]
fn neither_init_nor_our_own_group_nor_all_processes_are_ever_signalled() {
    for process in [1, 0, -1] {
        let start = stat(process).map(|stat| stat.start);
        let process = Process { process, start, pidfd: None };
        for target in [Target::Process(&process), Target::Group(&process)] {
            // SIGCONT would end no process if penstock did send the signal.
            assert_eq!(send(target, Signal::SIGCONT), Sent::Unproved);
        }
    }
}

#[test]
fn child_is_signalled_also_without_a_descriptor_and_without_its_start_time() {
    let mut child = Command::new("sleep").arg("600").spawn().unwrap();
    let blind = Process { process: child.id().cast_signed(), start: None, pidfd: None };
    assert!(!has_ended(child.id()));
    assert_eq!(blind.signal(Signal::SIGKILL), Sent::Signalled);
    while !has_ended(child.id()) {
        std::thread::yield_now();
    }
    child.wait().unwrap();
    assert_eq!(blind.signal(Signal::SIGKILL), Sent::Unproved, "its number may be another's");
}

#[test]
fn group_without_a_session_of_its_own_is_not_signalled_by_its_number() {
    let mut child = Command::new("sleep").arg("600").process_group(0).spawn().unwrap();
    let mut process = Process::of_child(child.id());
    process.pidfd = None;
    assert_eq!(send(Target::Group(&process), Signal::SIGKILL), Sent::Unproved);
    assert_eq!(process.signal(Signal::SIGKILL), Sent::Signalled);
    child.wait().unwrap();
}

#[test]
fn member_without_the_nonce_is_not_signalled_once_the_leader_is_gone() {
    // One process has an empty environment; the other keeps the nonce. Both stay in the group and hold the output open.
    let (mut child, session) = shell("env -i sleep 600 & sleep 600 & echo");
    let session = without_descriptor(session);
    child.wait().unwrap();
    let members = || in_group(session.leader.process);
    let is_marked = |one: &ProcessId| has_variable(one.process, VARIABLE, &session.nonce.0);
    assert_eq!(members().len(), 2);
    while members().iter().all(is_marked) {
        std::thread::yield_now();
    }
    assert_eq!(session.signal(Signal::SIGKILL), Sent::Signalled);
    while members().iter().any(is_marked) {
        std::thread::yield_now();
    }
    let left = members();
    let [left] = left.as_slice() else { panic!("{left:?}") };
    assert_eq!(session.signal(Signal::SIGKILL), Sent::Unproved);
    assert_eq!(Process::find(*left).unwrap().signal(Signal::SIGKILL), Sent::Signalled);
    until_silent(&mut child);
}

fn in_group(group: i32) -> Vec<ProcessId> {
    let of = |process| Some((process, stat(process)?));
    let members =
        all().filter_map(of).filter(|(_, stat)| stat.group == group && stat.life == ProcessState::Runs);
    members.map(|(process, stat)| ProcessId { process, start: stat.start }).collect()
}

#[test]
fn line_of_a_process_is_read_with_any_bytes_in_its_name() {
    let tail = "4194560 102 0 0 0 0 0 0 0 20 0 1 0 4711 2609152 400 18446744073709551615 1";
    for name in ["sleep", "a) S 1 1 1", "", "x\ny) R 1", "\u{e4}", ") ("] {
        let line = format!("77 ({name}) S 5 6 7 0 -1 {tail}\n");
        let stat = parse(line.as_bytes()).unwrap();
        let wanted = Stat { life: ProcessState::Runs, parent: 5, group: 6, session: 7, start: 4711 };
        assert_eq!(stat, wanted, "{name:?}");
    }
    assert_eq!(parse(b"77 (x) Z 1 77 77 0 -1 0"), None);
    assert_eq!(parse(b""), None);
    let own = stat(std::process::id().cast_signed()).unwrap();
    assert_eq!(own.parent, std::os::unix::process::parent_id().cast_signed());
}
