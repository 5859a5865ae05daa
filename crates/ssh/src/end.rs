//! Ends a command where it runs. Closing a channel or a connection does not: sshd leaves commands without a terminal
//! running.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use logic::fleet::ending::{Core, Ending, Phase, Remote};
use russh::ChannelMsg;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::handler::Shared;
use crate::process::Process;
use crate::signal;

/// What is known of the commands that a server runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runs {
    /// It ran on this connection what it was sent: something of the command itself was seen.
    WhatIsSent,
    /// Perhaps what its configuration forces, whatever is sent.
    Unclear,
}

impl Process {
    /// Ends the command: `TERM`, then `KILL` if it still runs after `grace`, waiting as long again. Output is thrown
    /// away. Says whether the server confirmed that it ended, and how many bytes were thrown away.
    ///
    /// OpenSSH does not obey signals for commands that its configuration forces; nor where root is logged in, since the
    /// process that would have to signal has no privileges apart then. For root the command's process group is
    /// therefore also signalled by a second command, if no other runs on this session, and if `runs` says that it is the
    /// one that would run: else a forced command would be run again.
    pub async fn end(mut self, grace: Duration, runs: Runs) -> (Remote, u64) {
        let mut thrown_away = 0;
        for name in ["TERM", "KILL"] {
            let limit = Instant::now() + grace;
            if self.send(name, limit, &mut thrown_away).await.is_err() {
                break;
            }
            let alone = self.shared.commands.load(Relaxed) == 1;
            if !self.ended() && runs == Runs::WhatIsSent && &*self.shared.user == "root" && alone {
                tokio::spawn(signal_from_beside(Arc::clone(&self.shared), name, grace));
            }
            while !self.ended() && timeout_at(limit, self.step(&mut thrown_away)).await.is_ok() {}
        }
        (self.ending.as_ref().map_or(Remote::Unknown, Ending::remote), thrown_away)
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

/// Signals the process groups of the other commands of this connection.
async fn signal_from_beside(shared: Arc<Shared>, name: &str, limit: Duration) {
    let Some(handle) = shared.handle.get().and_then(std::sync::Weak::upgrade) else { return };
    let signalling = async {
        let mut channel = handle.channel_open_session().await.ok()?;
        channel.exec(true, SIGNAL_SIBLINGS.replace("SIGNAL", name)).await.ok()?;
        while !matches!(channel.wait().await, None | Some(ChannelMsg::Close)) {}
        Some(())
    };
    let _ = timeout(limit, signalling).await;
}

/// The leader of each command's session is a child of the sshd that serves this connection. Fields of `/proc/PID/stat`
/// after the name in parentheses: state, parent, process group, session.
const SIGNAL_SIBLINGS: &str = r#"exec sh -c '
IFS= read -r l </proc/$$/stat; set -- ${l##*) }; own=$4
IFS= read -r l </proc/$own/stat; set -- ${l##*) }; sshd=$2
for f in /proc/[0-9]*/stat; do
  { IFS= read -r l <"$f"; } 2>/dev/null || continue
  set -- ${l##*) }
  if [ "$2" = "$sshd" ] && [ "$4" != "$own" ]; then kill -SIGNAL "-$3"; fi
done'"#;
