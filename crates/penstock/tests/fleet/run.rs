//! `penstock run` against real OpenSSH servers: what is shown, what is left running, what the exit status says.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use hosts::fleet::watcher;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testing::fleet::{Fleet, sorted, told};
use testing::server::Lines;
use testing::sshd::{Sshd, processes};
use testing::{eventually, secs, tools};

const ENGINES: [&str; 2] = ["native", "openssh"];

/// Processes that run exactly this.
fn running(command: &str) -> usize {
    processes().iter().filter(|line| line.trim() == command).count()
}

/// A number of seconds for `sleep` that no other test uses.
fn unique() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    format!("{}.{}", 3600 + now.subsec_nanos() % 100_000, now.subsec_nanos())
}

#[track_caller]
fn started(sleep: &str, count: usize) {
    eventually("the command runs on all hosts", secs(30), || (running(sleep) == count).then_some(()));
}

#[track_caller]
fn gone(sleep: &str) {
    eventually("nothing is left running", secs(30), || (running(sleep) == 0).then_some(()));
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
}

#[test]
fn lines_have_their_host_and_the_worst_host_decides_the_exit_status() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    for engine in ENGINES {
        let run = |hosts, command| fleet.run(&["--engine", engine, "-w", hosts, command]);
        let well = run("h1,h2", "echo out; echo err >&2");
        assert_eq!(sorted(&well.stdout), ["h1 -> out", "h1 => err", "h2 -> out", "h2 => err"], "{well:?}");
        assert_eq!(well.code, Some(0), "{well:?}");
        let failed = run("h1,h2", "printf half; exit 255");
        assert_eq!(sorted(&failed.stdout), ["h1 -> half", "h1 =: exit 255", "h2 -> half", "h2 =: exit 255"]);
        assert_eq!(failed.code, Some(1), "255 of a command is no failure of ssh: {failed:?}");
        let killed = run("h1", "kill -KILL $$");
        assert_eq!(killed.code, Some(1));
        assert!(killed.stdout.starts_with("h1 =: signal "), "{killed:?}");
        let away = run("h1,away", "false");
        assert_eq!(away.code, Some(3), "{away:?}");
        assert!(
            away.stderr.contains("not started: safe to run again\n  connection-refused (1): away"),
            "{away:?}"
        );
    }
}

#[test]
fn watcher_leaves_no_trace_in_what_a_command_sees() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    for engine in ENGINES {
        for command in [
            "echo it\\'s \"$((1 + 1))\"; echo '$HOME' \\\\ '!' `echo x`",
            "cat; echo $?",
            "x=$(ps -o pid= --ppid $$ | wc -l); echo $x children",
            "sh -c 'kill -TERM $$'; echo $?",
            "wait; jobs; echo ${#@}",
            "ulimit -n; umask; pwd; env | sort | grep -v -e ^SSH_ -e ^SHLVL -e ^_= -e ^PENSTOCK_WATCHER=",
            "exec >/dev/null; echo nothing",
        ] {
            let watched = fleet.run(&["--engine", engine, "-w", "h1", "--", command]);
            let plain = fleet.run(&["--engine", engine, "--no-watcher", "-w", "h1", "--", command]);
            // Between the two streams there is no order.
            let seen = (sorted(&watched.stdout), watched.code);
            assert_eq!(seen, (sorted(&plain.stdout), plain.code), "{engine}: {command}");
        }
    }
}

#[test]
fn ctrl_c_and_terminate_end_the_command_on_the_hosts() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    for engine in ENGINES {
        for ending in [Signal::SIGINT, Signal::SIGTERM] {
            let sleep = format!("sleep {}", unique());
            let mut command = fleet.command(&["--engine", engine, "-w", "h1,h2,h3", &sleep]);
            let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            started(&sleep, 3);
            signal(&child, ending);
            let told = told(child.wait_with_output().unwrap());
            assert_eq!(told.code, Some(130), "{told:?}");
            gone(&sleep);
        }
    }
}

