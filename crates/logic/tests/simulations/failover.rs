//! A pool of three backends, of which one in turn fails in some way, under GETs and POSTs: health, balancing and the rule
//! of retries together, over seeded schedules. The I/O of `proxy` and `serve` is replaced by events.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use logic::balance::{Availability, Balancer, Candidate, Choice, Identities, Policy, Tried, WEIGHT_UNIT};
use logic::health::{Health, PassiveRule, Rule, Source, VerdictOutcome};
use logic::retry::{self, Decision, Elsewhere, Idempotence, Progress, WhenDown};

use super::health::{Random, start, verdict};

const BACKENDS: usize = 3;
const RETRIES: u32 = 2;
/// `timeouts.response` and `timeouts.down`.
const RESPONSE: Duration = Duration::from_secs(60);
const DOWN: Duration = Duration::from_secs(5);
const RULE: Rule = Rule::DEFAULT;

/// How a backend treats connections and requests, its checks included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Well,
    /// Its process has ended: open connections break, new ones are refused.
    Killed,
    /// It resets each new connection.
    ResetsConnections,
    /// It takes a request, executes it, and resets the connection.
    ResetsRequests,
    /// It stands still; it answers what has arrived when it goes on.
    Stopped,
    /// It takes requests and never answers them.
    Swallows,
    /// It answers after 2.5 s; its checks are quick.
    Slow,
}

const FAULTS: [Mode; 6] =
    [Mode::Killed, Mode::ResetsConnections, Mode::ResetsRequests, Mode::Stopped, Mode::Swallows, Mode::Slow];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Change(usize),
    Arrive(usize),
    /// The backend answers this attempt of a request.
    Answer(usize, u32),
    /// A time limit of this attempt of a request.
    Limit(usize, u32),
    Timer(usize),
    ProbeEnd(usize),
}

struct Request {
    idempotence: Idempotence,
    began: Instant,
    tried: Tried,
    /// Attempts that have failed or were moved away.
    failed: u32,
    backend: usize,
    outages: u32,
    /// Since when its backend has been known to be down.
    lost: Option<Instant>,
    executed: u32,
    end: Option<(Instant, Result<(), &'static str>)>,
}

struct Backend {
    mode: Mode,
    health: Health,
    failures: u32,
    outages: u32,
    is_probed: bool,
    /// When its next timer event comes.
    timer: Option<Instant>,
    /// When its last fault ended.
    well_since: Option<Instant>,
}

struct World {
    now: Instant,
    random: Random,
    queue: BinaryHeap<Reverse<(Instant, Event)>>,
    backends: Vec<Backend>,
    balancer: Balancer,
    identities: Identities,
    requests: Vec<Request>,
    changes: Vec<(usize, Mode)>,
}

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// The longest time until checks see that a backend is silent.
fn detection() -> Duration {
    (RULE.interval.mul_f64(1.1) + RULE.timeout) * RULE.fall
}

impl World {
    fn new(seed: u64) -> Self {
        let (now, mut random) = (start(), Random(seed));
        let passive = PassiveRule::DEFAULT;
        let backend = |random: &mut Random| Backend {
            mode: Mode::Well,
            health: Health::new(Some(RULE), passive, now, random.unit()),
            failures: 0,
            outages: 0,
            is_probed: false,
            timer: None,
            well_since: None,
        };
        let backends: Vec<_> = (0..BACKENDS).map(|_| backend(&mut random)).collect();
        let names = [("a", 1), ("b", 1), ("c", 1)];
        let policy =
            [Policy::RoundRobin, Policy::LeastConnections, Policy::TwoChoices][random.below(3) as usize];
        let mut world = Self {
            now,
            random,
            queue: BinaryHeap::new(),
            backends,
            balancer: Balancer::new(policy, BACKENDS),
            identities: Identities::new(policy, &names),
            requests: Vec::new(),
            changes: Vec::new(),
        };
        // One fault after another, each at another backend, with time for the last one to return.
        let mut at = now + millis(5_000);
        for turn in 0..3 {
            let victim = (turn + seed as usize) % BACKENDS;
            let fault = FAULTS[world.random.below(6) as usize];
            world.plan_change(at, victim, fault);
            // A request that is swallowed shortly before the backend works again is not seen by any check.
            at += if fault == Mode::Swallows { detection() + 2 * DOWN } else { millis(1_000) };
            at += millis(world.random.below(15_000));
            world.plan_change(at, victim, Mode::Well);
            at += millis(8_000);
        }
        for number in 0..60 {
            let after = millis(world.random.below((at - now).as_millis() as u64));
            let method = if world.random.below(7) < 5 { "GET" } else { "POST" };
            world.requests.push(Request {
                idempotence: Idempotence::of(method),
                began: now + after,
                tried: Tried::default(),
                failed: 0,
                backend: 0,
                outages: 0,
                lost: None,
                executed: 0,
                end: None,
            });
            world.plan(now + after, Event::Arrive(number));
        }
        for backend in 0..BACKENDS {
            world.plan(now, Event::Timer(backend));
        }
        world
    }

