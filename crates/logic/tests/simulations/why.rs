//! What an explanation says is what happens next, over seeded random lives of pools and route tables. The number of cases
//! is small enough for a build without optimisation; a million of them:
//! `WHY_CASES=1000000 cargo test --locked -p logic --test simulations why`.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use logic::acl::Verdict;
use logic::balance::explain::{Explanation, Facts, Reason, explain};
use logic::balance::turn::{Coming, Line, Turn, come};
use logic::balance::{
    Admission, AllDown, Balancer, Bound, Identities, Policy, Question, Remembered, Selection, Standing,
    StickyKey, StickyTable, Tried, Unhealthy, WEIGHT_UNIT, candidates, client_key, priority,
};
use logic::health::State;
use logic::route::{
    Action, Decision, Facts as RequestFacts, Fate, HeaderEdits, HeaderLookup, HeaderMatch, HeaderValueMatch,
    HostPattern, Missed, PoolId, Route, RouteTable,
};

#[expect(clippy::disallowed_methods, reason = "a test may be told to run longer")]
fn cases() -> usize {
    std::env::var("WHY_CASES").map_or(40_000, |cases| cases.parse().unwrap())
}

/// SplitMix64: a seed names a whole run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, range: usize) -> usize {
        (self.next() % range as u64) as usize
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

const HEALTH: [State; 5] = [State::Up, State::Down, State::Ejected, State::Unchecked, State::HalfOpen];

/// A pool as it lives: what the data path knows of it and changes.
struct Life {
    policy: Policy,
    all_down: AllDown,
    standings: Vec<Standing>,
    names: Vec<String>,
    identities: Identities,
    balancers: Vec<Balancer>,
    sticky: StickyTable,
    bound: Option<Bound>,
    /// Sessions in the queue, and the most that may wait.
    waiting: usize,
    queue: usize,
    /// Clients say by a cookie which backend they had, instead of a table.
    by_cookie: bool,
    now: Instant,
}