#[test]
fn time_limit_ends_the_command_on_the_hosts() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    for engine in ENGINES {
        let sleep = format!("sleep {}", unique());
        let told = fleet.run(&["--engine", engine, "-w", "h1,h2", "--timeout", "0.5", &sleep]);
        assert!(told.stderr.contains("command timed out (2): h[1-2]"), "{told:?}");
        gone(&sleep);
        assert_eq!(told.code, Some(1), "it was seen to end: {told:?}");
        assert!(
            told.stderr.contains("still running after 0.5 s; the command was ended on the host"),
            "{told:?}"
        );
    }
}

#[test]
fn output_that_is_held_open_and_cut_off_is_said_to_be() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    // ssh knows that it ended, and tells the status only when all is over.
    for (engine, how) in [("native", "exit 3"), ("openssh", "ssh does not tell how")] {
        let command = format!("sleep {} & echo $!; exit 3", unique());
        let told = fleet.run(&["--engine", engine, "-w", "h1", "--timeout", "3", "--", &command]);
        let left = told.stdout.lines().find_map(|line| line.strip_prefix("h1 -> ")).unwrap();
        // It may have been ended with the command's group.
        let _ = kill(Pid::from_raw(left.parse().unwrap()), Signal::SIGKILL);
        let said = format!(
            "still open after 3 s: the command ended ({how}), but a process that it started keeps its output"
        );
        assert!(told.stderr.contains(&said), "{engine}: {told:?}");
        assert_eq!(told.code, Some(1), "{engine}: {told:?}");
        let last = fleet.run(&["--last"]);
        assert!(last.stdout.contains("\nh1  command timed out: "), "it did run, and ended: {last:?}");
    }
}

#[test]
fn output_whose_end_was_not_waited_for_is_said_to_be_lost() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    for engine in ENGINES {
        let (sleep, left) = (format!("sleep {}", unique()), format!("sleep {}", unique()));
        // The watcher ends the first; the second has left its group, and holds the output open for longer than the test waits.
        let command = format!("setsid {left} & echo $!; exec {sleep}");
        let told = fleet.run(&["--engine", engine, "-w", "h1", "--timeout", "3", "--", &command]);
        let started = told.stdout.lines().find_map(|line| line.strip_prefix("h1 -> ")).unwrap();
        kill(Pid::from_raw(started.parse().unwrap()), Signal::SIGKILL).unwrap();
        let said = "the command was ended on the host, but a process that it started keeps its output open; further output is discarded";
        assert!(told.stderr.contains(said), "{engine}: {told:?}");
        assert_eq!(told.code, Some(1), "what runs on is not the command: {engine}: {told:?}");
        gone(&sleep);
    }
}

#[test]
fn killed_client_leaves_nothing_running_and_its_journal_says_who_was() {
    let sshd = Sshd::start();
    for engine in ENGINES {
        for input in [None, Some("--stdin")] {
            let fleet = Fleet::of(&sshd);
            let sleep = format!("sleep {}", unique());
            let mut arguments = vec!["--engine", engine, "-w", "h1,h2"];
            arguments.extend(input);
            arguments.push(&sleep);
            let mut command = fleet.command(&arguments);
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
            let mut child = command.spawn().unwrap();
            started(&sleep, 2);
            signal(&child, Signal::SIGKILL);
            child.wait().unwrap();
            gone(&sleep);
            let last = fleet.run(&["--last"]);
            assert!(last.stdout.contains("killed before its end"), "{last:?}");
            assert_eq!(
                last.stdout.matches("may have run: running when the run was killed").count(),
                2,
                "{last:?}"
            );
            let again = fleet.run(&["--again", "h1"]);
            assert_eq!(again.code, Some(2), "what may have run is not run again by name: {again:?}");
            let again = fleet.run(&["--again", "failed"]);
            assert_eq!(again.code, Some(2), "nor by a word that does not say so: {again:?}");
            assert!(again.stderr.contains("--again not-ok"), "{again:?}");
        }
    }
}

