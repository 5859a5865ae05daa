use super::*;
use std::time::SystemTime;

const SECOND: Duration = Duration::from_secs(1);

#[expect(
    clippy::disallowed_methods,
    reason = "an Instant can only be made from the clock; tests count from here"
)]
fn start() -> Instant {
    Instant::now()
}

fn verdict(source: Source, outcome: VerdictOutcome) -> Verdict {
    let cause = match outcome {
        VerdictOutcome::Pass => Cause::Passed,
        VerdictOutcome::Fail => Cause::ConnectRefused,
    };
    Verdict { at: SystemTime::UNIX_EPOCH, source, outcome, cause, took: Duration::from_millis(3) }
}

fn probe(outcome: VerdictOutcome) -> Verdict {
    verdict(Source::Probe, outcome)
}

fn traffic() -> Verdict {
    verdict(Source::Traffic, VerdictOutcome::Fail)
}

use VerdictOutcome::{Fail, Pass};

fn checked(now: Instant) -> Health {
    Health::new(Some(Rule::DEFAULT), PassiveRule::DEFAULT, now, 0.5)
}

fn unwatched(now: Instant) -> Health {
    Health::new(None, PassiveRule::DEFAULT, now, 0.5)
}

#[test]
fn a_backend_nobody_judged_takes_sessions_and_the_first_verdict_decides() {
    let now = start();
    let mut good = checked(now);
    assert_eq!((good.state(), good.state().availability()), (State::Unchecked, Availability::Available));
    assert_eq!(good.handle_probe(probe(Pass), now, 0.5), Some(Event::WentUp));
    let mut bad = checked(now);
    assert_eq!(bad.handle_probe(probe(Fail), now, 0.5), Some(Event::WentDown));
    assert_eq!(bad.state().availability(), Availability::Unavailable);
}

#[test]
fn later_verdicts_need_rise_and_fall_in_a_row() {
    let now = start();
    let mut health = checked(now);
    let script = [
        (Pass, Some(Event::WentUp)),
        (Fail, None),
        (Fail, None),
        (Pass, None),
        (Fail, None),
        (Fail, None),
        (Fail, Some(Event::WentDown)),
        (Fail, None),
        (Pass, None),
        (Fail, None),
        (Pass, None),
        (Pass, Some(Event::WentUp)),
        (Pass, None),
    ];
    for (step, (outcome, event)) in script.into_iter().enumerate() {
        let at = now + SECOND * step as u32;
        assert_eq!(health.handle_probe(probe(outcome), at, 0.5), event, "step {step}");
    }
    assert_eq!(health.since(), now + 11 * SECOND);
}

#[test]
fn probes_come_every_interval_give_or_take_a_tenth() {
    let now = start();
    assert_eq!(Health::new(Some(Rule::DEFAULT), PassiveRule::DEFAULT, now, 0.0).poll_probe(), Some(now));
    let mut health = Health::new(Some(Rule::DEFAULT), PassiveRule::DEFAULT, now, 1.0);
    assert_eq!(health.poll_probe(), Some(now + 2 * SECOND));
    health.handle_probe(probe(Pass), now, 0.0);
    assert_eq!(health.poll_probe(), Some(now + Duration::from_millis(1800)));
    health.handle_probe(probe(Pass), now, 1.0);
    assert_eq!(health.poll_probe(), Some(now + Duration::from_millis(2200)));
    for wild in [f64::NAN, f64::INFINITY, -3.0] {
        health.handle_probe(probe(Pass), now, wild);
        assert!(health.poll_probe().is_some_and(|due| due > now + SECOND && due < now + 3 * SECOND));
    }
    health.handle_probe_start(now);
    assert_eq!(health.poll_probe(), Some(now + 3 * SECOND), "a lost verdict does not end the checks");
    assert_eq!(unwatched(now).poll_timeout(), None);
}

