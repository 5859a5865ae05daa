//! Explains a choice of `choose.rs` without making it: which backend each worker's balancer would choose, and why every
//! other backend gets nothing.

use std::cmp::Ordering;

use super::choose::{Admission, AllDown, Question, Selection, Standing, Unhealthy, candidates};
use super::{Balancer, Identities, Policy, Tried, maglev_owner, rendezvous_owner};
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
    /// The operator has drained it.
    Draining,
    WeightZero,
    /// It has as many sessions as it may have.
    AtLimit,
    /// It has failed in this session.
    Tried,
    /// The sticky table has another backend for the client.
    OthersClient,
    /// Its turn comes later.
    NotItsTurn,
    /// Another backend has fewer sessions for its weight.
    Busier,
    /// The key belongs to another backend.
    NotTheOwner,
}

impl Reason {
    /// Whether the reason is a fact about the backend alone, which keeps all new sessions from it.
    pub fn excludes(self) -> bool {
        match self {
            Reason::Down
            | Reason::Ejected
            | Reason::Draining
            | Reason::WeightZero
            | Reason::AtLimit
            | Reason::Tried => true,
            Reason::Chosen
            | Reason::OthersClient
            | Reason::NotItsTurn
            | Reason::Busier
            | Reason::NotTheOwner => false,
        }
    }
}

/// A choice with its reasons.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    pub policy: Policy,
    pub unhealthy: Unhealthy,
    /// The answer of each balancer, in the order given. With [`Policy::TwoChoices`] it is one of several possible
    /// answers, unless the client has a backend.
    pub selections: Vec<Selection>,
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
    pub remembered: Option<usize>,
    pub tried: &'a Tried,
}

/// Explains what a session would get from each of `balancers`, which do not change.
pub fn explain(facts: &Facts<'_>, balancers: &[Balancer], random: u64) -> Explanation {
    let (candidates, unhealthy) = candidates(|| facts.standings.iter().copied(), facts.all_down);
    let Facts { identities, key, remembered, tried, .. } = *facts;
    let question = Question { candidates: &candidates, identities, key, remembered, tried };
    let select = |balancer: &Balancer| question.select(&mut balancer.clone(), random);
    let selections: Vec<Selection> = balancers.iter().map(select).collect();
    let is_remembered = selections.iter().any(|one| matches!(one, Selection::Remembered(_)));
    let is_picked = selections.iter().any(|one| matches!(one, Selection::Picked(_)));
    let shares = (facts.policy == Policy::TwoChoices && is_picked).then(|| shares(&question));
    let lowest = open(&question).map(|at| candidates[at].load()).min_by(|a, b| a.compare(*b));
    let reasons = facts.standings.iter().enumerate().map(|(at, standing)| {
        let is_chosen = match &shares {
            Some(shares) => shares[at] > 0.0,
            None => selections.iter().any(|one| one.backend() == Some(at)),
        };
        if is_chosen {
            return vec![Reason::Chosen];
        }
        let excluding = excluding(standing, unhealthy, tried.contains(at));
        if !excluding.is_empty() {
            return excluding;
        }
        let is_busier =
            lowest.is_some_and(|lowest| candidates[at].load().compare(lowest) == Ordering::Greater);
        vec![match facts.policy {
            _ if is_remembered => Reason::OthersClient,
            Policy::RoundRobin => Reason::NotItsTurn,
            Policy::LeastConnections | Policy::Sticky if !is_busier => Reason::NotItsTurn,
            Policy::LeastConnections | Policy::Sticky | Policy::TwoChoices => Reason::Busier,
            Policy::Hash | Policy::Maglev => Reason::NotTheOwner,
        }]
    });
    let reasons = reasons.collect();
    let owner = match facts.policy {
        Policy::Hash => rendezvous_owner(identities, key, facts.standings.len()),
        Policy::Maglev => maglev_owner(identities, key),
        Policy::RoundRobin | Policy::LeastConnections | Policy::TwoChoices | Policy::Sticky => None,
    };
    Explanation { policy: facts.policy, unhealthy, selections, shares, owner, reasons }
}

/// Reasons for which a backend gets no session of anyone.
fn excluding(standing: &Standing, unhealthy: Unhealthy, is_tried: bool) -> Vec<Reason> {
    let health = match standing.health {
        _ if unhealthy == Unhealthy::Used => None,
        State::Down => Some(Reason::Down),
        State::Ejected => Some(Reason::Ejected),
        State::Up | State::Unchecked => None,
    };
    let is_at_limit = standing.limit.is_some_and(|limit| standing.in_flight >= limit);
    let rest = [
        (standing.admission == Admission::Draining, Reason::Draining),
        (standing.weight == 0, Reason::WeightZero),
        (is_at_limit, Reason::AtLimit),
        (is_tried, Reason::Tried),
    ];
    let rest = rest.into_iter().filter(|(applies, _)| *applies).map(|(_, reason)| reason);
    health.into_iter().chain(rest).collect()
}

fn open<'a>(question: &'a Question<'_>) -> impl Iterator<Item = usize> + 'a {
    let all = question.candidates.iter().enumerate();
    all.filter(move |(at, one)| one.takes() && !question.tried.contains(*at)).map(|(at, _)| at)
}

/// Probability of each backend under [`Policy::TwoChoices`]: the first of two is drawn by weight, the second by weight
/// among the others, and the second one gets the session only if it has fewer sessions for its weight.
fn shares(question: &Question<'_>) -> Vec<f64> {
    let candidates = question.candidates;
    let mut shares = vec![0.0; candidates.len()];
    let mut order: Vec<usize> = open(question).collect();
    order.sort_by(|a, b| candidates[*b].load().compare(candidates[*a].load()));
    let weight = |at: usize| f64::from(candidates[at].weight);
    let total: f64 = order.iter().map(|at| weight(*at)).sum();
    if let [only] = order[..] {
        shares[only] = 1.0;
        return shares;
    }
    // From the busiest group of equal load to the idlest: `as_first` sums, over all busier backends, the probability that
    // one is the first, for each unit of weight of the second.
    let (mut busier, mut as_first) = (0.0, 0.0);
    for group in order.chunk_by(|a, b| candidates[*a].load().compare(candidates[*b].load()).is_eq()) {
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
}

#[cfg(test)]
mod tests;
