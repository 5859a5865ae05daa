//! `penstock run` whose output nobody takes: limits and signals hold all the same.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::{Read, Write};
use std::process::{Child, ChildStdout, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use support::fleet::{Fleet, Told, told};
use support::sshd::Sshd;
use support::{eventually, secs};

/// A run, and the end of its standard output from which nothing is read yet.
fn unread(fleet: &Fleet, arguments: &[&str], input: Stdio) -> (Child, ChildStdout) {
    let mut command = fleet.command(arguments);
    let mut child = command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let output = child.stdout.take().unwrap();
    (child, output)
}

/// Waits until the journal of the run, which still goes on, knows how its host ended.
#[track_caller]
fn host_ended(fleet: &Fleet, standing: &str) {
    eventually("the end of the host is in the journal", secs(60), || {
        let told = fleet.run(&["--last", "--json"]);
        let record: Value = serde_json::from_str(&told.stdout).ok()?;
        assert_ne!(record["state"], "ended", "{record}");
        (record["hosts"][0]["standing"] == standing && record["hosts"][0]["end"] != "").then_some(())
    });
}

/// Waits for its end, with the pipe still open and unread.
#[track_caller]
fn end(mut child: Child) -> Told {
    eventually("the run ends", secs(30), || child.try_wait().unwrap());
    told(child.wait_with_output().unwrap())
}

#[test]
fn time_limit_ends_a_command_whose_input_and_output_both_stand_still() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    let (mut child, mut output) =
        unread(&fleet, &["-w", "h1", "--stdin", "--timeout", "3", "--", "yes"], Stdio::piped());
    // Input comes when what the command says has no room left, and fills the way to the host.
    output.read_exact(&mut [0]).unwrap();
    let mut input = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || input.write_all(&vec![b'x'; 4 << 20]));
    host_ended(&fleet, "failed");
    // Whoever reads again gets the rest, and the run its end.
    std::io::copy(&mut output, &mut std::io::sink()).unwrap();
    writer.join().unwrap().unwrap();
    let told = end(child);
    assert_eq!(told.code, Some(1), "{told:?}");
    assert!(
        told.stderr.contains("still running after 3 s; it was ended there; its output is cut"),
        "{told:?}"
    );
}

#[test]
fn ctrl_c_ends_a_run_that_waits_only_for_its_reader() {
    let sshd = Sshd::start();
    for options in [&["-w", "h1"][..], &["-w", "h1", "--json"]] {
        // With a journal of its own.
        let fleet = Fleet::of(&sshd);
        let command = ["--", "head -c 400000 /dev/zero | tr '\\0' x; echo"];
        let (child, mut output) = unread(&fleet, &[options, &command].concat(), Stdio::null());
        host_ended(&fleet, "well");
        kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
        let told = end(child);
        assert_eq!(told.code, Some(130), "{options:?}: {told:?}");
        assert!(told.stderr.contains("1 host: 1 well"), "the summary is said all the same: {told:?}");
        assert!(told.stderr.contains("output lost: nobody took it after the run was stopped"), "{told:?}");
        let mut rest = Vec::new();
        output.read_to_end(&mut rest).unwrap();
        assert!(rest.len() < 400_000, "the pipe took all: nothing stood still");
    }
}

#[test]
fn ctrl_c_ends_the_look_at_outputs_that_nobody_takes() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    let arguments = ["-w", "h1,h2", "--waves", "1,all", "--stop-if", "differs", "--"];
    let command = ["head -c 400000 /dev/zero | tr '\\0' x; echo"];
    let (child, output) = unread(&fleet, &[&arguments[..], &command].concat(), Stdio::null());
    host_ended(&fleet, "well");
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    let told = end(child);
    assert_eq!(told.code, Some(130), "{told:?}");
    assert!(told.stderr.contains("2 hosts: 1 well, 1 never started"), "{told:?}");
    drop(output);
}
