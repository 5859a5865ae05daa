use super::*;
use crate::balance::WEIGHT_UNIT;
use crate::balance::turn::{Coming, Line};

const UP: Standing = Standing {
    health: State::Up,
    admission: Admission::Ready,
    weight: WEIGHT_UNIT,
    full_weight: WEIGHT_UNIT,
    in_flight: 0,
    limit: None,
    soft_limit: None,
    verdict: Verdict::Permit,
    priority: 1,
    latency: 0,
    trials: 0,
};

fn explained(policy: Policy, standings: &[Standing], remembered: Option<usize>) -> Explanation {
    gets(Line::default(), AllDown::ErrorPage, policy, standings, remembered)
}

/// What a session gets of a pool that fails open, while others wait in its queue for three.
fn behind(line: Line, policy: Policy, standings: &[Standing], remembered: Option<usize>) -> Explanation {
    gets(line, AllDown::FailOpen, policy, standings, remembered)
}

fn gets(
    line: Line,
    all_down: AllDown,
    policy: Policy,
    standings: &[Standing],
    remembered: Option<usize>,
) -> Explanation {
    let names: Vec<String> = (0..standings.len()).map(|at| format!("10.0.0.{at}:80")).collect();
    let names: Vec<_> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let identities = Identities::new(policy, &names);
    let tried = Tried::default();
    let (identities, tried) = (&identities, &tried);
    let queue = 3;
    let facts = Facts {
        policy,
        standings,
        all_down,
        identities,
        key: 1,
        bound: None,
        remembered,
        tried,
        line,
        queue,
    };
    explain(&facts, &[Balancer::new(policy, standings.len())], 0)
}

#[test]
fn all_that_keeps_a_session_away_is_named() {
    let bad = Standing {
        health: State::Down,
        admission: Admission::Draining,
        weight: 0,
        in_flight: 2,
        limit: Some(2),
        ..UP
    };
    let explanation = explained(Policy::RoundRobin, &[bad, UP], None);
    let all = [Reason::Down, Reason::Draining, Reason::WeightZero, Reason::AtLimit];
    assert_eq!(explanation.reasons, [all.to_vec(), vec![Reason::Chosen]]);
    assert_eq!(explanation.only(), Some(Selection::Picked(1)));
}

#[test]
fn denied_standby_and_soft_limit_are_named() {
    let denied = Standing { verdict: Verdict::Deny, ..UP };
    let full = Standing { soft_limit: Some(1), limit: Some(2), in_flight: 1, ..UP };
    let later = Standing { priority: 2, ..UP };
    let explanation = explained(Policy::RoundRobin, &[denied, full, UP, later], None);
    let [denied_of, soft, standby] = [Reason::Denied, Reason::AtSoftLimit, Reason::Standby];
    assert_eq!(explanation.reasons, [[denied_of], [soft], [Reason::Chosen], [standby]]);
    assert_eq!(explained(Policy::Sticky, &[full, UP], Some(0)).only(), Some(Selection::Remembered(0)));
    assert_eq!(explained(Policy::Sticky, &[later, UP], Some(0)).only(), Some(Selection::Remembered(0)));
    assert_eq!(explained(Policy::Sticky, &[denied, UP], Some(0)).only(), Some(Selection::Picked(1)));
    assert_eq!(explained(Policy::Hash, &[denied], None).only(), Some(Selection::Denied));
}

#[test]
fn a_half_open_backend_takes_its_trials_and_no_more() {
    let trying = Standing { health: State::HalfOpen, trials: 1, ..UP };
    let tried = Standing { trials: 0, ..trying };
    assert_eq!(explained(Policy::Hash, &[trying], None).only(), Some(Selection::Picked(0)));
    let explanation = explained(Policy::RoundRobin, &[tried, UP], None);
    assert_eq!(explanation.reasons, [vec![Reason::HalfOpen], vec![Reason::Chosen]]);
    let down = Standing { health: State::Down, ..UP };
    let denied = Standing { verdict: Verdict::Deny, ..UP };
    assert_eq!(explained(Policy::Hash, &[tried, down, denied], None).only(), Some(Selection::AllBusy));
    assert_eq!(
        explained(Policy::Hash, &[Standing { weight: 0, ..tried }], None).only(),
        Some(Selection::Unavailable)
    );
    assert_eq!(explained(Policy::Sticky, &[trying, UP], Some(0)).only(), Some(Selection::Remembered(0)));
    assert_eq!(explained(Policy::Sticky, &[tried, UP], Some(0)).only(), Some(Selection::Picked(1)));
}

