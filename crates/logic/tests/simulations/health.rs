//! Health over seeded random lives of a backend, driven as `serve` drives it: by its own timers, with time
//! passed in.

use std::time::{Duration, Instant, SystemTime};

use logic::health::{
    Cause, Event, Health, PassiveRule, Rule, Source, State, VERDICTS_KEPT, Verdict, VerdictOutcome,
};

/// SplitMix64: a seed names a whole run.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub(super) fn below(&mut self, range: u64) -> u64 {
        self.next() % range
    }

    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "an Instant can only be made from the clock; simulations count from here"
)]
pub(super) fn start() -> Instant {
    Instant::now()
}

pub(super) fn verdict(source: Source, outcome: VerdictOutcome) -> Verdict {
    let cause = match (source, outcome) {
        (Source::Probe, VerdictOutcome::Pass) => Cause::Passed,
        (Source::Probe, VerdictOutcome::Fail) => Cause::ConnectRefused,
        (Source::Resolver, VerdictOutcome::Pass) => Cause::Resolved,
        (Source::Tunnel, VerdictOutcome::Pass) => Cause::TunnelUp,
        (Source::Tunnel, VerdictOutcome::Fail) => Cause::Tunnel("the host is gone".into()),
        (Source::Resolver, VerdictOutcome::Fail) => Cause::Unresolvable("no such host".into()),
        (Source::Traffic, _) => Cause::ClosedEarly,
    };
    Verdict { at: SystemTime::UNIX_EPOCH, source, outcome, cause, took: Duration::from_millis(2) }
}

fn takes_sessions(state: State) -> bool {
    matches!(state, State::Unchecked | State::Up | State::HalfOpen)
}

/// Events must tell the story of the state: no change goes unsaid, and nothing is said twice.
fn check_event(before: State, after: State, event: Option<Event>, at: &str) {
    match event {
        None => assert_eq!(takes_sessions(before), takes_sessions(after), "{at}: a change went unsaid"),
        Some(Event::WentUp) => assert!(before != State::Up && after == State::Up, "{at}"),
        Some(Event::WentDown) => assert!(before != State::Down && after == State::Down, "{at}"),
        Some(Event::Ejected) => assert!(before != State::Ejected && after == State::Ejected, "{at}"),
        Some(Event::Readmitted) => {
            let was_away = !takes_sessions(before) || before == State::HalfOpen;
            assert!(was_away && takes_sessions(after) && after != State::HalfOpen, "{at}")
        }
        Some(Event::HalfOpen) => assert!(!takes_sessions(before) && after == State::HalfOpen, "{at}"),
    }
}

#[test]
fn over_random_lives_no_timer_spins_and_no_change_goes_unsaid() {
    for seed in 0..500 {
        let mut random = Random(seed);
        let began = start();
        let mut now = began;
        let mut rule = random_rule(&mut random);
        let passive = PassiveRule {
            failures: 1 + random.below(5) as u32,
            ejection: Duration::from_secs(3),
            ..PassiveRule::DEFAULT
        };
        let mut health = Health::new(rule, passive, now, random.unit());
        let mut failing = random.below(2) == 0;
        let mut in_a_row = 0;
        for step in 0..600 {
            let before = health.state();
            let what = random.below(20);
            let event = match what {
                0 => {
                    failing = !failing;
                    None
                }
                1 => {
                    rule = random_rule(&mut random);
                    health.adopt(rule, passive, now, random.unit())
                }
                2 => {
                    let outcome =
                        if random.below(3) == 0 { VerdictOutcome::Fail } else { VerdictOutcome::Pass };
                    health.handle_resolution(verdict(Source::Resolver, outcome), now)
                }
                3..9 => {
                    in_a_row = if failing { in_a_row + 1 } else { 0 };
                    let failed = verdict(Source::Traffic, VerdictOutcome::Fail);
                    if failing { health.handle_traffic_failure(in_a_row, failed, now) } else { None }
                }
                9 => health.handle_outlier(verdict(Source::Traffic, VerdictOutcome::Fail), now),
                10 if failing => {
                    health.handle_trial_failure(verdict(Source::Traffic, VerdictOutcome::Fail), now)
                }
                10 => health.handle_trials_passed(now),
                _ => follow_timer(&mut health, &mut now, failing, &mut random),
            };
            let at = format!("seed {seed}, step {step}, case {what}");
            check_event(before, health.state(), event, &at);
            assert!(health.verdicts().count() <= VERDICTS_KEPT);
            assert!(health.since() <= now, "{at}");
            assert_eq!(health.poll_probe().is_some(), rule.is_some(), "{at}: checks stopped");
        }
        // Steps of the timer move time on: it never asks for the same moment for ever.
        if rule.is_some() {
            assert!(now > began + Duration::from_secs(20), "seed {seed}: only {:?} went by", now - began);
        }
    }
}

