//! The front door of the demo: this very program as a child process, started as anybody would start it.
//! What it says goes to a log file; the lines that tell where it listens are understood on the way.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use sys::process::Process;

/// A front door that is ready. Dropping it kills what is left.
#[derive(Debug)]
pub struct Server {
    child: Child,
    process: Process,
    /// Where it listens.
    pub bound: Bound,
}

/// The addresses that a front door said it listens on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bound {
    /// Listeners by name.
    pub listeners: Vec<(String, String)>,
    /// The admin listener.
    pub admin: Option<String>,
}

/// What a line of the front door's log says about its start.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    Listener(String, String),
    Admin(String),
    Ready,
    Other,
}

impl Server {
    /// Starts `program serve --config FILE` and waits until it is ready. Its log goes to `log`.
    pub fn start(program: &Path, configuration: &Path, log: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(program);
        command.arg("serve").arg("--end-with-parent").arg("--config").arg(configuration);
        // What is meant for another server must not change this one, and its log is read here.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if name.starts_with("PENSTOCK_") || name.starts_with("LISTEN_") || name == "NOTIFY_SOCKET" {
                command.env_remove(&*name);
            }
        }
        // Ctrl-C is for the demo, which then ends the front door in order.
        command.env("PENSTOCK_LOG", "info").process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut log = File::create_new(log).with_context(|| format!("cannot make {}", log.display()))?;
        let mut child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let stderr = child.stderr.take().context("the front door has no standard error")?;
        let process = Process::of_child(child.id());
        let mut server = Server { child, process, bound: Bound::default() };
        let (sender, lines) = mpsc::channel();
        thread::Builder::new()
            .name("demo-server-log".to_owned())
            .spawn(move || copy(stderr, &mut log, &sender))?;
        server.wait_until_ready(&lines)?;
        Ok(server)
    }

    /// Whether the process is still there.
    pub fn is_running(&self) -> bool {
        // `waitid` with WNOWAIT asks without taking the answer from `stop`.
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        matches!(waitid(Id::Pid(self.pid()), flags), Ok(WaitStatus::StillAlive))
    }

    /// Ends it as `systemctl stop` would, and by force if that takes too long.
    pub fn stop(self) {
        self.process.signal(Signal::SIGTERM);
        let deadline = Instant::now() + STOP_LIMIT;
        while self.is_running() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn wait_until_ready(&mut self, lines: &mpsc::Receiver<String>) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        let mut last = VecDeque::new();
        loop {
            let line = match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => {
                    bail!("the front door was not ready after {} s:\n{}", START_LIMIT.as_secs(), join(&last))
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("the front door did not start:\n{}", join(&last))
                }
            };
            match understand(&line) {
                Said::Listener(name, address) => self.bound.listeners.push((name, address)),
                Said::Admin(address) => self.bound.admin = Some(address),
                Said::Ready => return Ok(()),
                Said::Other => {}
            }
            if last.len() == LINES_KEPT {
                last.pop_front();
            }
            last.push_back(line);
        }
    }

    fn pid(&self) -> Pid {
        // A process id fits by definition; the kernel's own type is signed.
        Pid::from_raw(self.child.id() as i32)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Killing one that has ended is no error; the wait is what leaves no zombie behind.
        self.process.signal(Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

impl Bound {
    /// The address of a listener by its name.
    pub fn listener(&self, name: &str) -> anyhow::Result<SocketAddr> {
        let found = self.listeners.iter().find(|(listener, _)| listener == name);
        let (_, address) =
            found.with_context(|| format!("the front door did not say where {name} listens"))?;
        address.parse().with_context(|| format!("{address:?} is no address"))
    }
}

/// Copies the log to its file, and to whoever still waits for a line.
fn copy(stderr: impl Read, log: &mut File, lines: &mpsc::Sender<String>) {
    let mut reader = BufReader::new(stderr);
    let mut line = Vec::new();
    while let Ok(1..) = reader.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line) {
        // A full disk must not stop the front door by a full pipe.
        let _ = log.write_all(&line);
        let text = String::from_utf8_lossy(&line);
        // Nobody waits any more once the front door is ready.
        let _ = lines.send(text.trim_end().to_owned());
        line.clear();
    }
}

/// Time, level and perhaps the module come before the message.
fn understand(line: &str) -> Said {
    let mut words = line.split_whitespace().skip(2).skip_while(|word| word.ends_with(':'));
    match (words.next(), words.next()) {
        (Some("ready"), _) => Said::Ready,
        (Some("listening"), Some("admin")) => match value(line, "address") {
            Some(address) => Said::Admin(address),
            None => Said::Other,
        },
        (Some("listening"), _) => match (value(line, "listener"), value(line, "address")) {
            (Some(name), Some(address)) => Said::Listener(name, address),
            _ => Said::Other,
        },
        _ => Said::Other,
    }
}

fn value(line: &str, key: &str) -> Option<String> {
    let found = line.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))?;
    Some(found.trim_matches('"').to_owned())
}

fn join(lines: &VecDeque<String>) -> String {
    lines.iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

/// The front door is ready within this time, on the slowest machine.
const START_LIMIT: Duration = Duration::from_secs(30);

/// The configuration of the demo drains for 2 s; then this is generous.
const STOP_LIMIT: Duration = Duration::from_secs(6);

/// Lines of the log that are shown when it does not start.
const LINES_KEPT: usize = 40;

const LONGEST_LINE: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_about_the_start_are_understood_with_and_without_a_module() {
        let time = "2026-01-01T00:00:00.000000Z";
        let web = Said::Listener("web".into(), "127.0.0.1:43211".into());
        assert_eq!(understand(&format!("{time}  INFO listening listener=web address=127.0.0.1:43211")), web);
        let line =
            format!("{time}  INFO serve::start: listening listener=\"web\" address=\"127.0.0.1:43211\"");
        assert_eq!(understand(&line), web);
        let admin = Said::Admin("127.0.0.1:9900".into());
        assert_eq!(understand(&format!("{time}  INFO listening admin address=127.0.0.1:9900")), admin);
        assert_eq!(understand(&format!("{time}  INFO ready")), Said::Ready);
    }

    #[test]
    fn other_lines_with_the_same_words_are_not_taken_for_the_start() {
        let time = "2026-01-01T00:00:00.000000Z";
        for line in
            ["INFO backend is ready", "INFO listening control socket=/run/x", "WARN not ready", "", "ready"]
        {
            assert_eq!(understand(&format!("{time} {line}")), Said::Other, "{line}");
        }
        assert_eq!(understand("ready"), Said::Other);
    }
}
