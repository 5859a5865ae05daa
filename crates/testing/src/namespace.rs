//! A PID and mount namespace like that of a container: a signal to a wrong process cannot leave it.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::sshd::{children_of, program};
use crate::{eventually, secs};

/// A namespace. Dropping it ends all processes in it.
pub struct Namespace {
    unshare: Child,
    /// Process id of its init, outside the namespace.
    init: u32,
    /// Standard input of the shell that is its init, if init is a shell.
    shell: Option<ChildStdin>,
}

impl Namespace {
    /// Creates a namespace whose init is a shell and session leader; [`Self::start`] gives the shell commands.
    pub fn new() -> Self {
        let mut namespace = Self::of(&["setsid", "sh"]);
        namespace.shell = namespace.unshare.stdin.take();
        // The kernel ignores a signal to init without a handler, so the tests signal processes that init has started.
        namespace.start(":");
        namespace
    }

    /// Creates a namespace whose init is `command`.
    pub fn of(command: &[&str]) -> Self {
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
        eventually("its init has mounted /proc and runs the command", secs(20), || {
            let name = std::fs::read_to_string(format!("/proc/{init}/comm")).ok()?;
            (name.trim_end() != "unshare").then_some(())
        });
        Self { unshare, init, shell: None }
    }

    /// Starts a command in the background, in the session and process group of init.
    pub fn start(&mut self, command: &str) {
        let shell = self.shell.as_mut().expect("its init is a shell");
        writeln!(shell, "{command} </dev/null &").unwrap();
    }

    /// Runs a command in the namespace to its end, by a process from outside.
    pub fn run(&self, script: &str) {
        let init = self.init.to_string();
        let mut command = Command::new(program("nsenter"));
        command.args(["--pid", "--mount", "--target", &init, "--", "sh", "-ec", script]).stdin(Stdio::null());
        let output = command.output().unwrap();
        assert_eq!(output.status.into_raw(), 0, "{script}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Number of processes in the namespace whose command line contains `part`.
    pub fn count(&self, part: &str) -> usize {
        self.processes(part).len()
    }

    /// Ids, outside the namespace, of the processes in it whose command line contains `part`.
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