#[test]
fn ssh_that_does_not_obey_at_once_does_not_outlive_a_killed_client() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    let program = fleet.home.path().join("ssh");
    // Ignored from the start, a signal stays ignored.
    let real = testing::sshd::program("ssh");
    tools::executable(&program, &format!("#!/bin/sh\ntrap '' TERM\nexec {} \"$@\"\n", real.display()));
    let sleep = format!("sleep {}", unique());
    let mut command = fleet.command(&["--engine", "openssh", "-w", "h1,h2", &sleep]);
    command.env("PATH", format!("{}:/usr/bin:/bin", fleet.home.path().display()));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    started(&sleep, 2);
    signal(&child, Signal::SIGKILL);
    child.wait().unwrap();
    gone(&sleep);
}

#[test]
fn command_of_a_killed_client_ends_though_its_watcher_came_late() {
    let place = tempfile::tempdir().unwrap();
    let gate = place.path().join("gate");
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // A host on which the watcher starts when the test writes to the gate.
    let slow = place.path().join("sh");
    let wait = format!("read -r word <{}", gate.display());
    let script =
        format!("#!/bin/sh\nif [ \"$3\" = penstock-watcher ]; then {wait}; fi\nexec /bin/sh \"$@\"\n");
    tools::executable(&slow, &script);
    let sshd = Sshd::with(&format!("SetEnv PATH={}:/usr/bin:/bin", place.path().display()));
    let fleet = Fleet::of(&sshd);
    for input in [&[][..], &["--stdin"]] {
        let sleep = format!("sleep {}", unique());
        let mut command = fleet.command(&[&["-w", "h1"], input, &[&*sleep]].concat());
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        started(&sleep, 1);
        signal(&child, Signal::SIGKILL);
        child.wait().unwrap();
        let sessions = || testing::sshd::children_of(sshd.pid()).is_empty().then_some(());
        eventually("the server sees that the connection is gone", secs(30), sessions);
        fs::write(&gate, "now\n").unwrap();
        gone(&sleep);
    }
}

#[test]
fn reader_that_leaves_ends_the_run_and_the_commands() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    for engine in ENGINES {
        let word = unique();
        let loud = format!("yes {word}");
        let mut command = fleet.command(&["--engine", engine, "-w", "h1,h2", &loud]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.next().unwrap().unwrap().ends_with(&word));
        drop(lines);
        let status = eventually("the end of the run", secs(60), || child.try_wait().unwrap());
        assert_eq!(status.code(), Some(141));
        gone(&loud);
    }
}

#[test]
fn output_that_cannot_be_written_is_said_and_has_an_exit_status_of_its_own() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    let forever = format!("echo said; sleep {}", unique());
    for (arguments, command) in
        [(&[][..], &*forever), (&["-b"], "echo said"), (&["--json"], "echo said"), (&["--json"], "true")]
    {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let mut line = vec!["-w", "h1,h2"];
        line.extend(arguments);
        line.push(command);
        let ran = fleet.command(&line).stdout(full).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(6), "{line:?}: {said}");
        assert_eq!(
            said.matches("cannot write to standard output: No space left").count(),
            1,
            "{line:?}: {said}"
        );
    }
    // Where the end of a command was not waited for, its watcher ends it within seconds.
    let is_left = || processes().iter().any(|line| line.contains(&forever));
    eventually("nothing is left running", secs(30), || (!is_left()).then_some(()));
}

#[test]
fn waves_stop_before_the_damage_is_done() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    let mark = fleet.home.path().join("ran");
    let command = format!("echo x >>{}; exit 1", mark.display());
    let told = fleet.run(&["-w", "h1,h2,h3,h4", "--waves", "1,2,all", "--stop-if", "failed>0", &command]);
    assert_eq!(fs::read_to_string(&mark).unwrap(), "x\n");
    assert!(told.stderr.contains("stopped after 1 of 4 hosts by failed>0: 1 of 1 hosts failed"), "{told:?}");
    assert!(told.stderr.contains("stopped (3): h[2-4]"), "{told:?}");
    assert!(told.stdout.contains("h2 =: stopped: after 1 of 4 hosts by failed>0"), "{told:?}");
    assert_eq!(told.code, Some(3));
    let pause = fleet.run(&["-w", "h1,h2", "--waves", "1", "--pause", "true"]);
    assert_eq!(pause.code, Some(2), "there is no terminal to press Enter on: {pause:?}");
}

