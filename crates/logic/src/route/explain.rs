//! Explains a decision of the route table: what became of each route, and by which condition it missed.

use super::{Decision, Facts, HostPattern, Route, RouteTable};

/// Condition of a route that a request does not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    Host,
    Path,
    Method,
    /// Index in [`Route::headers`].
    Header(usize),
}

/// What became of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It decides.
    Matched,
    /// It matches, but a route that is compared earlier decides.
    TooLate,
    Missed(Vec<Missed>),
}

/// One route of an explanation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step<'a> {
    pub route: &'a Route,
    pub fate: Fate,
}

impl RouteTable {
    /// Returns the decision, and every route: those whose host matches in the order of comparison, then the others. Without
    /// routes if the path is ambiguous.
    pub fn explain(&self, facts: &Facts<'_>) -> (Decision<'_>, Vec<Step<'_>>) {
        let decision = self.decide(facts);
        let path = match super::path::comparable(facts.path) {
            Ok(path) => path,
            Err(_) if matches!(decision, Decision::Ambiguous(_)) => return (decision, Vec::new()),
            // No route depends on the path.
            Err(_) => super::path::Comparable::root(),
        };
        let mut steps: Vec<Step<'_>> = self
            .routes
            .iter()
            .map(|route| {
                let missed = missed(route, path.as_bytes(), facts);
                let decides = matches!(decision, Decision::Route(chosen) if std::ptr::eq(chosen, route));
                let fate = match missed.is_empty() {
                    _ if decides => Fate::Matched,
                    true => Fate::TooLate,
                    false => Fate::Missed(missed),
                };
                Step { route, fate }
            })
            .collect();
        // The sort is stable: the order within a host stays.
        steps.sort_by_key(|step| rank(step.route, facts.host));
        (decision, steps)
    }
}

fn missed(route: &Route, path: &[u8], facts: &Facts<'_>) -> Vec<Missed> {
    let headers = route.headers.iter().enumerate().filter(|(_, header)| !header.matches(facts.headers));
    let is_method = route.methods.is_empty() || route.methods.iter().any(|method| **method == *facts.method);
    let first = [
        (!route.host.matches(facts.host), Missed::Host),
        (!route.path.matches(path), Missed::Path),
        (!is_method, Missed::Method),
    ];
    let first = first.into_iter().filter(|(misses, _)| *misses).map(|(_, missed)| missed);
    first.chain(headers.map(|(at, _)| Missed::Header(at))).collect()
}

/// Order in which hosts are compared: exact, longer wildcard, any; then hosts that do not match.
fn rank(route: &Route, host: &str) -> (u8, std::cmp::Reverse<usize>) {
    let length = match &route.host {
        HostPattern::Wildcard(suffix) => suffix.len(),
        HostPattern::Any | HostPattern::Exact(_) => 0,
    };
    let class = match (&route.host, route.host.matches(host)) {
        (_, false) => 3,
        (HostPattern::Exact(_), true) => 0,
        (HostPattern::Wildcard(_), true) => 1,
        (HostPattern::Any, true) => 2,
    };
    (class, std::cmp::Reverse(length))
}
