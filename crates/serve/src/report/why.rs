//! What would happen with a session, for `penstock ctl why`. `report/why/shown.rs` renders it for people, serde for
//! programs.

use std::time::Instant;

use logic::balance::explain::Reason;
use logic::balance::{ChoosesBy, Selection, Standing, Unhealthy};
use logic::health::VerdictOutcome;
use logic::http1::refusal::Refusal;
use logic::peers::Peer;
use logic::route::{
    Action, Decision, Facts, Fate, HeaderValueMatch, HostPattern, Missed, PoolId, Route, RouteTable,
    Step as RouteOf,
};
use proxy::snapshot::{BackendPlan, ListenerPlan, PoolPlan, Snapshot};
use proxy::why::Explained;
use serde::Serialize;
use state::events::timestamp;

use super::{ReturnReport, protocol_word, seconds_left};

mod shown;

pub use shown::text;

/// Routes that are shown beside the one that decides.
const MOST_NEAR: usize = 8;

#[derive(Clone, Debug, Serialize)]
pub struct WhyReport {
    /// `served`, or `pending`: that of the open transaction.
    pub configuration: &'static str,
    /// Number of the configuration.
    pub generation: u64,
    pub client: String,
    /// Country of its address, if there is a database that knows it.
    pub country: Option<String>,
    pub steps: Vec<Step>,
    pub result: Answer,
}

#[derive(Clone, Debug, Serialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum Step {
    Listener(ListenerStep),
    /// The request is refused before it is routed.
    Refused(RefusedStep),
    /// The request is the question of an ACME authority.
    AcmeChallenge,
    /// The validation server of one-time passwords answers it.
    OtpValidation,
    RedirectToHttps {
        port: u16,
    },
    /// An access list denies the client.
    Denied {
        by: DeniedBy,
        /// NAME of `[acl.NAME]`.
        list: Option<String>,
        /// The entry that decides; `null` if the default does.
        entry: Option<String>,
        /// Pool that serves it nevertheless.
        pool: Option<String>,
    },
    Route(Box<RouteStep>),
    /// None of the pool's backends is available to the client: another pool serves the session.
    Fallback {
        from: String,
        to: String,
        reason: FallbackReason,
    },
    /// The request has passed through Penstock too often.
    Loop,
    Pool(Box<PoolStep>),
}

/// Why another pool serves a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FallbackReason {
    Unavailable,
    /// The access lists of those that are available deny the client.
    Denied,
}

/// How the listener was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Found {
    /// The question names it.
    ByName,
    /// It is the only one of its protocol on this port.
    ByPort,
    /// No listener of the protocol has the port; it is the only one of the protocol.
    OnlyOne,
}

/// What an access list belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeniedBy {
    Listener,
    Route,
}

#[derive(Clone, Debug, Serialize)]
pub struct ListenerStep {
    pub name: String,
    pub protocol: &'static str,
    pub found: Found,
    pub connections: usize,
    pub max_connections: Option<usize>,
}

