//! The front door of the demo: this program as a child process, started with the usual command. Its log goes to a file;
//! the lines with the listeners' addresses are parsed.

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

/// A front door that is ready. Dropping it kills the process.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    process: Process,
    pub bound: Bound,
}

/// Addresses of the listeners, from the log of the front door.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bound {
    pub listeners: Vec<(String, String)>,
    pub admin: Option<String>,
}

/// A line of the front door's log during its start.
#[derive(Debug, PartialEq, Eq)]
enum StartLine {
    Listener(String, String),
    Admin(String),
    Ready,
    Other,
}

impl Server {
    /// Starts `program serve --config FILE` and waits until it is ready. Its log is written to the file `log`.
    pub(crate) fn start(program: &Path, configuration: &Path, log: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(program);
        command.arg("serve").arg("--end-with-parent").arg("--config").arg(configuration);
        // Environment variables of another server must not change this one, whose log is parsed here.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if name.starts_with("PENSTOCK_") || name.starts_with("LISTEN_") || name == "NOTIFY_SOCKET" {
                command.env_remove(&*name);
            }
        }
        // In a process group of its own it gets no SIGINT from Ctrl-C: the demo ends it in order.
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

    pub(crate) fn is_running(&self) -> bool {
        // `waitid` with WNOWAIT leaves the exit status for `stop`.
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        matches!(waitid(Id::Pid(self.pid()), flags), Ok(WaitStatus::StillAlive))
    }

    /// Ends the front door as `systemctl stop` does: SIGTERM, then SIGKILL after a time limit.
    pub(crate) fn stop(self) {
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
                StartLine::Listener(name, address) => self.bound.listeners.push((name, address)),
                StartLine::Admin(address) => self.bound.admin = Some(address),
                StartLine::Ready => return Ok(()),
                StartLine::Other => {}
            }
            if last.len() == LINES_KEPT {
                last.pop_front();
            }
            last.push_back(line);
        }
    }

    fn pid(&self) -> Pid {
        // The kernel's type of a process id is signed; each id fits.
        Pid::from_raw(self.child.id() as i32)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGKILL to an ended process is no error; the wait reaps it.
        self.process.signal(Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

impl Bound {
    pub(crate) fn listener(&self, name: &str) -> anyhow::Result<SocketAddr> {
        let found = self.listeners.iter().find(|(listener, _)| listener == name);
        let (_, address) =
            found.with_context(|| format!("the front door did not say where {name} listens"))?;
        address.parse().with_context(|| format!("{address:?} is no address"))
    }
}

/// Copies the log to its file, and each line to the receiver, if there is one.
fn copy(stderr: impl Read, log: &mut File, lines: &mpsc::Sender<String>) {
    let mut reader = BufReader::new(stderr);
    let mut line = Vec::new();
    while let Ok(1..) = reader.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line) {
        // An error, as on a full disk, is ignored: if nothing read the pipe, the front door would block.
        let _ = log.write_all(&line);
        let text = String::from_utf8_lossy(&line);
        // After the start there is no receiver.
        let _ = lines.send(text.trim_end().to_owned());
        line.clear();
    }
}

/// Parses a line of the log: the time, the level and possibly the module come before the message.
fn understand(line: &str) -> StartLine {
    let mut words = line.split_whitespace().skip(2).skip_while(|word| word.ends_with(':'));
    match (words.next(), words.next()) {
        (Some("ready"), _) => StartLine::Ready,
        (Some("listening"), Some("admin")) => match value(line, "address") {
            Some(address) => StartLine::Admin(address),
            None => StartLine::Other,
        },
        (Some("listening"), _) => match (value(line, "listener"), value(line, "address")) {
            (Some(name), Some(address)) => StartLine::Listener(name, address),
            _ => StartLine::Other,
        },
        _ => StartLine::Other,
    }
}

fn value(line: &str, key: &str) -> Option<String> {
    let found = line.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))?;
    Some(found.trim_matches('"').to_owned())
}

fn join(lines: &VecDeque<String>) -> String {
    lines.iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

/// Time limit of the start, also for a slow machine.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Time limit of the stop. The configuration of the demo drains for 2 s.
const STOP_LIMIT: Duration = Duration::from_secs(6);

/// Number of log lines in the error after a failed start.
const LINES_KEPT: usize = 40;

const LONGEST_LINE: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_about_the_start_are_understood_with_and_without_a_module() {
        let time = "2026-01-01T00:00:00.000000Z";
        let web = StartLine::Listener("web".into(), "127.0.0.1:43211".into());
        assert_eq!(understand(&format!("{time}  INFO listening listener=web address=127.0.0.1:43211")), web);
        let line =
            format!("{time}  INFO serve::start: listening listener=\"web\" address=\"127.0.0.1:43211\"");
        assert_eq!(understand(&line), web);
        let admin = StartLine::Admin("127.0.0.1:9900".into());
        assert_eq!(understand(&format!("{time}  INFO listening admin address=127.0.0.1:9900")), admin);
        assert_eq!(understand(&format!("{time}  INFO ready")), StartLine::Ready);
    }

    #[test]
    fn other_lines_with_the_same_words_are_not_taken_for_the_start() {
        let time = "2026-01-01T00:00:00.000000Z";
        for line in
            ["INFO backend is ready", "INFO listening control socket=/run/x", "WARN not ready", "", "ready"]
        {
            assert_eq!(understand(&format!("{time} {line}")), StartLine::Other, "{line}");
        }
        assert_eq!(understand("ready"), StartLine::Other);
    }
}
