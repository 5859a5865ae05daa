//! `penstock run --mpssh`: the output of mpssh-py, with a program in place of ssh, a real sshd, and the lab.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use testing::fleet::{Fleet, RunResult, sorted, told};
use testing::server::{Lines, binary, clear_environment, run_to_end};
use testing::sshd::Sshd;
use testing::{eventually, secs, tools};

/// A directory with lists of hosts and programs in place of ssh.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        place.write("one", "# the only one\n\none\n");
        place.write("three", "h1\n  longer-host \nh1\n");
        place.program("shell", "for word; do last=$word; done\neval \"$last\"\n");
        place.program("words", "for word; do echo \"[$word]\"; done\n");
        place
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.path().join(name), text).unwrap();
    }

    fn program(&self, name: &str, script: &str) {
        tools::executable(&self.0.path().join(name), &format!("#!/bin/sh\n{script}"));
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        clear_environment(&mut command);
        command.args(["run", "--mpssh", "-d", "0", "-u", "me"]).args(arguments);
        command.current_dir(self.0.path()).env("HOME", self.0.path()).stdin(Stdio::null());
        command
    }

    #[track_caller]
    fn run(&self, arguments: &[&str]) -> RunResult {
        told(run_to_end(&mut self.command(arguments), secs(60)))
    }

    /// What stands between header and footer when this shell command runs for the host `one`.
    #[track_caller]
    fn shell(&self, options: &[&str], command: &str) -> String {
        let told = self.run(&[&["-H", "-f", "one", "-S", "./shell"], options, &[command]].concat());
        assert_eq!((told.stderr.as_str(), told.code), ("", Some(0)), "{told:?}");
        told.stdout
    }
}

#[test]
fn whole_output_is_that_of_mpssh() {
    let told = Place::new().run(&["-v", "-p", "1", "-f", "three", "-S", "/bin/echo", "-O4", "a b"]);
    assert_eq!(
        told.stdout,
        "MPSSH.py - Mass parallel SSH in Python (Version 1.2)\n\
         (c) 2013 Ivan Zahariev <famzah>\n\
         \n  [*] read (3) hosts from the list\n  \
         [*] executing \"a b\" as user \"me\"\n  \
         [*] SSH binary : /bin/echo\n  \
         [*] SSH options: ['-o NumberOfPasswordPrompts=0', '-4']\n  \
         [*] spawning 1 parallel SSH sessions\n\
         \n\
         h1          -> -o NumberOfPasswordPrompts=0 -4 me@h1 a b\n\
         longer-host -> -o NumberOfPasswordPrompts=0 -4 me@longer-host a b\n\
         h1          -> -o NumberOfPasswordPrompts=0 -4 me@h1 a b\n\
         \n  Done. 3 hosts processed (ok/non-ok/ssh-failed = 3/0/0).\n"
    );
    assert_eq!((told.stderr.as_str(), told.code), ("", Some(0)));
}

#[test]
fn program_gets_the_words_of_mpssh() {
    let told = Place::new().run(&["-H", "-f", "one", "-S", "./words", "-O", "p 22", "x  y"]);
    assert_eq!(
        told.stdout,
        "one -> [-o NumberOfPasswordPrompts=0]\none -> [-p 22]\none -> [me@one]\none -> [x  y]\n"
    );
}

#[test]
fn lines_and_endings_are_those_of_mpssh() {
    let place = Place::new();
    for (options, command, shown) in [
        (&[][..], "printf '\\n\\nlala\\n\\n\\n'", "one -> \none -> \none -> lala\none -> \none -> \n"),
        (&[], "printf lala", "one -> lala\n"),
        (&[], "exit 2", "one =: SSH exit code 2\n"),
        (&["-E"], "exit 2", ""),
        (&["-E"], "exit 255", "one =: SSH exit code 255 (possible SSH failure)\n"),
        (&[], "exit 0", ""),
        (&["--zero"], "exit 0", "one =: SSH exit code 0\n"),
        (&[], "kill -9 $$", "one =: SSH killed with signal 9\n"),
        (&["-l", "10"], "exit 3", "one =: SSH exit c\none =: ode 3\n"),
        (&["-l", "5"], "echo abcdeääx", "one -> abcde\none -> ääx\n"),
        (
            &[],
            "printf 'test\\001\\r\\n\\002\\177m\\177est\\n'; exit 1",
            "one -> test\none -> mest\none =: 4 non-printable characters were ignored\none =: SSH exit code 1\n",
        ),
        (&["-B"], "printf 'test\\001\\r\\n\\002\\177m\\177est\\n'", "one -> test\none -> mest\n"),
        (&["-b", "-B"], "printf 'test\\001\\r\\n\\002m\\n'", "one -> test\u{1}\none -> \u{2}m\n"),
        (&[], "cat; echo $?", "one -> 0\n"),
    ] {
        assert_eq!(place.shell(options, command), shown, "{options:?} {command}");
    }
}

