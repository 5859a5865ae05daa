//! Machines of a test's network: network namespaces, made with iproute2.

use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::server::{Setup, run_to_end};
use crate::tools::program;
use crate::wait::secs;

/// A network namespace with its loopback interface up. Dropping it deletes it with its interfaces.
pub struct Machine {
    name: String,
}

impl Machine {
    /// Makes a machine; `role` is the end of its name.
    #[track_caller]
    pub fn new(role: &str) -> Self {
        // Tests of one program run at the same time.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let machine = Self { name: format!("ps{}-{count}{role}", std::process::id()) };
        ip(&["netns", "add", &machine.name]);
        ip(&["-n", &machine.name, "link", "set", "lo", "up"]);
        // The kernel asks for no neighbour with a link-local address that it still tests for duplicates: for a second or two, a
        // packet with the address of another machine (a forwarded one, a transparent source) would wait in vain.
        machine.run(&["sysctl", "-qw", "net.ipv6.conf.default.accept_dad=0"]);
        machine
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// A program on the machine, with its arguments.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(program("ip"));
        command.args(["netns", "exec", &self.name]).args(words).stdin(Stdio::null());
        command
    }

    /// Runs a program on the machine to its end, for two minutes at most.
    #[track_caller]
    pub fn output(&self, words: &[&str]) -> Output {
        run_to_end(&mut self.command(words), secs(120))
    }

    /// Runs a program on the machine, which must succeed. Returns what it says.
    #[track_caller]
    pub fn run(&self, words: &[&str]) -> String {
        let output = self.output(words);
        assert!(output.status.success(), "{words:?} on {}: {output:?}", self.name);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs `ip` for the machine, which must succeed.
    #[track_caller]
    pub fn ip(&self, arguments: &[&str]) {
        ip(&[&["-n", &self.name], arguments].concat());
    }

    /// Penstock on the machine.
    pub fn setup(&self, config: &str) -> Setup {
        Setup::new(config).through(["ip", "netns", "exec", &self.name])
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = Command::new(program("ip")).args(["netns", "del", &self.name]).output();
    }
}

#[track_caller]
fn ip(arguments: &[&str]) {
    let output = Command::new(program("ip")).args(arguments).output().unwrap();
    assert!(output.status.success(), "ip {arguments:?}: {output:?}");
}
