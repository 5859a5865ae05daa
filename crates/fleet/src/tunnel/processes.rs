//! The processes that a run has started, found by what is in their environment: also after the run was killed, and without
//! a number that may be somebody else's by now.

use std::fs;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::awake::within;

/// The variable that names the run, and the one that names the step.
pub(crate) const RUN: &str = "TUNNEL_RUN";
pub(crate) const STEP: &str = "TUNNEL_STEP";

/// At which step a process was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Engine,
    Mount,
    Job,
}

impl Step {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::Mount => "mount",
            Self::Job => "job",
        }
    }
}

/// The processes of one step of a run that are still there. Those that cleaned their environment are not found.
pub(crate) fn of(run: &str, step: Step) -> Vec<Pid> {
    let (run, step) = (format!("{RUN}={run}"), format!("{STEP}={}", step.word()));
    let own = Pid::this();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).map(Pid::from_raw);
    ids.filter(|pid| *pid != own)
        .filter(|pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let has = |wanted: &str| environment.split(|byte| *byte == 0).any(|it| it == wanted.as_bytes());
            has(&run) && has(&step)
        })
        .collect()
}

/// Asks them to end, and waits. Those that are left are returned.
pub(crate) async fn end(run: &str, step: Step, limit: Duration) -> Vec<Pid> {
    signal(&of(run, step), Signal::SIGTERM);
    gone(run, step, limit).await
}

/// Ends them, whatever they do: only once nothing of theirs is mounted any more.
pub(crate) async fn kill_left(run: &str, step: Step) -> Vec<Pid> {
    if end(run, step, Duration::from_secs(3)).await.is_empty() {
        return Vec::new();
    }
    signal(&of(run, step), Signal::SIGKILL);
    gone(run, step, Duration::from_secs(3)).await
}

async fn gone(run: &str, step: Step, limit: Duration) -> Vec<Pid> {
    // If we are stopped, so are they, as a rule.
    let waited = async {
        while !of(run, step).is_empty() {
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    };
    match within(limit, waited).await {
        Ok(()) => Vec::new(),
        Err(_) => of(run, step),
    }
}

fn signal(processes: &[Pid], signal: Signal) {
    for process in processes {
        // It may have ended since it was found.
        let _ = kill(*process, signal);
    }
}
