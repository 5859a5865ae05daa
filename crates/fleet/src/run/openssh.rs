//! Runs commands through the user's `ssh`, one process for each host: for features that our client lacks, and to
//! compare results.
//!
//! `ssh` exits with 255 if the connection failed, and also if the command exited with 255. The log of `ssh` (`-v -E`)
//! shows which is true. The log goes through a pipe, and `hosts::fleet::openssh` parses it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hosts::fleet::ending::{Ending, Failure, Phase, Remote};
use hosts::fleet::openssh::{Log, Refusal, ResourceShortage, Unstarted};
use hosts::ssh::config::Asked;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use ssh::guardian::{self, Guard};
use sys::process::Process;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use super::happening::{HostEvent, Seen, Stream};
use super::host::Host;
use super::writer::Writer;

#[derive(Debug, Clone)]
pub struct OpenSsh {
    pub program: PathBuf,
    /// Arguments before the host.
    pub arguments: Vec<String>,
    /// Whether the program is `ssh`, which writes a log, or a substitute.
    pub kind: Kind,
    /// Text before the name of each host, such as `user@`.
    pub login: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Ssh,
    /// A program of the user that is called with `HOST COMMAND`. Only its output and its exit status are known.
    Substitute,
}

impl OpenSsh {
    pub(super) fn start(&self, host: &Host, command: &str) -> Result<Running, Failure> {
        self.spawn(host, command).map_err(|error| {
            let all = error.to_string();
            let errno = error.raw_os_error().unwrap_or(0);
            let words = all.strip_suffix(&format!(" (os error {errno})")).unwrap_or(&all).to_owned();
            let scarce = match Errno::from_raw(errno) {
                Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::EAGAIN => ResourceShortage::Yes,
                _ => ResourceShortage::No,
            };
            Unstarted { program: self.program.display().to_string(), errno, words }.failure(scarce)
        })
    }

    fn spawn(&self, host: &Host, command: &str) -> io::Result<Running> {
        let (out, out_side) = pipe::pipe()?;
        let (err, err_side) = pipe::pipe()?;
        let (in_side, into) = pipe::pipe()?;
        let mut line = Command::new(&self.program);
        line.args(&self.arguments);
        let log = match self.kind {
            Kind::Substitute => {
                // The substitute may call `ssh`, which would be stopped (SIGTTIN) as soon as it asks for a password on
                // the terminal, because it is in a background process group.
                if std::env::var_os("SSH_ASKPASS").is_none() {
                    line.env("SSH_ASKPASS", "/bin/false");
                }
                line.env("SSH_ASKPASS_REQUIRE", "force");
                None
            }
            Kind::Ssh => {
                let (log_side, log) = pipe::pipe()?;
                let log_side = log_side.into_blocking_fd()?;
                // `ssh` closes all inherited descriptors but the first three, so it opens the pipe by this path.
                let path = format!("/proc/{}/fd/{}", std::process::id(), log_side.as_raw_fd());
                line.args(["-v", "-E", &path, "-T"]);
                line.args(OPTIONS.iter().flat_map(|option| ["-o", option]));
                Some((log_side, log))
            }
        };
        let mut destination = host.name.clone();
        if self.kind == Kind::Ssh {
            // `ssh` does not parse `[address]:port`.
            if let Some(Asked { host, user, port: Some(port), .. }) = Asked::parse(&host.name) {
                line.args(["-p", &port.to_string()]);
                destination = user.map_or(host.clone(), |user| format!("{user}@{host}"));
            }
            line.arg("--");
        }
        line.arg(format!("{}{destination}", self.login)).arg(command);
        line.stdin(into.into_blocking_fd()?).stdout(out_side_of(out)?).stderr(out_side_of(err)?);
        // `ssh` runs in a session of its own, since Ctrl-C is for this program, and the kernel kills it when this
        // program dies. The kernel also kills it when the thread that started it ends; these threads live as long as
        // this program. SIGKILL: `ssh` handles SIGTERM only after its next wait, which may last. A killed `ssh` closes
        // its connection. Where `ssh` gains capabilities by execve(2), the kernel forgets that (PR_SET_PDEATHSIG): so
        // the guardian ends it too.
        let signal = match self.kind {
            Kind::Ssh => Signal::SIGKILL,
            Kind::Substitute => Signal::SIGTERM,
        };
        sys::child::end_with_parent_by(&mut line, &[], signal)?;
        let announced = guardian::announce(&mut line);
        let child = line.spawn()?;
        let process = Process::of_child(child.id());
        let guard = announced.watch(child.id());
        let (log_side, log) = log.map_or((None, None), |(side, log)| (Some(side), Some(log)));
        Ok(Running {
            child,
            process,
            _guard: guard,
            input: Some(in_side),
            out: Pipe::new(out_side),
            err: Pipe::new(err_side),
            log: log.map(Pipe::new),
            log_side,
            told: Log::default(),
            early: Vec::new(),
            kind: self.kind,
            // A substitute writes no log, so the command counts as started at once.
            pending: (self.kind == Kind::Substitute).then_some(Phase::Run),
            gone: None,
        })
    }
}