#[test]
fn without_checks_an_ejection_ends_with_its_time() {
    let now = start();
    let mut health = unwatched(now);
    assert_eq!(health.handle_traffic_failure(4, traffic(), now), None);
    assert_eq!(health.handle_traffic_failure(5, traffic(), now), Some(Event::Ejected));
    assert_eq!(health.handle_traffic_failure(6, traffic(), now), None, "once is enough");
    assert_eq!(health.verdicts().count(), 1);
    assert_eq!(health.poll_timeout(), Some(now + 10 * SECOND));
    assert_eq!(health.handle_timeout(now + 9 * SECOND), None);
    assert_eq!(health.handle_timeout(now + 10 * SECOND), Some(Event::Readmitted));
    assert_eq!((health.state(), health.poll_timeout()), (State::Unchecked, None));
}

#[test]
fn with_checks_an_ejected_backend_returns_when_they_pass() {
    let now = start();
    let mut health = checked(now);
    health.handle_probe(probe(Pass), now, 0.5);
    health.handle_traffic_failure(5, traffic(), now);
    assert_eq!(health.awaits(now), Some(Awaits { time: Duration::ZERO, passes: 2 }));
    assert_eq!(health.handle_probe(probe(Pass), now + 2 * SECOND, 0.5), None);
    assert_eq!(health.handle_probe(probe(Fail), now + 4 * SECOND, 0.5), None);
    assert_eq!(health.handle_timeout(now + 900 * SECOND), None, "time alone is not enough");
    assert_eq!(health.handle_probe(probe(Pass), now + 901 * SECOND, 0.5), None);
    assert_eq!(health.handle_probe(probe(Pass), now + 903 * SECOND, 0.5), Some(Event::Readmitted));
    assert_eq!((health.state(), health.awaits(now)), (State::Up, None));
}

#[test]
fn a_check_that_began_before_the_ejection_does_not_end_it() {
    let now = start();
    let once = Rule { rise: 1, ..Rule::DEFAULT };
    let mut health = Health::new(Some(once), PassiveRule::DEFAULT, now, 0.5);
    health.handle_probe_start(now);
    health.handle_traffic_failure(5, traffic(), now + SECOND);
    assert_eq!(health.handle_probe(probe(Pass), now + 2 * SECOND, 0.5), None);
    health.handle_probe_start(now + 3 * SECOND);
    assert_eq!(health.handle_probe(probe(Pass), now + 4 * SECOND, 0.5), Some(Event::Readmitted));
}

#[test]
fn a_backend_whose_checks_pass_and_whose_traffic_fails_stays_out_longer_each_time() {
    let now = start();
    let mut health = checked(now);
    let mut at = now;
    for held in [0, 10, 20, 40, 80, 160, 300, 300] {
        assert_eq!(health.handle_traffic_failure(5, traffic(), at), Some(Event::Ejected));
        let waits = health.awaits(at).unwrap();
        assert_eq!(waits, Awaits { time: held * SECOND, passes: 2 });
        assert_eq!(health.handle_probe(probe(Pass), at, 0.5), None);
        let second = health.handle_probe(probe(Pass), at, 0.5);
        let returned = if held == 0 { second } else { health.handle_timeout(at + held * SECOND) };
        assert_eq!(returned, Some(Event::Readmitted), "after {held} s");
        at += held * SECOND + 59 * SECOND;
    }
    at += 900 * SECOND;
    health.handle_traffic_failure(5, traffic(), at);
    assert_eq!(health.awaits(at), Some(Awaits { time: Duration::ZERO, passes: 2 }), "forgotten in calm");
}

#[test]
fn outages_that_checks_see_as_well_end_with_them_however_often_they_come() {
    let now = start();
    let mut health = checked(now);
    for outage in 0..5 {
        let at = now + 20 * SECOND * outage;
        assert_eq!(health.handle_traffic_failure(5, traffic(), at), Some(Event::Ejected));
        assert_eq!(health.awaits(at), Some(Awaits { time: Duration::ZERO, passes: 2 }), "outage {outage}");
        health.handle_probe(probe(Fail), at, 0.5);
        assert_eq!(health.handle_probe(probe(Pass), at, 0.5), None);
        assert_eq!(health.handle_probe(probe(Pass), at, 0.5), Some(Event::Readmitted));
    }
}

