//! Starts hosts as `hosts::fleet::pace` allows, retries hosts that refused the connection, and collects the endings.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hosts::fleet::ending::{Ending, Failure, Phase, Reason, Remote};
use hosts::fleet::pace::{self, Ceiling, Pace, Sign};
use hosts::fleet::watcher::Hold;
use tokio::sync::mpsc;
use tokio::task::{Id, JoinSet};
use tokio::time::sleep_until;

use super::board::Stage;
use super::endings::Endings;
use super::shared::Shared;
use super::stop::{Stop, stopped, why};
use super::turn::{self, Finished};

#[derive(Debug, Clone)]
pub struct Limits {
    pub parallel: Parallel,
    /// Maximum number of sessions at once for which this machine has descriptors and memory.
    pub sessions: usize,
    pub delay: Duration,
}

/// Limit of the hosts that are worked on at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parallel {
    /// A limit that `hosts::fleet::pace` adapts.
    Adaptive,
    Fixed(usize),
}

/// Starts the tasks of all hosts. It lives for all waves, so that a later wave starts with the adapted limit.
pub(super) struct Schedule {
    shared: Arc<Shared>,
    up: mpsc::UnboundedReceiver<(usize, Duration)>,
    pace: Pace,
    /// One queue for each jump host, and one for the hosts without a jump host.
    jump_queues: Vec<JumpHostQueue>,
    queue_of: Vec<usize>,
    next_lane: usize,
    starting: Vec<bool>,
    tries: Vec<Tries>,
    sessions: usize,
    on_their_way: usize,
    waiting: BinaryHeap<Reverse<(Instant, usize)>>,
    delay: Duration,
    last_start: Option<Instant>,
    /// The host and the start time of each task: the error of a task that panicked does not name its host.
    turns: HashMap<Id, (usize, Instant)>,
    /// Hosts without a watcher: the log-in shell is not a POSIX shell, or /proc does not identify the process.
    pub(super) unwatched: Vec<usize>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Tries {
    turned_away: u32,
    starved: u32,
    began: Option<Instant>,
}

struct JumpHostQueue {
    pace: Option<Pace>,
    queue: VecDeque<usize>,
    sessions: usize,
    on_their_way: usize,
}

impl Schedule {
    pub(super) fn new(
        shared: Arc<Shared>,
        up: mpsc::UnboundedReceiver<(usize, Duration)>,
        limits: &Limits,
    ) -> Self {
        let ceiling = Ceiling { sessions: limits.sessions, starting: limits.sessions };
        let pace = match limits.parallel {
            Parallel::Adaptive => Pace::adaptive(ceiling),
            Parallel::Fixed(count) => Pace::fixed(count.min(limits.sessions)),
        };
        let mut gates: Vec<Option<&str>> = vec![None];
        let mut queue_of = Vec::with_capacity(shared.hosts.len());
        for host in &shared.hosts {
            let gate = host.gate();
            let at = gates.iter().position(|known| *known == gate).unwrap_or_else(|| {
                gates.push(gate);
                gates.len() - 1
            });
            queue_of.push(at);
        }
        let lane = |gate: &Option<&str>| JumpHostQueue {
            pace: gate.map(|_| Pace::behind_bastion(ceiling)),
            queue: VecDeque::new(),
            sessions: 0,
            on_their_way: 0,
        };
        let jump_queues = gates.iter().map(lane).collect();
        let count = shared.hosts.len();
        Self {
            up,
            pace,
            jump_queues,
            queue_of,
            next_lane: 0,
            starting: vec![false; count],
            tries: vec![Tries::default(); count],
            sessions: 0,
            on_their_way: 0,
            waiting: BinaryHeap::new(),
            delay: limits.delay,
            last_start: None,
            turns: HashMap::new(),
            unwatched: Vec::new(),
            shared,
        }
    }