impl Life {
    fn new(random: &mut Random) -> Self {
        let policy = random.one_of(Policy::ALL);
        let count = 1 + random.below(6);
        let names: Vec<String> = (0..count).map(|n| format!("10.0.0.{n}:80")).collect();
        let weights: Vec<u32> = (0..count).map(|_| random.one_of(&[0, 1, 1, 1, 2, 5])).collect();
        let pairs: Vec<_> = names.iter().map(String::as_str).zip(weights.iter().copied()).collect();
        let standing = |weight: &u32| Standing {
            health: State::Unchecked,
            admission: Admission::Ready,
            weight: weight * WEIGHT_UNIT,
            full_weight: weight * WEIGHT_UNIT,
            in_flight: 0,
            limit: None,
            soft_limit: None,
            verdict: Verdict::Permit,
            priority: 1,
            latency: 0,
            trials: 0,
        };
        #[expect(
            clippy::disallowed_methods,
            reason = "an Instant can only be made from the clock; tests count from here"
        )]
        let now = Instant::now();
        let bound = random.one_of(&[None, Some(101), Some(125), Some(200)]).map(|percent| Bound { percent });
        let balancer = |at| Balancer::with_phase(policy, count, at).bounded(bound);
        Self {
            policy,
            bound,
            waiting: 0,
            queue: random.one_of(&[0, 2, 4]),
            all_down: random.one_of(&[AllDown::FailOpen, AllDown::ErrorPage]),
            standings: weights.iter().map(standing).collect(),
            identities: Identities::new(policy, &pairs),
            names,
            balancers: (0..1 + random.below(3)).map(balancer).collect(),
            by_cookie: random.below(2) == 0,
            sticky: StickyTable::new(8, Duration::from_secs(30)),
            now,
        }
    }

    fn change(&mut self, random: &mut Random) {
        let at = random.below(self.standings.len());
        let one = &mut self.standings[at];
        match random.below(16) {
            0 => one.health = random.one_of(&HEALTH),
            1 => one.admission = random.one_of(&[Admission::Ready, Admission::Ready, Admission::Draining]),
            2 => one.limit = random.one_of(&[None, Some(0), Some(1), Some(3)]),
            3 => one.weight = random.one_of(&[0, one.full_weight / 2, one.full_weight, one.full_weight]),
            5 => one.soft_limit = random.one_of(&[None, None, Some(0), Some(1)]),
            6 => one.verdict = random.one_of(&[Verdict::Permit, Verdict::Permit, Verdict::Deny]),
            7 => one.priority = random.one_of(&[1, 1, 2]),
            8 => one.latency = random.one_of(&[0, 100, 1000]),
            9 => one.trials = random.one_of(&[0, 0, 1, 2]),
            4 => self.now += Duration::from_secs(random.next() % 20),
            13 => self.waiting = random.one_of(&[0, 0, 1, 3]),
            14 => self.queue = random.one_of(&[0, 1, 4]),
            _ => {
                one.in_flight = one.in_flight.saturating_sub(1);
                self.waiting = self.waiting.saturating_sub(1);
            }
        }
    }

    /// Asks for an explanation, then lets a worker serve the session as the data path does, step for step.
    fn serve(
        &mut self,
        client: IpAddr,
        cookie: Option<usize>,
        tried: &Tried,
        worker: usize,
        chance: u64,
    ) -> (Explanation, Coming<Selection>) {
        let cookie = cookie.filter(|_| self.policy == Policy::Sticky && self.by_cookie);
        let sticky = (self.policy == Policy::Sticky && !self.by_cookie).then(|| StickyKey::new(client, 64));
        let key = client_key(client);
        let peeked = sticky.and_then(|key| self.sticky.peek(key, self.now));
        let soft_limits = self.standings.iter().filter(|one| one.soft_limit.is_some()).count();
        let line = Line { waiting: self.waiting, soft_limits };
        let facts = Facts {
            policy: self.policy,
            standings: &self.standings,
            all_down: self.all_down,
            identities: &self.identities,
            key,
            bound: self.bound,
            remembered: cookie.or(peeked.and_then(|(identity, _)| self.identities.find(identity))),
            tried,
            line,
            queue: self.queue,
        };
        let explanation = explain(&facts, &self.balancers, chance);

        let looked_up = sticky.and_then(|key| self.sticky.lookup(key, self.now));
        assert_eq!(looked_up, peeked.map(|(identity, _)| identity), "a look changes nothing");
        let remembered = looked_up
            .and_then(|identity| self.identities.find(identity))
            .or(cookie)
            .map(|backend| Remembered { backend, limit: self.standings[backend].limit });
        let (standings, identities, all_down) = (&self.standings, &self.identities, self.all_down);
        let balancer = &mut self.balancers[worker];
        let coming = come(
            line,
            || self.queue,
            |turn| {
                let all = || standings.iter().copied();
                let (mut candidates, _) = candidates(all, turn.all_down(all_down));
                if turn == Turn::Any {
                    priority::keep_lowest(&mut candidates, |at| standings[at].priority, tried);
                }
                let question = Question { candidates: &candidates, identities, key, remembered, tried };
                match turn {
                    Turn::Any => question.select(balancer, chance).at_once(),
                    Turn::Known => question.known().map(Selection::Remembered),
                }
            },
        );
        if coming == Coming::Waits {
            self.waiting += 1;
        }
        if let Some(index) = backend_of(coming) {
            let one = &mut self.standings[index];
            one.in_flight += 1;
            if one.health == State::HalfOpen {
                one.trials = one.trials.checked_sub(1).expect("a trial was free");
            }
            if let (Some(key), Some(identity)) = (sticky, self.identities.identity(index)) {
                self.sticky.remember(key, identity, self.now);
            }
        }
        (explanation, coming)
    }
}

fn backend_of(coming: Coming<Selection>) -> Option<usize> {
    match coming {
        Coming::Chose(selection) => selection.backend(),
        Coming::Waits | Coming::QueueFull => None,
    }
}