#[test]
fn ctrl_c_between_two_waves_says_that_nothing_runs() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    let mut command = fleet.command(&["-w", "h1,h2", "--waves", "1,all", "--pause=3600", "true"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = Lines::follow(child.stderr.take().unwrap());
    lines.wait_for("the next wave starts in 3600 s", secs(30));
    signal(&child, Signal::SIGINT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    lines.wait_for("stopping: no command runs on the hosts", secs(30));
    assert!(!lines.all().iter().any(|line| line.contains("ending the command")), "{:?}", lines.all());
}

#[test]
fn a_second_ctrl_c_says_of_a_command_that_does_not_end_that_it_was_signalled() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    for engine in ENGINES {
        let sleep = format!("sleep {}", unique());
        let script = format!("trap '' INT; trap 'echo got it' TERM; while :; do {sleep}; done");
        let mut command = fleet.command(&["--engine", engine, "-w", "h1", &script]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = Lines::follow(child.stdout.take().unwrap());
        started(&sleep, 1);
        signal(&child, Signal::SIGINT);
        lines.wait_for("h1 -> got it", secs(30));
        signal(&child, Signal::SIGINT);
        let told = told(child.wait_with_output().unwrap());
        assert_eq!(told.code, Some(130), "{engine}: {told:?}");
        let truth = "it was signalled and had not ended yet; its watcher should end it within seconds";
        assert!(told.stderr.contains(truth), "{engine}: {told:?}");
        gone(&sleep);
    }
}

#[test]
fn files_hold_what_each_host_said_and_the_silent_have_none() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    let directory = fleet.home.path().join("out");
    let names = |command: &str| {
        let told = fleet.run(&["-w", "h1,h2", "-o", directory.to_str().unwrap(), command]);
        assert_eq!(told.code, Some(0), "{told:?}");
        let mut names: Vec<_> =
            fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    // One sshd stands for all hosts: the first that makes the directory is the one that speaks.
    let speaker = fleet.home.path().join("speaker");
    let command = format!("mkdir {} 2>/dev/null || exit 0; printf 'a\\0b'; echo e >&2", speaker.display());
    let first = names(&command);
    assert!(first == ["h1.err", "h1.out"] || first == ["h2.err", "h2.out"], "{first:?}");
    assert_eq!(fs::read(directory.join(&first[1])).unwrap(), b"a\0b");
    assert_eq!(names("true"), [""; 0], "what a host said in an earlier run is not what it says now");
}

#[test]
fn every_host_gets_all_of_standard_input() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    for engine in ENGINES {
        let mut command = fleet.command(&[
            "--engine",
            engine,
            "-w",
            "h1,h2,h3",
            "-p",
            "1",
            "--stdin",
            "sha256sum; wc -c </dev/null",
        ]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        let block: Vec<u8> =
            (0..1_000_000_u32).map(|at| at.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
        for _ in 0..5 {
            input.write_all(&block).unwrap();
        }
        drop(input);
        let told = told(child.wait_with_output().unwrap());
        let sent = fleet.home.path().join("sent");
        fs::write(&sent, block.repeat(5)).unwrap();
        let sum = Command::new("sha256sum").stdin(fs::File::open(sent).unwrap()).output().unwrap();
        let sum = String::from_utf8(sum.stdout).unwrap();
        let wanted: Vec<String> = (1..4)
            .flat_map(|host| [format!("h{host} -> 0"), format!("h{host} -> {}", sum.trim_end())])
            .collect();
        let mut wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
        wanted.sort_unstable();
        assert_eq!((sorted(&told.stdout), told.code), (wanted, Some(0)), "{told:?}");
    }
}

#[test]
fn script_runs_with_its_arguments() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    let script = fleet.home.path().join("what.sh");
    fs::write(&script, "#!/bin/bash\nread -r line\necho \"$0 $1 [$line]\"\nexit 4\n").unwrap();
    let told = fleet.run(&["-w", "h1", "--script", script.to_str().unwrap(), "one two"]);
    assert_eq!(
        (told.stdout.as_str(), told.code),
        ("h1 -> what.sh one two []\nh1 =: exit 4\n", Some(1)),
        "{told:?}"
    );
}

#[test]
fn program_in_place_of_ssh_gets_the_host_and_the_command() {
    let fleet = Fleet::of_lab(std::path::Path::new("/nowhere"));
    let mut command = fleet.command(&["-w", "a,b", "-S", "/bin/echo", "uptime now"]);
    let told = told(command.output().unwrap());
    assert_eq!(
        sorted(&told.stdout),
        ["a -> -F /nowhere a uptime now", "b -> -F /nowhere b uptime now"],
        "{told:?}"
    );
}

#[test]
fn connection_shared_by_the_users_configuration_hides_no_status() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    let socket = fleet.home.path().join("master-%n");
    fleet
        .configure(&format!("  ControlMaster auto\n  ControlPath {}\n  ControlPersist 60", socket.display()));
    let mut master = fleet.ssh(&["-M", "-N", "h1"]).spawn().unwrap();
    eventually("the master listens", secs(20), || fleet.home.path().join("master-h1").exists().then_some(()));
    let told = fleet.run(&["--engine", "openssh", "-w", "h1", "echo ran; exit 255"]);
    master.kill().unwrap();
    master.wait().unwrap();
    assert_eq!((told.stdout.as_str(), told.code), ("h1 -> ran\nh1 =: exit 255\n", Some(1)), "{told:?}");
}

#[test]
fn host_without_a_known_key_gets_nothing_with_any_configuration_of_the_user() {
    let sshd = Sshd::start();
    for word in ["no", "accept-new"] {
        let fleet = Fleet::of(&sshd);
        fs::remove_file(fleet.home.path().join("config/penstock/hosts/h1.host")).unwrap();
        let known = fleet.home.path().join("nobody");
        let told_of = known.display();
        fleet.configure(&format!("  StrictHostKeyChecking {word}\n  UserKnownHostsFile {told_of}"));
        let told = fleet.run(&["--engine", "openssh", "-w", "h1", "echo ran"]);
        assert_eq!(told.code, Some(4), "{told:?}");
        assert!(told.stdout.contains("h1 =: unknown-host") && !told.stdout.contains("->"), "{told:?}");
        assert!(!known.exists(), "nothing is learnt either");
    }
}

#[test]
fn host_whose_command_cannot_be_recorded_does_not_get_it() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    let padding = "x".repeat(440);
    let run = fleet.command(&["-p", "1", "-w", "h[1-9]", &format!("echo ran; : {padding}")]);
    // A file of more than 1,024 bytes is cut short and refused, as on a full disk.
    let mut limited = Command::new("bash");
    limited.args(["-c", "ulimit -f 1; exec \"$@\"", "bash"]).arg(run.get_program());
    limited.args(run.get_args()).stdin(Stdio::null());
    limited.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let told = told(limited.output().unwrap());
    let ran = told.stdout.matches("-> ran").count();
    assert!((1..9).contains(&ran), "{told:?}");
    assert!(told.stdout.contains("record of this run cannot be written"), "{told:?}");
    assert!(told.stderr.contains("note: the record of this run is incomplete (File too large"), "{told:?}");
    let last = fleet.run(&["--last"]);
    // The line that was cut short may lack its end alone: then it is read, and the command may have been sent for all that is known.
    let unsure = last.stdout.matches("may have run").count();
    assert!(unsure <= 1, "{last:?}\n{told:?}");
    assert_eq!(last.stdout.matches("not started").count() + unsure, 9 - ran, "{last:?}\n{told:?}");
}