fn out_side_of(side: pipe::Sender) -> io::Result<Stdio> {
    side.into_blocking_fd().map(Stdio::from)
}

/// A running `ssh`. Dropping it kills the process.
pub(super) struct Running {
    child: Child,
    process: Process,
    _guard: Guard,
    input: Option<pipe::Sender>,
    out: Pipe,
    err: Pipe,
    log: Option<Pipe>,
    /// Our copy of the write end, kept until `ssh` has opened the pipe by its path.
    log_side: Option<OwnedFd>,
    told: Log,
    /// Standard error before the host key was checked: `penstock known-hosts` may have written there why it refused the
    /// key.
    early: Vec<u8>,
    kind: Kind,
    pending: Option<Phase>,
    gone: Option<ProcessEnded>,
}

/// An exit status; the pipes may still hold output.
struct ProcessEnded {
    status: ExitStatus,
    /// Limit of the bytes that are still read: another process may hold the pipes open and go on writing.
    left: usize,
}

struct Pipe {
    from: Option<pipe::Receiver>,
    buffer: BytesMut,
}

impl Pipe {
    fn new(from: pipe::Receiver) -> Self {
        Self { from: Some(from), buffer: BytesMut::new() }
    }

    /// Reads the next bytes. `None` at the end; a call after the end never returns.
    async fn read(&mut self) -> Option<Bytes> {
        let Some(from) = &mut self.from else { return std::future::pending().await };
        self.buffer.reserve(CHUNK);
        match from.read_buf(&mut self.buffer).await {
            Ok(count) if count > 0 => Some(self.buffer.split().freeze()),
            _ => {
                self.from = None;
                None
            }
        }
    }

    /// Reads bytes that are in the pipe now. It calls read(2) itself, because the readiness that the runtime knows may
    /// be outdated.
    fn rest(&mut self) -> Option<Bytes> {
        let from = self.from.as_ref()?;
        let mut bytes = vec![0; CHUNK];
        match nix::unistd::read(from, &mut bytes) {
            Ok(count) if count > 0 => {
                bytes.truncate(count);
                Some(Bytes::from(bytes))
            }
            _ => None,
        }
    }
}