#[test]
fn why_names_the_backend_that_the_data_path_then_chooses() {
    let mut seen: HashMap<&str, usize> = HashMap::new();
    for case in 0..cases() / 50 {
        let mut random = Random(case as u64);
        let mut life = Life::new(&mut random);
        for step in 0..50 {
            life.change(&mut random);
            let client = IpAddr::V4(Ipv4Addr::new(192, 0, 2, random.below(12) as u8));
            let mut tried = Tried::default();
            if random.below(4) == 0 {
                tried.insert(random.below(life.standings.len()));
            }
            let (worker, chance) = (random.below(life.balancers.len()), random.next());
            let (before, waiting, queue) = (life.standings.clone(), life.waiting, life.queue);
            let cookie = (random.below(3) > 0).then(|| random.below(life.standings.len()));
            let (explanation, then) = life.serve(client, cookie, &tried, worker, chance);
            let context = || format!("seed {case}, step {step}, {}: {explanation:?}", life.policy);
            assert_eq!(explanation.comings[worker], then, "{}", context());
            let said = explanation.coming().unwrap();
            let is_backend = |coming| backend_of(coming).is_some();
            assert!(said == then || is_backend(said) && is_backend(then), "{then:?}, {}", context());
            if let Some(only) = explanation.only().filter(|_| is_backend(then)) {
                assert_eq!(Coming::Chose(only), then, "{}", context());
            }
            let has_soft_limits = before.iter().any(|one| one.soft_limit.is_some());
            let end = match then {
                Coming::Chose(_) if waiting > 0 => {
                    assert!(has_soft_limits && is_backend(then), "it overtakes: {then:?}, {}", context());
                    "known while others wait"
                }
                Coming::Chose(Selection::Remembered(_)) => "remembered",
                Coming::Chose(Selection::Picked(_)) => "picked",
                Coming::Chose(_) => "none",
                Coming::Waits => {
                    assert!(waiting < queue, "{}", context());
                    "waits"
                }
                Coming::QueueFull => {
                    assert!(waiting >= queue, "{}", context());
                    "queue full"
                }
            };
            *seen.entry(end).or_default() += 1;
            let is_above = explanation.reasons.iter().any(|all| all.contains(&Reason::AboveBound));
            *seen.entry("above the bound").or_default() += usize::from(is_above);
            for (at, reasons) in explanation.reasons.iter().enumerate() {
                let is_chosen = reasons[..] == [Reason::Chosen];
                assert!(!reasons.is_empty(), "{}", context());
                assert!(is_chosen || !reasons.contains(&Reason::Chosen), "{}", context());
                assert!(backend_of(then) != Some(at) || is_chosen, "{}", context());
                assert_eq!(
                    reasons.iter().any(|reason| reason.excludes()),
                    !is_chosen
                        && (!is_open(&before[at], explanation.unhealthy, tried.contains(at))
                            || reasons.contains(&Reason::Standby)),
                    "{}",
                    context()
                );
            }
        }
    }
    for end in
        ["known while others wait", "remembered", "picked", "none", "waits", "queue full", "above the bound"]
    {
        let count = seen.get(end).copied().unwrap_or_default();
        assert!(count > cases() / 1000, "every end is met: {end} {count} times of {seen:?}");
    }
}

/// Whether a backend may get the session, told apart from its facts alone.
fn is_open(one: &Standing, unhealthy: Unhealthy, is_tried: bool) -> bool {
    let is_healthy = match one.health {
        State::Up | State::Unchecked => true,
        State::HalfOpen => one.trials > 0,
        State::Down | State::Ejected => unhealthy == Unhealthy::Used,
    };
    let has_room = one.soft_limit.into_iter().chain(one.limit).all(|limit| one.in_flight < limit);
    let is_permitted = one.verdict == Verdict::Permit;
    is_healthy && is_permitted && one.admission == Admission::Ready && one.weight > 0 && has_room && !is_tried
}

#[test]
fn shares_of_two_choices_are_what_chance_gives() {
    for case in 0..40 {
        let mut random = Random(case);
        let mut life = Life::new(&mut random);
        life.policy = Policy::TwoChoices;
        life.balancers = vec![Balancer::new(Policy::TwoChoices, life.names.len())];
        for one in &mut life.standings {
            (one.weight, one.in_flight) = (100 + 100 * random.below(4) as u32, random.below(3) as u32);
        }
        let (candidates, _) = candidates(|| life.standings.iter().copied(), life.all_down);
        let tried = Tried::default();
        let question = Question {
            candidates: &candidates,
            identities: &life.identities,
            key: 0,
            remembered: None,
            tried: &tried,
        };
        let facts = Facts {
            policy: life.policy,
            standings: &life.standings,
            all_down: life.all_down,
            identities: &life.identities,
            key: 0,
            bound: None,
            remembered: None,
            tried: &tried,
            line: Line::default(),
            queue: 0,
        };
        let shares = explain(&facts, &life.balancers, 0).shares.unwrap();
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{shares:?}");
        let mut counts: HashMap<usize, u32> = HashMap::new();
        let times = 20_000;
        for _ in 0..times {
            let chosen = question.select(&mut life.balancers[0], random.next()).backend().unwrap();
            *counts.entry(chosen).or_default() += 1;
        }
        for (at, share) in shares.iter().enumerate() {
            let seen = f64::from(counts.get(&at).copied().unwrap_or_default()) / f64::from(times);
            assert!((seen - share).abs() < 0.02, "case {case}, backend {at}: {seen} of {share}: {shares:?}");
        }
    }
}