#[test]
fn run_that_goes_on_is_shown_as_such_and_not_run_again() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    let sleep = format!("sleep {}", unique());
    let mut command = fleet.command(&["-p", "1", "-w", "h1,h2", &sleep]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    started(&sleep, 1);
    let last = fleet.run(&["--last"]);
    assert!(last.stdout.contains("still running"), "{last:?}");
    assert!(
        last.stdout.contains("h1  may have run: still running there\nh2  not started: not its turn yet"),
        "{last:?}"
    );
    let again = fleet.run(&["--again", "not-started"]);
    assert_eq!((again.code, again.stdout.as_str()), (Some(2), ""), "{again:?}");
    assert!(again.stderr.contains("the last run is still running"), "{again:?}");
    signal(&child, Signal::SIGINT);
    child.wait().unwrap();
    gone(&sleep);
}

#[test]
fn program_in_place_of_ssh_may_take_longer_than_a_connection() {
    let fleet = Fleet::of_lab(std::path::Path::new("/nowhere"));
    let program = fleet.home.path().join("slow");
    tools::executable(&program, "#!/bin/sh\nsleep 1.5\necho done\n");
    let told = fleet.run(&["-w", "a", "--connect-timeout", "0.5", "-S", program.to_str().unwrap(), "x"]);
    assert_eq!((told.stdout.as_str(), told.code), ("a -> done\n", Some(0)), "{told:?}");
}