#[test]
fn backends_that_could_take_it_say_why_another_one_does() {
    let busy = Standing { in_flight: 5, ..UP };
    for (policy, standings, remembered, reason) in [
        (Policy::RoundRobin, [UP, UP], None, Reason::NotItsTurn),
        (Policy::LeastConnections, [UP, UP], None, Reason::NotItsTurn),
        (Policy::LeastConnections, [UP, busy], None, Reason::Busier),
        (Policy::TwoChoices, [UP, busy], None, Reason::Busier),
        (Policy::Sticky, [busy, UP], Some(0), Reason::OthersClient),
    ] {
        let explanation = explained(policy, &standings, remembered);
        assert_eq!(explanation.reasons, [vec![Reason::Chosen], vec![reason]], "{policy}");
    }
}

#[test]
fn key_has_an_owner_also_while_the_owner_is_down() {
    for policy in [Policy::Hash, Policy::Maglev] {
        let up = explained(policy, &[UP; 4], None);
        let owner = up.owner.unwrap();
        assert_eq!(up.only(), Some(Selection::Picked(owner)), "{policy}");
        assert_eq!(up.reasons[(owner + 1) % 4], [Reason::NotTheOwner]);
        let mut standings = [UP; 4];
        standings[owner].health = State::Down;
        let down = explained(policy, &standings, None);
        assert_eq!((down.owner, &down.reasons[owner][..]), (Some(owner), &[Reason::Down][..]), "{policy}");
        assert_ne!(down.only().and_then(Selection::backend), Some(owner));
    }
}

#[test]
fn workers_whose_turns_differ_have_no_common_answer() {
    let balancers =
        [Balancer::with_phase(Policy::RoundRobin, 2, 0), Balancer::with_phase(Policy::RoundRobin, 2, 1)];
    let (identities, tried) = (Identities::default(), Tried::default());
    let facts = Facts {
        policy: Policy::RoundRobin,
        standings: &[UP; 2],
        all_down: AllDown::FailOpen,
        identities: &identities,
        key: 0,
        bound: None,
        remembered: None,
        tried: &tried,
        line: Line::default(),
        queue: 0,
    };
    let explanation = explain(&facts, &balancers, 0);
    assert_eq!(explanation.selections, [Selection::Picked(0), Selection::Picked(1)]);
    assert_eq!(explanation.only(), None);
}

#[test]
fn what_waits_already_decides_before_the_backends_do() {
    let denied = Standing { verdict: Verdict::Deny, ..UP };
    let [one, full] = [1, 3].map(|waiting| Line { waiting, soft_limits: 0 });
    assert_eq!(behind(one, Policy::Hash, &[UP], None).coming(), Some(Coming::Waits));
    assert_eq!(behind(one, Policy::Hash, &[denied], None).coming(), Some(Coming::Waits));
    assert_eq!(behind(full, Policy::Hash, &[denied], None).coming(), Some(Coming::QueueFull));
    assert_eq!(explained(Policy::Hash, &[denied], None).coming(), Some(Coming::Chose(Selection::Denied)));
}

#[test]
fn known_client_passes_the_queue_only_while_its_backend_is_healthy() {
    let known = Standing { soft_limit: Some(1), in_flight: 1, ..UP };
    let line = Line { waiting: 1, soft_limits: 1 };
    let coming = behind(line, Policy::Sticky, &[known, UP], Some(0)).coming();
    assert_eq!(coming, Some(Coming::Chose(Selection::Remembered(0))));
    assert_eq!(behind(line, Policy::Sticky, &[known, UP], None).coming(), Some(Coming::Waits));
    // The pool fails open: the client would get its backend when its turn comes.
    let down = Standing { health: State::Down, ..known };
    let explanation = behind(line, Policy::Sticky, &[down], Some(0));
    assert_eq!(explanation.only(), Some(Selection::Remembered(0)));
    assert_eq!(explanation.coming(), Some(Coming::Waits));
}
