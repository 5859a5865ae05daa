//! A backend that works and fails in turns of 300 ms for five minutes, under checks and traffic: it is ejected a few
//! times and not in each turn, stays out longer each time, and is back soon after the last turn.

use std::time::{Duration, Instant};

use logic::balance::Availability;
use logic::health::{Event, Health, PassiveRule, Rule, Source, VerdictOutcome};

use super::health::{Random, start, verdict};

const TURN: u128 = 300;
const FLAPPING: Duration = Duration::from_secs(300);
const STEP: Duration = Duration::from_millis(5);

/// An ejection: its begin, and its end if it has ended.
struct Out {
    from: Instant,
    until: Option<Instant>,
}

struct World {
    random: Random,
    began: Instant,
    now: Instant,
    health: Health,
    /// Failed sessions in a row.
    in_a_row: u32,
    failed: u32,
    /// Outcome of the check that runs, and when it ends.
    probe: Option<(Instant, VerdictOutcome)>,
    outs: Vec<Out>,
}

impl World {
    fn new(seed: u64) -> Self {
        let (now, mut random) = (start(), Random(seed));
        let interval = Duration::from_millis(200 + random.below(2_000));
        let (rise, fall) = (1 + random.below(3) as u32, 1 + random.below(3) as u32);
        let rule = Rule { interval, timeout: interval / 2, rise, fall };
        let health = Health::new(Some(rule), PassiveRule::DEFAULT, now, random.unit());
        Self { random, began: now, now, health, in_a_row: 0, failed: 0, probe: None, outs: Vec::new() }
    }

    fn outcome(&self) -> VerdictOutcome {
        let since = self.now - self.began;
        match since < FLAPPING && (since.as_millis() / TURN) % 2 == 1 {
            true => VerdictOutcome::Fail,
            false => VerdictOutcome::Pass,
        }
    }

    fn takes_sessions(&self) -> bool {
        self.health.state().availability() == Availability::Available
    }

    /// One step of time. Of a session every `pause` on average, one may come.
    fn step(&mut self, pause: Duration) {
        self.now += STEP;
        let (now, outcome) = (self.now, self.outcome());
        let was_out = !self.takes_sessions();
        if self.health.poll_timeout().is_some_and(|due| due <= now) {
            self.health.handle_timeout(now);
        }
        if let Some((_, outcome)) = self.probe.take_if(|(ends, _)| *ends <= now) {
            let jitter = self.random.unit();
            self.health.handle_probe(verdict(Source::Probe, outcome), now, jitter);
        } else if self.probe.is_none() && self.health.poll_probe().is_some_and(|due| due <= now) {
            self.health.handle_probe_start(now);
            self.probe = Some((now + Duration::from_millis(self.random.below(50)), outcome));
        }
        if was_out
            && self.takes_sessions()
            && let Some(out) = self.outs.last_mut()
        {
            out.until.get_or_insert(now);
        }
        let comes = self.random.below(pause.as_millis() as u64) < STEP.as_millis() as u64;
        if !comes || !self.takes_sessions() {
            return;
        }
        if outcome == VerdictOutcome::Pass {
            self.in_a_row = 0;
            return;
        }
        (self.in_a_row, self.failed) = (self.in_a_row + 1, self.failed + 1);
        let failure = verdict(Source::Traffic, VerdictOutcome::Fail);
        if self.health.handle_traffic_failure(self.in_a_row, failure, now) == Some(Event::Ejected) {
            self.in_a_row = 0;
            self.outs.push(Out { from: now, until: None });
        }
    }
}

#[test]
fn a_backend_that_flaps_is_out_longer_each_time_and_back_soon_after_its_last_turn() {
    let mut most = 0;
    for seed in 0..300 {
        let mut world = World::new(seed);
        let rule = world.health.rule().unwrap();
        // Often enough that failures in a row are seen within a turn.
        let pause = Duration::from_millis(5 + world.random.below(20));
        while world.now < world.began + FLAPPING {
            world.step(pause);
        }
        let (ejections, failed) = (world.outs.len() as u32, world.failed);
        most = most.max(ejections);
        // 500 turns: one of 0 s, then of 10, 20, 40, 80 and 160 s, and the checks have it as well.
        assert!((1..=8).contains(&ejections), "seed {seed}: ejected {ejections} times");
        // What checks end before traffic notices fails too: fewer than five in a row.
        assert!(failed <= 2_000, "seed {seed}: {failed} sessions failed in {ejections} ejections");
        let lasted = |out: &Out| out.until.map(|until| until - out.from);
        let lasted: Vec<_> = world.outs.iter().filter_map(lasted).collect();
        for (number, pair) in lasted.windows(2).enumerate() {
            let least = PassiveRule::DEFAULT.ejection * (1 << number);
            assert!(pair[1] >= least, "seed {seed}: {lasted:?}: {least:?} after {number} before");
        }
        // After the last turn it works. What is left of an ejection passes, and the checks.
        let left = world.health.awaits(world.now).map_or(Duration::ZERO, |awaits| awaits.time);
        let ended = world.now;
        while !world.takes_sessions() {
            world.step(pause);
            assert!(world.now < ended + Duration::from_secs(400), "seed {seed}: {:?}", world.health);
        }
        let limit = rule.interval.mul_f64(1.1) * rule.rise + rule.timeout + Duration::from_secs(1);
        let took = world.now - ended;
        assert!(took <= limit.max(left + STEP), "seed {seed}: back {took:?} after, {left:?} were left");
        let before = world.outs.len();
        while world.now < ended + took + Duration::from_secs(60) {
            world.step(pause);
        }
        assert!(world.takes_sessions() && world.outs.len() == before, "seed {seed}: it works and stays");
    }
    println!("at most {most} ejections");
}
