//! `penstock lab` as a playground: its lines work as they stand, and so do plain names inside it. And what it refuses.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testing::lab::Lab;
use testing::server::{Lines, binary, clear_environment, run_to_end};
use testing::{eventually, secs};

/// Programs that start others may leave them SIGCHLD ignored. The kernel then tells of no child how it ended, and gives its
/// number to another process at once.
#[test]
fn exit_codes_of_children_are_told_where_sigchld_was_ignored() {
    let playground = Playground::new();
    let lab = playground.command(&["1", "--", "sh", "-c", "penstock run -w @lab 'exit 3'; exit 5"]);
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' CHLD; exec \"$@\"", "sh"]).arg(lab.get_program()).args(lab.get_args());
    clear_environment(&mut command);
    for (name, value) in lab.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.stdin(Stdio::null());
    let (status, stdout, stderr) = text(&run_to_end(&mut command, secs(60)));
    assert_eq!(status, Some(5), "{stdout}{stderr}");
    assert!(stderr.contains("1 failed") || stdout.contains("1 failed"), "{stdout}{stderr}");
}

/// `penstock lab`, and where it may leave things: a home and a directory for temporary files.
struct Playground {
    home: tempfile::TempDir,
    temporary: tempfile::TempDir,
}

impl Playground {
    fn new() -> Self {
        Self { home: tempfile::tempdir().unwrap(), temporary: tempfile::tempdir().unwrap() }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        clear_environment(&mut command);
        command.arg("lab").args(arguments).stdin(Stdio::null());
        command.env("HOME", self.home.path()).env("TMPDIR", self.temporary.path());
        command.env_remove("XDG_CONFIG_HOME").env_remove("XDG_STATE_HOME");
        command
    }

    #[track_caller]
    fn run(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        text(&run_to_end(&mut self.command(arguments), secs(60)))
    }

    #[track_caller]
    fn is_untouched(&self) {
        for place in [&self.home, &self.temporary] {
            let left: Vec<_> =
                fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
            assert!(left.is_empty(), "left behind: {left:?}");
        }
    }
}

fn text(output: &Output) -> (Option<i32>, String, String) {
    let [stdout, stderr] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    (output.status.code(), stdout, stderr)
}

#[test]
fn every_line_that_a_lab_prints_works_as_it_stands_and_touches_nothing_of_the_user() {
    let lab = Lab::start(12, &[]);
    lab.stdout.wait_for("Ctrl-C ends the lab", secs(20));
    let lines: Vec<String> =
        lab.stdout.all().iter().filter_map(|line| Some(line.strip_prefix("  ")?.to_owned())).collect();
    assert_eq!(lines.len(), 7, "{lines:#?}");
    let elsewhere = Playground::new();
    let results: Vec<String> = lines
        .iter()
        .map(|line| {
            let mut shell = Command::new("sh");
            clear_environment(&mut shell);
            shell.args(["-c", line]).stdin(Stdio::null()).current_dir("/").env("HOME", elsewhere.home.path());
            let (status, stdout, stderr) = text(&run_to_end(&mut shell, secs(60)));
            assert_eq!(status, Some(0), "{line}: {stdout}{stderr}");
            stdout
        })
        .collect();
    let [all, folded, list, ssh, clush, pdsh, pssh] = &results[..] else { panic!("{results:#?}") };
    assert_eq!(all.matches("load average").count(), 12, "{all}");
    assert!(folded.contains("lab[001-012] (12)\n"), "{folded}");
    assert_eq!(list.lines().filter(|line| line.starts_with("lab0")).count(), 12, "{list}");
    assert!(ssh.contains("load average"), "{ssh}");
    assert!(clush.contains("lab[001-012] (12)\n"), "{clush}");
    assert_eq!(pdsh.matches("load average").count(), 12, "{pdsh}");
    assert_eq!(pssh.matches("[SUCCESS]").count(), 12, "{pssh}");
    elsewhere.is_untouched();
}

