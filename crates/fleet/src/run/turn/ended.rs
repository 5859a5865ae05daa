//! How a turn ends before its command does: by the leash, by signals, by letting go; and what can truly be said of it then.

use bytes::Bytes;
use logic::fleet::ending::{Ending, Phase, Reason, Remote};
use logic::fleet::leash::{self, Hold};
use logic::fleet::verdict;
use ssh::Runs;
use tokio::time::timeout;

use super::{Cause, GRACE, LAST_WORDS, Turn, why};
use crate::run::engine::{Happening, Running, Writer};
use crate::run::stop::cut;

impl Turn<'_> {
    /// Ends the remote process: TERM, then KILL, then the connection.
    pub(super) async fn end(&mut self, mut running: Running, phase: Phase, cause: Cause) -> Ending {
        let left = running.ended_itself().map(verdict::title);
        let (reason, mut detail) = match &cause {
            Cause::Stopped(stop) => (Reason::Stopped, why(*stop).to_owned()),
            Cause::TimedOut(limit) => {
                let state = if left.is_some() { "open" } else { "running" };
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
        // The server has forgotten its process group, and its leash is gone.
        if let Some(left) = left {
            let detail = format!(
                "{detail}: the command ended ({left}), but something that it started holds its output open; what that \
                 says from here on is cut off"
            );
            return Ending::Failed(self.failure(phase, reason, Remote::Ended, detail));
        }
        if phase == Phase::Run
            && self.held.is_some()
            && let Some(ending) = self.wait_for_mark(&mut running).await
        {
            if ending.is_success() && reason == Reason::Stopped && self.dropped == 0 {
                return ending;
            }
            let detail = format!("{detail}; then it ended by itself");
            return Ending::Failed(self.failure(phase, reason, ending.remote(), detail));
        }
        let leashed = self.mark.as_ref().is_some_and(|mark| mark.hold() == Hold::Leashed);
        let mut is_drained = true;
        let (phase, remote, unknown) = match self.held.take().filter(|_| leashed) {
            Some(writer) => match self.end_by_leash(&mut running, writer).await {
                // It was done before our wish arrived.
                Asked::Ended(ending @ Ending::Exited(0))
                    if reason == Reason::Stopped && self.dropped == 0 =>
                {
                    return ending;
                }
                Asked::Ended(ending) => (phase, ending.remote(), UNSIGNALLED),
                left => {
                    is_drained = false;
                    let unknown = match left {
                        Asked::Late => SIGNALLED,
                        Asked::Left => SIGNALLED_NOW,
                        Asked::Unsent | Asked::Ended(_) => UNSIGNALLED,
                    };
                    (phase, Remote::Unknown, unknown)
                }
            },
            None => {
                // The mark is the command's own word: the server does not force another one.
                let runs = if leashed { Runs::WhatIsSent } else { Runs::Unclear };
                let mut stop = self.stop.clone();
                tokio::select! {
                    biased;
                    // An `ssh` process is ended at once, and its log is worth that.
                    seen = running.end(phase, GRACE, runs) => {
                        // As long as its mark has not come, what was thrown away may have been that.
                        if self.mark.as_ref().is_none_or(|mark| mark.hold() != Hold::Unclear) {
                            self.dropped += seen.thrown_away;
                        }
                        (seen.phase, seen.remote, if leashed { UNSIGNALLED } else { UNENDED })
                    }
                    () = cut(&mut stop) => {
                        is_drained = false;
                        (phase, Remote::Unknown, if leashed { LEFT } else { LEFT_LOOSE })
                    }
                }
            }
        };
        if remote == Remote::Ended {
            detail.push_str("; it was ended there");
        }
        if remote == Remote::Unknown {
            detail.push_str(unknown);
        }
        if self.dropped > 0 {
            detail.push_str(&format!("; its output is cut after {} bytes", self.passed));
        } else if !is_drained {
            detail.push_str(&format!("; what it said after {} bytes, if anything, is lost", self.passed));
        }
        Ending::Failed(self.failure(phase, reason, remote, detail))
    }

    /// A login shell that is slow with its start files has not come to the leash yet, and only that can end what follows.
    /// Gives the end, if that comes first.
    async fn wait_for_mark(&mut self, running: &mut Running) -> Option<Ending> {
        let mut stop = self.stop.clone();
        tokio::select! {
            biased;
            () = cut(&mut stop) => None,
            seen = timeout(GRACE, self.drain(running, |turn| !turn.is_unclear())) => seen.ok().flatten(),
        }
    }

    fn is_unclear(&self) -> bool {
        self.mark.as_ref().is_some_and(|mark| mark.hold() == Hold::Unclear)
    }

    async fn end_by_leash(&mut self, running: &mut Running, mut writer: Writer) -> Asked {
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
            Some(Ok(Some(ending))) => Asked::Ended(ending),
            _ if !sent => Asked::Unsent,
            Some(Err(_)) => Asked::Late,
            Some(Ok(None)) | None => Asked::Left,
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
                        let size = bytes.len() as u64;
                        // What is not the next of it would look as if it were.
                        let is_next = self.dropped == 0;
                        // Lost until it has gone on: whoever waits for all this may give up at any moment.
                        self.dropped += size;
                        if is_next
                            && timeout(LAST_WORDS, self.shared.out.output(self.host, stream, bytes))
                                .await
                                .is_ok()
                        {
                            self.dropped -= size;
                            self.passed += size;
                        }
                    }
                }
            }
        }
    }
}

/// What came of asking a leash to end its command.
enum Asked {
    Ended(Ending),
    /// It had twice the time that a leash takes.
    Late,
    /// We were told not to wait.
    Left,
    /// The wish did not get as far as the connection.
    Unsent,
}

// What is said of a command that may still run.
const SIGNALLED: &str = "; it was signalled and has not ended; it may still run";
const SIGNALLED_NOW: &str = "; it was signalled and had not ended yet; its leash ends it within seconds";
const UNSIGNALLED: &str = "; it could not be signalled, its leash ends it now that the connection is closed";
const UNENDED: &str = "; it could not be ended and may still run";
const LEFT: &str = "; its end was not waited for, its leash ends it now that the connection is closed";
const LEFT_LOOSE: &str = "; its end was not waited for, and it may still run";
