//! A command on many hosts at once.
//!
//! `run/schedule.rs` says whose turn it is, `run/turn.rs` takes it with an engine (`run/native.rs`, `run/openssh.rs`), and
//! everything that comes goes through one thread (`run/output.rs`) to a view, a hash and files. The decisions are in
//! `logic::fleet`: the pace, what an ending means, when waves stop, what is sent so that a command ends with us.

use std::sync::Arc;
use std::time::{Duration, Instant};

use logic::fleet::ending::{Ending, Failure};
use logic::fleet::verdict::Status;
use logic::fleet::waves::{StopIf, Waves};
use tokio::sync::mpsc;

pub mod board;
pub mod copy;
pub mod engine;
pub mod input;
pub mod journal;
pub mod keep;
pub mod native;
pub mod openssh;
pub mod output;
pub mod progress;
mod schedule;
pub mod stop;
pub mod summary;
pub mod terminal;
mod turn;
pub mod view;

use board::Board;
use engine::{Engine, Leash};
use input::Input;
use journal::Journal;
use output::{Finish, Outbox, Written};
use schedule::{Schedule, not_started};
use stop::{Brake, Stop, Why};

/// One host of a run.
#[derive(Debug, Clone)]
pub struct Host {
    /// What the user called it.
    pub name: String,
    /// How to reach it, or why that is not known.
    pub target: Result<ssh::Target, Failure>,
}

impl Host {
    /// The bastion that it shares with others.
    fn gate(&self) -> Option<&str> {
        match &self.target.as_ref().ok()?.proxy {
            ssh::Proxy::Jump(hops) => hops.first().map(|hop| hop.name.as_str()),
            _ => None,
        }
    }
}

/// What is done with every host.
#[derive(Debug, Clone)]
pub enum Job {
    /// It runs a command.
    Command(Order),
    /// Files are copied to it or from it.
    Copy(copy::Order),
}

/// A command for every host.
#[derive(Debug, Clone)]
pub struct Order {
    /// The command, as the remote shell gets it.
    pub command: String,
    /// What it reads.
    pub input: Input,
    /// Whether it ends when we vanish.
    pub leash: Leash,
    /// Letters and digits that nobody can guess: the mark of the leash.
    pub nonce: String,
    /// For each phase up to the start of the command.
    pub connect_timeout: Duration,
    /// For the command.
    pub timeout: Option<Duration>,
}

/// How many at once.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Who decides.
    pub parallel: Parallel,
    /// Sessions that this machine can hold.
    pub sessions: usize,
    /// Between two starts.
    pub delay: Duration,
}

/// Who decides how many hosts are worked on at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parallel {
    /// `logic::fleet::pace`.
    Adaptive,
    /// The user.
    Fixed(usize),
}

/// Steps, and what happens between them.
#[derive(Debug, Clone)]
pub struct Steps {
    /// How many hosts each.
    pub waves: Waves,
    /// When no further one starts.
    pub stop_if: Option<StopIf>,
    /// What happens between two.
    pub pause: Pause,
}

/// What happens between two waves.
#[derive(Debug, Clone)]
pub enum Pause {
    /// Nothing.
    None,
    /// So much time to look.
    For(Duration),
    /// Until somebody presses Enter: told through this.
    Enter(Arc<tokio::sync::Notify>),
}

/// A whole run.
pub struct Plan {
    /// On these hosts.
    pub hosts: Vec<Host>,
    /// This.
    pub job: Job,
    /// With this.
    pub engine: Engine,
    /// So many at once.
    pub limits: Limits,
    /// In these steps.
    pub steps: Option<Steps>,
    /// Recorded here.
    pub journal: Option<Journal>,
}

/// What a run came to.
#[derive(Debug)]
pub struct Outcome {
    /// In the order of the hosts.
    pub endings: Vec<Ending>,
    /// From the first host to the last.
    pub elapsed: Duration,
    /// The exit status.
    pub status: Status,
    /// What was done.
    pub done: Done,
    /// Hosts without a leash though one was wanted.
    pub unleashed: Vec<usize>,
    /// What could not be kept, and of whom.
    pub lost: Vec<(usize, String)>,
    /// Whether all of it was written.
    pub output: Shown,
    /// Whether to offer that what never started is done again.
    pub again: Again,
    /// What the run is called in the journal.
    pub id: Option<String>,
    /// Why not all of it is on record, where a record was begun.
    pub unrecorded: Option<std::io::Error>,
}

/// Whether the output was written to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// Yes, but for what is said to be lost.
    Whole,
    /// The run was stopped, and then nobody took it. Standard output must be left alone: whoever writes there waits as long.
    GivenUp,
    /// What writes it broke, a fault of ours.
    Broken,
}