#[test]
fn program_by_its_path_says_in_a_lab_that_it_uses_the_hosts_of_the_user() {
    let place = Playground::new();
    let script = format!("{} host list; penstock host list", binary());
    let (status, stdout, stderr) = place.run(&["1", "--", "sh", "-c", &script]);
    assert_eq!(status, Some(0), "{stdout}{stderr}");
    assert!(stdout.starts_with("no hosts yet") && stdout.contains("lab001"), "{stdout}");
    let note =
        "note: this uses your own hosts and files; those of the lab have the name penstock without a path";
    assert_eq!(stderr.matches(note).count(), 1, "{stderr}");
}

#[test]
fn inside_a_lab_plain_names_mean_its_hosts_and_its_end_leaves_nothing() {
    let place = Playground::new();
    let script = "penstock run -w @lab!lab002 hostname | sort; ssh lab002 hostname; mpssh -f $LAB/hosts hostname | grep lab003
        echo x > $LAB/there; scp -q $LAB/there lab001:put && scp -q lab001:put $LAB/back && cat $LAB/back; exit 7";
    let (status, stdout, stderr) = place.run(&["3", "--", "sh", "-c", script]);
    assert_eq!(status, Some(7), "{stdout}{stderr}");
    assert_eq!(stdout, "lab001 -> lab001\nlab003 -> lab003\nlab002\nlab003 -> lab003\nx\n", "{stderr}");
    place.is_untouched();
    let (status, stdout, stderr) = place.run(&["2", "--", "there-is-no-such-program"]);
    assert_eq!((status, stdout.as_str()), (Some(127), ""), "{stderr}");
    assert!(stderr.starts_with("error: cannot run there-is-no-such-program: "), "{stderr}");
    let (status, stdout, stderr) = place.run(&["3", "--", "clush", "-w", "@lab", "hostname"]);
    assert_eq!((status, stdout.matches("lab0").count()), (Some(0), 6), "{stdout}{stderr}");
    assert_eq!(place.run(&["2", "--", "sh", "-c", "kill -KILL $$"]).0, Some(128 + 9));
    // A fault is met inside as well; of what to do nothing is said that would concern the user's own files and fleet.
    let faults = ["4", "--fault", "refuse=2", "--fault", "wrong-host=3"];
    let (status, stdout, stderr) =
        place.run(&[&faults[..], &["--", "penstock", "run", "-w", "@lab", "true"]].concat());
    assert_eq!(status, Some(4), "{stdout}");
    assert!(stdout.contains("lab002 =: connection-refused: "), "{stdout}");
    assert!(!stderr.contains("--again") && !stderr.contains("~/"), "{stderr}");
    assert!(stderr.contains("/home/.ssh/config:") && stderr.contains(" says HostName "), "{stderr}");
    place.is_untouched();
}

#[test]
fn a_shell_has_the_names_too_for_any_start_files_that_change_to_the_path() {
    let place = Playground::new();
    let own = place.home.path().join(".bashrc");
    fs::write(&own, "PATH=/usr/bin:/bin\nalias own='echo the alias'\n").unwrap();
    for shell in ["/bin/sh", "/bin/bash"] {
        let script = place.home.path().join("script");
        fs::write(&script, "penstock run -w @lab hostname | sort\nssh -n lab002 hostname\nexit 5\n").unwrap();
        let mut command = place.command(&["2", "--shell"]);
        command.env("SHELL", shell).stdin(fs::File::open(&script).unwrap());
        let (status, stdout, stderr) = text(&run_to_end(&mut command, secs(60)));
        assert_eq!(
            (status, stdout.as_str()),
            (Some(5), "lab001 -> lab001\nlab002 -> lab002\nlab002\n"),
            "{stderr}"
        );
        assert!(stderr.starts_with("lab: 2 hosts; exit ends them. Try:\n"), "{stderr}");
        fs::remove_file(script).unwrap();
    }
    // On a terminal: the start file comes first, and the lab has the last word on the PATH.
    let seen =
        inside_terminal(&place, "command -v ssh; own; penstock run -w @lab -q hostname | cat; exit 5\n");
    assert!(seen.contains("/bin/ssh\r\n") && seen.contains("penstock-lab-"), "{seen}");
    assert!(seen.contains("(lab) ") && seen.contains("\nthe alias\r\n"), "{seen}");
    assert!(seen.contains("lab002 -> lab002\r\n"), "{seen}");
    fs::remove_file(own).unwrap();
    place.is_untouched();
}