#[test]
fn a_flapping_backend_that_fails_its_checks_is_down_and_still_serves_its_time() {
    let now = start();
    let mut health = checked(now);
    health.handle_traffic_failure(5, traffic(), now);
    for _ in 0..2 {
        health.handle_probe(probe(Pass), now, 0.5);
    }
    assert_eq!(health.state(), State::Up);
    health.handle_traffic_failure(5, traffic(), now + SECOND);
    for _ in 0..2 {
        assert_eq!(health.handle_probe(probe(Fail), now + SECOND, 0.5), None);
    }
    assert_eq!(health.handle_probe(probe(Fail), now + SECOND, 0.5), Some(Event::WentDown));
    assert_eq!(health.awaits(now + SECOND), Some(Awaits { time: 10 * SECOND, passes: 2 }));
    for _ in 0..3 {
        assert_eq!(health.handle_probe(probe(Pass), now + 2 * SECOND, 0.5), None);
    }
    assert_eq!(health.awaits(now + 2 * SECOND), Some(Awaits { time: 9 * SECOND, passes: 0 }));
    assert_eq!(health.handle_timeout(now + 11 * SECOND), Some(Event::WentUp));
    assert_eq!(health.awaits(now + 11 * SECOND), None);
    // One that only its checks call down has no time to serve.
    let mut checked = checked(now);
    for _ in 0..3 {
        checked.handle_probe(probe(Fail), now, 0.5);
    }
    assert_eq!((checked.state(), checked.awaits(now)), (State::Down, None));
}

#[test]
fn a_backend_that_fails_at_once_after_its_return_flaps_whatever_its_checks_saw() {
    let now = start();
    // It is ejected, for this time, its checks fail and pass, and it is back.
    let outage = |health: &mut Health, at: Instant, held: u32| {
        let held = held * SECOND;
        assert_eq!(health.handle_traffic_failure(5, traffic(), at), Some(Event::Ejected));
        assert_eq!(health.awaits(at), Some(Awaits { time: held, passes: 2 }));
        assert_eq!(health.handle_probe(probe(Fail), at, 0.5), None, "a check sees it as well");
        assert_eq!(health.handle_probe(probe(Pass), at, 0.5), None);
        let second = health.handle_probe(probe(Pass), at, 0.5);
        let returned = if held.is_zero() { second } else { health.handle_timeout(at + held) };
        assert_eq!(returned, Some(Event::Readmitted), "after {held:?}");
        at + held
    };
    let mut health = checked(now);
    let mut at = now;
    for held in [0, 10, 20, 40, 80, 160, 300, 300] {
        at = outage(&mut health, at, held) + 4 * SECOND;
    }
    // After it has served for more than a moment, an outage that the checks see makes the next one no longer.
    let mut health = checked(now);
    let mut at = now;
    for held in [0, 10, 20] {
        at = outage(&mut health, at, held) + 4 * SECOND;
    }
    at = outage(&mut health, at + 2 * SECOND, 20);
    at = outage(&mut health, at + 59 * SECOND, 20);
    outage(&mut health, at + 60 * SECOND, 0);
}

#[test]
fn ejections_double_to_thirty_times_and_are_forgotten_in_calm() {
    let now = start();
    let mut health = unwatched(now);
    let mut at = now;
    for factor in [1, 2, 4, 8, 16, 30, 30, 30] {
        assert_eq!(health.handle_traffic_failure(5, traffic(), at), Some(Event::Ejected));
        assert_eq!(health.poll_timeout(), Some(at + 10 * SECOND * factor));
        at += 10 * SECOND * factor;
        assert_eq!(health.handle_timeout(at), Some(Event::Readmitted));
        at += SECOND;
    }
    at += 900 * SECOND;
    health.handle_traffic_failure(5, traffic(), at);
    assert_eq!(health.poll_timeout(), Some(at + 10 * SECOND));
}

#[test]
fn passive_ejection_can_be_turned_off() {
    let now = start();
    let mut health = Health::new(None, PassiveRule { failures: 0, ..PassiveRule::DEFAULT }, now, 0.5);
    assert_eq!(health.handle_traffic_failure(u32::MAX, traffic(), now), None);
}