    fn plan(&mut self, at: Instant, event: Event) {
        self.queue.push(Reverse((at, event)));
    }

    fn plan_change(&mut self, at: Instant, backend: usize, mode: Mode) {
        self.changes.push((backend, mode));
        self.plan(at, Event::Change(self.changes.len() - 1));
    }

    fn run(&mut self, until: Duration) {
        let end = self.now + until;
        while let Some(Reverse((at, event))) = self.queue.pop() {
            if at > end {
                return;
            }
            self.now = at;
            match event {
                Event::Change(number) => self.change(number),
                Event::Arrive(number) => self.attempt(number),
                Event::Answer(number, attempt) => self.answer(number, attempt),
                Event::Limit(number, attempt) => self.limit(number, attempt),
                Event::Timer(backend) => self.drive(backend),
                Event::ProbeEnd(backend) => self.probe_end(backend),
            }
        }
    }

    fn is_up(&self, backend: usize) -> bool {
        self.backends[backend].health.state().availability() == Availability::Available
    }

    fn change(&mut self, number: usize) {
        let (victim, mode) = self.changes[number];
        let before = std::mem::replace(&mut self.backends[victim].mode, mode);
        self.backends[victim].well_since = (mode == Mode::Well).then_some(self.now);
        let waiting: Vec<usize> = (0..self.requests.len()).filter(|at| self.waits_at(*at, victim)).collect();
        for number in waiting {
            match (before, mode) {
                (_, Mode::Killed) => self.fail(number, Progress::RequestSent, "closed"),
                (Mode::Stopped, Mode::Well) => {
                    self.plan(self.now + millis(5), Event::Answer(number, self.requests[number].failed));
                }
                _ => {}
            }
        }
    }

    fn waits_at(&self, number: usize, backend: usize) -> bool {
        let request = &self.requests[number];
        request.end.is_none() && request.began <= self.now && request.backend == backend
    }

    fn candidates(&self) -> Vec<Candidate> {
        let in_flight =
            |at| (0..self.requests.len()).filter(|number| self.waits_at(*number, at)).count() as u32;
        let candidate = |at| Candidate {
            weight: WEIGHT_UNIT,
            in_flight: in_flight(at),
            limit: None,
            available: self.backends[at].health.state().availability(),
            latency: 0,
        };
        (0..BACKENDS).map(candidate).collect()
    }

    fn attempt(&mut self, number: usize) {
        let (candidates, random) = (self.candidates(), self.random.next());
        let tried = &self.requests[number].tried;
        let Choice::Backend(index) = self.balancer.pick(&candidates, &self.identities, 0, tried, random)
        else {
            self.requests[number].end = Some((self.now, Err("no backend")));
            return;
        };
        let outages = self.backends[index].outages;
        let request = &mut self.requests[number];
        (request.backend, request.outages, request.lost) = (index, outages, None);
        let attempt = request.failed;
        let took = match self.backends[index].mode {
            Mode::Killed | Mode::ResetsConnections => {
                return self.fail(number, Progress::NothingSent, "refused");
            }
            Mode::ResetsRequests => {
                request.executed += 1;
                return self.fail(number, Progress::RequestSent, "reset");
            }
            Mode::Well => millis(1 + random % 50),
            Mode::Slow => millis(2_500),
            Mode::Stopped | Mode::Swallows => {
                request.executed += 1;
                return self.plan(self.now + RESPONSE, Event::Limit(number, attempt));
            }
        };
        request.executed += 1;
        self.plan(self.now + took, Event::Answer(number, attempt));
    }

    fn answer(&mut self, number: usize, attempt: u32) {
        let backend = self.requests[number].backend;
        let is_silent = matches!(self.backends[backend].mode, Mode::Stopped | Mode::Swallows);
        let request = &mut self.requests[number];
        if request.failed != attempt || request.end.is_some() {
            return; // An old answer, for a request that has moved.
        }
        if is_silent {
            return self.plan(self.now + RESPONSE, Event::Limit(number, attempt));
        }
        request.end = Some((self.now, Ok(())));
        self.backends[backend].failures = 0;
    }

    fn fail(&mut self, number: usize, progress: Progress, why: &'static str) {
        let request = &mut self.requests[number];
        request.failed += 1;
        let index = request.backend;
        request.tried.insert(index);
        let decision = retry::decide(request.idempotence, progress, request.failed, RETRIES);
        self.backends[index].failures += 1;
        let others = (0..BACKENDS).any(|other| other != index && self.is_up(other));
        if others && self.backends[index].failures >= PassiveRule::DEFAULT.failures {
            let (failures, cause) =
                (self.backends[index].failures, verdict(Source::Traffic, VerdictOutcome::Fail));
            self.judge(index, |health, now| {
                health.handle_traffic_failure(failures, cause, now);
            });
        }
        match decision {
            Decision::RetryElsewhere => self.attempt(number),
            Decision::GiveUp => self.requests[number].end = Some((self.now, Err(why))),
        }
    }