/// With colours or without: `script` (util-linux) gives it a terminal.
#[test]
fn terminal_gets_no_text_that_it_obeys() {
    let place = Place::new();
    let odd = r"printf 'a\302\233b\342\200\256c\n'";
    for (variable, value) in [("NO_COLOR", "1"), ("TERM", "dumb"), ("TERM", "xterm")] {
        let inner = format!("{} run --mpssh -d 0 -u me -H -f one -S ./shell \"$ODD\"", binary());
        let mut command = Command::new("script");
        clear_environment(&mut command);
        command.args(["-qec", &inner, "/dev/null"]).env("HOME", place.0.path()).env("ODD", odd);
        command.current_dir(place.0.path()).env("SHELL", "/bin/sh").env(variable, value).stdin(Stdio::null());
        let told = told(run_to_end(&mut command, secs(60)));
        assert!(told.stdout.contains("a<U+009B>b<U+202E>c"), "{variable}: {told:?}");
    }
    // A program that reads it gets what the host said.
    assert_eq!(place.shell(&[], odd), "one -> a\u{9b}b\u{202e}c\n");
}

#[test]
fn program_that_cannot_be_started_is_named_with_its_error() {
    let place = Place::new();
    for (program, line) in [
        ("/", "one =: exec(/) error(13): Permission denied\n"),
        ("./none", "one =: exec(./none) error(2): No such file or directory\n"),
    ] {
        let told = place.run(&["-f", "one", "-S", program, "x"]);
        let (_, shown) = told.stdout.split_once("sessions\n\n").unwrap();
        assert_eq!(shown, format!("{line}\n  Done. 1 hosts processed (ok/non-ok/ssh-failed = 0/0/1).\n"));
        assert_eq!(told.code, Some(0));
    }
}

#[test]
fn wrong_use_is_refused_and_a_link_has_the_name_it_is_called_by() {
    let place = Place::new();
    for wrong in [&["x"][..], &["-f", "one"], &["-f", "one", "a", "b"], &["-f", "one", "-l", "0", "x"]] {
        assert_eq!(place.run(wrong).code, Some(2), "{wrong:?}");
    }
    assert_eq!(place.run(&["-f", "none", "x"]).code, Some(1));
    let link = place.0.path().join("mpssh");
    symlink(Path::new(binary()), &link).unwrap();
    let mut command = Command::new(link);
    clear_environment(&mut command);
    let linked = told(run_to_end(command.arg("-V"), secs(20)));
    assert!(linked.stdout.starts_with("MPSSH.py 1.2\n"), "{linked:?}");
}