#[test]
fn ctrl_c_ends_a_run_whose_standard_input_never_ends() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    for engine in ENGINES {
        let sleep = format!("sleep {}", unique());
        let mut command = fleet.command(&["--engine", engine, "-w", "h1,h2", "--stdin", &sleep]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // Held open until the end: nothing wakes up who reads there.
        let input = child.stdin.take().unwrap();
        started(&sleep, 2);
        signal(&child, Signal::SIGINT);
        let told = told(child.wait_with_output().unwrap());
        assert_eq!(told.code, Some(130), "{told:?}");
        gone(&sleep);
        drop(input);
    }
}

#[test]
fn standard_input_that_cannot_be_read_or_kept_ends_the_run_and_is_never_taken_for_whole() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    let place = fleet.home.path().join("tmp");
    fs::create_dir(&place).unwrap();
    let input = fleet.home.path().join("input");
    fs::write(&input, vec![b'x'; 1_000_000]).unwrap();
    for engine in ENGINES {
        let run = fleet.command(&[
            "--engine",
            engine,
            "-w",
            "h[1-3]",
            "-p",
            "1",
            "--stdin",
            "cat >/dev/null && echo whole",
        ]);
        // Files of more than 256 KiB are refused, as on a full disk.
        for (file, limit, words) in [
            (std::path::Path::new("/"), "unlimited", "error: cannot read standard input: "),
            (&input, "256", "error: cannot keep standard input for hosts whose turn comes later in "),
        ] {
            let mut limited = Command::new("bash");
            let script = format!("trap '' XFSZ; ulimit -f {limit}; exec \"$@\"");
            limited.args(["-c", &script, "bash"]).arg(run.get_program()).args(run.get_args());
            limited.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
            limited.env("TMPDIR", &place).stdin(fs::File::open(file).unwrap());
            let told = told(limited.output().unwrap());
            assert!(told.stderr.contains(words), "{told:?}");
            assert!(!told.stdout.contains("-> whole"), "{told:?}");
            assert!([Some(1), Some(3), Some(5)].contains(&told.code), "{told:?}");
            if limit != "unlimited" {
                assert!(
                    told.stderr.contains(place.to_str().unwrap()) && told.stderr.contains("hint: TMPDIR=")
                );
            }
        }
    }
    assert_eq!(fs::read_dir(&place).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn output_that_a_time_limit_cuts_is_said_with_what_there_was() {
    let sshd = Sshd::start();
    for engine in ENGINES {
        for watcher in [None, Some("--no-watcher")] {
            // With a journal of its own.
            let fleet = Fleet::of(&sshd);
            let loud = format!("yes {}", unique());
            let mut arguments = vec!["--engine", engine, "-w", "h1", "--timeout", "3"];
            arguments.extend(watcher);
            arguments.push(&loud);
            let mut command = fleet.command(&arguments);
            let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            // Nothing was read so far.
            eventually("the end of the host is on record", secs(60), || {
                fleet.recorded(0)["ending"].as_str().map(|_| ())
            });
            gone(&loud);
            let told = told(child.wait_with_output().unwrap());
            let (said, end) = told.stdout.split_once("h1 =: ").unwrap();
            let said: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("h1 -> ")).collect();
            let cut = end
                .split("its output is cut after the first ")
                .nth(1)
                .unwrap_or_else(|| panic!("{engine} {watcher:?}: {end}"));
            assert!(cut.contains(" bytes (stdout and stderr together) that came"), "{cut}");
            let cut: usize = cut.split(' ').next().unwrap().parse().unwrap();
            let shown = said.join("\n").len();
            assert!(cut == shown || cut == shown + 1, "{cut} {shown}: {end}");
            assert!(cut > 0);
        }
    }
}