#[test]
fn a_backend_without_address_is_down_until_it_has_one() {
    let now = start();
    let mut health = checked(now);
    health.handle_probe(probe(Pass), now, 0.5);
    let resolver = |outcome| verdict(Source::Resolver, outcome);
    assert_eq!(health.handle_resolution(resolver(Fail), now), Some(Event::WentDown));
    assert_eq!(health.handle_resolution(resolver(Fail), now), None);
    assert_eq!(health.handle_probe(probe(Pass), now, 0.5), None, "a late pass does not bring it up");
    assert_eq!(health.handle_timeout(now + 100 * SECOND), None);
    let later = now + 100 * SECOND;
    assert_eq!(health.handle_resolution(resolver(Pass), later), Some(Event::Readmitted));
    assert_eq!((health.state(), health.poll_probe()), (State::Unchecked, Some(later)));
    assert_eq!(
        health.handle_probe(probe(Fail), later, 0.5),
        Some(Event::WentDown),
        "the first verdict decides"
    );
}

#[test]
fn the_last_sixteen_verdicts_are_kept_newest_first() {
    let now = start();
    let mut health = checked(now);
    for n in 0..40 {
        let took = Duration::from_millis(n);
        health.handle_probe(Verdict { took, ..probe(Pass) }, now, 0.5);
    }
    let took: Vec<_> = health.verdicts().map(|verdict| verdict.took.as_millis()).collect();
    assert_eq!(took, (24..40).rev().collect::<Vec<_>>());
}

#[test]
fn a_reload_keeps_state_and_verdicts() {
    let now = start();
    let mut health = checked(now);
    health.handle_probe(probe(Fail), now, 0.5);
    let slower = Rule { interval: 60 * SECOND, rise: 1, ..Rule::DEFAULT };
    assert_eq!(health.adopt(Some(slower), PassiveRule::DEFAULT, now, 1.0), None);
    assert_eq!((health.state(), health.verdicts().count()), (State::Down, 1));
    assert_eq!(health.poll_probe(), Some(now + 2 * SECOND), "a probe that is due soon stays due");
    assert_eq!(health.handle_probe(probe(Pass), now + 2 * SECOND, 0.5), Some(Event::WentUp));
    let faster = Rule { interval: SECOND, ..Rule::DEFAULT };
    health.adopt(Some(faster), PassiveRule::DEFAULT, now + 3 * SECOND, 1.0);
    assert_eq!(health.poll_probe(), Some(now + 4 * SECOND));
}

#[test]
fn a_reload_without_checks_forgets_what_only_checks_had_said() {
    let now = start();
    let mut down = checked(now);
    down.handle_probe(probe(Fail), now, 0.5);
    assert_eq!(down.adopt(None, PassiveRule::DEFAULT, now, 0.5), Some(Event::Readmitted));
    assert_eq!((down.state(), down.poll_timeout()), (State::Unchecked, None));
    assert_eq!(down.handle_probe(probe(Fail), now, 0.5), None, "a probe still on its way has no say");
    assert_eq!(down.poll_timeout(), None);

    let mut ejected = checked(now);
    ejected.handle_traffic_failure(5, traffic(), now);
    assert_eq!(ejected.adopt(None, PassiveRule::DEFAULT, now, 0.5), None);
    assert_eq!(ejected.poll_timeout(), Some(now + 10 * SECOND));

    let mut both = checked(now);
    both.handle_traffic_failure(5, traffic(), now);
    for _ in 0..3 {
        both.handle_probe(probe(Fail), now, 0.5);
    }
    assert_eq!(both.state(), State::Down);
    assert_eq!(both.adopt(None, PassiveRule::DEFAULT, now, 0.5), Some(Event::Ejected));
    assert_eq!(both.poll_timeout(), Some(now + 10 * SECOND));
}

#[test]
fn a_reload_that_adds_checks_begins_them() {
    let now = start();
    let mut health = unwatched(now);
    health.adopt(Some(Rule::DEFAULT), PassiveRule::DEFAULT, now, 0.5);
    assert_eq!(health.poll_probe(), Some(now + SECOND));
    assert_eq!(health.handle_probe(probe(Fail), now, 0.5), Some(Event::WentDown));
}