#[derive(Clone, Debug, Serialize)]
pub struct RefusedStep {
    pub status: u16,
    pub reason: &'static str,
    pub detail: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct RouteStep {
    /// `route`, `default-pool`, `no-route` or `ambiguous-path`.
    pub decided_by: &'static str,
    /// Number of the route that decides, from 1, in the order of comparison for this host.
    pub number: Option<usize>,
    pub conditions: Option<String>,
    pub leads_to: Option<String>,
    pub ambiguity: Option<String>,
    /// Routes that match too late, or miss by one condition.
    pub near: Vec<NearRoute>,
    /// Routes that are not shown.
    pub others: usize,
}

#[derive(Clone, Debug, Serialize)]
pub struct NearRoute {
    pub number: usize,
    pub conditions: String,
    pub leads_to: String,
    /// `too-late`, `host`, `path`, `method` or `header`.
    pub missed_by: &'static str,
    /// Name of the header that was missed.
    pub header: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct PoolStep {
    pub name: String,
    pub balance: String,
    /// With `hash` and `maglev`: what is hashed, and the hash.
    pub hash_key: Option<String>,
    pub key: Option<String>,
    /// Backend that the key belongs to while all are up.
    pub owner: Option<String>,
    /// No backend is healthy: all of them are used as if they were.
    pub fails_open: bool,
    pub sticky: Option<StickyStep>,
    pub waiting: usize,
    pub queue: usize,
    pub backends: Vec<BackendStep>,
    /// What each worker chooses. Empty if all choose the same, or chance decides.
    pub workers: Vec<WorkerChoice>,
}

#[derive(Clone, Debug, Serialize)]
pub struct StickyStep {
    /// By what the client is known: `address` or `cookie`.
    pub by: &'static str,
    /// `null` if the client is not known, or its backend has left the pool.
    pub backend: Option<String>,
    /// `null` with a cookie.
    pub seen_seconds: Option<u64>,
    /// Whether the client is known, or came with a cookie.
    pub known: bool,
    pub used: bool,
}

#[derive(Clone, Debug, Serialize)]
pub struct WorkerChoice {
    pub worker: usize,
    pub backend: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct BackendStep {
    pub name: String,
    /// `chosen`, or all that keeps the session from it.
    pub reasons: Vec<&'static str>,
    /// Part of the sessions, if chance decides.
    pub share: Option<f64>,
    pub in_flight: u32,
    pub max_connections: Option<u32>,
    pub soft_max_connections: Option<u32>,
    pub priority: u32,
    /// In hundredths, with slow start.
    pub weight: u32,
    /// Whether it has less than its weight because it has just returned.
    pub slow_start: bool,
    pub down: Option<DownStep>,
    pub drained: Option<DrainStep>,
}

#[derive(Clone, Debug, Serialize)]
pub struct DownStep {
    pub state_seconds: u64,
    /// Last failure, for people.
    pub cause: Option<String>,
    pub returns_after: Option<ReturnReport>,
}

#[derive(Clone, Debug, Serialize)]
pub struct DrainStep {
    pub by: String,
    pub at: String,
    pub seconds: u64,
    /// Until it ends by itself; `null` if an operator ends it.
    pub seconds_left: Option<u64>,
}

text::words! {
    /// What becomes of a session.
    pub enum AnswerOutcome: "outcome" {
        Backend = "backend",
        /// The worker that accepts it, or chance, decides between backends.
        OneOfSeveral = "one-of-several",
        Queue = "queue",
        QueueFull = "queue-full",
        NoBackend = "no-backend",
        Redirect = "redirect",
        /// Penstock answers itself.
        Penstock = "penstock",
        Refused = "refused",
        Denied = "denied",
        Tarpit = "tarpit",
        Closed = "closed",
        /// The listener forwards packets: their flow decides, and only its worker knows it.
        NotExplained = "not-explained",
    }
}

impl Serialize for AnswerOutcome {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// The end of the way.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    pub outcome: AnswerOutcome,
    pub backend: Option<String>,
    pub status: Option<u16>,
    pub location: Option<String>,
}

impl Answer {
    pub fn of(outcome: AnswerOutcome) -> Self {
        Self { outcome, backend: None, status: None, location: None }
    }

    pub fn refused(status: u16) -> Self {
        Self { status: Some(status), ..Self::of(AnswerOutcome::Refused) }
    }

    pub fn penstock(status: u16) -> Self {
        Self { status: Some(status), ..Self::of(AnswerOutcome::Penstock) }
    }

    pub fn redirect(status: u16, location: String) -> Self {
        Self { status: Some(status), location: Some(location), ..Self::of(AnswerOutcome::Redirect) }
    }

