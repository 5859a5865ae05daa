//! The engine that carries a command to a host: our own client, or the user's `ssh` with one process for each host.
//! Both have the same interface for `run/turn.rs`, so that their results can be compared.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use hosts::fleet::ending::{Failure, Phase};
use hosts::fleet::verdict;
use ssh::Known;

use super::happening::{HostEvent, Seen};
use super::host::Host;
use super::native::{self, Native};
use super::openssh::{self, Kind, OpenSsh};
use super::writer::Writer;

pub enum Engine {
    /// Our own client in `crates/ssh`.
    Native(Native),
    OpenSsh(OpenSsh),
}

/// A route to a host: a connection with a log-in, or nothing yet for `ssh`, which connects when it starts.
pub(super) enum Way {
    Native(native::Way),
    OpenSsh,
}

pub(super) enum Running {
    Native(native::Running),
    OpenSsh(Box<openssh::Running>),
}

impl Engine {
    /// Connects to a host. The host has started no process when `connect` returns.
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

    /// The connection for SFTP. `None` for `ssh`: only our own client copies files.
    pub(super) fn session<'a>(&self, way: &'a Way) -> Option<&'a ssh::Session> {
        match way {
            Way::Native(way) => Some(way.session()),
            Way::OpenSsh => None,
        }
    }

    /// Sends a command. `opened` is set before: until then the host has not started it.
    pub(super) async fn exec(
        &self,
        host: &Host,
        way: &Way,
        command: &str,
        opened: &AtomicBool,
    ) -> Result<Running, Failure> {
        match (self, way) {
            (Self::Native(_), Way::Native(way)) => way.exec(command, opened).await.map(Running::Native),
            (Self::OpenSsh(engine), _) => {
                opened.store(true, Relaxed);
                engine.start(host, command).map(|running| Running::OpenSsh(Box::new(running)))
            }
            (Self::Native(_), Way::OpenSsh) => {
                unreachable!("a connection is used by the engine that opened it")
            }
        }
    }

    /// Whether this engine can send a command with a watcher. A substitute for `ssh` may change the output.
    pub(super) fn can_watch(&self) -> Watcher {
        match self {
            Self::Native(_) => Watcher::Wanted,
            Self::OpenSsh(engine) => match engine.kind {
                Kind::Ssh => Watcher::Wanted,
                Kind::Substitute => Watcher::None,
            },
        }
    }
}

/// Whether a command is sent with a watcher, which ends the command when the connection is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watcher {
    Wanted,
    None,
}

impl Running {
    pub(super) async fn next(&mut self) -> HostEvent {
        match self {
            Self::Native(running) => running.next().await,
            Self::OpenSsh(running) => running.next().await,
        }
    }

    /// The standard input of the command; [`Writer::finish`] closes it.
    pub(super) fn take_input(&mut self) -> Option<Writer> {
        match self {
            Self::Native(running) => running.take_input(),
            Self::OpenSsh(running) => running.take_input(),
        }
    }

    /// The exit status of the command in words, if the command has ended and another process holds its output open.
    pub(super) fn ended_itself(&mut self) -> Option<String> {
        match self {
            Self::Native(running) => running.ended_itself().map(verdict::title),
            Self::OpenSsh(running) => running.ended_itself().map(str::to_owned),
        }
    }

    /// The messages of `ssh` that have not been shown yet, which may say why it waits.
    pub(super) fn take_early(&mut self) -> Option<Bytes> {
        match self {
            Self::Native(_) => None,
            Self::OpenSsh(running) => running.take_early(),
        }
    }

    /// Ends the remote process by signals. Returns its phase and whether the server confirmed its end.
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
