//! Ejection by error rate and response time over seeded lives of whole pools, driven as `serve` drives it: totals that
//! grow, a window over them, a judgement every so often, and the circuit breaker of each backend.

use std::time::{Duration, Instant};

use logic::health::outlier::{Fallback, Gate, OutlierRule, Rest, Seen, Window, judge};
use logic::health::{Cause, Health, PassiveRule, Source, State, Verdict, VerdictOutcome};

use crate::health::{Random, start, verdict};

const STEP: Duration = Duration::from_millis(100);

const RULE: PassiveRule = PassiveRule {
    ejection: Duration::from_secs(5),
    outlier: OutlierRule { errors: Some(50), slowness: Some(400), ..OutlierRule::OFF },
    most_ejected: 50,
    ..PassiveRule::DEFAULT
};

struct Backend {
    health: Health,
    window: Window<Totals>,
    totals: Totals,
    is_failing: bool,
    is_slow: bool,
    trials_passed: u32,
    sessions_half_open: u64,
}

/// Counters that only grow; the response time stands for that of the last answers.
#[derive(Clone, Copy, Default)]
struct Totals {
    sessions: u64,
    errors: u64,
}

struct World {
    backends: Vec<Backend>,
    rule: PassiveRule,
    now: Instant,
    random: Random,
    stopped: u64,
}

impl World {
    fn new(seed: u64, count: usize, rule: PassiveRule) -> Self {
        let now = start();
        let backend = || Backend {
            health: Health::new(None, rule, now, 0.5),
            window: Window::new(rule.outlier.window),
            totals: Totals::default(),
            is_failing: false,
            is_slow: false,
            trials_passed: 0,
            sessions_half_open: 0,
        };
        let backends = (0..count).map(|_| backend()).collect();
        Self { backends, rule, now, random: Random(seed), stopped: 0 }
    }

    fn states(&self) -> Vec<State> {
        self.backends.iter().map(|backend| backend.health.state()).collect()
    }

    fn ejected(&self) -> usize {
        self.states().iter().filter(|state| **state == State::Ejected).count()
    }

    fn failed(&self) -> Verdict {
        verdict(Source::Traffic, VerdictOutcome::Fail)
    }

    fn gate(&self, at: usize) -> Gate {
        let states = self.states();
        let others = || states.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, state)| *state);
        let rest = Rest {
            all: states.len(),
            serving: others().filter(|state| !matches!(state, State::Ejected | State::Down)).count(),
            ejected: others().filter(|state| *state == State::Ejected).count(),
            fallback: Fallback::None,
        };
        Gate::of(rest, self.rule.most_ejected)
    }

    /// One step of time: `each` sessions to every backend that takes some, then the timers, then the judgement.
    fn step(&mut self, each: u64) {
        self.now += STEP;
        let now = self.now;
        for at in 0..self.backends.len() {
            let failed = self.failed();
            // A good backend fails now and then, a failing one answers now and then.
            let percent = if self.backends[at].is_failing { 90 } else { 10 };
            let errors = (0..each).filter(|_| self.random.below(100) < percent).count() as u64;
            let may = self.gate(at) == Gate::Open;
            let backend = &mut self.backends[at];
            match backend.health.state() {
                State::HalfOpen => {
                    let sessions = each.min(u64::from(self.rule.trials));
                    backend.sessions_half_open += sessions;
                    if backend.is_failing && sessions > 0 {
                        backend.trials_passed = 0;
                        if may {
                            assert!(backend.health.handle_trial_failure(failed, now).is_some());
                        }
                    } else {
                        backend.trials_passed += sessions as u32;
                        if backend.trials_passed >= self.rule.trials {
                            assert!(backend.health.handle_trials_passed(now).is_some());
                        }
                    }
                }
                State::Up | State::Unchecked => {
                    backend.totals.sessions += each;
                    backend.totals.errors += errors;
                }
                State::Down | State::Ejected => {}
            }
            let event = backend.health.handle_timeout(now);
            if event.is_some() {
                (backend.trials_passed, backend.sessions_half_open) = (0, 0);
            }
        }
        self.judge();
        let allowed = (self.backends.len() * usize::from(self.rule.most_ejected) / 100).max(1);
        assert!(self.ejected() <= allowed, "{:?}", self.states());
    }

    fn judge(&mut self) {
        let now = self.now;
        let seen: Vec<_> = self.backends.iter_mut().map(|backend| backend.seen(now)).collect();
        for (at, cause) in judge(&self.rule.outlier, &seen).into_iter().enumerate() {
            let Some(cause) = cause else { continue };
            match cause {
                Cause::ErrorRate { .. } => assert!(self.backends[at].is_failing),
                _ => assert!(self.backends[at].is_slow, "the others respond alike"),
            }
            if self.gate(at) == Gate::Open {
                let failed = self.failed();
                assert!(self.backends[at].health.handle_outlier(failed, now).is_some());
            } else {
                self.stopped += 1;
            }
        }
    }
}

