//! The order in which a job is wrapped: guard -> forwards up -> proved -> mounted -> mount verified -> job -> synced ->
//! unmounted (again and again, then lazily) -> forwards down. Whatever fails, everything that was begun is undone, in reverse.
//!
//! [`Sequence::act`] says what to do now, `handle_*` what came of it. Nothing here does anything.

use std::fmt;
use std::time::Duration;

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// See that the mount point is an empty directory on which nothing is mounted.
    Guard,
    /// Listen, connect to the host, ask it for its part.
    Connect,
    /// Ask every service.
    Prove,
    /// Run the mount command.
    Mount,
    /// See that something is mounted now.
    VerifyMount,
    /// Run the job, or wait until somebody wants the end.
    Work,
    /// Write to the far disk what is still in memory here.
    Sync,
    /// Run the command that unmounts.
    Unmount(Manner),
    /// See whether nothing is mounted any more.
    VerifyUnmounted,
    /// Wait before the next attempt.
    Wait(Duration),
    /// Close the connection and the listeners.
    Disconnect,
}

/// How to unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// Only if nobody uses it.
    Proper,
    /// Out of sight at once, gone when the last user is.
    Lazy,
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Guard => "guard",
            Self::Connect => "connecting",
            Self::Prove => "proof",
            Self::Mount => "mount",
            Self::VerifyMount => "mounted",
            Self::Work => "job",
            Self::Sync => "sync",
            Self::Unmount(Manner::Proper) => "unmount",
            Self::Unmount(Manner::Lazy) => "unmount-lazy",
            Self::VerifyUnmounted => "unmounted",
            Self::Wait(_) => "wait",
            Self::Disconnect => "down",
        })
    }
}

/// Whether something is mounted through the tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mounting {
    /// Yes.
    Wanted,
    /// No.
    None,
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobEnd {
    /// With this status.
    Exited(u8),
    /// By this signal.
    Signalled(u8),
    /// It could not be started: 127 there is no such command, 126 it cannot be executed.
    NotStarted(u8, String),
    /// There was none, and the end was asked for.
    Stopped,
}

/// What went wrong at a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The step.
    pub at: Act,
    /// What and why.
    pub text: String,
}

/// How it all ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// `None`: the job never began.
    pub job: Option<JobEnd>,
    /// In the order in which they happened.
    pub problems: Vec<Problem>,
}

impl Verdict {
    /// The job's own status, or 128 and its signal; [`OURS`] if the tunnel failed, before it or after a job that went well.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match &self.job {
            Some(JobEnd::Exited(code @ 1..)) | Some(JobEnd::NotStarted(code, _)) => *code,
            Some(JobEnd::Signalled(signal)) => 128u8.saturating_add(*signal),
            Some(JobEnd::Exited(0) | JobEnd::Stopped) if self.problems.is_empty() => 0,
            Some(JobEnd::Exited(_) | JobEnd::Stopped) | None => OURS,
        }
    }
}

/// Exit status when it is not the job's.
pub const OURS: u8 = 125;

/// One run, from guard to down.
#[derive(Debug, Clone)]
pub struct Sequence {
    mounting: Mounting,
    at: Option<Act>,
    /// Unmount attempts so far.
    attempts: usize,
    last_unmount: String,
    stopping: Stopping,
    job: Option<JobEnd>,
    problems: Vec<Problem>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stopping {
    No,
    Yes,
}

impl Sequence {
    /// From the beginning.
    #[must_use]
    pub fn new(mounting: Mounting) -> Self {
        let first = match mounting {
            Mounting::Wanted => Act::Guard,
            Mounting::None => Act::Connect,
        };
        Self {
            mounting,
            at: Some(first),
            attempts: 0,
            last_unmount: String::new(),
            stopping: Stopping::No,
            job: None,
            problems: Vec::new(),
        }
    }

    /// What a run that ended without its teardown left: begins where its undoing begins.
    #[must_use]
    pub fn unwind(mounting: Mounting) -> Self {
        let mut sequence = Self::new(mounting);
        sequence.stopping = Stopping::Yes;
        sequence.job = Some(JobEnd::Stopped);
        sequence.at = Some(sequence.after_mount());
        sequence
    }

