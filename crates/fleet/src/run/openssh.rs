//! Commands through the user's `ssh`, a process per host: for what our client cannot do, and as its referee.
//!
//! `ssh` ends with 255 both when it failed and when the command did. Its own log (`-v -E`) tells the two apart: it goes
//! through a pipe of ours and is read by `logic::fleet::openssh`.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use logic::fleet::ending::{Ending, Failure, Phase, Remote};
use logic::fleet::openssh::{Log, Refusal, Scarce, Unstarted};
use logic::ssh::config::Asked;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use sys::process::Process;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use super::Host;
use super::engine::{Happening, Leash, Seen, Stream, Writer};

/// The user's `ssh`.
#[derive(Debug, Clone)]
pub struct OpenSsh {
    /// The program.
    pub program: PathBuf,
    /// Its arguments before the host.
    pub arguments: Vec<String>,
    /// Whether it is a real `ssh` that keeps a log, or anything that takes its place.
    pub kind: Kind,
    /// What stands before the name of each host, as `user@`.
    pub login: String,
}

/// What the program is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// OpenSSH.
    Ssh,
    /// A program of the user's that gets `HOST COMMAND`: all we see is its output and its status.
    Substitute,
}

impl OpenSsh {
    pub(super) fn leash(&self) -> Leash {
        match self.kind {
            Kind::Ssh => Leash::Wanted,
            Kind::Substitute => Leash::None,
        }
    }

    pub(super) fn start(&self, host: &Host, command: &str) -> Result<Running, Failure> {
        self.spawn(host, command).map_err(|error| {
            let all = error.to_string();
            let errno = error.raw_os_error().unwrap_or(0);
            let words = all.strip_suffix(&format!(" (os error {errno})")).unwrap_or(&all).to_owned();
            let scarce = match Errno::from_raw(errno) {
                Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::EAGAIN => Scarce::Yes,
                _ => Scarce::No,
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
                // It may be an `ssh` after all. In a group of its own it would stop for good as soon as it asks something on
                // the terminal.
                if std::env::var_os("SSH_ASKPASS").is_none() {
                    line.env("SSH_ASKPASS", "/bin/false");
                }
                line.env("SSH_ASKPASS_REQUIRE", "force");
                None
            }
            Kind::Ssh => {
                let (log_side, log) = pipe::pipe()?;
                let log_side = log_side.into_blocking_fd()?;
                // `ssh` closes all descriptors but three when it starts, so it opens ours by its path.
                let path = format!("/proc/{}/fd/{}", std::process::id(), log_side.as_raw_fd());
                line.args(["-v", "-E", &path, "-T"]);
                line.args(OPTIONS.iter().flat_map(|option| ["-o", option]));
                Some((log_side, log))
            }
        };
        let mut destination = host.name.clone();
        if self.kind == Kind::Ssh {
            // `ssh` knows no address in brackets with a port behind it.
            if let Some(Asked { host, user, port: Some(port), .. }) = Asked::parse(&host.name) {
                line.args(["-p", &port.to_string()]);
                destination = user.map_or(host.clone(), |user| format!("{user}@{host}"));
            }
            line.arg("--");
        }
        line.arg(format!("{}{destination}", self.login)).arg(command);
        line.stdin(into.into_blocking_fd()?).stdout(out_side_of(out)?).stderr(out_side_of(err)?);
        // A session of its own, since Ctrl-C is for us; and no life beyond ours. Turns run on threads that live as long.
        // `ssh` obeys TERM at its next look, which may not come while nothing happens; killed, its connection is closed.
        let signal = match self.kind {
            Kind::Ssh => Signal::SIGKILL,
            Kind::Substitute => Signal::SIGTERM,
        };
        sys::child::leash_with(&mut line, &[], signal)?;
        let child = line.spawn()?;
        let process = Process::of_child(child.id());
        let (log_side, log) = log.map_or((None, None), |(side, log)| (Some(side), Some(log)));
        Ok(Running {
            child,
            process,
            input: Some(in_side),
            out: Pipe::new(out_side),
            err: Pipe::new(err_side),
            log: log.map(Pipe::new),
            log_side,
            told: Log::default(),
            early: Vec::new(),
            kind: self.kind,
            // What takes the place of `ssh` keeps no log: for all we know it runs the command at once.
            pending: (self.kind == Kind::Substitute).then_some(Phase::Run),
            gone: None,
        })
    }
}

fn out_side_of(side: pipe::Sender) -> io::Result<Stdio> {
    side.into_blocking_fd().map(Stdio::from)
}

/// An `ssh` under way. Killed when dropped.
pub(super) struct Running {
    child: Child,
    process: Process,
    input: Option<pipe::Sender>,
    out: Pipe,
    err: Pipe,
    log: Option<Pipe>,
    /// Kept until `ssh` has opened it by its path.
    log_side: Option<OwnedFd>,
    told: Log,
    /// What came on standard error before the host was known: our `known-hosts` may have said there why it is not.
    early: Vec<u8>,
    kind: Kind,
    pending: Option<Phase>,
    gone: Option<Gone>,
}

/// The process ended; what it wrote before may still be in the pipes.
struct Gone {
    status: ExitStatus,
    /// Bytes still to be taken, at most: somebody else may hold the pipes and write on.
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

    /// What comes next; never returns after the end.
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

