//! Ends a command on its host. To close the channel or the connection is not enough: sshd does not end commands that
//! have no terminal.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hosts::fleet::ending::{Core, Ending, Phase, Remote};
use hosts::fleet::watcher::{self, CommandId, EndSignal};
use russh::ChannelMsg;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::handler::Shared;
use crate::process::Process;
use crate::signal;

/// The information about a command that [`Process::end`] ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known {
    /// The id of the command on its host, as its watcher reported it, and the nonce of the command.
    Command(CommandId, String),
    Nothing,
}

impl Process {
    /// Ends the command: sends `TERM`, waits for `grace`, then sends `KILL` and waits for `grace` again. Discards the
    /// output. Returns whether the server confirmed the end, and the number of discarded bytes.
    ///
    /// A `known` command is signalled over a second channel of this connection. The host's shell proves which processes
    /// belong to the command, and signals only these (`hosts::fleet::watcher`). If that fails or has no effect within
    /// half of `grace`, or if the command is not known, penstock asks the server to signal it (RFC 4254 section 6.9).
    /// Many servers ignore this: OpenSSH does for forced commands and for root; other servers know no signals. Others
    /// signal one process: nothing proves where the processes came from that it had started. So the server is not asked
    /// while the host's shell is at work. If that takes longer than `grace` twice, the watcher of the command ends the
    /// processes when the connection ends.
    pub async fn end(mut self, grace: Duration, known: Known) -> (Remote, u64) {
        let mut thrown_away = 0;
        for end_signal in [EndSignal::Term, EndSignal::Kill] {
            let limit = Instant::now() + grace;
            if let Known::Command(started, nonce) = &known {
                let command = watcher::signal(started, nonce, end_signal);
                let beside = tokio::spawn(signal_from_beside(Arc::clone(&self.shared), command, 2 * grace));
                let answer = self.watch_for(beside, limit, &mut thrown_away).await;
                if answer == Some(Beside::Signalled) {
                    self.watch(limit.min(Instant::now() + grace / 2), &mut thrown_away).await;
                }
                if self.ended() {
                    break;
                }
                if answer.is_none() {
                    continue;
                }
            }
            if self.send(end_signal.name(), limit, &mut thrown_away).await.is_err() {
                break;
            }
            self.watch(limit, &mut thrown_away).await;
            // Processes that the command has left behind may still clean up: the host kills them later.
            if self.ended() {
                break;
            }
        }
        (self.ending.as_ref().map_or(Remote::MayHaveRun, Ending::remote), thrown_away)
    }

    /// Reads messages until the second channel has its answer, the command has ended, or until `limit`. `None` if there
    /// is no answer.
    async fn watch_for(
        &mut self,
        mut beside: JoinHandle<Beside>,
        limit: Instant,
        thrown_away: &mut u64,
    ) -> Option<Beside> {
        while !self.ended() {
            tokio::select! {
                biased;
                answer = &mut beside => return Some(answer.unwrap_or(Beside::Failed)),
                () = self.step(thrown_away) => {}
                () = sleep_until(limit) => break,
            }
        }
        None
    }

    /// Reads messages until the command has ended, or until `limit`.
    async fn watch(&mut self, limit: Instant, thrown_away: &mut u64) {
        while !self.ended() && timeout_at(limit, self.step(thrown_away)).await.is_ok() {}
    }

    /// Sends a signal, and reads messages meanwhile: while the connection waits for buffer space for the command's
    /// output, it sends nothing. Returns `Ok` also if the command ends first, or at `limit`: then the signal may not be
    /// sent.
    async fn send(
        &mut self,
        name: &str,
        limit: Instant,
        thrown_away: &mut u64,
    ) -> Result<(), ConnectionEnded> {
        let channel = Arc::clone(&self.channel);
        let mut sending = pin!(channel.signal(signal::any(name)));
        while !self.ended() {
            tokio::select! {
                biased;
                sent = &mut sending => return sent.map_err(|_| ConnectionEnded),
                () = self.step(thrown_away) => {}
                () = sleep_until(limit) => break,
            }
        }
        Ok(())
    }

    /// Reads one message, and keeps only the exit status of the command: after a signal, another process may hold the
    /// channel open.
    async fn step(&mut self, thrown_away: &mut u64) {
        match self.reading.wait().await {
            Some(ChannelMsg::ExitStatus { exit_status }) => self.ending = Some(Ending::Exited(exit_status)),
            Some(ChannelMsg::ExitSignal { signal_name, .. }) => {
                let signal = signal::word(&signal_name);
                self.ending = Some(Ending::Signalled { signal, core: Core::None });
            }
            Some(ChannelMsg::Failure) if self.phase == Phase::Start => {
                self.ending = Some(Ending::Failed(self.refused()));
            }
            Some(ChannelMsg::Success) => self.phase = Phase::Run,
            Some(ChannelMsg::Data { data } | ChannelMsg::ExtendedData { data, .. }) => {
                *thrown_away += data.len() as u64;
            }
            Some(ChannelMsg::Close) | None => {
                self.over.send_replace(true);
            }
            Some(_) => {}
        }
    }

    fn ended(&self) -> bool {
        self.ending.is_some() || *self.over.borrow()
    }
}

struct ConnectionEnded;

/// The result of a command on a second channel that signals another command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Signalled,
    /// The server refused the channel, or nothing was proved, or the limit passed.
    Failed,
}

/// Runs a command that signals another command of this connection.
async fn signal_from_beside(shared: Arc<Shared>, command: String, limit: Duration) -> Beside {
    let Some(handle) = shared.handle.get().and_then(std::sync::Weak::upgrade) else { return Beside::Failed };
    let signalling = async {
        let mut channel = handle.channel_open_session().await.ok()?;
        channel.exec(true, command).await.ok()?;
        let mut status = None;
        loop {
            match channel.wait().await {
                Some(ChannelMsg::ExitStatus { exit_status }) => status = Some(exit_status),
                Some(ChannelMsg::Close) | None => return status,
                Some(_) => {}
            }
        }
    };
    match timeout(limit, signalling).await {
        Ok(Some(0)) => Beside::Signalled,
        Ok(_) | Err(_) => Beside::Failed,
    }
}