#[test]
fn what_looks_like_the_mark_of_a_watcher_is_the_commands_own() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    for engine in ENGINES {
        let command =
            "echo penstock-watcher-0123456789abcdef; echo penstock-watcher- >&2; printf penstock-watcher-0";
        let told = fleet.run(&["--engine", engine, "-w", "h1", command]);
        let lines = [
            "h1 -> penstock-watcher-0",
            "h1 -> penstock-watcher-0123456789abcdef",
            "h1 => penstock-watcher-",
        ];
        assert_eq!((sorted(&told.stdout), told.code), (lines.to_vec(), Some(0)), "{told:?}");
    }
}

#[test]
fn command_that_no_host_can_take_is_refused_before_anything_is_sent() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    let quotes = format!(": {}", "'".repeat(40_000));
    let told = fleet.run(&["-w", "h1", &quotes]);
    assert_eq!(told.code, Some(2), "{told:?}");
    assert!(told.stderr.contains("bytes long when sent; hosts accept 131071"), "{told:?}");
    let long = format!(": {}; echo ran", "x".repeat(120_000));
    let told = fleet.run(&["-w", "h1", &long]);
    assert_eq!((told.code, told.stdout.as_str()), (Some(0), "h1 -> ran\n"), "{}", told.stderr);
    let told = fleet.run(&["-w", "h1", "--timeout", "1e9", "true"]);
    assert_eq!(told.code, Some(2), "{told:?}");
    assert!(told.stderr.contains("a number of seconds is 10000000 at most"), "{told:?}");
}

#[test]
fn fault_in_the_ssh_configuration_that_was_given_is_wrong_usage() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    fleet.configure("  NoSuchKeyword yes");
    let told = fleet.run(&["-w", "h1,h2", "echo ran"]);
    assert_eq!((told.code, told.stdout.as_str()), (Some(2), ""), "{told:?}");
    assert!(told.stderr.contains("ssh_config:2: nosuchkeyword: no such keyword"), "{told:?}");
    let missing = sshd.directory.path().join("nope");
    for engine in ENGINES {
        let told = Fleet::of_lab(&missing).run(&["--engine", engine, "-w", "h1,h2", "true"]);
        assert_eq!((told.code, told.stderr.lines().count()), (Some(2), 1), "{told:?}");
        assert!(told.stderr.starts_with(&format!("error: {}: ", missing.display())), "{told:?}");
    }
}

#[test]
fn command_has_the_level_of_its_shell_and_reads_start_files_once_as_without_a_watcher() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join(".bashrc"), "echo start file\n").unwrap();
    let said = |command: &str, level: Option<&str>| {
        let mut shell = Command::new("bash");
        shell.args(["-c", command]).env_clear().env("PATH", "/usr/bin:/bin").env("SHELL", "/bin/bash");
        shell.env("SSH_CLIENT", "127.0.0.1 1 2").env("HOME", home.path()).stdin(Stdio::null());
        level.map(|level| shell.env("SHLVL", level));
        let output = shell.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let lines = String::from_utf8(output.stdout).unwrap();
        lines
            .lines()
            .filter(|line| !line.starts_with("penstock-watcher-"))
            .map(|line| format!("{line}\n"))
            .collect::<String>()
    };
    for command in ["echo $SHLVL", "env | grep ^SHLVL=", "bash -c 'echo $SHLVL'"] {
        for level in [None, Some("1")] {
            let alone = said(command, level);
            assert_eq!(
                said(&watcher::wrap(command, watcher::Input::Sent, "a1"), level),
                alone,
                "{command} {level:?}"
            );
        }
    }
}