impl Backend {
    fn seen(&mut self, now: Instant) -> Option<Seen> {
        if !matches!(self.health.state(), State::Up | State::Unchecked) {
            self.window.clear();
            return None;
        }
        let before = *self.window.slide(now, self.totals);
        let sessions = self.totals.sessions - before.sessions;
        let response = Some(Duration::from_millis(if self.is_slow { 200 } else { 20 }));
        let errors = self.totals.errors - before.errors;
        Some(Seen { sessions, errors, timed: sessions - errors, response })
    }
}

#[test]
fn a_bad_backend_is_out_soon_and_back_when_it_is_well_and_the_others_stay() {
    for seed in 0..60 {
        let mut world = World::new(seed, 3 + (seed % 4) as usize, RULE);
        for _ in 0..200 {
            world.step(3);
        }
        assert_eq!(world.ejected(), 0, "seed {seed}: errors now and then eject no backend");
        let bad = world.random.below(world.backends.len() as u64) as usize;
        if seed % 2 == 0 {
            world.backends[bad].is_failing = true
        } else {
            world.backends[bad].is_slow = true
        }
        let is_failing = world.backends[bad].is_failing;
        // The window has to fill with errors; a response time is that of the last answers.
        for _ in 0..100 {
            world.step(3);
        }
        let out = |world: &World| !matches!(world.states()[bad], State::Up | State::Unchecked);
        assert!(out(&world) || !is_failing, "seed {seed}: {:?}", world.states());
        for _ in 0..900 {
            world.step(3);
            let others = world.states().into_iter().enumerate().filter(|(at, _)| *at != bad);
            assert!(others.into_iter().all(|(_, state)| state == State::Unchecked), "seed {seed}");
            if is_failing {
                assert!(out(&world), "seed {seed}: it got its full share before its trials went well");
                assert!(world.backends[bad].sessions_half_open <= u64::from(RULE.trials), "seed {seed}");
            }
        }
        (world.backends[bad].is_failing, world.backends[bad].is_slow) = (false, false);
        for _ in 0..3000 {
            world.step(3);
        }
        assert_eq!(world.ejected(), 0, "seed {seed}: it is back");
        assert_eq!(world.states()[bad], State::Unchecked, "seed {seed}");
    }
}

#[test]
fn a_pool_that_fails_as_a_whole_keeps_the_share_that_it_must_keep() {
    for seed in 0..40 {
        let mut world = World::new(seed, 2 + (seed % 6) as usize, RULE);
        world.backends.iter_mut().for_each(|backend| backend.is_failing = true);
        for _ in 0..3000 {
            // Also checks that no more than half of them are out at any time.
            world.step(3);
        }
        assert!(world.stopped > 0, "seed {seed}");
        assert!(world.ejected() >= 1, "seed {seed}");
    }
}

#[test]
fn without_traffic_nobody_is_judged_and_a_half_open_backend_waits() {
    let mut world = World::new(1, 2, RULE);
    world.backends[0].is_failing = true;
    for _ in 0..200 {
        world.step(1);
    }
    assert_eq!(world.states()[0], State::Ejected);
    for _ in 0..10_000 {
        world.step(0);
    }
    assert_eq!(world.states(), [State::HalfOpen, State::Unchecked]);
    assert!(world.backends[0].health.poll_timeout().is_none(), "no timer runs");
}
