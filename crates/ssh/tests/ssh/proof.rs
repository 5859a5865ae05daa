//! What is proved on a host before a signal is sent there, with each shell that hosts have: the command line of
//! `hosts::fleet::watcher::signal` run on this machine, among processes that it may and may not signal.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hosts::fleet::watcher::{self, CommandId, EndSignal};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sys::process::{self, VARIABLE};

/// The shells, as programs and their first arguments.
const SHELLS: [&str; 3] = ["dash", "bash", "busybox"];

/// A directory in which `sh` is this shell, with tools of its own where it has any.
fn with_shell(shell: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let found = find(shell);
    let names: &[&str] = if shell == "busybox" { &["sh", "grep", "tr"] } else { &["sh"] };
    for name in names {
        std::os::unix::fs::symlink(&found, directory.path().join(name)).unwrap();
    }
    directory
}

fn find(program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    let found = std::env::split_paths(&path).map(|directory| directory.join(program)).find(|it| it.is_file());
    found.unwrap_or_else(|| panic!("{program} is missing: run `make setup`"))
}

/// Whether something was proved.
#[derive(Debug, PartialEq, Eq)]
enum Proved {
    Yes,
    Nothing,
}

/// Signals from a shell that is no descendant of the command.
fn signal(shell: &str, started: &CommandId, end_signal: EndSignal) -> Proved {
    let bin = with_shell(shell);
    let mut path = std::ffi::OsString::from(bin.path());
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap());
    let line = watcher::signal(started, "a1", end_signal);
    let status = Command::new("sh").args(["-c", &line]).env("PATH", path).status().unwrap();
    if status.success() { Proved::Yes } else { Proved::Nothing }
}

/// A command with a watcher, or something beside one. It ends when it is dropped.
struct Running(Child);

/// How a process begins.
#[derive(Clone, Copy)]
enum Begins {
    /// In a session of its own, as OpenSSH starts commands.
    WithSession,
    /// Where the test is, as many servers do.
    AsItIs,
    /// In the group of this process.
    InGroupOf(u32),
}

