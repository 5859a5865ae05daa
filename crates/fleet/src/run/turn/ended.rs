//! Ends a command before its own end, by its watcher or by signals, and states what is known of the command then.

use bytes::Bytes;
use hosts::fleet::ending::{Ending, Phase, Reason, Remote};
use hosts::fleet::verdict;
use hosts::fleet::watcher::{self, Hold, Mark};
use ssh::Known;
use tokio::time::{Instant, timeout, timeout_at};

use super::{Cause, GRACE, LAST_WORDS, Turn};
use crate::run::engine::Running;
use crate::run::happening::{HostEvent, Stream};
use crate::run::stop::{cut, why};
use crate::run::writer::Writer;

impl Turn<'_> {
    /// Ends the remote process: by SIGTERM, then SIGKILL, then the end of the connection.
    pub(super) async fn end(&mut self, mut running: Running, phase: Phase, cause: Cause) -> Ending {
        let left = running.ended_itself().is_some();
        let (reason, detail) = match &cause {
            Cause::Stopped(stop) => (Reason::Stopped, why(*stop).to_owned()),
            Cause::TimedOut(limit) => {
                let state = if left { "open" } else { "running" };
                (Reason::TimedOut, format!("still {state} after {} s", limit.as_secs_f32()))
            }
            Cause::TimedOutAt(phase) => (
                Reason::TimedOut,
                format!("{phase} took longer than {} s", self.order.connect_timeout.as_secs_f32()),
            ),
            Cause::NoInput { error, .. } => {
                (Reason::LocalError, format!("its input could not be read from our temporary file: {error}"))
            }
        };
        let mut outcome = match held_open(&mut running) {
            // The server no longer knows the process group, and the watcher is gone.
            Some(outcome) => outcome,
            None => self.ask(&mut running, phase).await,
        };
        if let Outcome::Over(ending) = outcome {
            self.last_words().await;
            // The command had ended before the request to end it arrived.
            if ending.is_success() && reason == Reason::Stopped && self.dropped == 0 {
                return ending;
            }
            outcome = Outcome::Over(self.told(ending));
        }
        let mut at = phase;
        if matches!(outcome, Outcome::Unwatched) {
            (at, outcome) = self.end_by_signals(running, phase).await;
        }
        let (remote, words) = outcome.told();
        let mut detail = detail + &words;
        if self.dropped > 0 {
            detail.push_str(&format!("; its output is cut after the first {} that came", self.counted()));
        } else if matches!(outcome, Outcome::Late | Outcome::Left | Outcome::Unsent | Outcome::LetGo(_)) {
            let counted = self.counted();
            detail.push_str(&format!(
                "; what it said after the first {counted} that came, if anything, is lost"
            ));
        }
        Ending::Failed(self.failure(at, reason, remote, detail))
    }

    /// The bytes that were shown and kept. The reader's bytes are not counted, since views change the text; output that
    /// could not be written is reported separately.
    fn counted(&self) -> String {
        format!("{} bytes (stdout and stderr together)", self.passed)
    }

    /// Ends the command by its watcher, if a watcher runs or may still start.
    async fn ask(&mut self, running: &mut Running, phase: Phase) -> Outcome {
        if phase == Phase::Run && self.held.is_some() {
            if let Some(ending) = self.wait_for_mark(running).await {
                return Outcome::Over(ending);
            }
            if let Some(outcome) = held_open(running) {
                return outcome;
            }
        }
        match self.held.take() {
            Some(writer) if self.is_watched() => {
                let outcome = self.end_by_watcher(running, writer).await;
                match (outcome, running.ended_itself()) {
                    (Outcome::Late | Outcome::Left, Some(_)) => Outcome::EndedButOpen,
                    (outcome, _) => outcome,
                }
            }
            _ => Outcome::Unwatched,
        }
    }

    /// Waits for the mark of the watcher, up to [`GRACE`] from the start of the command: a log-in shell with slow start
    /// files may start it late, and only the watcher can end what follows. Returns the ending if the command ends
    /// first.
    async fn wait_for_mark(&mut self, running: &mut Running) -> Option<Ending> {
        let limit = self.since.unwrap_or_else(Instant::now) + GRACE;
        let mut stop = self.stop.clone();
        tokio::select! {
            biased;
            () = cut(&mut stop) => None,
            seen = timeout_at(limit, self.drain(running, |turn| !turn.is_unclear())) => seen.ok().flatten(),
        }
    }

    fn is_unclear(&self) -> bool {
        self.mark.as_ref().is_some_and(|mark| mark.hold() == Hold::Unclear)
    }

    fn is_watched(&self) -> bool {
        self.mark.as_ref().is_some_and(|mark| matches!(mark.hold(), Hold::Watched(_)))
    }

    async fn end_by_watcher(&mut self, running: &mut Running, mut writer: Writer) -> Outcome {
        let mut stop = self.stop.clone();
        let mut sent = false;
        let asked = async {
            let _ = writer.write(Bytes::from_static(watcher::END)).await;
            sent = true;
            self.drain(running, |_| false).await
        };
        let seen = tokio::select! {
            biased;
            () = cut(&mut stop) => None,
            seen = timeout(GRACE * 2, asked) => Some(seen),
        };
        match seen {
            Some(Ok(Some(ending @ Ending::Failed(_)))) => Outcome::Over(ending),
            Some(Ok(Some(Ending::Exited(0)))) => Outcome::Over(Ending::Exited(0)),
            Some(Ok(Some(_))) => Outcome::Ended,
            _ if !sent => Outcome::Unsent,
            Some(Err(_)) => Outcome::Late,
            Some(Ok(None)) | None => Outcome::Left,
        }
    }

    async fn end_by_signals(&mut self, mut running: Running, phase: Phase) -> (Phase, Outcome) {
        if let Some(bytes) = running.take_early() {
            self.pass(Stream::Stderr, bytes).await;
        }
        let watched = self.is_watched();
        let known = match self.mark.as_ref().map(Mark::hold) {
            Some(Hold::Watched(started)) => Known::Command(started, self.order.nonce.clone()),
            _ => Known::Nothing,
        };
        let mut stop = self.stop.clone();
        tokio::select! {
            biased;
            // `ssh` is killed at once, so waiting for its log costs no time.
            seen = running.end(phase, GRACE, known) => {
                // Without a mark, the discarded bytes may have been the mark, not output.
                if !self.is_unclear() {
                    self.dropped += seen.thrown_away;
                }
                let outcome = match seen.remote {
                    Remote::Ended => Outcome::Ended,
                    Remote::NotStarted => Outcome::NotStarted,
                    Remote::MayHaveRun if watched => Outcome::Unseen(Watched::Yes),
                    Remote::MayHaveRun => Outcome::Unseen(Watched::No),
                };
                (seen.phase, outcome)
            }
            () = cut(&mut stop) => (phase, Outcome::LetGo(if watched { Watched::Yes } else { Watched::No })),
        }
    }

    /// Forwards output until the command ends, then returns the ending; or until `until` is true.
    async fn drain(&mut self, running: &mut Running, until: impl Fn(&Self) -> bool) -> Option<Ending> {
        loop {
            if until(self) {
                return None;
            }
            match running.next().await {
                HostEvent::Ended(ending) => return Some(ending),
                HostEvent::Phase(_) => {}
                HostEvent::Output(stream, bytes) => {
                    if let Some(bytes) = self.strip(stream, bytes) {
                        self.pass(stream, bytes).await;
                    }
                }
            }
        }
    }

    /// Forwards output, with a short time limit.
    async fn pass(&mut self, stream: Stream, bytes: Bytes) {
        let size = bytes.len() as u64;
        // After discarded bytes no output is forwarded: it would look as if nothing were missing.
        let is_next = self.dropped == 0;
        // The bytes count as dropped until they are forwarded, since the caller may cancel this future.
        self.dropped += size;
        if is_next && timeout(LAST_WORDS, self.shared.out.output(self.host, stream, bytes)).await.is_ok() {
            self.dropped -= size;
            self.passed += size;
        }
    }
}