struct Headers(Vec<(&'static str, &'static str)>);

impl HeaderLookup for Headers {
    fn header(&self, name: &str) -> Option<&[u8]> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_bytes())
    }
}

const HOSTS: [&str; 5] = ["a.example", "b.example", "x.b.example", "y.x.b.example", ""];
const PATTERNS: [&str; 5] = ["a.example", "b.example", "*.b.example", "*.x.b.example", "*"];
const PATHS: [&str; 7] = ["/", "/api", "/api/", "/api/v1", "/other", "/a%2fb", "/%61pi"];
const PREFIXES: [&str; 4] = ["/", "/api", "/api/", "/other"];
const METHODS: [&str; 3] = ["GET", "POST", "PUT"];

fn route(random: &mut Random) -> Route {
    let value = match random.below(2) {
        0 => HeaderValueMatch::Present,
        _ => HeaderValueMatch::Exact("1".into()),
    };
    let header = |random: &mut Random, value: &HeaderValueMatch| {
        (random.below(3) == 0).then(|| HeaderMatch { name: "x-a".into(), value: value.clone() })
    };
    Route {
        host: random.one_of(&PATTERNS).parse().unwrap(),
        path: random.one_of(&PREFIXES).parse().unwrap(),
        methods: (random.below(3) == 0).then(|| random.one_of(&METHODS).into()).into_iter().collect(),
        headers: header(random, &value).into_iter().collect(),
        action: Action::Pool(PoolId(random.below(5))),
        edits: HeaderEdits::default(),
        bandwidth: None,
        acl: None,
    }
}

#[test]
fn the_first_route_without_a_missed_condition_is_the_one_that_decides() {
    for case in 0..cases() as u64 / 4 {
        let mut random = Random(case);
        let routes: Vec<Route> = (0..random.below(8)).map(|_| route(&mut random)).collect();
        let count = routes.len();
        let table = RouteTable::new(routes, (random.below(2) == 0).then_some(PoolId(9)));
        let headers = Headers(random.one_of(&[&[][..], &[("x-a", "1")], &[("x-a", "2")]]).to_vec());
        let facts = RequestFacts {
            host: random.one_of(&HOSTS),
            path: random.one_of(&PATHS),
            method: random.one_of(&METHODS),
            headers: &headers,
        };
        let (decision, steps) = table.explain(&facts);
        assert_eq!(decision, table.decide(&facts), "case {case}");
        let first = steps.iter().find(|step| !matches!(step.fate, Fate::Missed(_)));
        match decision {
            Decision::Route(route) => {
                let first = first.unwrap_or_else(|| panic!("case {case}: no route matches"));
                assert!(
                    std::ptr::eq(first.route, route) && first.fate == Fate::Matched,
                    "case {case}: {steps:?}"
                );
                assert_eq!(steps.iter().filter(|step| step.fate == Fate::Matched).count(), 1);
            }
            Decision::Fallback(_) | Decision::NoRoute => assert_eq!(first, None, "case {case}"),
            Decision::Ambiguous(_) => assert!(steps.is_empty(), "case {case}"),
        }
        if matches!(decision, Decision::Ambiguous(_)) {
            continue;
        }
        assert_eq!(steps.len(), count, "case {case}: every route is told of");
        for step in &steps {
            // Without the conditions that it missed, the route matches.
            let Fate::Missed(missed) = &step.fate else { continue };
            let mut relaxed = step.route.clone();
            for one in missed {
                match one {
                    Missed::Host => relaxed.host = HostPattern::Any,
                    Missed::Path => relaxed.path = "/".parse().unwrap(),
                    Missed::Method => relaxed.methods.clear(),
                    Missed::Header(_) => relaxed.headers.clear(),
                }
            }
            let alone = RouteTable::new(vec![relaxed], None);
            assert!(matches!(alone.decide(&facts), Decision::Route(_)), "case {case}: {step:?}");
        }
    }
}