    /// What to do now; `None` when nothing is left.
    #[must_use]
    pub fn act(&self) -> Option<Act> {
        self.at
    }

    /// Somebody wants the end: what is going on may be given up, nothing new is begun, everything is undone. A job is not
    /// given up: whoever runs it tells it to end.
    pub fn handle_stop(&mut self) {
        self.stopping = Stopping::Yes;
    }

    /// What came of the act, except of [`Act::Work`].
    pub fn handle_done(&mut self, outcome: Result<(), String>) {
        let Some(at) = self.at else { return };
        if let (Err(text), false) = (&outcome, matches!(at, Act::Unmount(_) | Act::VerifyUnmounted)) {
            self.problems.push(Problem { at, text: text.clone() });
        }
        let well = outcome.is_ok() && self.stopping == Stopping::No;
        self.at = match at {
            Act::Guard if well => Some(Act::Connect),
            Act::Guard => None,
            Act::Connect if well => Some(Act::Prove),
            Act::Prove if well => Some(match self.mounting {
                Mounting::Wanted => Act::Mount,
                Mounting::None => Act::Work,
            }),
            Act::Connect | Act::Prove => Some(Act::Disconnect),
            Act::Mount if well => Some(Act::VerifyMount),
            Act::VerifyMount if well => Some(Act::Work),
            // A mount command that failed may have mounted all the same.
            Act::Mount | Act::VerifyMount => Some(Act::VerifyUnmounted),
            Act::Work => Some(self.after_work()),
            // What cannot be synced is said, and undone none the less.
            Act::Sync => Some(Act::Unmount(Manner::Proper)),
            Act::Unmount(_) => {
                self.attempts += 1;
                self.last_unmount = outcome.err().unwrap_or_default();
                Some(Act::VerifyUnmounted)
            }
            Act::VerifyUnmounted => Some(match outcome {
                Ok(()) => Act::Disconnect,
                Err(text) => self.after_still_mounted(text),
            }),
            Act::Wait(_) => Some(if self.attempts >= WAITS.len() {
                Act::Unmount(Manner::Lazy)
            } else {
                Act::Unmount(Manner::Proper)
            }),
            Act::Disconnect => None,
        };
    }

    /// Something is mounted that is not unmounted, and why: as the outcome of [`Act::VerifyUnmounted`].
    pub fn handle_left(&mut self, text: String) {
        if self.at == Some(Act::VerifyUnmounted) {
            self.problems.push(Problem { at: Act::Unmount(Manner::Proper), text });
            self.at = Some(Act::Disconnect);
        }
    }

    /// The tunnel broke under the job, for good; the job still has to end.
    pub fn handle_broken(&mut self, text: String) {
        self.problems.push(Problem { at: Act::Connect, text });
    }

    /// How the job ended.
    pub fn handle_job(&mut self, end: JobEnd) {
        if self.at == Some(Act::Work) {
            if let JobEnd::NotStarted(_, text) = &end {
                self.problems.push(Problem { at: Act::Work, text: text.clone() });
            }
            self.job = Some(end);
            self.at = Some(self.after_work());
        }
    }

    /// How it all ended, or how it would if it ended now.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        Verdict { job: self.job.clone(), problems: self.problems.clone() }
    }

    fn after_work(&self) -> Act {
        match self.mounting {
            Mounting::Wanted => Act::Sync,
            Mounting::None => Act::Disconnect,
        }
    }

    fn after_mount(&self) -> Act {
        match self.mounting {
            Mounting::Wanted => Act::VerifyUnmounted,
            Mounting::None => Act::Disconnect,
        }
    }

    fn after_still_mounted(&mut self, text: String) -> Act {
        if self.attempts == 0 {
            return Act::Unmount(Manner::Proper);
        }
        if let Some(wait) = WAITS.get(self.attempts - 1) {
            return Act::Wait(*wait);
        }
        let said = match self.last_unmount.is_empty() {
            true => text,
            false => format!("{text}: {}", self.last_unmount),
        };
        self.problems.push(Problem { at: Act::Unmount(Manner::Lazy), text: said });
        Act::Disconnect
    }
}

/// Before each further attempt to unmount; the last one is lazy.
const WAITS: [Duration; 5] = [
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
];

#[cfg(test)]
mod tests;
