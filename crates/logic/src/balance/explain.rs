//! Explains a choice of `choose.rs` without making it: which backend each worker's balancer would choose, why every
//! other backend gets nothing, and whether the session waits behind others (`turn.rs`).

use std::cmp::Ordering;

use super::choose::{Admission, AllDown, Question, Remembered, Selection, Standing, Unhealthy, candidates};
use super::turn::{Coming, Line, Turn, come};
use super::{
    Availability, Balancer, Bound, Candidate, Ceiling, Identities, Load, Policy, Tried, maglev_owner,
    priority, rendezvous_owner,
};
use crate::acl::Verdict;
use crate::health::State;

/// Why a backend gets the session, or does not get it. A backend has several reasons if more than one thing keeps
/// sessions from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// At least one worker chooses it.
    Chosen,
    /// Health: its checks fail, or its name has no address.
    Down,
    /// Health: its sessions failed.
    Ejected,
    /// The backend is half-open and has its `trial-sessions` already.
    HalfOpen,
    /// The operator has drained it.
    Draining,
    WeightZero,
    /// It has as many sessions as it may have.
    AtLimit,
    /// It has so many sessions that only clients come in that it has served before.
    AtSoftLimit,
    /// Its access list denies the client.
    Denied,
    /// A backend with a lower number of priority has room.
    Standby,
    /// It has failed in this session.
    Tried,
    /// The sticky table has another backend for the client.
    OthersClient,
    /// Its turn comes later.
    NotItsTurn,
    /// Another backend has fewer sessions for its weight.
    Busier,
    /// A session would take longer, by its response time and sessions.
    Slower,
    /// It has more than its bounded share of the sessions.
    AboveBound,
    /// The key belongs to another backend.
    NotTheOwner,
}

impl Reason {
    /// Whether the reason is a fact about the backend, which keeps sessions from it under every policy.
    pub fn excludes(self) -> bool {
        match self {
            Reason::Down
            | Reason::Ejected
            | Reason::HalfOpen
            | Reason::Draining
            | Reason::WeightZero
            | Reason::AtLimit
            | Reason::AtSoftLimit
            | Reason::Denied
            | Reason::Standby
            | Reason::Tried => true,
            Reason::Chosen
            | Reason::OthersClient
            | Reason::NotItsTurn
            | Reason::Busier
            | Reason::Slower
            | Reason::AboveBound
            | Reason::NotTheOwner => false,
        }
    }
}

/// A choice with its reasons.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    pub policy: Policy,
    pub unhealthy: Unhealthy,
    /// The answer of each balancer, in the order given. With [`Policy::TwoChoices`] and
    /// [`Policy::PeakEwma`] it is one of several possible
    /// answers, unless the client has a backend.
    pub selections: Vec<Selection>,
    /// What becomes of the session at each worker now, with regard to those that wait already.
    pub comings: Vec<Coming<Selection>>,
    /// Part of the sessions that each backend gets, if chance decides.
    pub shares: Option<Vec<f64>>,
    /// Backend that owns the key while all backends are up.
    pub owner: Option<usize>,
    /// Reasons of each backend; never empty.
    pub reasons: Vec<Vec<Reason>>,
}

/// Facts of a choice that is to be explained.
#[derive(Clone, Copy)]
pub struct Facts<'a> {
    pub policy: Policy,
    pub standings: &'a [Standing],
    pub all_down: AllDown,
    pub identities: &'a Identities,
    pub key: u64,
    pub bound: Option<Bound>,
    pub remembered: Option<usize>,
    pub tried: &'a Tried,
    pub line: Line,
    /// Most sessions that may wait.
    pub queue: usize,
}

/// Explains what a session would get from each of `balancers`, which do not change.
pub fn explain(facts: &Facts<'_>, balancers: &[Balancer], random: u64) -> Explanation {
    let (mut candidates, unhealthy) = candidates(|| facts.standings.iter().copied(), facts.all_down);
    let Facts { identities, key, tried, .. } = *facts;
    let limit = |backend: usize| facts.standings.get(backend).and_then(|one| one.limit);
    let remembered = facts.remembered.map(|backend| Remembered { backend, limit: limit(backend) });
    priority::keep_lowest(&mut candidates, |at| facts.standings[at].priority, tried);
    let question = Question { candidates: &candidates, identities, key, remembered, tried };
    let select = |balancer: &Balancer| question.select(&mut balancer.clone(), random);
    let selections: Vec<Selection> = balancers.iter().map(select).collect();
    let known = || known(facts, remembered);
    let comings = selections.iter().map(|selection| {
        come(
            facts.line,
            || facts.queue,
            |turn| match turn {
                Turn::Any => selection.at_once(),
                Turn::Known => known(),
            },
        )
    });
    let comings = comings.collect();
    let is_remembered = selections.iter().any(|one| matches!(one, Selection::Remembered(_)));
    let is_picked = selections.iter().any(|one| matches!(one, Selection::Picked(_)));
    let load: fn(&Candidate) -> Load = match facts.policy {
        Policy::PeakEwma => Candidate::cost,
        _ => Candidate::load,
    };
    let is_chance = matches!(facts.policy, Policy::TwoChoices | Policy::PeakEwma);
    let shares = (is_chance && is_picked).then(|| shares(&question, load));
    let lowest = open(&question).map(|at| load(&candidates[at])).min_by(|a, b| a.compare(*b));
    let ceiling = facts.bound.map(|bound| Ceiling::of(bound, &candidates));
    let reasons = facts.standings.iter().enumerate().map(|(at, standing)| {
        let is_chosen = match &shares {
            Some(shares) => shares[at] > 0.0,
            None => selections.iter().any(|one| one.backend() == Some(at)),
        };
        if is_chosen {
            return vec![Reason::Chosen];
        }
        let mut excluding = excluding(standing, unhealthy, tried.contains(at));
        if candidates[at].available == Availability::Standby {
            excluding.push(Reason::Standby);
        }
        if !excluding.is_empty() {
            return excluding;
        }
        let is_busier =
            lowest.is_some_and(|lowest| load(&candidates[at]).compare(lowest) == Ordering::Greater);
        let is_above = ceiling.is_some_and(|ceiling| ceiling.is_reached(&candidates[at]));
        vec![match facts.policy {
            _ if is_remembered => Reason::OthersClient,
            Policy::RoundRobin => Reason::NotItsTurn,
            Policy::LeastConnections | Policy::Sticky if !is_busier => Reason::NotItsTurn,
            Policy::LeastConnections | Policy::Sticky | Policy::TwoChoices => Reason::Busier,
            Policy::PeakEwma => Reason::Slower,
            Policy::Hash | Policy::Maglev if is_above => Reason::AboveBound,
            Policy::Hash | Policy::Maglev => Reason::NotTheOwner,
        }]
    });
    let reasons = reasons.collect();
    let owner = match facts.policy {
        Policy::Hash => rendezvous_owner(identities, key, facts.standings.len()),
        Policy::Maglev => maglev_owner(identities, key),
        Policy::RoundRobin
        | Policy::LeastConnections
        | Policy::TwoChoices
        | Policy::PeakEwma
        | Policy::Sticky => None,
    };
    Explanation { policy: facts.policy, unhealthy, selections, comings, shares, owner, reasons }
}