    /// Runs `hosts` until all have ended, and passes each ending to `endings`.
    pub(super) async fn wave(&mut self, hosts: impl Iterator<Item = usize>, endings: &mut Endings) {
        for host in hosts {
            self.jump_queues[self.queue_of[host]].queue.push_back(host);
        }
        let mut tasks: JoinSet<Finished> = JoinSet::new();
        let mut stop = self.shared.brake.watch();
        let mut halted = false;
        loop {
            let pause = if halted { None } else { self.start(&mut tasks) };
            if tasks.is_empty() && (halted || self.is_empty()) {
                return;
            }
            let tick = Instant::now() + TICK;
            let wake = pause.map_or(tick, |pause| pause.min(tick));
            tokio::select! {
                biased;
                stop = stopped(&mut stop), if !halted => {
                    halted = true;
                    self.give_up(stop, endings);
                }
                Some((host, took)) = self.up.recv() => self.is_up(host, Sign::Up(took)),
                Some(ended) = tasks.join_next_with_id() => {
                    let (id, finished) = ended.unwrap_or_else(|error| (error.id(), turn::broken(&self.shared.job)));
                    if let Some((host, began)) = self.turns.remove(&id) {
                        self.ended(host, began, finished, halted, endings);
                    }
                }
                () = sleep_until(wake.into()) => {
                    // The runtime has several threads, so a late timer means that the processors are busy, not that one
                    // task blocks.
                    let late = Instant::now().saturating_duration_since(wake);
                    self.pace.observe(Sign::Late(late), Instant::now());
                }
            }
        }
    }

    /// Starts as many hosts as the limits allow. Returns when the next host may start, if that is known.
    fn start(&mut self, tasks: &mut JoinSet<Finished>) -> Option<Instant> {
        let now = Instant::now();
        while let Some(Reverse((due, host))) = self.waiting.peek().copied() {
            if due > now {
                break;
            }
            self.waiting.pop();
            self.shared.board.set(host, Stage::At(Phase::Queued));
            self.jump_queues[self.queue_of[host]].queue.push_back(host);
        }
        let mut pause = self.waiting.peek().map(|Reverse((due, _))| *due);
        while self.pace.room(self.on_their_way, self.sessions) > 0 {
            if let Some(last) = self.last_start
                && !self.delay.is_zero()
                && now < last + self.delay
            {
                let due = last + self.delay;
                pause = Some(pause.map_or(due, |pause| pause.min(due)));
                break;
            }
            let Some(host) = self.pick() else { break };
            self.starting[host] = true;
            self.on_their_way += 1;
            self.sessions += 1;
            let lane = &mut self.jump_queues[self.queue_of[host]];
            lane.on_their_way += 1;
            lane.sessions += 1;
            self.last_start = Some(now);
            let shared = Arc::clone(&self.shared);
            let task = tasks.spawn(turn::take(shared, host));
            self.turns.insert(task.id(), (host, now));
        }
        pause
    }

    /// The next host, from each queue in turn. A queue whose limit is reached is skipped.
    fn pick(&mut self) -> Option<usize> {
        for step in 0..self.jump_queues.len() {
            let at = (self.next_lane + step) % self.jump_queues.len();
            let lane = &mut self.jump_queues[at];
            let room =
                lane.pace.as_ref().map_or(usize::MAX, |pace| pace.room(lane.on_their_way, lane.sessions));
            if room > 0
                && let Some(host) = lane.queue.pop_front()
            {
                self.next_lane = at + 1;
                return Some(host);
            }
        }
        None
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.jump_queues.iter().all(|lane| lane.queue.is_empty())
    }

    /// Removes a host from the count of hosts that connect, and reports `sign` to the pace.
    fn is_up(&mut self, host: usize, sign: Sign) {
        let now = Instant::now();
        let lane = &mut self.jump_queues[self.queue_of[host]];
        if std::mem::take(&mut self.starting[host]) {
            self.on_their_way -= 1;
            lane.on_their_way -= 1;
        }
        self.pace.observe(sign, now);
        if let Some(pace) = &mut lane.pace {
            pace.observe(sign, now);
        }
    }