fn random_rule(random: &mut Random) -> Option<Rule> {
    let interval = Duration::from_millis(500 + random.below(5000));
    let (rise, fall) = (1 + random.below(3) as u32, 1 + random.below(4) as u32);
    (random.below(4) > 0).then_some(Rule { interval, timeout: interval / 2, rise, fall })
}

/// Sleeps until the timer, then does what it asks for. A short while passes if it asks for nothing.
fn follow_timer(health: &mut Health, now: &mut Instant, failing: bool, random: &mut Random) -> Option<Event> {
    let Some(due) = health.poll_timeout() else {
        *now += Duration::from_millis(random.below(2000));
        return None;
    };
    *now = due.max(*now);
    let event = health.handle_timeout(*now);
    if event.is_some() {
        return event;
    }
    assert!(
        health.poll_probe().is_some_and(|due| due <= *now),
        "the timer asked for this moment, and there is nothing to do: {health:?}"
    );
    health.handle_probe_start(*now);
    *now += Duration::from_millis(random.below(400));
    let outcome = if failing { VerdictOutcome::Fail } else { VerdictOutcome::Pass };
    let event = health.handle_probe(verdict(Source::Probe, outcome), *now, random.unit());
    assert!(
        health.poll_timeout().is_some_and(|due| due > *now),
        "after a probe there is a pause: {health:?}"
    );
    event
}

#[test]
fn a_backend_that_dies_is_down_within_its_fall_limit_and_back_within_its_rise_limit() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let rule =
            Rule { rise: 1 + random.below(4) as u32, fall: 1 + random.below(4) as u32, ..Rule::DEFAULT };
        let mut now = start();
        let mut health = Health::new(Some(rule), PassiveRule::DEFAULT, now, random.unit());
        while health.state() != State::Up {
            follow_timer(&mut health, &mut now, false, &mut random);
        }
        // One probe may just have passed; a probe takes up to 400 ms here, a pause up to 2.2 s.
        let probe = Duration::from_millis(2600);
        let died = now;
        while health.state() != State::Down {
            follow_timer(&mut health, &mut now, true, &mut random);
        }
        assert!(now - died <= probe * rule.fall, "seed {seed}: down only after {:?}", now - died);
        let revived = now;
        while health.state() != State::Up {
            follow_timer(&mut health, &mut now, false, &mut random);
        }
        assert!(now - revived <= probe * rule.rise, "seed {seed}: up only after {:?}", now - revived);
    }
}

#[test]
fn probes_of_many_backends_do_not_come_together() {
    let mut random = Random(7);
    let now = start();
    let mut fleet: Vec<_> = (0..2000)
        .map(|_| Health::new(Some(Rule::DEFAULT), PassiveRule::DEFAULT, now, random.unit()))
        .collect();
    // Per tenth of a second over 30 seconds; even would be 100 per tenth.
    let mut probes = vec![0; 300];
    for health in &mut fleet {
        while let Some(due) = health.poll_probe().filter(|due| *due < now + Duration::from_secs(30)) {
            probes[(due - now).as_millis() as usize / 100] += 1;
            health.handle_probe(verdict(Source::Probe, VerdictOutcome::Pass), due, random.unit());
        }
    }
    assert!(probes.iter().all(|count| (50..160).contains(count)), "{probes:?}");
}

#[test]
fn an_ejected_backend_never_takes_sessions_before_its_time() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let mut now = start();
        let passive = PassiveRule { failures: 3, ejection: Duration::from_secs(8), ..PassiveRule::DEFAULT };
        let rule = random_rule(&mut random);
        let mut health = Health::new(rule, passive, now, random.unit());
        // With checks the first ejection lasts until they pass, and the second one its time as well.
        let times = if rule.is_some() { [0, 8] } else { [8, 16] };
        for seconds in times {
            let failed = verdict(Source::Traffic, VerdictOutcome::Fail);
            assert_eq!(health.handle_traffic_failure(3, failed, now), Some(Event::Ejected));
            let until = now + Duration::from_secs(seconds);
            while !takes_sessions(health.state()) {
                let needed = health.awaits(now).map_or(0, |awaits| awaits.passes);
                let failing = now < until && random.below(2) == 0;
                follow_timer(&mut health, &mut now, failing, &mut random);
                assert!(
                    needed <= 1 || !takes_sessions(health.state()),
                    "seed {seed}: {needed} passes missed"
                );
            }
            assert!(now >= until, "seed {seed}: back {:?} too early", until - now);
        }
    }
}
