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
use logic::fleet::ending::{Ending, Failure, Phase};
use logic::fleet::openssh::{Log, Scarce, Step, Unstarted};
use nix::errno::Errno;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use super::Host;
use super::engine::{Happening, Leash, Stream, Writer};

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
                line.args([
                    "-v",
                    "-E",
                    &path,
                    "-T",
                    "-o",
                    "BatchMode=yes",
                    "-o",
                    "NumberOfPasswordPrompts=0",
                ]);
                Some((log_side, log))
            }
        };
        if self.kind == Kind::Ssh {
            line.arg("--");
        }
        line.arg(format!("{}{}", self.login, host.name)).arg(command);
        line.stdin(into.into_blocking_fd()?).stdout(out_side_of(out)?).stderr(out_side_of(err)?);
        // A group of its own, since Ctrl-C is for us; and no life beyond ours. Turns run on threads that live as long.
        sys::child::leash(&mut line, &[])?;
        let child = line.spawn()?;
        let (log_side, log) = log.map_or((None, None), |(side, log)| (Some(side), Some(log)));
        Ok(Running {
            child,
            input: Some(in_side),
            out: Pipe::new(out_side),
            err: Pipe::new(err_side),
            log: log.map(Pipe::new),
            log_side,
            told: Log::default(),
            kind: self.kind,
            // A program that says nothing of itself may be at work from the first moment.
            pending: (self.kind == Kind::Substitute).then_some(Phase::Run),
        })
    }
}

fn out_side_of(side: pipe::Sender) -> io::Result<Stdio> {
    side.into_blocking_fd().map(Stdio::from)
}

/// An `ssh` under way. Killed when dropped.
pub(super) struct Running {
    child: Child,
    input: Option<pipe::Sender>,
    out: Pipe,
    err: Pipe,
    log: Option<Pipe>,
    /// Kept until `ssh` has opened it by its path.
    log_side: Option<OwnedFd>,
    told: Log,
    kind: Kind,
    pending: Option<Phase>,
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
}

impl Running {
    pub(super) async fn next(&mut self) -> Happening {
        let mut pause = Duration::from_millis(1);
        loop {
            if let Some(phase) = self.pending.take() {
                return Happening::Phase(phase);
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
                Some(bytes) = err.read() => return Happening::Output(Stream::Stderr, bytes),
                // A master of shared connections may hold the pipes for ever: look at the process itself too.
                () = tokio::time::sleep(if ended { pause } else { LOOK }) => {
                    pause = (pause * 2).min(LOOK);
                    if let Ok(Some(status)) = self.child.try_wait() {
                        return Happening::Ended(self.ending(status));
                    }
                }
                else => {}
            }
        }
    }

    pub(super) fn take_input(&mut self) -> Option<Writer> {
        self.input.take().map(|input| Writer::Pipe(Some(input)))
    }

    fn note(&mut self, bytes: &[u8]) {
        // It writes, so it has opened the pipe by its path: our side would keep the end from being seen.
        self.log_side = None;
        if let Some(Step::Phase(phase)) = self.told.feed(bytes) {
            self.pending = Some(phase);
        }
    }

    fn ending(&mut self, status: ExitStatus) -> Ending {
        // What is still in the pipe was written before the end.
        if let Some(log) = self.log.as_mut().and_then(|log| log.from.as_mut()) {
            let mut rest = vec![0; CHUNK];
            while let Ok(count) = log.try_read(&mut rest)
                && count > 0
            {
                self.told.feed(&rest[..count]);
            }
        }
        match self.kind {
            Kind::Ssh => self.told.ending(status.code(), status.signal()),
            Kind::Substitute => logic::fleet::openssh::of_substitute(status.code(), status.signal()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

const CHUNK: usize = 16 * 1024;
const LOOK: Duration = Duration::from_millis(50);