impl Running {
    pub(super) async fn next(&mut self) -> HostEvent {
        let mut pause = Duration::from_millis(1);
        loop {
            if let Some(phase) = self.pending.take() {
                return HostEvent::Phase(phase);
            }
            if !self.is_early() && !self.early.is_empty() {
                return HostEvent::Output(Stream::Stderr, std::mem::take(&mut self.early).into());
            }
            if let Some(gone) = self.gone.take() {
                return self.after(gone);
            }
            let ended = self.out.from.is_none() && self.err.from.is_none();
            let Self { out, err, log, .. } = self;
            let logged = async {
                match log {
                    Some(log) => log.read().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                bytes = logged => match bytes {
                    Some(bytes) => self.note(&bytes),
                    None => self.log = None,
                },
                Some(bytes) = out.read() => return HostEvent::Output(Stream::Stdout, bytes),
                Some(bytes) = err.read() => self.early.extend_from_slice(&bytes),
                // A ControlMaster process may hold the pipes open without a limit, so the process is polled too.
                () = tokio::time::sleep(if ended { pause } else { LOOK }) => {
                    pause = (pause * 2).min(LOOK);
                    self.look();
                }
                else => {}
            }
        }
    }

    pub(super) fn take_input(&mut self) -> Option<Writer> {
        self.input.take().map(|input| Writer::Pipe(Some(input)))
    }

    /// Whether standard error may still be a message of `known-hosts`.
    fn is_early(&self) -> bool {
        self.kind == Kind::Ssh && self.told.phase() < Phase::Authenticate && self.early.len() <= 2 * CHUNK
    }

    fn note(&mut self, bytes: &[u8]) {
        // The log has data, so `ssh` has opened the pipe. Our copy of the write end would hide the end of file.
        self.log_side = None;
        self.pending = self.told.feed(bytes).or(self.pending);
    }

    fn look(&mut self) {
        if let Ok(Some(status)) = self.child.try_wait() {
            self.gone = Some(ProcessEnded { status, left: MOST_LEFT });
        }
    }

    /// Returns the output that is left, then the ending.
    fn after(&mut self, mut gone: ProcessEnded) -> HostEvent {
        if let Some(left) = gone.left.checked_sub(CHUNK)
            && let Some(bytes) = self.out.rest()
        {
            self.gone = Some(ProcessEnded { left, ..gone });
            return HostEvent::Output(Stream::Stdout, bytes);
        }
        while self.early.len() <= CHUNK
            && let Some(left) = gone.left.checked_sub(CHUNK)
            && let Some(bytes) = self.err.rest()
        {
            gone.left = left;
            self.early.extend_from_slice(&bytes);
        }
        self.read_log();
        if self.is_early()
            && let Some(refusal) = Refusal::take(&mut self.early)
        {
            self.told.refuse(refusal);
        }
        if !self.early.is_empty() {
            self.gone = Some(gone);
            return HostEvent::Output(Stream::Stderr, std::mem::take(&mut self.early).into());
        }
        HostEvent::Ended(self.ending(gone.status))
    }

    /// Takes the standard error that has been held back because it could be a message of `known-hosts`.
    pub(super) fn take_early(&mut self) -> Option<Bytes> {
        let early = std::mem::take(&mut self.early);
        (!early.is_empty()).then(|| early.into())
    }

    /// A text, if the command has ended while another process holds its output open: `ssh` waits for that process. Its
    /// log tells at once that the command has ended, but not with which exit status.
    pub(super) fn ended_itself(&mut self) -> Option<&'static str> {
        self.read_log();
        let ended = self.kind == Kind::Ssh && self.told.remote() == Remote::Ended;
        ended.then_some("ssh does not tell how")
    }

    /// Kills `ssh`, which cannot send signals to the command. Returns the phase and what is known of the command.
    pub(super) fn end(mut self) -> Seen {
        self.process.signal(Signal::SIGKILL);
        let _ = self.child.wait();
        self.read_log();
        let mut thrown_away = 0;
        for pipe in [&mut self.out, &mut self.err] {
            // Another process may hold the pipes open and go on writing.
            while thrown_away < MOST_LEFT as u64
                && let Some(bytes) = pipe.rest()
            {
                thrown_away += bytes.len() as u64;
            }
        }
        let (phase, remote) = match self.kind {
            Kind::Ssh => (self.told.phase(), self.told.remote()),
            Kind::Substitute => (Phase::Run, Remote::MayHaveRun),
        };
        Seen { phase, remote, thrown_away }
    }

