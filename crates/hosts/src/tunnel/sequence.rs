//! Sequence of steps around a job: guard -> forwards up -> services checked -> mounted -> mount verified -> job ->
//! synced -> unmounted (several tries, then lazily) -> forwards down. After a failed step, all steps that have begun
//! are undone in reverse order.
//!
//! [`Sequence::act`] returns the next step, and `handle_*` take its result. The caller carries out the steps.

use std::fmt;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Check that the mount point is an empty directory without a mount.
    Guard,
    /// Open the listeners, connect to the host, and request remote forwards.
    Connect,
    Prove,
    Mount,
    /// Check that the mount point has a mount.
    VerifyMount,
    /// Run the job, or wait for a request to stop.
    Work,
    /// Write cached data to the remote disk.
    Sync,
    Unmount(UnmountMode),
    /// Check that the mount point has no mount.
    VerifyUnmounted,
    Wait(Duration),
    Disconnect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnmountMode {
    /// Unmount, which fails while a process uses the mount.
    Proper,
    /// Unmount lazily: the mount is detached at once, and ends with its last user.
    Lazy,
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Guard => "guard",
            Self::Connect => "connecting",
            Self::Prove => "check",
            Self::Mount => "mount",
            Self::VerifyMount => "mounted",
            Self::Work => "job",
            Self::Sync => "sync",
            Self::Unmount(UnmountMode::Proper) => "unmount",
            Self::Unmount(UnmountMode::Lazy) => "unmount-lazy",
            Self::VerifyUnmounted => "unmounted",
            Self::Wait(_) => "wait",
            Self::Disconnect => "down",
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mounting {
    Wanted,
    None,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobEnd {
    Exited(u8),
    Signalled(u8),
    /// The job could not be started: 127 for a missing command, 126 for a command that cannot be executed.
    NotStarted(u8, String),
    /// There was no job, and the tunnel was asked to stop.
    Stopped,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub at: Act,
    pub text: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// `None` if the job was never started.
    pub job: Option<JobEnd>,
    /// Errors in the order of their occurrence.
    pub problems: Vec<Problem>,
}

impl Verdict {
    /// Exit status of the job, or 128 plus its signal. [`OURS`] if the tunnel failed, unless the job failed too.
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

/// Exit status of Penstock for a failure that is not one of the job.
pub const OURS: u8 = 125;

/// One run, from the guard to the disconnect.
#[derive(Debug, Clone)]
pub struct Sequence {
    mounting: Mounting,
    at: Option<Act>,
    /// Tries to unmount so far.
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

    /// Sequence that undoes what a run left that ended without its teardown.
    #[must_use]
    pub fn unwind(mounting: Mounting) -> Self {
        let mut sequence = Self::new(mounting);
        sequence.stopping = Stopping::Yes;
        sequence.job = Some(JobEnd::Stopped);
        sequence.at = Some(sequence.after_mount());
        sequence
    }

    /// Next step; `None` at the end.
    #[must_use]
    pub fn act(&self) -> Option<Act> {
        self.at
    }

    /// Requests the end of the run: the current step may be cancelled, no new step begins, and all steps are undone. A
    /// job is not cancelled: the caller that runs the job tells the job to end.
    pub fn handle_stop(&mut self) {
        self.stopping = Stopping::Yes;
    }

    /// Takes the result of the current step, except of [`Act::Work`].
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
            // A mount command that failed may still have mounted something.
            Act::Mount | Act::VerifyMount => Some(Act::VerifyUnmounted),
            Act::Work => Some(self.after_work()),
            // A failed sync is reported, and the steps are undone anyway.
            Act::Sync => Some(Act::Unmount(UnmountMode::Proper)),
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
                Act::Unmount(UnmountMode::Lazy)
            } else {
                Act::Unmount(UnmountMode::Proper)
            }),
            Act::Disconnect => None,
        };
    }

    /// Result of [`Act::VerifyUnmounted`]: a mount remains that must not be unmounted. `text` is the reason.
    pub fn handle_left(&mut self, text: String) {
        if self.at == Some(Act::VerifyUnmounted) {
            self.problems.push(Problem { at: Act::Unmount(UnmountMode::Proper), text });
            self.at = Some(Act::Disconnect);
        }
    }

    /// Records that the tunnel broke permanently during the job. The job still has to end.
    pub fn handle_broken(&mut self, text: String) {
        self.problems.push(Problem { at: Act::Connect, text });
    }

    pub fn handle_job(&mut self, end: JobEnd) {
        if self.at == Some(Act::Work) {
            if let JobEnd::NotStarted(_, text) = &end {
                self.problems.push(Problem { at: Act::Work, text: text.clone() });
            }
            self.job = Some(end);
            self.at = Some(self.after_work());
        }
    }

    /// Verdict on the run; during the run, the verdict so far.
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
            return Act::Unmount(UnmountMode::Proper);
        }
        if let Some(wait) = WAITS.get(self.attempts - 1) {
            return Act::Wait(*wait);
        }
        let said = match self.last_unmount.is_empty() {
            true => text,
            false => format!("{text}: {}", self.last_unmount),
        };
        self.problems.push(Problem { at: Act::Unmount(UnmountMode::Lazy), text: said });
        Act::Disconnect
    }
}

/// Waits before the further tries to unmount; the last try is lazy.
const WAITS: [Duration; 5] = [
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
];

#[cfg(test)]
mod tests;
