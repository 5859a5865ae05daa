//! A PID and mount namespace of its own, as a container has: a signal that goes astray in it reaches nothing outside.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, Stdio};

use super::sshd::{children_of, program};
use super::{eventually, secs};

/// A namespace. Everything in it ends when this is dropped.
pub struct Namespace {
    unshare: Child,
    /// Its init, as it is seen from outside.
    init: u32,
    /// The shell that is its init, if it is one.
    shell: Option<ChildStdin>,
}

impl Namespace {
    /// Its init is a shell that leads a session, and starts what [`Self::start`] says.
    pub fn new() -> Self {
        let mut namespace = Self::of(&["setsid", "sh"]);
        namespace.shell = namespace.unshare.stdin.take();
        // Init gets no signal that it has no handler for; what it starts is signalled like anything else.
        namespace.start(":");
        namespace
    }

    /// Its init is this command.
    pub fn of(command: &[&str]) -> Self {
        assert!(
            nix::unistd::geteuid().is_root(),
            "this test makes PID namespaces and logs in as several users: run it as root"
        );
        let mut unshare = Command::new(program("unshare"))
            .args(["--pid", "--mount", "--fork", "--mount-proc", "--kill-child=KILL", "--"])
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let init = eventually("the namespace has an init", secs(20), || {
            assert!(unshare.try_wait().unwrap().is_none(), "unshare ended: are namespaces allowed here?");
            children_of(unshare.id()).first().copied()
        });
        Self { unshare, init, shell: None }
    }

    /// Has init start a command in the background, in the session and group of init.
    pub fn start(&mut self, command: &str) {
        let shell = self.shell.as_mut().expect("its init is a shell");
        writeln!(shell, "{command} </dev/null &").unwrap();
    }

    /// Runs a command in it to its end, by a process from outside.
    pub fn run(&self, script: &str) {
        let init = self.init.to_string();
        let mut command = Command::new(program("nsenter"));
        command.args(["--pid", "--mount", "--target", &init, "--", "sh", "-ec", script]).stdin(Stdio::null());
        let output = command.output().unwrap();
        assert_eq!(output.status.into_raw(), 0, "{script}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// How many processes in it have this in their command line.
    pub fn count(&self, part: &str) -> usize {
        self.processes(part).len()
    }

    /// The numbers, as they are seen from outside, of the processes in it that have this in their command line.
    pub fn processes(&self, part: &str) -> Vec<i32> {
        let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/pid")).ok();
        let own = namespace(&self.init.to_string());
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let processes = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let has = |process: &String| {
            let line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            namespace(process) == own && String::from_utf8_lossy(&line).contains(part)
        };
        let found = processes.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())).filter(has);
        found.filter_map(|name| name.parse().ok()).collect()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.shell = None;
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
    }
}
