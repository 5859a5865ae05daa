//! Ends a command where it runs. Closing a channel or a connection does not: sshd leaves commands without a terminal
//! running.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use logic::fleet::ending::{Core, Ending, Phase, Remote};
use logic::fleet::leash::{self, CommandId, EndSignal};
use russh::ChannelMsg;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::handler::Shared;
use crate::process::Process;
use crate::signal;

/// What is known of a command that is to be ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known {
    /// What identifies it on its host, by the mark of its leash, and its nonce.
    Command(CommandId, String),
    /// Nothing.
    Nothing,
}

impl Process {
    /// Ends the command: `TERM`, then `KILL` if it still runs after `grace`, waiting as long again. Output is thrown
    /// away. Says whether the server confirmed that it ended, and how many bytes were thrown away.
    ///
    /// A command that is `known` is signalled from a second channel of this connection: what is proved there to belong to it,
    /// its children too, and nothing else (`logic::fleet::leash`). If it has not ended after half of `grace`, or nothing is known, the
    /// server is asked to signal it (RFC 4254 section 6.9). Many servers do not: OpenSSH does not for commands that its configuration
    /// forces, nor where root is logged in; others know no signals, or signal one process of several.
    pub async fn end(mut self, grace: Duration, known: Known) -> (Remote, u64) {
        let mut thrown_away = 0;
        for end_signal in [EndSignal::Term, EndSignal::Kill] {
            let limit = Instant::now() + grace;
            if let Known::Command(started, nonce) = &known {
                let command = leash::signal(started, nonce, end_signal);
                tokio::spawn(signal_from_beside(Arc::clone(&self.shared), command, grace));
                self.watch(Instant::now() + grace / 2, &mut thrown_away).await;
                if self.ended() {
                    break;
                }
            }
            if self.send(end_signal.name(), limit, &mut thrown_away).await.is_err() {
                break;
            }
            self.watch(limit, &mut thrown_away).await;
            // What a command that has ended leaves behind may clean up, until it is killed over there.
            if self.ended() {
                break;
            }
        }
        (self.ending.as_ref().map_or(Remote::Unknown, Ending::remote), thrown_away)
    }

    /// Takes what comes until the command has ended, or until `limit`.
    async fn watch(&mut self, limit: Instant, thrown_away: &mut u64) {
        while !self.ended() && timeout_at(limit, self.step(thrown_away)).await.is_ok() {}
    }

    /// Sends a signal and takes what comes meanwhile: the connection takes nothing from us while it waits for room for what
    /// the command says. Done without success if the command ends, or at `limit`.
    async fn send(&mut self, name: &str, limit: Instant, thrown_away: &mut u64) -> Result<(), Gone> {
        let channel = Arc::clone(&self.channel);
        let mut sending = pin!(channel.signal(signal::any(name)));
        while !self.ended() {
            tokio::select! {
                biased;
                sent = &mut sending => return sent.map_err(|_| Gone),
                () = self.step(thrown_away) => {}
                () = sleep_until(limit) => break,
            }
        }
        Ok(())
    }

    /// Takes one message and remembers only how the command ended: after a signal something else may hold the channel
    /// open.
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

/// The connection has ended.
struct Gone;

/// Runs a command that signals another one of this connection.
async fn signal_from_beside(shared: Arc<Shared>, command: String, limit: Duration) {
    let Some(handle) = shared.handle.get().and_then(std::sync::Weak::upgrade) else { return };
    let signalling = async {
        let mut channel = handle.channel_open_session().await.ok()?;
        channel.exec(true, command).await.ok()?;
        while !matches!(channel.wait().await, None | Some(ChannelMsg::Close)) {}
        Some(())
    };
    let _ = timeout(limit, signalling).await;
}
