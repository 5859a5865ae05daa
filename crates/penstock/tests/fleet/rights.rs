//! What the commands of operators do without, and what the programs that they start get nevertheless.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testing::secs;
use testing::server::{Lines, binary, run_to_end};
use testing::tools::{self, Root};
use testing::tunnel::Place;
use testing::user::User;

/// Bits of capabilities(7) that a command of root keeps: CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID, KILL,
/// NET_BIND_SERVICE, SYS_PTRACE and SYS_RESOURCE.
const NEEDED: u64 = 0b11_1111 | 1 << 10 | 1 << 19 | 1 << 24;
const NET_RAW: u64 = 1 << 13;

/// Starts `command` with an ambient capability and its own limit of core dumps.
fn with_rights(command: &Command) -> Command {
    let mut outer = Command::new(tools::program("setpriv"));
    outer.args(["--inh-caps", "+net_raw", "--ambient-caps", "+net_raw", "prlimit", "--core=4096:8192", "--"]);
    outer.arg(command.get_program()).args(command.get_args()).env_clear().stdin(Stdio::null());
    outer.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    outer
}

fn at(user: &User, name: &str) -> PathBuf {
    user.home.path().join(name)
}

/// A program that writes what the kernel says of it and of each thread of the program that started it.
fn look(directory: &Path) -> String {
    let path = directory.join("look");
    let into = directory.display();
    let script = format!(
        "#!/bin/sh\ncat /proc/$PPID/task/*/status /proc/$PPID/limits >{into}/parent\n\
         cat /proc/self/status /proc/self/limits >{into}/own\n"
    );
    tools::executable(&path, &script);
    path.display().to_string()
}

#[derive(Debug)]
struct Rights(String);

impl Rights {
    fn read(path: &Path) -> Self {
        Self(fs::read_to_string(path).unwrap())
    }

    /// The value of each thread.
    fn all(&self, name: &str) -> Vec<u64> {
        let values = self.0.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
        let values: Vec<_> = values.map(|value| u64::from_str_radix(value, 16).unwrap()).collect();
        assert!(!values.is_empty(), "{name} in {self:?}");
        values
    }

    #[track_caller]
    fn every(&self, name: &str, wanted: u64) {
        assert!(
            self.all(name).iter().all(|value| *value == wanted),
            "{name} {wanted:x}: {:x?}",
            self.all(name)
        );
    }

    #[track_caller]
    fn at_most_needed(&self) {
        for name in ["CapEff", "CapPrm"] {
            let beyond = |value: &u64| value & !NEEDED & !self.all("CapAmb")[0] != 0;
            assert!(!self.all(name).iter().any(beyond), "{name}: {:x?}", self.all(name));
        }
    }

    #[track_caller]
    fn core(&self, soft: &str) {
        let line = self.0.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        assert_eq!(line.split_whitespace().skip(4).take(2).collect::<Vec<_>>(), [soft, "8192"]);
    }
}

#[test]
fn a_run_does_without_what_it_never_needs_and_its_proxy_command_has_all_rights_of_root() {
    if tools::root("gives a process a capability") == Root::LeftOut {
        return;
    }
    for words in [["run", "-w", "h1", "true"], ["get", "-w", "h1", "file"]] {
        let user = User::new();
        user.configure(&format!("Host h1\n  ProxyCommand {}\n", look(user.home.path())));
        let mut command = user.command(binary());
        command.args(words).arg(if words[0] == "get" { "." } else { "--" });
        let output = run_to_end(&mut with_rights(&command), secs(30));
        assert!(at(&user, "parent").exists(), "{output:?}");
        let (parent, own) = (Rights::read(&at(&user, "parent")), Rights::read(&at(&user, "own")));
        parent.at_most_needed();
        for set in ["CapAmb", "CapInh"] {
            parent.every(set, 0);
            own.every(set, 0);
        }
        // Otherwise sudo would not work.
        parent.every("NoNewPrivs", 0);
        own.every("CapEff", own.all("CapBnd")[0]);
        parent.core("1");
        own.core("1");
    }
}