    /// What is there now. Asks the pipe itself: what the runtime knows of it may be older.
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
    pub(super) async fn next(&mut self) -> Happening {
        let mut pause = Duration::from_millis(1);
        loop {
            if let Some(phase) = self.pending.take() {
                return Happening::Phase(phase);
            }
            if !self.is_early() && !self.early.is_empty() {
                return Happening::Output(Stream::Stderr, std::mem::take(&mut self.early).into());
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
                Some(bytes) = out.read() => return Happening::Output(Stream::Stdout, bytes),
                Some(bytes) = err.read() => self.early.extend_from_slice(&bytes),
                // A master of shared connections may hold the pipes for ever: look at the process itself too.
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

    /// Whether what comes on standard error may still be a word of `known-hosts`.
    fn is_early(&self) -> bool {
        self.kind == Kind::Ssh && self.told.phase() < Phase::Authenticate && self.early.len() <= 2 * CHUNK
    }

    fn note(&mut self, bytes: &[u8]) {
        // It writes, so it has opened the pipe by its path: our side would keep the end from being seen.
        self.log_side = None;
        self.pending = self.told.feed(bytes).or(self.pending);
    }

    fn look(&mut self) {
        if let Ok(Some(status)) = self.child.try_wait() {
            self.gone = Some(Gone { status, left: MOST_LEFT });
        }
    }

    /// First what it wrote, then its end.
    fn after(&mut self, mut gone: Gone) -> Happening {
        if let Some(left) = gone.left.checked_sub(CHUNK)
            && let Some(bytes) = self.out.rest()
        {
            self.gone = Some(Gone { left, ..gone });
            return Happening::Output(Stream::Stdout, bytes);
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
            return Happening::Output(Stream::Stderr, std::mem::take(&mut self.early).into());
        }
        Happening::Ended(self.ending(gone.status))
    }

    /// What came on standard error before it was clear that these are no words of `known-hosts`.
    pub(super) fn take_early(&mut self) -> Option<Bytes> {
        let early = std::mem::take(&mut self.early);
        (!early.is_empty()).then(|| early.into())
    }

    /// Says so if the command itself ended while something that it started holds its output open: `ssh` waits for that, and has
    /// the status in its log as soon as the server tells it, but not which one.
    pub(super) fn ended_itself(&mut self) -> Option<&'static str> {
        self.read_log();
        let ended = self.kind == Kind::Ssh && self.told.remote() == Remote::Ended;
        ended.then_some("ssh does not tell how")
    }

    /// Ends `ssh`, which cannot send signals, and says how far it had got and what is known of the command then.
    pub(super) fn end(mut self) -> Seen {
        self.process.signal(Signal::SIGKILL);
        let _ = self.child.wait();
        self.read_log();
        let mut thrown_away = 0;
        for pipe in [&mut self.out, &mut self.err] {
            // Somebody else may hold the pipes and write on.
            while thrown_away < MOST_LEFT as u64
                && let Some(bytes) = pipe.rest()
            {
                thrown_away += bytes.len() as u64;
            }
        }
        let (phase, remote) = match self.kind {
            Kind::Ssh => (self.told.phase(), self.told.remote()),
            Kind::Substitute => (Phase::Run, Remote::Unknown),
        };
        Seen { phase, remote, thrown_away }
    }

    /// Everything that is still in the pipe was written before the end.
    fn read_log(&mut self) {
        while let Some(bytes) = self.log.as_mut().and_then(Pipe::rest) {
            self.told.feed(&bytes);
        }
    }

    fn ending(&mut self, status: ExitStatus) -> Ending {
        self.read_log();
        match self.kind {
            Kind::Ssh => self.told.ending(status.code(), status.signal()),
            Kind::Substitute => logic::fleet::openssh::of_substitute(status.code(), status.signal()),
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

/// What must hold whatever the user's configuration says.
const OPTIONS: [&str; 7] = [
    "BatchMode=yes",
    "NumberOfPasswordPrompts=0",
    // No host gets a command unless its key is known.
    "StrictHostKeyChecking=yes",
    // Over the connection of another ssh it logs neither that it sends the command nor how that ended.
    "ControlMaster=no",
    "ControlPath=none",
    "ControlPersist=no",
    "ClearAllForwardings=yes",
];
const CHUNK: usize = 16 * 1024;
/// No pipe holds more.
const MOST_LEFT: usize = 1 << 20;
const LOOK: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Starts a shell script in place of ssh; `$3` is the log where there is one. It has ended or waits when `done` is there.
    fn start(directory: &std::path::Path, kind: Kind, script: &str) -> Running {
        let program = directory.join("ssh");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let engine = OpenSsh { program, arguments: Vec::new(), kind, login: String::new() };
        let target = Err(Failure {
            phase: Phase::Queued,
            reason: logic::fleet::ending::Reason::Local,
            detail: String::new(),
            advice: None,
            remote: Remote::NeverStarted,
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
            ("debug1: Sending command: x", Phase::Run, Remote::Unknown),
            ("debug1: Connection established.", Phase::Identity, Remote::NeverStarted),
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
        // Somebody holds the pipes beyond the end, so that they tell of none.
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
                Happening::Output(Stream::Stdout, bytes) => out.extend_from_slice(&bytes),
                Happening::Output(Stream::Stderr, bytes) => err.extend_from_slice(&bytes),
                Happening::Ended(ending) => break ending,
                Happening::Phase(_) => {}
            }
        };
        let pid = std::fs::read_to_string(directory.path().join("pid")).unwrap();
        let pid = nix::unistd::Pid::from_raw(pid.trim().parse().unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
        assert_eq!((out.len(), err.as_slice(), ending), (30_000, b"words\n".as_slice(), Ending::Exited(0)));
    }
}