/// `penstock lab 2 --shell` on a terminal, with what a user types: everything that is seen there.
fn inside_terminal(place: &Playground, typed: &str) -> String {
    let mut script = Command::new("script");
    clear_environment(&mut script);
    script.args(["-q", "-e", "-c", &format!("{} lab 2 --shell", binary()), "/dev/null"]);
    script.env("HOME", place.home.path()).env("TMPDIR", place.temporary.path()).env("SHELL", "/bin/bash");
    let keys = place.home.path().join("keys");
    fs::write(&keys, typed).unwrap();
    script.stdin(fs::File::open(&keys).unwrap());
    let (status, stdout, stderr) = text(&run_to_end(&mut script, secs(60)));
    assert_eq!(status, Some(5), "{stdout}{stderr}");
    fs::remove_file(keys).unwrap();
    let _ = fs::remove_file(place.home.path().join(".bash_history"));
    stdout
}

/// Starts something inside that says `here` and stays, and waits until it is there.
fn stay(place: &Playground, script: &str) -> (Child, Lines) {
    let mut command = place.command(&["2", "--", "sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = Lines::follow(child.stdout.take().unwrap());
    lines.wait_for("here", secs(20));
    (child, lines)
}

#[test]
fn a_signal_to_the_lab_ends_what_runs_inside_and_who_does_not_end_is_left() {
    let place = Playground::new();
    let send = |child: &Child, signal| kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
    // Ctrl-C reaches who has the terminal: the lab stays, no matter what the command does.
    let (mut child, lines) =
        stay(&place, "trap 'echo ended; exit 3' TERM; echo here; while :; do sleep 0.01; done");
    send(&child, Signal::SIGINT);
    send(&child, Signal::SIGTERM);
    assert_eq!(eventually("the end", secs(20), || child.try_wait().unwrap()).code(), Some(3));
    lines.wait_for("ended", secs(20));
    place.is_untouched();
    let (mut child, lines) = stay(&place, "trap 'echo no' TERM; echo here $$; while :; do sleep 0.01; done");
    send(&child, Signal::SIGTERM);
    lines.wait_for("no", secs(20));
    send(&child, Signal::SIGTERM);
    assert_eq!(eventually("the end", secs(20), || child.try_wait().unwrap()).code(), Some(128 + 15));
    place.is_untouched();
    let pid = lines.wait_for("here ", secs(20)).replace("here ", "").parse().unwrap();
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
}

#[test]
fn what_cannot_be_a_lab_is_said_with_what_can_and_nothing_is_written() {
    let place = Playground::new();
    let refused = |arguments: &[&str], code: i32, parts: &[&str]| {
        let (status, stdout, stderr) = place.run(arguments);
        assert_eq!((status, stdout.as_str()), (Some(code), ""), "{arguments:?}: {stderr}");
        for part in parts {
            assert!(stderr.contains(part), "{arguments:?}: {stderr}");
        }
    };
    refused(&["0"], 2, &["0 is not in 1..=10000"]);
    refused(&["100000"], 2, &["100000 is not in 1..=10000"]);
    refused(&["3", "--fault", "hang-ath"], 2, &["there is no fault `hang-ath`; did you mean hang-auth?"]);
    refused(&["3", "--first", "10.0.0.1"], 2, &["do not fit into 127.0.0.0/8"]);
    refused(&["3", "--shell", "--", "true"], 2, &["cannot be used with"]);
    // The directory of another program, above all that of ssh.
    let ssh = place.temporary.path().join("ssh");
    fs::create_dir(&ssh).unwrap();
    fs::write(ssh.join("known_hosts"), "mine").unwrap();
    let named = ssh.to_str().unwrap();
    refused(
        &["3", "--dir", named],
        2,
        &["not the directory of a lab: it has `known_hosts`", "an empty directory"],
    );
    assert_eq!(fs::read_dir(&ssh).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(ssh.join("known_hosts")).unwrap(), "mine");
    fs::remove_dir_all(&ssh).unwrap();
    refused(&["3", "--dir", "/proc/there"], 1, &["the lab cannot make /proc/there"]);
    // A port that is in use, at addresses on which no other lab listens.
    let taken = std::net::TcpListener::bind("127.69.0.2:0").unwrap();
    let (port, address) =
        (taken.local_addr().unwrap().port().to_string(), taken.local_addr().unwrap().to_string());
    refused(
        &["3", "--first", "127.69.0.1", "--port", &port],
        1,
        &[&format!("the lab cannot listen on {address}: "), "without --port"],
    );
    place.is_untouched();
}

/// `penstock lab` with so many descriptors.
fn with_descriptors(place: &Playground, limit: u32, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new("prlimit");
    clear_environment(&mut command);
    command
        .arg(format!("--nofile={limit}:{limit}"))
        .args([binary(), "lab"])
        .args(arguments)
        .stdin(Stdio::null());
    command.env("HOME", place.home.path()).env("TMPDIR", place.temporary.path());
    text(&run_to_end(&mut command, secs(60)))
}

#[test]
fn too_few_descriptors_are_said_before_or_while_they_are_too_few() {
    let place = Playground::new();
    let (status, _, stderr) = with_descriptors(&place, 64, &["200"]);
    assert_eq!(status, Some(1), "{stderr}");
    assert!(stderr.contains("200 hosts need 200 open files") && stderr.contains("may have 64\n"), "{stderr}");
    assert!(stderr.contains("hint: fewer hosts, or more with ulimit -n"), "{stderr}");
    // Enough for the hosts, and for some of them at once: the others wait, and all of them answer.
    let run = ["40", "--", "penstock", "run", "-w", "@lab", "-p", "40", "-q", "true"];
    let (status, stdout, stderr) = with_descriptors(&place, 90, &run);
    assert_eq!((status, stdout.as_str()), (Some(0), ""), "{stderr}");
    assert!(
        stderr.starts_with("note: 90 open files are enough for about 18 connections at once"),
        "{stderr}"
    );
    place.is_untouched();
}

#[test]
fn a_directory_has_one_lab_at_a_time_and_one_that_was_killed_is_no_obstacle() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("lab");
    let start = |arguments: &[&str]| -> (Child, Lines) {
        let mut command = Command::new(binary());
        clear_environment(&mut command);
        // No other lab listens on these addresses: it could be given the port of the one that was killed.
        let first = ["--first", "127.68.0.1"];
        command.args(["lab", "3", "--dir", "lab"]).args(first).args(arguments).current_dir(parent.path());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = Lines::follow(child.stdout.take().unwrap());
        lines.wait_for("Ctrl-C ends the lab", secs(20));
        (child, lines)
    };
    let (mut first, lines) = start(&[]);
    // Lines are for other terminals, which are somewhere else.
    let line = lines.wait_for("/bin/penstock run -w @lab", secs(20));
    assert!(line.trim_start().starts_with(directory.canonicalize().unwrap().to_str().unwrap()), "{line}");
    let known = fs::read_to_string(directory.join("known_hosts")).unwrap();
    let place = Playground::new();
    let (status, _, stderr) = place.run(&["2", "--dir", directory.to_str().unwrap()]);
    assert_eq!(status, Some(1), "{stderr}");
    assert!(stderr.contains("a lab runs in ") && stderr.contains("hint: end it, or "), "{stderr}");
    assert_eq!(fs::read_to_string(directory.join("known_hosts")).unwrap(), known);
    // Another directory is another lab.
    assert_eq!(place.run(&["2", "--", "ssh", "lab002", "hostname"]).1, "lab002\n");
    // On the same addresses and port as the one that was killed, with connections of its clients still around.
    let port = known.split("]:").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    assert!(through(&directory).success());
    first.kill().unwrap();
    first.wait().unwrap();
    let (mut second, _) = start(&["--port", &port]);
    assert_eq!(fs::read_to_string(directory.join("known_hosts")).unwrap(), known);
    assert!(through(&directory).success());
    second.kill().unwrap();
    second.wait().unwrap();
}

fn through(directory: &Path) -> std::process::ExitStatus {
    let mut command = Command::new(directory.join("bin/penstock"));
    clear_environment(&mut command);
    command.args(["run", "-w", "@lab", "-q", "true"]).stdin(Stdio::null());
    run_to_end(&mut command, secs(60)).status
}