#[test]
fn a_job_in_a_tunnel_has_the_rights_that_its_starter_gave_and_the_tunnel_does_without_them() {
    if tools::root("gives a process a capability") == Root::LeftOut {
        return;
    }
    let place = Place::new();
    place.configure(
        "[tunnel.t]\nhost = \"far\"\n[tunnel.t.forward.db]\nconnect = \"127.0.0.1:1\"\ncheck = \"none\"\n",
    );
    let look = look(place.directory.path());
    for engine in ["native", "openssh"] {
        let command = place.command(&["with", "t", "--engine", engine, "--", &look]);
        let output = run_to_end(&mut with_rights(&command), secs(60));
        assert!(output.status.success(), "{output:?}");
        let (parent, own) = (Rights::read(&place.path("parent")), Rights::read(&place.path("own")));
        parent.at_most_needed();
        parent.every("CapEff", parent.all("CapEff")[0] & NEEDED);
        parent.every("NoNewPrivs", 0);
        parent.core("1");
        own.every("CapAmb", NET_RAW);
        own.every("CapEff", own.all("CapBnd")[0]);
        own.core("4096");
        fs::remove_file(place.path("parent")).unwrap();
    }
    place.is_clean();
}

#[test]
fn a_lab_alone_has_no_new_privileges_and_one_with_a_command_passes_on_what_it_got() {
    if tools::root("gives a process a capability") == Root::LeftOut {
        return;
    }
    let user = User::new();
    let mut alone = user.command(binary());
    alone.args(["lab", "1", "--dir"]).arg(at(&user, "lab"));
    let mut lab = with_rights(&alone).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    Lines::follow(lab.stdout.take().unwrap()).wait_for("ready: ", secs(30));
    let status = |name: &str| fs::read_to_string(format!("/proc/{}/{name}", lab.id())).unwrap();
    let tasks = fs::read_dir(format!("/proc/{}/task", lab.id())).unwrap();
    let tasks: String = tasks
        // A thread that ends meanwhile has no file any more.
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok())
        .chain([status("limits")])
        .collect();
    let rights = Rights(tasks);
    assert!(rights.all("CapEff").len() > 1, "threads: {rights:?}");
    rights.at_most_needed();
    rights.every("CapAmb", 0);
    rights.every("CapInh", 0);
    rights.every("NoNewPrivs", 1);
    rights.core("1");
    kill(Pid::from_raw(lab.id().cast_signed()), Signal::SIGABRT).unwrap();
    let ended = lab.wait().unwrap();
    assert_eq!((ended.signal(), ended.core_dumped()), (Some(Signal::SIGABRT as i32), false));

    let mut command = user.command(binary());
    command.args(["lab", "1", "--", &look(user.home.path())]);
    let output = run_to_end(&mut with_rights(&command), secs(30));
    assert!(output.status.success(), "{output:?}");
    let (parent, own) = (Rights::read(&at(&user, "parent")), Rights::read(&at(&user, "own")));
    parent.at_most_needed();
    parent.every("NoNewPrivs", 0);
    parent.core("1");
    own.every("CapAmb", NET_RAW);
    own.core("4096");
}

#[test]
fn root_that_could_not_see_its_programs_any_more_keeps_its_capabilities_but_no_core_dumps() {
    if tools::root("takes a capability from the bounding set") == Root::LeftOut {
        return;
    }
    let user = User::new();
    user.configure(&format!("Host h1\n  ProxyCommand {}\n", look(user.home.path())));
    let mut command = user.command(binary());
    command.args(["run", "-w", "h1", "true"]);
    let mut outer = Command::new(tools::program("setpriv"));
    outer.args(["--bounding-set", "-sys_ptrace", "prlimit", "--core=4096:8192", "--"]);
    outer.arg(command.get_program()).args(command.get_args()).env_clear().stdin(Stdio::null());
    outer.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = run_to_end(&mut outer, secs(30));
    assert!(at(&user, "parent").exists(), "{output:?}");
    let parent = Rights::read(&at(&user, "parent"));
    parent.every("CapEff", parent.all("CapBnd")[0]);
    parent.core("1");
}

#[test]
fn check_says_what_the_commands_keep_why_and_until_when() {
    let run = |arguments: &[&str]| {
        let mut command = Command::new(binary());
        let output = run_to_end(command.args(arguments).env_clear(), secs(30));
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let table = run(&["check", "--privileges"]);
    let row = |parts: &[&str]| {
        let found = table.lines().any(|line| parts.iter().all(|part| line.contains(part)));
        assert!(found, "{parts:?} in {table}");
    };
    row(&["all ", "core dumps", "the start"]);
    row(&["lab alone", "new privileges", "the start"]);
    row(&["tunnel", "ambient", "the end"]);
    assert_eq!(table.matches(", of root  ").count() as u32, NEEDED.count_ones() + 1, "{table}");
    let json: serde_json::Value = serde_json::from_str(&run(&["check", "--privileges", "--json"])).unwrap();
    // Beside the rows there are the names of the columns and a note.
    assert_eq!(json["privileges"].as_array().unwrap().len() + 2, table.lines().count(), "{json:#}");
}
