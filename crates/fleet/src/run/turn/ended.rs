//! How a turn ends before its command does: by the leash, by signals, by letting go; and what can truly be said of it then.

use bytes::Bytes;
use logic::fleet::ending::{Ending, Phase, Reason, Remote};
use logic::fleet::leash::{self, Hold, Mark};
use logic::fleet::verdict;
use ssh::Known;
use tokio::time::{Instant, timeout, timeout_at};

use super::{Cause, GRACE, LAST_WORDS, Turn, why};
use crate::run::engine::{Happening, Running, Stream, Writer};
use crate::run::stop::cut;

impl Turn<'_> {
    /// Ends the remote process: TERM, then KILL, then the connection.
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
                (Reason::Local, format!("its input could not be read from our temporary file: {error}"))
            }
        };
        let mut outcome = match held_open(&mut running) {
            // The server has forgotten its process group, and its leash is gone.
            Some(outcome) => outcome,
            None => self.ask(&mut running, phase).await,
        };
        if let Outcome::Over(ending) = outcome {
            self.last_words().await;
            // It was done before our wish arrived.
            if ending.is_success() && reason == Reason::Stopped && self.dropped == 0 {
                return ending;
            }
            outcome = Outcome::Over(self.told(ending));
        }
        let mut at = phase;
        if matches!(outcome, Outcome::Unleashed) {
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

    /// How much went on to be shown and kept. What the reader of our output gets is counted nowhere: it is shown in another form
    /// (lines with the host, folded, JSON), and whatever could not be written is said on its own.
    fn counted(&self) -> String {
        format!("{} bytes (of both streams)", self.passed)
    }

    /// Has its leash end it, if there is one or still comes.
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
            Some(writer) if self.is_leashed() => {
                let outcome = self.end_by_leash(running, writer).await;
                match (outcome, running.ended_itself()) {
                    (Outcome::Late | Outcome::Left, Some(_)) => Outcome::EndedButOpen,
                    (outcome, _) => outcome,
                }
            }
            _ => Outcome::Unleashed,
        }
    }

    /// A login shell that is slow with its start files has not come to the leash yet, and only that can end what follows: it
    /// has [`GRACE`] from its start. Gives the end, if that comes first.
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

    fn is_leashed(&self) -> bool {
        self.mark.as_ref().is_some_and(|mark| matches!(mark.hold(), Hold::Leashed(_)))
    }

    async fn end_by_leash(&mut self, running: &mut Running, mut writer: Writer) -> Outcome {
        let mut stop = self.stop.clone();
        let mut sent = false;
        let asked = async {
            let _ = writer.write(Bytes::from_static(leash::END)).await;
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
        let leashed = self.is_leashed();
        let known = match self.mark.as_ref().map(Mark::hold) {
            Some(Hold::Leashed(started)) => Known::Command(started, self.order.nonce.clone()),
            _ => Known::Nothing,
        };
        let mut stop = self.stop.clone();
        tokio::select! {
            biased;
            // An `ssh` process is ended at once, and its log is worth that.
            seen = running.end(phase, GRACE, known) => {
                // As long as its mark has not come, what was thrown away may have been that.
                if !self.is_unclear() {
                    self.dropped += seen.thrown_away;
                }
                let outcome = match seen.remote {
                    Remote::Ended => Outcome::Ended,
                    Remote::NeverStarted => Outcome::NeverStarted,
                    Remote::Unknown if leashed => Outcome::Unseen(Leashed::Yes),
                    Remote::Unknown => Outcome::Unseen(Leashed::No),
                };
                (seen.phase, outcome)
            }
            () = cut(&mut stop) => (phase, Outcome::LetGo(if leashed { Leashed::Yes } else { Leashed::No })),
        }
    }

    /// Takes what still comes, up to the end, which it gives, or until that is true.
    async fn drain(&mut self, running: &mut Running, until: impl Fn(&Self) -> bool) -> Option<Ending> {
        loop {
            if until(self) {
                return None;
            }
            match running.next().await {
                Happening::Ended(ending) => return Some(ending),
                Happening::Phase(_) => {}
                Happening::Output(stream, bytes) => {
                    if let Some(bytes) = self.strip(stream, bytes) {
                        self.pass(stream, bytes).await;
                    }
                }
            }
        }
    }

    /// Passes output on, if that goes soon.
    async fn pass(&mut self, stream: Stream, bytes: Bytes) {
        let size = bytes.len() as u64;
        // What is not the next of it would look as if it were.
        let is_next = self.dropped == 0;
        // Lost until it has gone on: whoever waits for all this may give up at any moment.
        self.dropped += size;
        if is_next && timeout(LAST_WORDS, self.shared.out.output(self.host, stream, bytes)).await.is_ok() {
            self.dropped -= size;
            self.passed += size;
        }
    }
}

/// What came of ending a command.
enum Outcome {
    /// It ended before or while it was asked to: by itself, or with the connection.
    Over(Ending),
    /// It ended by itself, and something that it started holds its output open.
    Open(String),
    /// It was seen to end as it was asked to.
    Ended,
    /// The same, and something that it started holds its output open.
    EndedButOpen,
    /// It had never been started.
    NeverStarted,
    /// Asked for, it had twice the time that a leash takes.
    Late,
    /// Asked for, and we were told not to wait.
    Left,
    /// The wish did not get as far as the connection.
    Unsent,
    /// Signals went out, or could not; no end was seen.
    Unseen(Leashed),
    /// We were told not to wait while signals went out.
    LetGo(Leashed),
    /// There is no leash to ask.
    Unleashed,
}

/// Whether a leash ends the command once the connection is closed.
#[derive(Clone, Copy)]
enum Leashed {
    Yes,
    No,
}

impl Outcome {
    /// What is known of the command, and what to say after the cause.
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
                    ": the command ended ({how}), but something that it started holds its output open; what that says from here \
                     on is cut off"
                );
                return (Remote::Ended, words);
            }
            Self::Ended => (Remote::Ended, "; it was ended there"),
            Self::EndedButOpen => (
                Remote::Ended,
                "; it was ended there, but something that it started holds its output open; what that says from here on is cut \
                 off",
            ),
            Self::NeverStarted => (Remote::NeverStarted, ""),
            Self::Late => (Remote::Unknown, "; it was signalled and was not seen to end; it may still run"),
            Self::Left => (
                Remote::Unknown,
                "; it was signalled and had not ended yet; its leash should end it within seconds, until then it may still run",
            ),
            Self::Unsent => (
                Remote::Unknown,
                "; it could not be signalled and may still run until its leash has ended it",
            ),
            Self::Unseen(Leashed::Yes) => {
                (Remote::Unknown, "; it was not seen to end and may still run until its leash has ended it")
            }
            Self::Unseen(Leashed::No) | Self::Unleashed => {
                (Remote::Unknown, "; it was not seen to end and may still run")
            }
            Self::LetGo(Leashed::Yes) => (
                Remote::Unknown,
                "; its end was not waited for, and it may still run until its leash has ended it",
            ),
            Self::LetGo(Leashed::No) => {
                (Remote::Unknown, "; its end was not waited for, and it may still run")
            }
        };
        (remote, words.to_owned())
    }
}

/// A command that has ended while its output is held open.
fn held_open(running: &mut Running) -> Option<Outcome> {
    running.ended_itself().map(Outcome::Open)
}