    fn limit(&mut self, number: usize, attempt: u32) {
        let request = &self.requests[number];
        if request.failed != attempt || request.end.is_some() {
            return;
        }
        match request.lost {
            Some(since) if self.now >= since + DOWN && !self.is_up(request.backend) => {
                self.requests[number].end = Some((self.now, Err("backend-down")));
            }
            _ if self.now >= request.began + RESPONSE => self.fail(number, Progress::RequestSent, "timeout"),
            _ => {}
        }
    }

    /// Lets `act` change the health of a backend; what waits decides anew if its availability has changed.
    fn judge(&mut self, index: usize, act: impl FnOnce(&mut Health, Instant)) {
        let was_up = self.is_up(index);
        act(&mut self.backends[index].health, self.now);
        let backend = &mut self.backends[index];
        let due = backend.health.poll_timeout().map(|due| due.max(self.now));
        if let Some(due) =
            due.filter(|due| backend.timer.is_none_or(|timer| *due < timer || timer <= self.now))
        {
            backend.timer = Some(due);
            self.plan(due, Event::Timer(index));
        }
        if was_up == self.is_up(index) {
            return;
        }
        if was_up {
            self.backends[index].outages += 1;
        } else {
            self.backends[index].failures = 0;
            self.check_return(index);
        }
        for number in 0..self.requests.len() {
            self.decide_anew(number);
        }
    }

    /// What `crates/proxy/src/http/moving.rs` does.
    fn decide_anew(&mut self, number: usize) {
        let request = &self.requests[number];
        let index = request.backend;
        if !self.waits_at(number, index)
            || self.is_up(index)
            || request.outages == self.backends[index].outages
        {
            return;
        }
        let has_room = (0..BACKENDS).any(|at| at != index && self.is_up(at) && !request.tried.contains(at));
        let elsewhere = if has_room { Elsewhere::Room } else { Elsewhere::NoRoom };
        let (attempt, sent) = (request.failed + 1, Progress::RequestSent);
        match retry::when_down(request.idempotence, sent, attempt, RETRIES, elsewhere) {
            WhenDown::Move => {
                let request = &mut self.requests[number];
                request.failed += 1;
                request.tried.insert(index);
                self.attempt(number);
            }
            WhenDown::Wait => {
                let since = *self.requests[number].lost.get_or_insert(self.now);
                self.plan(since + DOWN, Event::Limit(number, attempt - 1));
            }
        }
    }

    fn drive(&mut self, index: usize) {
        if self.backends[index].timer.is_some_and(|timer| timer > self.now) {
            return; // An earlier event has set another timer.
        }
        self.judge(index, |health, now| {
            health.handle_timeout(now);
        });
        let now = self.now;
        let backend = &mut self.backends[index];
        if backend.is_probed || backend.health.poll_probe().is_none_or(|due| now < due) {
            return;
        }
        backend.is_probed = true;
        backend.health.handle_probe_start(now);
        let took = match backend.mode {
            Mode::Stopped | Mode::Swallows => RULE.timeout,
            _ => millis(2),
        };
        self.plan(now + took, Event::ProbeEnd(index));
    }

    fn probe_end(&mut self, index: usize) {
        let backend = &mut self.backends[index];
        backend.is_probed = false;
        let outcome = match backend.mode {
            Mode::Well | Mode::Slow => VerdictOutcome::Pass,
            _ => VerdictOutcome::Fail,
        };
        let jitter = self.random.unit();
        self.judge(index, |health, now| {
            health.handle_probe(verdict(Source::Probe, outcome), now, jitter);
        });
    }

    fn check_return(&self, index: usize) {
        let Some(well_since) = self.backends[index].well_since else { return };
        let limit = RULE.interval.mul_f64(1.1) * RULE.rise + RULE.timeout + Duration::from_secs(1);
        let took = self.now - well_since;
        assert!(took <= limit, "backend {index} is back {took:?} after its fault, limit {limit:?}");
    }
}

#[test]
fn over_10000_schedules_of_faults_no_get_fails_or_waits_longer_than_the_detection_and_no_post_is_doubled() {
    let (mut posts, mut lost) = (0, 0);
    for seed in 0..10_000 {
        let mut world = World::new(seed);
        world.run(Duration::from_secs(180));
        for (index, backend) in world.backends.iter().enumerate() {
            assert!(world.is_up(index), "seed {seed}: backend {index} stays out: {:?}", backend.health);
        }
        for (number, request) in world.requests.iter().enumerate() {
            let at = format!("seed {seed}, request {number}, faults {:?}", world.changes);
            let Some((ended, result)) = request.end else { panic!("{at}: it never ended") };
            let took = ended - request.began;
            if request.idempotence == Idempotence::Idempotent {
                assert_eq!(result, Ok(()), "{at}: a GET failed after {took:?}");
                assert!(took <= detection() + Duration::from_secs(1), "{at}: a GET took {took:?}");
            } else {
                assert!(request.executed <= 1, "{at}: a POST was executed {} times", request.executed);
                assert!(took <= detection() + DOWN + Duration::from_secs(1), "{at}: a POST took {took:?}");
                posts += 1;
                lost += u32::from(result.is_err());
            }
        }
    }
    assert!(lost > 0 && lost < posts / 4, "{lost} of {posts} POSTs: the faults are met, and are few");
}