#[test]
fn ctrl_c_ends_the_programs_and_is_said() {
    let place = Place::new();
    let mut command = place.command(&["-f", "three", "-S", "./shell", "echo $$; exec sleep 1000"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = Lines::follow(child.stdout.take().unwrap());
    eventually("all three are at work", secs(20), || (lines.count("->") == 3).then_some(()));
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    let told = told(child.wait_with_output().unwrap());
    assert_eq!(told.code, Some(1), "{told:?}");
    assert_eq!(told.stderr.trim_end(), "\nERROR: Terminated by CTRL+C! Cleaning up, wait a few seconds.");
    for line in lines.all().iter().filter(|line| line.contains("->")) {
        let process = Path::new("/proc").join(line.rsplit(' ').next().unwrap());
        eventually("the end of a program", secs(10), || (!process.exists()).then_some(()));
    }
    assert_eq!(lines.count("Done."), 0);
}

/// The home of a user who has the hosts in `~/.ssh/config`, where mpssh looks, and two of them in the file `list`.
fn with_list(fleet: &Fleet) -> &Path {
    let home = fleet.home.path();
    fs::write(home.join("list"), "h1\nh2\n").unwrap();
    home
}

#[test]
fn our_client_and_ssh_say_the_same_of_a_real_host() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    let home = with_list(&fleet);
    // One word, as mpssh passes it: `ssh` would take a space for the start of the name.
    let option = format!("F{}", home.join("ssh_config").display());
    for command in ["echo out; exit 7", "echo err >&2", "exit 255", "printf 'a\\001b'"] {
        let run = |options: &[&str]| {
            let mut line = Command::new(binary());
            clear_environment(&mut line);
            line.args(["run", "--mpssh", "-d", "0", "-u", &sshd.user, "-f", "list"])
                .args(options)
                .arg(command);
            line.current_dir(home).stdin(Stdio::null()).env("HOME", home);
            line.env("XDG_CONFIG_HOME", home.join("config")).env("XDG_STATE_HOME", home.join("state"));
            told(run_to_end(&mut line, secs(60)))
        };
        let (ours, theirs) = (run(&[]), run(&["-O", &option]));
        assert_eq!(sorted(&ours.stdout), sorted(&theirs.stdout), "{command}: {ours:?}");
        assert_eq!((ours.code, theirs.code), (Some(0), Some(0)));
        assert!(ours.stdout.contains("2 hosts processed"), "{ours:?}");
    }
}

#[test]
fn runs_are_on_record_and_what_our_client_did_can_be_done_again() {
    let place = Place::new();
    place.write("away", "127.0.0.1\n");
    fs::create_dir(place.0.path().join(".ssh")).unwrap();
    place.write(".ssh/config", "Host *\n  Port 1\n");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(binary());
        clear_environment(&mut command);
        command.arg("run").args(arguments).env("HOME", place.0.path()).stdin(Stdio::null());
        told(run_to_end(&mut command, secs(30)))
    };
    place.run(&["-f", "one", "-S", "./shell", "exit 3"]);
    let last = run(&["--last"]);
    assert!(last.stdout.contains("exit 3\n") && last.stdout.contains("\none  exit 3\n"), "{last:?}");
    let again = run(&["--again", "failed"]);
    assert_eq!(again.code, Some(2), "{again:?}");
    assert!(again.stderr.contains("mpssh with -S or -O"), "{again:?}");
    place.run(&["-f", "away", "uptime"]);
    let again = run(&["--again", "not-started"]);
    assert_eq!(again.code, Some(3), "{again:?}");
    assert!(again.stderr.contains(": uptime\n  on 1 host: 127.0.0.1\n"), "{again:?}");
    assert!(again.stdout.starts_with("127.0.0.1 =: connection-refused"), "{again:?}");
}

#[test]
fn unknown_host_is_told_with_what_to_type_and_the_output_stays_that_of_mpssh() {
    let sshd = Sshd::start();
    let fleet = Fleet::of(&sshd);
    let home = with_list(&fleet);
    fs::remove_dir_all(home.join("config/penstock/hosts")).unwrap();
    let mut line = Command::new(binary());
    clear_environment(&mut line);
    line.args(["run", "--mpssh", "-H", "-d", "0", "-u", &sshd.user, "-f", "list", "true"]);
    line.current_dir(home).stdin(Stdio::null()).env("HOME", home);
    line.env("XDG_CONFIG_HOME", home.join("config")).env("XDG_STATE_HOME", home.join("state"));
    let told = told(run_to_end(&mut line, secs(60)));
    assert_eq!(told.code, Some(0), "{told:?}");
    for shown in told.stdout.lines() {
        let is_mpssh = ["h1 => ", "h2 => ", "h1 =: SSH exit code 255 (", "h2 =: SSH exit code 255 ("];
        assert!(is_mpssh.iter().any(|start| shown.starts_with(start)), "{told:?}");
    }
    let expected = format!(
        "unknown-host (2): h[1-2]\n  read the fingerprint on its console, then: penstock host add h1 --port {} --fingerprint \
         SHA256:... (all hosts that wait for enrolment: penstock host pending)\n",
        sshd.port
    );
    assert_eq!(told.stderr, expected);
}
