//! `penstock ssh config`: what it prints, beside what `ssh -G` prints; and that the commands which it runs end with it.

use std::fs;
use std::process::{Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;
use testing::secs;
use testing::server::{binary, run_to_end};

struct Home {
    dir: TempDir,
}

impl Home {
    fn with(text: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(".ssh")).unwrap();
        fs::write(dir.path().join(".ssh/config"), text).unwrap();
        Self { dir }
    }

    fn file(&self) -> String {
        self.dir.path().join(".ssh/config").to_str().unwrap().to_owned()
    }

    fn config(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(binary());
        command.args(["ssh", "config"]).args(arguments).env("HOME", self.dir.path()).stdin(Stdio::null());
        run_to_end(&mut command, secs(30))
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

const CONFIG: &str = "\
Host web*
  HostName %h.example.com
  User deploy
  ForwardAgent yes
Match host *.example.com
  Port 2222
  Ciphers aes256-ctr
";

#[test]
fn every_value_is_shown_with_the_line_it_is_from() {
    let home = Home::with(CONFIG);
    let output = home.config(&["web1", "-F", &home.file()]);
    let file = home.file();
    let shown = text(&output.stdout);
    assert!(shown.starts_with("web1: deploy@web1.example.com:2222\n"), "{shown}");
    for (setting, line) in [("hostname %h.example.com", 2), ("user deploy", 3), ("port 2222", 6)] {
        let found = shown.lines().any(|shown| {
            shown.trim_start().starts_with(setting) && shown.ends_with(&format!("  {file}:{line}"))
        });
        assert!(found, "{setting}: {shown}");
    }
    assert!(
        shown.contains(&format!("not followed:\n  {file}:4: forwardagent yes\n    ignored: ")),
        "{shown}"
    );
}

#[test]
fn json_says_the_same() {
    let home = Home::with(CONFIG);
    let output = home.config(&["web1", "-l", "me", "-J", "gate", "--json"]);
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(shown["hostname"], "web1.example.com");
    assert_eq!((&shown["user"], &shown["port"]), (&Value::from("me"), &Value::from(2222)));
    assert_eq!(shown["proxy"]["jump"][0], "gate");
    let notices = shown["not_followed"].as_array().unwrap();
    assert!(
        notices.iter().any(|notice| notice["effect"] == "ignored" && notice["keyword"] == "forwardagent")
    );
}

#[test]
fn like_ssh_writes_what_ssh_writes() {
    let home = Home::with(CONFIG);
    let ours = text(&home.config(&["web1", "-F", &home.file(), "--like-ssh"]).stdout);
    let theirs = Command::new("ssh").args(["-G", "-F", &home.file(), "web1"]).stdin(Stdio::null()).output();
    let theirs = text(&theirs.expect("ssh is missing: run `make setup`").stdout);
    for keyword in
        ["host", "hostname", "user", "port", "ciphers", "forwardagent", "controlmaster", "rekeylimit"]
    {
        let of =
            |all: &str| all.lines().find(|line| line.starts_with(&format!("{keyword} "))).map(str::to_owned);
        assert_eq!(of(&ours), of(&theirs), "{keyword}");
        assert!(of(&ours).is_some(), "{keyword}");
    }
}

#[test]
fn all_faults_are_told_and_the_exit_code_is_2() {
    let home = Home::with("Hostnmae x\nPort 99999\n");
    let output = home.config(&["web1"]);
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(said.contains(&format!(
        "error: {}:1: hostnmae: no such keyword\n  hint: did you mean hostname?",
        home.file()
    )));
    assert!(said.contains(&format!("error: {}:2: port: \"99999\" is not a port", home.file())), "{said}");
    assert_eq!(home.config(&["-oProxyCommand=id"]).status.code(), Some(2));
    assert_eq!(home.config(&["web1", "-F", "/nowhere/config"]).status.code(), Some(2));
}

#[test]
fn values_cannot_move_the_cursor() {
    let home = Home::with("User a\u{1b}[2Jb\nLocalCommand \u{1b}]0;x\n");
    let shown = text(&home.config(&["web1"]).stdout) + &text(&home.config(&["web1"]).stderr);
    assert!(!shown.contains('\u{1b}'), "{shown:?}");
}

#[test]
fn commands_of_the_configuration_run_for_several_hosts_at_once() {
    // Each waits for the other one.
    let home = Home::with(
        "Match exec \"touch %n.there; until [ -e a.there ] && [ -e b.there ]; do sleep 0.05; done\"\n  \
         ProxyCommand false\n",
    );
    let mut command = Command::new(binary());
    command.args(["run", "-w", "a,b", "true"]).env("HOME", home.dir.path()).env_remove("XDG_CONFIG_HOME");
    command.current_dir(home.dir.path()).stdin(Stdio::null());
    let output = run_to_end(&mut command, secs(100));
    let shown = text(&output.stdout) + &text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{shown}");
    for host in ["a", "b"] {
        let ended =
            format!("the proxy command of {host} ended with status 1, before the server said anything");
        assert!(shown.contains(&ended), "{shown}");
    }
}

/// Whether a process is there, and no zombie that waits for the process that takes over orphans.
fn runs(pid: &str) -> bool {
    let state = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    !state.is_empty() && !state.contains(") Z ")
}

/// It obeys nothing but SIGKILL, and has a child that is not what was started; writes both numbers into `pids`.
const STUBBORN: &str =
    "#!/bin/sh\ntrap '' HUP INT TERM; sleep 600 & echo $! $$ >pids.new; mv pids.new pids; wait; wait\n";

fn put_stubborn(home: &Home) {
    testing::tools::executable(&home.dir.path().join("stubborn"), STUBBORN);
}

fn wait_until_gone(home: &Home) {
    let pids = home.dir.path().join("pids");
    let started = fs::read_to_string(&pids).unwrap();
    let gone = || (!started.split_whitespace().any(runs)).then_some(());
    testing::eventually("the command is gone", secs(30), gone);
    fs::remove_file(&pids).unwrap();
}

#[test]
fn proxy_command_that_does_not_obey_ends_after_us() {
    let home = Home::with("Host web1\n  ProxyCommand ./stubborn\n");
    put_stubborn(&home);
    let mut command = Command::new(binary());
    command.args(["run", "--connect-timeout", "10", "-w", "web1", "true"]).env("HOME", home.dir.path());
    command.env_remove("XDG_CONFIG_HOME").current_dir(home.dir.path()).stdin(Stdio::null());
    let output = run_to_end(&mut command, secs(60));
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    wait_until_gone(&home);
}

/// Whether each thread of a process sleeps: by then its guardian knows what it started (`crates/ssh/src/guardian.rs`).
fn waits(process: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    threads
        .map(|thread| fs::read_to_string(thread.path().join("stat")).unwrap_or_default())
        .all(|stat| stat.contains(") S "))
}

#[test]
fn commands_of_the_configuration_end_with_us_however_we_end() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        let home = Home::with("Match exec ./stubborn\n  Port 1\n");
        let work = home.dir.path();
        let groups = work.join(".config/clustershell");
        fs::create_dir_all(&groups).unwrap();
        let conf = format!("[Main]\ndefault: slow\n[slow]\nmap: cd {} && exec ./stubborn\n", work.display());
        fs::write(groups.join("groups.conf"), conf).unwrap();
        put_stubborn(&home);
        for arguments in [&["ssh", "config", "web1"][..], &["run", "-w", "@slow:x", "true"]] {
            let mut command = Command::new(binary());
            command.args(arguments).env("HOME", work).env_remove("XDG_CONFIG_HOME");
            command.env_remove("CLUSTERSHELL_CFGDIR").current_dir(work);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let mut program = command.spawn().unwrap();
            let pids = work.join("pids");
            testing::eventually("the command runs", secs(30), || pids.exists().then_some(()));
            testing::eventually("we wait for it", secs(30), || waits(program.id()).then_some(()));
            kill(Pid::from_raw(program.id().cast_signed()), signal).unwrap();
            program.wait().unwrap();
            println!("{signal}: {arguments:?}");
            wait_until_gone(&home);
        }
    }
}