    pub fn closed() -> Self {
        Self::of(AnswerOutcome::Closed)
    }
}

impl ListenerStep {
    pub fn read(plan: &ListenerPlan, found: Found) -> Self {
        Self {
            name: plan.settings.name.to_string(),
            protocol: protocol_word(plan),
            found,
            connections: plan.state.connections.load(std::sync::atomic::Ordering::Relaxed),
            max_connections: plan.settings.max_connections,
        }
    }
}

impl RefusedStep {
    pub fn read(refusal: Refusal) -> Self {
        Self { status: refusal.status(), reason: refusal.reason(), detail: refusal.to_string() }
    }
}

impl RouteStep {
    pub fn read(snapshot: &Snapshot, routes: &RouteTable, facts: &Facts<'_>) -> Self {
        let (decision, steps) = routes.explain(facts);
        let leads = |route: &Route| leads_to(snapshot, route);
        let pool = |id: PoolId| format!("pool {}", snapshot.pool(id).settings.name);
        let is_near = |(_, step): &(usize, &RouteOf<'_>)| match &step.fate {
            Fate::Matched => false,
            Fate::TooLate => true,
            Fate::Missed(missed) => missed.len() == 1,
        };
        let near: Vec<NearRoute> = steps
            .iter()
            .enumerate()
            .filter(is_near)
            .take(MOST_NEAR)
            .map(|(at, step)| {
                let (missed_by, header) = missed_by(step);
                let (conditions, leads_to) = (conditions(step.route), leads(step.route));
                NearRoute { number: at + 1, conditions, leads_to, missed_by, header }
            })
            .collect();
        let matched = steps.iter().position(|step| step.fate == Fate::Matched);
        let shown = near.len() + usize::from(matched.is_some());
        let (decided_by, leads_to, ambiguity) = match decision {
            Decision::Route(route) => ("route", Some(leads(route)), None),
            Decision::Fallback(id) => ("default-pool", Some(pool(id)), None),
            Decision::NoRoute => ("no-route", None, None),
            Decision::Ambiguous(why) => ("ambiguous-path", None, Some(why.to_string())),
        };
        Self {
            decided_by,
            number: matched.map(|at| at + 1),
            conditions: matched.map(|at| conditions(steps[at].route)),
            leads_to,
            ambiguity,
            near,
            others: routes.routes().len() - shown,
        }
    }
}

fn missed_by(step: &RouteOf<'_>) -> (&'static str, Option<String>) {
    match &step.fate {
        Fate::Matched | Fate::TooLate => ("too-late", None),
        Fate::Missed(missed) => match missed.first() {
            Some(Missed::Host) => ("host", None),
            Some(Missed::Path) | None => ("path", None),
            Some(Missed::Method) => ("method", None),
            Some(Missed::Header(at)) => {
                ("header", step.route.headers.get(*at).map(|header| header.name.to_string()))
            }
        },
    }
}

fn leads_to(snapshot: &Snapshot, route: &Route) -> String {
    match &route.action {
        Action::Pool(id) => format!("pool {}", snapshot.pool(*id).settings.name),
        Action::Redirect { status, location } => format!("{} to {location}", status.code()),
        Action::Respond(respond) => format!("{} of its own", respond.status()),
    }
}

/// Conditions of a route as text, all of which must be met.
fn conditions(route: &Route) -> String {
    let mut all = Vec::new();
    if route.host != HostPattern::Any {
        all.push(format!("host {}", route.host));
    }
    if !route.path.is_root() {
        all.push(format!("path {}", route.path));
    }
    if !route.methods.is_empty() {
        all.push(format!("method {}", route.methods.join(" or ")));
    }
    for header in &route.headers {
        all.push(match &header.value {
            HeaderValueMatch::Present => format!("header {}", header.name),
            // Not the value, which may be a secret: readers of the control socket may ask.
            HeaderValueMatch::Exact(_) => format!("header {} with its value", header.name),
        });
    }
    if all.is_empty() { "every request".to_owned() } else { all.join(", ") }
}

impl PoolStep {
    pub fn read(pool: &PoolPlan, client: Peer, key: u64, explained: Explained) -> Self {
        let Explained { explanation, standings, remembered, waiting, queue } = explained;
        let name = |index: usize| pool.backends[index].state.name.to_string();
        let by_key = pool.settings.balance.chooses_by() == ChoosesBy::Key;
        let used = explanation.selections.iter().any(|one| matches!(one, Selection::Remembered(_)));
        let by_cookie = pool.cookie.is_some();
        let has_memory = pool.sticky.is_some() && client != Peer::Unix || by_cookie;
        let sticky = has_memory.then(|| StickyStep {
            by: if by_cookie { "cookie" } else { "address" },
            known: remembered.is_some(),
            backend: remembered.and_then(|one| one.backend).map(name),
            seen_seconds: remembered.and_then(|one| one.seen).map(|seen| seen.as_secs()),
            used,
        });
        let is_one = explanation.only().is_some() || explanation.shares.is_some();
        let choices = explanation.selections.iter().enumerate();
        let choices = choices.map(|(worker, one)| WorkerChoice { worker, backend: one.backend().map(name) });
        let now = Instant::now();
        let backends = pool.backends.iter().zip(&standings).enumerate().map(|(at, (plan, standing))| {
            let reasons = explanation.reasons.get(at).map_or(&[][..], |all| all);
            let share = explanation.shares.as_ref().map(|shares| shares[at]);
            BackendStep::read(plan, standing, reasons, share, now)
        });
        Self {
            name: pool.settings.name.to_string(),
            balance: pool.settings.balance.to_string(),
            hash_key: by_key.then(|| pool.settings.hash_key.to_string()),
            key: by_key.then(|| format!("{key:016x}")),
            owner: explanation.owner.map(name),
            fails_open: explanation.unhealthy == Unhealthy::Used,
            sticky,
            waiting,
            queue,
            backends: backends.collect(),
            workers: if is_one { Vec::new() } else { choices.collect() },
        }
    }
}

impl BackendStep {
    fn read(
        plan: &BackendPlan,
        standing: &Standing,
        reasons: &[Reason],
        share: Option<f64>,
        now: Instant,
    ) -> Self {
        let state = &plan.state;
        let is_down = !state.is_up();
        let drained = state.drain().map(|drain| DrainStep {
            seconds_left: seconds_left(&drain, now),
            by: drain.by,
            at: timestamp(drain.at),
            seconds: drain.at.elapsed().unwrap_or_default().as_secs(),
        });
        Self {
            name: state.name.to_string(),
            reasons: reasons.iter().map(|reason| word(*reason)).collect(),
            share,
            in_flight: standing.in_flight,
            max_connections: standing.limit,
            soft_max_connections: standing.soft_limit,
            priority: standing.priority,
            weight: standing.weight,
            slow_start: standing.weight < standing.full_weight,
            down: is_down.then(|| DownStep::read(plan, now)),
            drained,
        }
    }
}

impl DownStep {
    fn read(plan: &BackendPlan, now: Instant) -> Self {
        let health = plan.state.lock_health();
        let failure = health.verdicts().find(|verdict| verdict.outcome == VerdictOutcome::Fail);
        Self {
            state_seconds: now.saturating_duration_since(health.since()).as_secs(),
            cause: failure.map(|verdict| verdict.cause.to_string()),
            returns_after: health.awaits(now).map(ReturnReport::read),
        }
    }
}

fn word(reason: Reason) -> &'static str {
    match reason {
        Reason::Chosen => "chosen",
        Reason::Down => "down",
        Reason::Ejected => "ejected",
        Reason::HalfOpen => "half-open",
        Reason::Draining => "draining",
        Reason::WeightZero => "weight-zero",
        Reason::AtLimit => "at-limit",
        Reason::AtSoftLimit => "at-soft-limit",
        Reason::Denied => "denied",
        Reason::Standby => "standby",
        Reason::Tried => "tried",
        Reason::OthersClient => "client-of-another",
        Reason::NotItsTurn => "not-its-turn",
        Reason::Busier => "busier",
        Reason::Slower => "slower",
        Reason::AboveBound => "above-bound",
        Reason::NotTheOwner => "not-the-owner",
    }
}