    /// Reads the log that is left in the pipe.
    fn read_log(&mut self) {
        while let Some(bytes) = self.log.as_mut().and_then(Pipe::rest) {
            self.told.feed(&bytes);
        }
    }

    fn ending(&mut self, status: ExitStatus) -> Ending {
        self.read_log();
        match self.kind {
            Kind::Ssh => self.told.ending(status.code(), status.signal()),
            Kind::Substitute => hosts::fleet::openssh::of_substitute(status.code(), status.signal()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.process.signal(Signal::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

/// Options that override any configuration of the user.
const OPTIONS: [&str; 7] = [
    "BatchMode=yes",
    "NumberOfPasswordPrompts=0",
    // `ssh` sends a command only to a host whose key is known.
    "StrictHostKeyChecking=yes",
    // Over a shared connection `ssh` logs neither that it sends the command nor how the command ended.
    "ControlMaster=no",
    "ControlPath=none",
    "ControlPersist=no",
    "ClearAllForwardings=yes",
];
const CHUNK: usize = 16 * 1024;
/// Limit of the bytes in a pipe (pipe(7), pipe-max-size).
const MOST_LEFT: usize = 1 << 20;
const LOOK: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts a shell script in place of ssh; `$3` is the path of the log, if there is one. Returns when the script has
    /// created the file `done`.
    fn start(directory: &std::path::Path, kind: Kind, script: &str) -> Running {
        let file = directory.join("ssh");
        std::fs::write(&file, format!("{script}\n")).unwrap();
        // As an argument of the shell: the kernel starts no program that a child of another test holds open for writing, which
        // it does until it calls execve(2).
        let arguments = vec![file.display().to_string()];
        let engine = OpenSsh { program: "/bin/sh".into(), arguments, kind, login: String::new() };
        let target = Err(Failure {
            phase: Phase::Queued,
            reason: hosts::fleet::ending::Reason::LocalError,
            detail: String::new(),
            advice: None,
            remote: Remote::NotStarted,
        });
        let host = Host { name: "h".to_owned(), target };
        engine.start(&host, "true").unwrap()
    }

    fn wait_for(file: &std::path::Path) {
        while !file.exists() {
            std::thread::yield_now();
        }
    }

    #[tokio::test]
    async fn ssh_that_is_ended_before_its_log_was_read_may_have_sent_the_command() {
        for (line, phase, remote) in [
            ("debug1: Sending command: x", Phase::Run, Remote::MayHaveRun),
            ("debug1: Connection established.", Phase::Identity, Remote::NotStarted),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let done = directory.path().join("done");
            let script = format!("echo '{line}' >\"$3\"; : >{}; exec sleep 60", done.display());
            let running = start(directory.path(), Kind::Ssh, &script);
            wait_for(&done);
            assert_eq!(running.end(), Seen { phase, remote, thrown_away: 0 }, "{line}");
        }
    }

    #[tokio::test]
    async fn last_output_is_taken_though_the_end_is_seen_first() {
        let directory = tempfile::tempdir().unwrap();
        // A process holds the pipes open beyond the end of the script, so that the pipes give no end of file.
        let script = "sleep 60 & echo $! >\"${0%/*}/pid\"; printf %30000d 7; echo words >&2";
        let mut running = start(directory.path(), Kind::Substitute, script);
        running.pending = None;
        while running.gone.is_none() {
            running.look();
            std::thread::yield_now();
        }
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let ending = loop {
            match running.next().await {
                HostEvent::Output(Stream::Stdout, bytes) => out.extend_from_slice(&bytes),
                HostEvent::Output(Stream::Stderr, bytes) => err.extend_from_slice(&bytes),
                HostEvent::Ended(ending) => break ending,
                HostEvent::Phase(_) => {}
            }
        };
        let pid = std::fs::read_to_string(directory.path().join("pid")).unwrap();
        let pid = nix::unistd::Pid::from_raw(pid.trim().parse().unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
        assert_eq!((out.len(), err.as_slice(), ending), (30_000, b"words\n".as_slice(), Ending::Exited(0)));
    }
}
