//! `penstock run` whose output is not read, or whose record hangs on its disk: limits and signals hold all the same.

use std::io::{Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use tempfile::TempDir;
use testing::fleet::{Fleet, RunResult, told};
use testing::sshd::{Sshd, processes};
use testing::{eventually, secs};

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
        let host = fleet.recorded(0);
        assert_ne!(host["run"], "ended", "{host}");
        (host["result"] == standing && host["ending"].is_string()).then_some(())
    });
}

/// Waits for its end, with the pipe still open and unread.
#[track_caller]
fn end(mut child: Child) -> RunResult {
    eventually("the run ends", secs(60), || child.try_wait().unwrap());
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
    // A reader that goes on gets the rest, and the run its end.
    std::io::copy(&mut output, &mut std::io::sink()).unwrap();
    writer.join().unwrap().unwrap();
    let told = end(child);
    assert_eq!(told.code, Some(1), "{told:?}");
    assert!(
        told.stderr.contains("still running after 3 s; the command was ended on the host; its output is cut"),
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
        host_ended(&fleet, "ok");
        kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
        let told = end(child);
        assert_eq!(told.code, Some(130), "{options:?}: {told:?}");
        assert!(told.stderr.contains("1 host: 1 ok"), "the summary is said all the same: {told:?}");
        assert!(
            told.stderr.contains("output lost: its reader did not take it after the run was stopped"),
            "{told:?}"
        );
        let mut rest = Vec::new();
        output.read_to_end(&mut rest).unwrap();
        assert!(rest.len() < 400_000, "the pipe took all: nothing stood still");
    }
}

#[test]
fn ctrl_c_ends_the_view_of_outputs_that_no_process_reads() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    let arguments = ["-w", "h1,h2", "--waves", "1,all", "--stop-if", "differs", "--"];
    let command = ["head -c 400000 /dev/zero | tr '\\0' x; echo"];
    let (child, output) = unread(&fleet, &[&arguments[..], &command].concat(), Stdio::null());
    host_ended(&fleet, "ok");
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    let told = end(child);
    assert_eq!(told.code, Some(130), "{told:?}");
    assert!(told.stderr.contains("2 hosts: 1 ok, 1 not started"), "{told:?}");
    drop(output);
}

/// A disk that hangs, for the records of runs: while `hang` is there, a pipe without a reader, the writer of one waits.
struct Disk {
    place: TempDir,
}

impl Disk {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let source = place.path().join("disk.c");
        std::fs::write(&source, DISK).unwrap();
        let made = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .arg(place.path().join("disk.so"))
            .arg(&source)
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        Self { place }
    }

    fn under(&self, mut command: Command) -> Command {
        command.env("LD_PRELOAD", self.place.path().join("disk.so")).env("DISK", self.place.path());
        command
    }

    fn hang(&self) {
        mkfifo(&self.place.path().join("hang"), Mode::S_IRWXU).unwrap();
    }

    fn reached(&self) {
        let reached = self.place.path().join("reached");
        eventually("a record is written", secs(30), || reached.exists().then_some(()));
    }
}

const DISK: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void wait_for_disk(int fd) {
    char link[64], name[4096], hang[4096], reached[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, name, sizeof name - 1);
    if (length < 6 || strncmp(name + length - 6, ".jsonl", 6)) return;
    snprintf(hang, sizeof hang, "%s/hang", getenv("DISK"));
    snprintf(reached, sizeof reached, "%s/reached", getenv("DISK"));
    if (access(hang, F_OK)) return;
    close(open(reached, O_CREAT | O_WRONLY, 0600));
    close(open(hang, O_RDONLY));
}

ssize_t write(int fd, const void *bytes, size_t count) {
    ssize_t (*real)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
    wait_for_disk(fd);
    return real(fd, bytes, count);
}
"#;

#[test]
fn ctrl_c_ends_a_run_whose_record_hangs_on_its_disk() {
    let sshd = Sshd::start();
    // The disk hangs when the commands run, or before they are sent.
    for begun in [true, false] {
        let (fleet, disk) = (Fleet::of(&sshd), Disk::new());
        let sleep = format!("sleep 3600.{}", std::process::id());
        if !begun {
            disk.hang();
        }
        let mut command = disk.under(fleet.command(&["-w", "h[1-9]", &sleep]));
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let running = || processes().iter().filter(|line| line.trim() == sleep).count();
        if begun {
            eventually("the command runs on all hosts", secs(30), || (running() == 9).then_some(()));
            disk.hang();
        } else {
            disk.reached();
        }
        kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
        let told = end(child);
        assert_eq!(told.code, Some(130), "{told:?}");
        eventually("nothing is left running", secs(30), || (running() == 0).then_some(()));
        assert_eq!(told.stdout.matches(" =: stopped: interrupted").count(), 9, "{told:?}");
        assert!(
            told.stderr.contains("note: the record of this run is incomplete (its disk did not answer)"),
            "{told:?}"
        );
        let last = fleet.run(&["--last"]);
        let (unknown, never) = if begun { (9, 0) } else { (0, 9) };
        let counts = ["may have run: ", "not started: "].map(|words| last.stdout.matches(words).count());
        assert_eq!(counts, [unknown, never], "what is not on record is not taken for done: {last:?}");
    }
}
