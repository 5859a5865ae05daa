//! A command on many hosts at once.
//!
//! `run/schedule.rs` decides which host is next, `run/turn.rs` runs the command on one host with an engine
//! (`run/native.rs`, `run/openssh.rs`), and `run/output.rs` passes all output through one thread to a view, a hash and
//! files. The decisions are in `hosts::fleet`: the limit of hosts at once, the meaning of an ending, when waves stop,
//! and how a command ends with this program.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hosts::fleet::ending::Ending;
use hosts::fleet::verdict::Status;
use hosts::fleet::waves::{StopIf, Waves};
use tokio::sync::mpsc;

pub mod again;
pub mod board;
pub mod copy;
mod ending;
mod endings;
pub mod engine;
pub mod happening;
mod host;
pub mod input;
mod job;
pub mod journal;
pub mod keep;
pub mod native;
pub mod openssh;
pub mod output;
pub mod progress;
mod schedule;
mod shared;
pub mod stop;
pub mod summary;
pub mod terminal;
mod turn;
pub mod view;
mod writer;

pub use host::Host;
pub use job::{Done, Job, Order, nonce};
pub use schedule::{Limits, Parallel};

use board::Board;
use endings::Endings;
use engine::Engine;
use input::Input;
use journal::Journal;
use keep::Written;
use output::{Finish, Outbox};
use schedule::{Schedule, not_started};
use shared::Shared;
use stop::{Brake, Stop, Why, why};

/// Waves of a run: only after one wave has ended does the next wave start.
#[derive(Debug, Clone)]
pub struct Steps {
    pub waves: Waves,
    /// Condition under which the next wave does not start.
    pub stop_if: Option<StopIf>,
    pub pause: Pause,
}

#[derive(Debug, Clone)]
pub enum Pause {
    None,
    /// A pause of this length, in which the user can read the results.
    For(Duration),
    /// A pause until the user presses Enter, which notifies the task.
    Enter(Arc<tokio::sync::Notify>),
}

pub struct Plan {
    pub hosts: Vec<Host>,
    pub job: Job,
    pub engine: Engine,
    pub limits: Limits,
    pub steps: Option<Steps>,
    pub journal: Option<Journal>,
}

#[derive(Debug)]
pub struct Outcome {
    /// Endings in the order of the hosts.
    pub endings: Vec<Ending>,
    /// Time from the start of the first host to the end of the last.
    pub elapsed: Duration,
    pub status: Status,
    pub done: Done,
    /// Hosts that ran the command without a watcher although a watcher was wanted.
    pub unwatched: Vec<usize>,
    /// Hosts whose output could not be kept, with the reason.
    pub lost: Vec<(usize, String)>,
    pub output: Shown,
    pub again: Again,
    /// Name of the run in the journal.
    pub id: Option<String>,
    /// First error of a write to the journal.
    pub record_error: Option<std::io::Error>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// All output was written, except for the output in [`Outcome::lost`].
    Complete,
    /// The run was stopped while the reader of standard output did not read. The caller must not write to standard
    /// output: it would block.
    Truncated,
    /// The output thread panicked: a bug.
    InternalError,
}

/// Whether to offer `--again`, which repeats the run on the hosts that did not start the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    Fine,
    /// Offer it with the same options of waves and the same stop condition.
    InWaves,
    /// Do not offer it: the record or the input was not kept.
    NotOffered,
}