impl Running {
    /// A shell that says a line when it has come so far.
    fn start(begins: Begins, nonce: Option<&str>, script: &str) -> Self {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).stdout(Stdio::piped());
        match begins {
            Begins::WithSession => process::own_session(&mut command),
            Begins::AsItIs => {}
            Begins::InGroupOf(group) => drop(command.process_group(group.cast_signed())),
        }
        command.env_remove(VARIABLE);
        if let Some(nonce) = nonce {
            command.env(VARIABLE, nonce);
        }
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        Self(child)
    }

    /// What the mark of its watcher would say.
    fn started(&self) -> CommandId {
        let process = self.0.id();
        let stat = process::stat(process.cast_signed()).unwrap();
        let (group, session) = (stat.group.cast_unsigned(), stat.session.cast_unsigned());
        CommandId { process, start: stat.start, group, session }
    }

    fn is_alive(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    /// Returns when it has ended, with all that holds its output.
    fn until_silent(&mut self) {
        self.0.stdout.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Running {
    /// Ends what it started as well: a `sleep` that is left keeps the standard error of the tests open for minutes.
    fn drop(&mut self) {
        let children = |parent| {
            process::all().filter(move |one| process::stat(*one).is_some_and(|stat| stat.parent == parent))
        };
        for child in children(self.0.id().cast_signed()) {
            let _ = kill(Pid::from_raw(child), Signal::SIGKILL);
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn command_with_a_session_of_its_own_ends_with_all_in_its_group() {
    for shell in SHELLS {
        // Of the two that it starts, one is an orphan at once.
        let script = "(sleep 600 &) ; echo; sleep 600; true";
        let mut command = Running::start(Begins::WithSession, Some("a1"), script);
        assert_eq!(signal(shell, &command.started(), EndSignal::Term), Proved::Yes, "{shell}");
        command.until_silent();
        assert_eq!(
            signal(
                shell,
                &CommandId {
                    process: command.0.id(),
                    start: 1,
                    group: command.0.id(),
                    session: command.0.id()
                },
                EndSignal::Kill
            ),
            Proved::Nothing
        );
    }
}

#[test]
fn process_that_is_not_what_the_mark_said_is_not_signalled() {
    for shell in SHELLS {
        let mut command = Running::start(Begins::WithSession, Some("a1"), "echo; exec sleep 600");
        let right = command.started();
        for wrong in [
            CommandId { start: right.start + 1, ..right },
            CommandId { group: 1, ..right },
            CommandId { group: 0, ..right },
            CommandId { session: right.session + 1, ..right },
            CommandId { process: 1, ..right },
            CommandId { process: 0, start: 0, group: 0, session: 0 },
        ] {
            assert_eq!(signal(shell, &wrong, EndSignal::Kill), Proved::Nothing, "{shell} {wrong:?}");
        }
        assert!(command.is_alive(), "{shell}");
    }
}

#[test]
fn process_with_the_nonce_of_another_command_is_not_signalled() {
    for shell in SHELLS {
        let mut other = Running::start(Begins::WithSession, Some("a2"), "echo; exec sleep 600");
        assert_eq!(signal(shell, &other.started(), EndSignal::Kill), Proved::Nothing, "{shell}");
        assert!(other.is_alive(), "{shell}");
        // Also where it was started by the command, and is in its group.
        let script = format!("{VARIABLE}=a2 sleep 600 & echo; sleep 600; true");
        let mut command = Running::start(Begins::WithSession, Some("a1"), &script);
        let group = command.0.id().cast_signed();
        let started = command.started();
        // Until the child has executed its program, it has the environment of the command.
        let is_other = |process: &i32| process::has_variable(*process, VARIABLE, "a2");
        eventually(|| members(group).iter().any(is_other).then_some(()));
        assert_eq!(signal(shell, &started, EndSignal::Kill), Proved::Yes, "{shell}");
        command.0.wait().unwrap();
        let left = eventually(|| {
            let left: Vec<_> = members(group);
            (left.len() == 1).then_some(left)
        });
        assert!(process::has_variable(left[0], VARIABLE, "a2"), "{shell}");
        kill(Pid::from_raw(left[0]), Signal::SIGKILL).unwrap();
    }
}

#[test]
fn group_that_the_command_shares_is_not_signalled_but_what_the_command_started_is() {
    for shell in SHELLS {
        // A shell in the place of a server: it starts the command, one that has copied its nonce, and another command.
        let script = format!(
            "{VARIABLE}=a1 sh -c 'sleep 601 & sleep 602; true' & echo $!; \
             {VARIABLE}=a1 sh -c 'exec sleep 603' & {VARIABLE}=a2 sh -c 'exec sleep 604' & sleep 605; true"
        );
        let mut commands = Command::new("/bin/sh");
        commands.args(["-c", &script]).stdout(Stdio::piped()).env_remove(VARIABLE);
        let (mut parent, session) = process::spawn(&mut commands).unwrap();
        let mut number = String::new();
        BufReader::new(parent.stdout.as_mut().unwrap()).read_line(&mut number).unwrap();
        let command: u32 = number.trim().parse().unwrap();
        let stat = process::stat(command.cast_signed()).unwrap();
        let group = stat.group;
        assert_ne!(group, command.cast_signed());
        eventually(|| (sleeps(group) == ["601", "602", "603", "604", "605"]).then_some(()));
        let started = CommandId {
            process: command,
            start: stat.start,
            group: group.cast_unsigned(),
            session: stat.session.cast_unsigned(),
        };
        assert_eq!(signal(shell, &started, EndSignal::Term), Proved::Yes, "{shell}");
        // The copied nonce, the other command and what is the server's own live.
        eventually(|| (sleeps(group) == ["603", "604", "605"]).then_some(()));
        assert!(parent.try_wait().unwrap().is_none());
        session.signal(Signal::SIGKILL);
        parent.wait().unwrap();
    }
}

/// A process whose parent was signalled and ended is an orphan, of which nothing proves that it belongs to the command.
#[test]
fn command_in_a_shared_group_that_starts_processes_meanwhile_leaves_none() {
    let by_a_shell = "sh -c 'while :; do sleep 606 & sleep 0.002; done'";
    // The kernel takes 40 ms to copy so many mappings. A stopped process ends its fork(2) first: its child may appear
    // after the search for it. One of twenty such commands left a process before the proof waited for that.
    let by_a_large_process = "python3 -c 'import mmap, os, time
maps = [mmap.mmap(-1, 4096) for _ in range(60000)]
while True:
    if os.fork() == 0: os.execlp(\"sleep\", \"sleep\", \"606\")
    time.sleep(0.08)'";
    for shell in SHELLS {
        for end_signal in [EndSignal::Term, EndSignal::Kill] {
            for command in [by_a_shell, by_a_large_process] {
                shared_group_is_left_without(command, shell, end_signal);
            }
        }
    }
}

/// Ends a command that starts processes which sleep 606 s, in a group that is not its own.
fn shared_group_is_left_without(command: &str, shell: &str, end_signal: EndSignal) {
    let script = format!("{VARIABLE}=a1 {command} & echo $!; sleep 605; true");
    let mut commands = Command::new("/bin/sh");
    commands.args(["-c", &script]).stdout(Stdio::piped()).env_remove(VARIABLE);
    let (mut parent, session) = process::spawn(&mut commands).unwrap();
    let mut number = String::new();
    BufReader::new(parent.stdout.as_mut().unwrap()).read_line(&mut number).unwrap();
    let number: u32 = number.trim().parse().unwrap();
    let stat = process::stat(number.cast_signed()).unwrap();
    let (group, session_of_all) = (stat.group.cast_unsigned(), stat.session.cast_unsigned());
    let started = CommandId { process: number, start: stat.start, group, session: session_of_all };
    eventually(|| sleeps(stat.group).contains(&"606".to_owned()).then_some(()));
    assert_eq!(signal(shell, &started, end_signal), Proved::Yes, "{shell}, {command}");
    eventually(|| (sleeps(stat.group) == ["605"]).then_some(()));
    session.signal(Signal::SIGKILL);
    parent.wait().unwrap();
}

/// What the processes of a group sleep, in order.
fn sleeps(group: i32) -> Vec<String> {
    let line = |process| fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let mut found: Vec<_> = members(group)
        .into_iter()
        .filter_map(|process| {
            Some(
                String::from_utf8(line(process))
                    .ok()?
                    .strip_prefix("sleep\0")?
                    .trim_end_matches('\0')
                    .to_owned(),
            )
        })
        .collect();
    found.sort();
    found
}

fn members(group: i32) -> Vec<i32> {
    let is_in = |process: &i32| {
        process::stat(*process)
            .is_some_and(|stat| stat.group == group && stat.life == process::ProcessState::Runs)
    };
    process::all().filter(is_in).collect()
}

#[test]
fn names_of_processes_deceive_no_shell() {
    for shell in SHELLS {
        // A bystander that is called like the end of a line of /proc, and a command with a line end in its name.
        let name = "printf 'a) S 1 9 9\\n) R' >/proc/$$/comm; echo; sleep 600; true";
        let mut bystander = Running::start(Begins::WithSession, Some("a2"), name);
        let mut command = Running::start(Begins::WithSession, Some("a1"), name);
        assert_eq!(signal(shell, &command.started(), EndSignal::Kill), Proved::Yes, "{shell}");
        command.until_silent();
        assert!(bystander.is_alive(), "{shell}");
    }
}

#[test]
fn command_that_gave_up_its_group_is_not_signalled_and_one_without_its_environment_is() {
    for shell in SHELLS {
        // Where it leads no session, a command can leave its group.
        let mut left = Running::start(Begins::InGroupOf(0), Some("a1"), "echo; exec sleep 600");
        let before = CommandId { group: left.started().group + 1, ..left.started() };
        assert_eq!(signal(shell, &before, EndSignal::Kill), Proved::Nothing, "{shell}");
        assert!(left.is_alive());
        let mut clean = Running::start(Begins::WithSession, None, "echo; sleep 600; true");
        assert_eq!(signal(shell, &clean.started(), EndSignal::Kill), Proved::Yes, "{shell}");
        clean.until_silent();
        let mut plain = Running::start(Begins::AsItIs, Some("a1"), "echo; exec sleep 600");
        assert_eq!(signal(shell, &plain.started(), EndSignal::Kill), Proved::Yes, "{shell}");
        plain.until_silent();
    }
}

/// A login shell may take long with its start files, and a server may give any command an input that ends at once.
#[test]
fn command_without_input_goes_on_however_long_the_login_shell_took() {
    let line = watcher::wrap("sleep 3; exit 7", watcher::Input::None, "a1");
    let script = format!("sleep 2.5; {line}");
    let output = Command::new("sh").args(["-c", &script]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{output:?}");
}

#[test]
fn host_without_the_tools_of_the_proof_is_told_by_the_mark() {
    let bin = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(find("dash"), bin.path().join("sh")).unwrap();
    std::os::unix::fs::symlink(find("tr"), bin.path().join("tr")).unwrap();
    let line = watcher::wrap("exit 7", watcher::Input::None, "a1");
    let output = Command::new(find("dash")).args(["-c", &line]).env("PATH", bin.path()).output().unwrap();
    assert_eq!(
        (output.stdout.as_slice(), output.status.code()),
        (b"penstock-watcher-a1\n".as_slice(), Some(7))
    );
}

/// In a mount namespace with a /proc of plain files: there are as many as a busy host has processes.
#[test]
fn host_with_thirty_thousand_processes_takes_seconds() {
    if testing::tools::root("mounts a /proc of its own") == testing::tools::Root::LeftOut {
        return;
    }
    let mut command = Running::start(Begins::WithSession, Some("a1"), "echo; exec sleep 600");
    let started = command.started();
    // In memory: 30,000 files on a disk that others use, too, would take longer than what is tested.
    let directory = testing::memory::directory();
    let real = fs::read_to_string(format!("/proc/{}/stat", started.process)).unwrap();
    for number in 100_000..130_000 {
        let own = directory.path().join(number.to_string());
        fs::create_dir(&own).unwrap();
        let (_, after) = real.rsplit_once(") ").unwrap();
        let other = after.replace(&format!(" {} ", started.group), &format!(" {number} "));
        fs::write(own.join("stat"), format!("{number} (sleep) {other}")).unwrap();
    }
    let own = directory.path().join(started.process.to_string());
    fs::create_dir(&own).unwrap();
    fs::write(own.join("stat"), &real).unwrap();
    fs::write(own.join("environ"), format!("{VARIABLE}=a1\0")).unwrap();
    let line = watcher::signal(&started, "a1", EndSignal::Kill);
    let script = format!("mount --bind {} /proc && {line}", directory.path().display());
    let begun = Instant::now();
    let status = Command::new("unshare").args(["--mount", "sh", "-c", &script]).status().unwrap();
    assert!(status.success());
    command.until_silent();
    // A second or two where nothing else runs: the bound is for what grows faster than the number of processes.
    assert!(begun.elapsed() < Duration::from_secs(300), "{:?}", begun.elapsed());
}

#[track_caller]
fn eventually<T>(mut condition: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "not in 30 s");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The user's login shell reads the command line that is sent: fish takes a backslash inside quotes for another thing than
/// sh does. Where fish, tcsh and zsh are installed they are asked, too.
#[test]
fn login_shells_read_a_quoted_command_as_it_was() {
    let here = |program: &&str| {
        let path = std::env::var_os("PATH").unwrap();
        std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
    };
    for shell in SHELLS.into_iter().chain(["fish", "tcsh", "zsh"].into_iter().filter(here)) {
        for text in [
            r"\",
            r"\'",
            r"'\",
            r"echo \'; exit 9; echo \'",
            r#"'a\\b' "c\\\\d" \$HOME"#,
            "it's `x` $y *",
            "a\nb",
        ] {
            // csh ends a word with the line, in quotes or not.
            if shell == "tcsh" && text.contains('\n') {
                continue;
            }
            let line = format!("/usr/bin/printf %s {}", text::shell::quote(text));
            let mut command = Command::new(find(shell));
            command.args((shell == "busybox").then_some("sh")).args(["-c", &line]).stdin(Stdio::null());
            let output = command.output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), text, "{shell}: {line}");
            assert!(output.status.success(), "{shell}: {line}");
        }
    }
}
