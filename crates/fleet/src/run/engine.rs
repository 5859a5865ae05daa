//! What carries a command to a host: our own client, or the user's `ssh` as a process per host.
//! The two look alike from `run/turn.rs`, so that one can be the referee of the other.

use std::time::Duration;

use bytes::Bytes;
use logic::fleet::ending::{Ending, Failure, Phase, Remote};
use logic::fleet::verdict;
use ssh::Known;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;

use super::Host;
use super::native::{self, Native};
use super::openssh::{self, OpenSsh};

/// What carries commands.
pub enum Engine {
    /// `crates/ssh`.
    Native(Native),
    /// The user's `ssh`.
    OpenSsh(OpenSsh),
}

/// What happens on a host.
#[derive(Debug)]
pub enum Happening {
    /// It gets further.
    Phase(Phase),
    /// Output of the command.
    Output(Stream, Bytes),
    /// The last one.
    Ended(Ending),
}

/// Where a command wrote to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A way to a host, logged in or about to be.
pub(super) enum Way {
    Native(native::Way),
    OpenSsh,
}

/// A command under way.
pub(super) enum Running {
    Native(native::Running),
    OpenSsh(Box<openssh::Running>),
}

/// What was seen of a command that was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    /// How far it got.
    pub(super) phase: Phase,
    /// Whether the server confirmed its end.
    pub(super) remote: Remote,
    /// Bytes of output that came and went nowhere.
    pub(super) thrown_away: u64,
}

/// Where a command's standard input is written. Dropped, it ends the input of a program of ours (a pipe) and leaves that of a
/// channel open.
pub(super) enum Writer {
    Native(ssh::Stdin),
    /// `None` from its end on.
    Pipe(Option<pipe::Sender>),
}

/// Nobody takes the input any more, which is no fault: a command may end before it has read everything.
pub(super) struct Gone;

impl Writer {
    /// Waits while the other side does not read.
    pub(super) async fn write(&mut self, bytes: Bytes) -> Result<(), Gone> {
        match self {
            Self::Native(stdin) => stdin.write(bytes).await.map_err(|_| Gone),
            Self::Pipe(Some(pipe)) => pipe.write_all(&bytes).await.map_err(|_| Gone),
            Self::Pipe(None) => Err(Gone),
        }
    }

    /// Ends the input.
    pub(super) async fn finish(&mut self) {
        match self {
            Self::Native(stdin) => _ = stdin.finish().await,
            Self::Pipe(pipe) => *pipe = None,
        }
    }
}

impl Engine {
    /// Gets ready to send a command. Nothing has been started when this ends, well or not.
    pub(super) async fn connect(
        &self,
        host: &Host,
        on_phase: &(dyn Fn(Phase) + Sync),
    ) -> Result<Way, Failure> {
        match self {
            Self::Native(native) => native.connect(host, on_phase).await.map(Way::Native),
            Self::OpenSsh(_) => Ok(Way::OpenSsh),
        }
    }

    /// The connection of a way, for files: only our own client has one.
    pub(super) fn session<'a>(&self, way: &'a Way) -> Option<&'a ssh::Session> {
        match way {
            Way::Native(way) => Some(way.session()),
            Way::OpenSsh => None,
        }
    }

    /// Sends the command.
    pub(super) async fn exec(&self, host: &Host, way: &Way, command: &str) -> Result<Running, Failure> {
        match (self, way) {
            (Self::Native(_), Way::Native(way)) => way.exec(command).await.map(Running::Native),
            (Self::OpenSsh(engine), _) => {
                engine.start(host, command).map(|running| Running::OpenSsh(Box::new(running)))
            }
            (Self::Native(_), Way::OpenSsh) => unreachable!("a way is used by the engine that made it"),
        }
    }

    /// Whether a process or a connection of ours can be asked to carry the mark of a leash.
    pub(super) fn can_leash(&self) -> Leash {
        match self {
            Self::Native(_) => Leash::Wanted,
            Self::OpenSsh(engine) => engine.leash(),
        }
    }
}

/// Whether commands are sent so that they end when we vanish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leash {
    /// Yes.
    Wanted,
    /// As they are.
    None,
}

impl Running {
    pub(super) async fn next(&mut self) -> Happening {
        match self {
            Self::Native(running) => running.next().await,
            Self::OpenSsh(running) => running.next().await,
        }
    }

    /// The command's standard input; [`Writer::finish`] ends it.
    pub(super) fn take_input(&mut self) -> Option<Writer> {
        match self {
            Self::Native(running) => running.take_input(),
            Self::OpenSsh(running) => running.take_input(),
        }
    }

    /// How the command itself ended, in words, while something that it started holds its output open.
    pub(super) fn ended_itself(&mut self) -> Option<String> {
        match self {
            Self::Native(running) => running.ended_itself().map(verdict::title),
            Self::OpenSsh(running) => running.ended_itself().map(str::to_owned),
        }
    }

    /// What `ssh` said of itself so far and nobody was shown yet: why it waits, perhaps.
    pub(super) fn take_early(&mut self) -> Option<Bytes> {
        match self {
            Self::Native(_) => None,
            Self::OpenSsh(running) => running.take_early(),
        }
    }

    /// Ends the remote process by signals, and says how far it got and whether the server confirmed that.
    pub(super) async fn end(self, phase: Phase, grace: Duration, known: Known) -> Seen {
        match self {
            Self::Native(running) => {
                let (remote, thrown_away) = running.end(grace, known).await;
                Seen { phase, remote, thrown_away }
            }
            Self::OpenSsh(running) => running.end(),
        }
    }
}