pub async fn run(plan: Plan, board: Arc<Board>, brake: Brake, out: Outbox) -> Outcome {
    let (up_to, up) = mpsc::unbounded_channel();
    let shared = Arc::new(Shared {
        hosts: plan.hosts,
        job: plan.job,
        engine: plan.engine,
        board,
        brake: brake.clone(),
        out: out.clone(),
        journal: plan.journal,
        up: up_to,
    });
    let begin = Instant::now();
    let mut schedule = Schedule::new(Arc::clone(&shared), up, &plan.limits);
    let mut endings = Endings { endings: vec![None; shared.hosts.len()], shared: Arc::clone(&shared) };
    let count = shared.hosts.len();
    let mut ends = plan.steps.as_ref().map_or_else(|| vec![count], |steps| steps.waves.ends(count));
    let mut at = 0;
    let mut held = None;
    ends.reverse();
    while let Some(end) = ends.pop() {
        schedule.wave(at..end, &mut endings).await;
        at = end;
        if brake.now() != Stop::No || at == count {
            break;
        }
        if let Some(steps) = &plan.steps {
            let so_far: Vec<&Ending> = endings.endings[..at].iter().flatten().collect();
            if let Some(journal) = &shared.journal {
                journal.settled(&brake, PATIENCE).await;
            }
            held = between(steps, &so_far, count, &out, &brake).await;
            if held.is_some() {
                break;
            }
        }
    }
    let words = held.unwrap_or_else(|| why(brake.now()).to_owned());
    for host in at..count {
        endings.close(host, not_started(&words), Duration::ZERO);
    }
    let elapsed = begin.elapsed();
    let endings: Vec<Ending> = endings
        .endings
        .into_iter()
        .map(|ending| ending.unwrap_or_else(|| turn::broken(&shared.job).ending))
        .collect();
    if let Some(journal) = &shared.journal {
        journal.settled(&brake, PATIENCE).await;
    }
    let (written, output) = match out.finish(&brake, PATIENCE).await {
        Finish::Written(written) => (written, Shown::Complete),
        Finish::GivenUp => (Written::default(), Shown::Truncated),
        Finish::Broken => (Written::default(), Shown::InternalError),
    };
    let held_back = at < count && brake.now() == Stop::No;
    let spooled = matches!(&shared.job, Job::Command(order) if matches!(order.input, Input::Spool(_)));
    let kept = shared.journal.is_some() && !spooled;
    let again = match (kept, held_back) {
        (false, _) => Again::NotOffered,
        (true, true) => Again::InWaves,
        (true, false) => Again::Fine,
    };
    let mut status = Status::worst(&endings);
    if !written.lost.is_empty() || output == Shown::InternalError {
        status = status.max(Status::OutputLost);
    }
    status = match brake.now() {
        Stop::No => status,
        Stop::Gently(why) | Stop::AtOnce(why) => match why {
            Why::Interrupted => Status::Interrupted,
            Why::ReaderGone => Status::ReaderGone,
            Why::OutputLost => status.max(Status::OutputLost),
            Why::NoInput => status,
        },
    };
    let record_error = match &shared.journal {
        Some(journal) => journal.finish(status, &written.hashes, &brake, PATIENCE).await,
        None => None,
    };
    let id = shared.journal.as_ref().map(|journal| journal.id().to_owned());
    Outcome {
        endings,
        elapsed,
        status,
        done: shared.job.done(),
        unwatched: schedule.unwatched,
        lost: written.lost,
        output,
        again,
        id,
        record_error,
    }
}

/// After a wave: compares the outputs of its hosts, checks the stop condition, then pauses. Returns why no further wave starts, or `None`.
async fn between(
    steps: &Steps,
    so_far: &[&Ending],
    count: usize,
    out: &Outbox,
    brake: &Brake,
) -> Option<String> {
    let at = so_far.len();
    let mut watch = brake.watch();
    let outputs = match steps.stop_if {
        Some(StopIf::Differs) => tokio::select! {
            stop = stop::stopped(&mut watch) => return Some(why(stop).to_owned()),
            outputs = out.differing((0..at).collect()) => match outputs {
                Some(outputs) => outputs,
                None => return Some("outputs could not be compared".to_owned()),
            },
        },
        _ => 0,
    };
    if let Some(condition) = steps.stop_if
        && let Some(why) = condition.verdict(so_far.iter().copied(), outputs)
    {
        let held = format!("after {at} of {count} hosts by {condition}: {why}");
        out.note(format!("stopped {held}"));
        return Some(held);
    }
    let ok = so_far.iter().filter(|ending| ending.is_success()).count();
    let looked = async {
        match &steps.pause {
            Pause::None => {}
            Pause::For(time) => {
                out.look();
                out.note(format!(
                    "{at} of {count} hosts: {ok} ok; the next wave starts in {} s",
                    time.as_secs_f32()
                ));
                tokio::time::sleep(*time).await;
            }
            Pause::Enter(pressed) => {
                out.look();
                out.note(format!(
                    "{at} of {count} hosts: {ok} ok; press Enter for the next wave, Ctrl-C to stop here"
                ));
                pressed.notified().await;
            }
        }
    };
    tokio::select! {
        stop = stop::stopped(&mut watch) => Some(why(stop).to_owned()),
        () = looked => None,
    }
}

/// Time limit of the last output and of the last record after a run was stopped: the reader or the disk may hang.
const PATIENCE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests;