/// Result of an attempt to end a command.
enum Outcome {
    /// The command ended before or during the request: by itself, or with the connection.
    Over(Ending),
    /// The command ended by itself; another process holds its output open.
    Open(String),
    /// The command ended after the request.
    Ended,
    /// The command ended after the request; another process holds its output open.
    EndedButOpen,
    /// The host had not started the command.
    NotStarted,
    /// The watcher did not end the command within twice the time that it needs.
    Late,
    /// The request was sent; the user told us not to wait.
    Left,
    /// The request could not be sent.
    Unsent,
    /// Signals were sent, or could not be sent; no end was seen.
    Unseen(Watched),
    /// Signals were being sent when the user told us not to wait.
    LetGo(Watched),
    /// The command has no watcher.
    Unwatched,
}

/// Whether a watcher ends the command after the connection is closed.
#[derive(Clone, Copy)]
enum Watched {
    Yes,
    No,
}

impl Outcome {
    /// State of the command, and the text that follows the cause.
    fn told(&self) -> (Remote, String) {
        let (remote, words) = match self {
            Self::Over(Ending::Failed(failure)) => {
                return (failure.remote, format!("; then {}", failure.detail));
            }
            Self::Over(ending) => {
                return (ending.remote(), format!("; then it ended ({})", verdict::title(ending)));
            }
            Self::Open(how) => {
                let words = format!(
                    ": the command ended ({how}), but a process that it started keeps its output open; further output is discarded"
                );
                return (Remote::Ended, words);
            }
            Self::Ended => (Remote::Ended, "; the command was ended on the host"),
            Self::EndedButOpen => (
                Remote::Ended,
                "; the command was ended on the host, but a process that it started keeps its output open; further output is discarded",
            ),
            Self::NotStarted => (Remote::NotStarted, ""),
            Self::Late => (
                Remote::MayHaveRun,
                "; the command was signalled, but the host did not confirm its end: it may still run",
            ),
            Self::Left => (
                Remote::MayHaveRun,
                "; it was signalled and had not ended yet; its watcher should end it within seconds, until then it may still run",
            ),
            Self::Unsent => (
                Remote::MayHaveRun,
                "; it could not be signalled and may still run until its watcher has ended it",
            ),
            Self::Unseen(Watched::Yes) => (
                Remote::MayHaveRun,
                "; the host did not confirm that the command ended: it may run until its watcher ends it",
            ),
            Self::Unseen(Watched::No) | Self::Unwatched => {
                (Remote::MayHaveRun, "; the host did not confirm that the command ended: it may still run")
            }
            Self::LetGo(Watched::Yes) => (
                Remote::MayHaveRun,
                "; penstock did not wait for its end: the command may run until its watcher on the host ends it",
            ),
            Self::LetGo(Watched::No) => {
                (Remote::MayHaveRun, "; penstock did not wait for its end: the command may still run")
            }
        };
        (remote, words.to_owned())
    }
}

/// Outcome for a command that has ended while another process holds its output open.
fn held_open(running: &mut Running) -> Option<Outcome> {
    running.ended_itself().map(Outcome::Open)
}