/// The backend that has served the client before, if it takes the session while others wait.
fn known(facts: &Facts<'_>, remembered: Option<Remembered>) -> Option<Selection> {
    let all_down = Turn::Known.all_down(facts.all_down);
    let (candidates, _) = candidates(|| facts.standings.iter().copied(), all_down);
    let Facts { identities, key, tried, .. } = *facts;
    let question = Question { candidates: &candidates, identities, key, remembered, tried };
    question.known().map(Selection::Remembered)
}

/// Reasons for which a backend gets no session of this client under any policy.
fn excluding(standing: &Standing, unhealthy: Unhealthy, is_tried: bool) -> Vec<Reason> {
    let health = match standing.health {
        _ if standing.is_on_trial() => Some(Reason::HalfOpen),
        _ if unhealthy == Unhealthy::Used => None,
        State::Down => Some(Reason::Down),
        State::Ejected => Some(Reason::Ejected),
        State::Up | State::Unchecked | State::HalfOpen => None,
    };
    let is_reached = |limit: Option<u32>| limit.is_some_and(|limit| standing.in_flight >= limit);
    let is_at_limit = is_reached(standing.limit);
    let rest = [
        (standing.admission == Admission::Draining, Reason::Draining),
        (standing.weight == 0, Reason::WeightZero),
        (standing.verdict == Verdict::Deny, Reason::Denied),
        (is_at_limit, Reason::AtLimit),
        (!is_at_limit && is_reached(standing.soft_limit), Reason::AtSoftLimit),
        (is_tried, Reason::Tried),
    ];
    let rest = rest.into_iter().filter(|(applies, _)| *applies).map(|(_, reason)| reason);
    health.into_iter().chain(rest).collect()
}

fn open<'a>(question: &'a Question<'_>) -> impl Iterator<Item = usize> + 'a {
    let all = question.candidates.iter().enumerate();
    all.filter(move |(at, one)| one.takes() && !question.tried.contains(*at)).map(|(at, _)| at)
}

/// Probability of each backend if the better of two is chosen: the first of two is drawn by weight, the second by weight
/// among the others, and the second one gets the session only if its load is lower.
fn shares(question: &Question<'_>, load: fn(&Candidate) -> Load) -> Vec<f64> {
    let candidates = question.candidates;
    let mut shares = vec![0.0; candidates.len()];
    let mut order: Vec<usize> = open(question).collect();
    order.sort_by(|a, b| load(&candidates[*b]).compare(load(&candidates[*a])));
    let weight = |at: usize| f64::from(candidates[at].weight);
    let total: f64 = order.iter().map(|at| weight(*at)).sum();
    if let [only] = order[..] {
        shares[only] = 1.0;
        return shares;
    }
    // From the busiest group of equal load to the idlest: `as_first` sums, over all busier backends, the probability that
    // one is the first, for each unit of weight of the second.
    let (mut busier, mut as_first) = (0.0, 0.0);
    for group in order.chunk_by(|a, b| load(&candidates[*a]).compare(load(&candidates[*b])).is_eq()) {
        let own: f64 = group.iter().map(|at| weight(*at)).sum();
        for &at in group {
            let loses_to_it = busier + own - weight(at);
            let rest = total - weight(at);
            shares[at] = weight(at) / total * (loses_to_it / rest) + weight(at) * as_first;
        }
        busier += own;
        as_first += group.iter().map(|at| weight(*at) / total / (total - weight(*at))).sum::<f64>();
    }
    shares
}

impl Explanation {
    /// The answer of all balancers, if it is one and the same and no chance decides.
    pub fn only(&self) -> Option<Selection> {
        let (first, rest) = self.selections.split_first()?;
        let certain =
            self.shares.as_ref().is_none_or(|shares| shares.iter().filter(|one| **one > 0.0).count() == 1);
        (certain && rest.iter().all(|other| other == first)).then_some(*first)
    }

    /// What becomes of the session now. Which backend it gets may be another one at each worker, and by chance; everything
    /// else is the same for all.
    pub fn coming(&self) -> Option<Coming<Selection>> {
        self.comings.first().copied()
    }
}

#[cfg(test)]
mod tests;