/// What was done with the hosts that ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// They ran a command.
    Ran,
    /// They got all this together.
    Put(ssh::Moved),
    /// All this came from them together.
    Got(ssh::Moved),
}

/// Whether hosts that never started can just be done again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// Yes.
    Fine,
    /// Yes, and in the same waves, with the condition that held the run back.
    InWaves,
    /// No: there is no record, or none of the input.
    NotOffered,
}

/// Runs it all.
pub async fn run(plan: Plan, board: Arc<Board>, brake: Brake, out: Outbox) -> Outcome {
    let (up_to, up) = mpsc::unbounded_channel();
    let shared = Arc::new(turn::Shared {
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
    let mut ledger = Ledger { endings: vec![None; shared.hosts.len()], shared: Arc::clone(&shared) };
    let count = shared.hosts.len();
    let mut ends = plan.steps.as_ref().map_or_else(|| vec![count], |steps| steps.waves.ends(count));
    let mut at = 0;
    let mut held = None;
    ends.reverse();
    while let Some(end) = ends.pop() {
        schedule.wave(at..end, &mut ledger).await;
        at = end;
        if brake.now() != Stop::No || at == count {
            break;
        }
        if let Some(steps) = &plan.steps {
            let so_far: Vec<&Ending> = ledger.endings[..at].iter().flatten().collect();
            if let Some(journal) = &shared.journal {
                journal.settled(&brake, PATIENCE).await;
            }
            held = between(steps, &so_far, count, &out, &brake).await;
            if held.is_some() {
                break;
            }
        }
    }
    let words = held.unwrap_or_else(|| turn::why(brake.now()).to_owned());
    for host in at..count {
        ledger.close(host, not_started(&words), Duration::ZERO);
    }
    let elapsed = begin.elapsed();
    let endings: Vec<Ending> = ledger
        .endings
        .into_iter()
        .map(|ending| ending.unwrap_or_else(|| turn::broken(&shared.job).ending))
        .collect();
    if let Some(journal) = &shared.journal {
        journal.settled(&brake, PATIENCE).await;
    }
    let (written, output) = match out.finish(&brake, PATIENCE).await {
        Finish::Written(written) => (written, Shown::Whole),
        Finish::GivenUp => (Written::default(), Shown::GivenUp),
        Finish::Broken => (Written::default(), Shown::Broken),
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
    if !written.lost.is_empty() || output == Shown::Broken {
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
    let unrecorded = match &shared.journal {
        Some(journal) => journal.finish(status, &written.hashes, &brake, PATIENCE).await,
        None => None,
    };
    let done = match &shared.job {
        Job::Command(_) => Done::Ran,
        Job::Copy(order) => order.done(),
    };
    let id = shared.journal.as_ref().map(|journal| journal.id().to_owned());
    Outcome {
        endings,
        elapsed,
        status,
        done,
        unleashed: schedule.unleashed,
        lost: written.lost,
        output,
        again,
        id,
        unrecorded,
    }
}

/// The endings, as they come.
struct Ledger {
    endings: Vec<Option<Ending>>,
    shared: Arc<turn::Shared>,
}

impl Ledger {
    fn close(&mut self, host: usize, ending: Ending, took: Duration) {
        let told = ending.clone();
        let out = self.shared.out.clone();
        let tell = move || out.ended(host, told, took);
        match &self.shared.journal {
            Some(journal) => journal.ended(host, &ending, tell),
            None => tell(),
        }
        self.endings[host] = Some(ending);
    }
}

/// The look between two waves: why there is no next one, or `None`.
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
            stop = stop::stopped(&mut watch) => return Some(turn::why(stop).to_owned()),
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
    let well = so_far.iter().filter(|ending| ending.is_success()).count();
    let looked = async {
        match &steps.pause {
            Pause::None => {}
            Pause::For(time) => {
                out.look();
                out.note(format!(
                    "{at} of {count} hosts: {well} well; the next wave starts in {} s",
                    time.as_secs_f32()
                ));
                tokio::time::sleep(*time).await;
            }
            Pause::Enter(pressed) => {
                out.look();
                out.note(format!(
                    "{at} of {count} hosts: {well} well; press Enter for the next wave, Ctrl-C to stop here"
                ));
                pressed.notified().await;
            }
        }
    };
    tokio::select! {
        stop = stop::stopped(&mut watch) => Some(turn::why(stop).to_owned()),
        () = looked => None,
    }
}

/// For the last words when nobody may be reading, and for the record when the disk may hang.
const PATIENCE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests;