    fn ended(
        &mut self,
        host: usize,
        began: Instant,
        finished: Finished,
        halted: bool,
        endings: &mut Endings,
    ) {
        let sessions = self.sessions;
        self.sessions -= 1;
        let on_its_way = self.starting[host];
        let sign = sign(&finished.ending, sessions);
        if on_its_way {
            self.is_up(host, sign);
        }
        self.jump_queues[self.queue_of[host]].sessions -= 1;
        let began = *self.tries[host].began.get_or_insert(began);
        if !halted && let Some(pause) = self.again(host, sign, &finished.ending) {
            self.shared.board.set(host, Stage::Waiting);
            self.waiting.push(Reverse((Instant::now() + pause, host)));
            return;
        }
        let ran = matches!(finished.ending, Ending::Exited(_) | Ending::Signalled { .. });
        if matches!(finished.hold, Hold::None | Hold::Unproved) && ran {
            self.unwatched.push(host);
        }
        let stage = if finished.ending.is_success() { Stage::Ok } else { Stage::Failed };
        self.shared.board.set(host, stage);
        endings.close(host, finished.ending, began.elapsed());
    }

    /// Time until the next attempt. `None` without a retry: the host may have started the command, or a retry cannot
    /// help.
    fn again(&mut self, host: usize, sign: Sign, ending: &Ending) -> Option<Duration> {
        if ending.remote() != Remote::NotStarted {
            return None;
        }
        let tries = &mut self.tries[host];
        match sign {
            Sign::TurnedAway => {
                tries.turned_away += 1;
                pace::again_after(tries.turned_away, fastrand::f64())
            }
            Sign::Starved { .. } if tries.starved < STARVED_TRIES => {
                tries.starved += 1;
                Some(Duration::from_millis(fastrand::u64(100..300)))
            }
            _ => None,
        }
    }

    /// Ends all hosts that have not started.
    fn give_up(&mut self, stop: Stop, endings: &mut Endings) {
        let waiting = std::mem::take(&mut self.waiting).into_iter().map(|Reverse((_, host))| host);
        let queued = self.jump_queues.iter_mut().flat_map(|lane| std::mem::take(&mut lane.queue));
        let mut left: Vec<usize> = waiting.chain(queued).collect();
        left.sort_unstable();
        for host in left {
            self.shared.board.set(host, Stage::Failed);
            endings.close(host, not_started(why(stop)), Duration::ZERO);
        }
    }
}

/// The ending of a host that the run has not started.
pub(super) fn not_started(why: &str) -> Ending {
    Ending::Failed(Failure::not_started(Phase::Queued, Reason::Stopped, why.to_owned()))
}

fn sign(ending: &Ending, sessions: usize) -> Sign {
    match ending {
        Ending::Failed(failure) => match failure.reason {
            Reason::ClosedByServer => Sign::TurnedAway,
            Reason::TimedOut if failure.phase >= Phase::Identity => Sign::TimedOut,
            Reason::OutOfResources => Sign::Starved { sessions },
            _ => Sign::Failed,
        },
        _ => Sign::Failed,
    }
}

/// Interval of the timer that measures the load of the processors.
const TICK: Duration = Duration::from_millis(50);
/// Limit of the retries after a lack of local resources; the limit of sessions is lower each time.
const STARVED_TRIES: u32 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_fewer_hosts_at_once_would_mend_lowers_their_number() {
        let ending = |reason| Ending::Failed(Failure::not_started(Phase::Connect, reason, String::new()));
        assert_eq!(sign(&ending(Reason::OutOfResources), 7), Sign::Starved { sessions: 7 });
        for reason in
            [Reason::LocalError, Reason::Internal, Reason::ConnectionRefused, Reason::BadConfiguration]
        {
            assert_eq!(sign(&ending(reason), 7), Sign::Failed, "{reason}");
        }
    }
}
