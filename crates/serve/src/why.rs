//! Answers `penstock ctl why`: what would happen with a session, step by step, and why. It goes the way of a session
//! through the functions of the data path, and changes nothing:
//!
//! 1. `crates/serve/src/why/asked.rs` reads the question, `crates/serve/src/why/pending.rs` gets the configuration of an open
//!    transaction if it is about that, `crates/serve/src/why/listener.rs` finds the listener.
//! 2. `crates/proxy/src/http/destination.rs` and `crates/logic/src/route.rs` decide on the pool, as for a request.
//! 3. Every worker gives a copy of its balancer (`crates/proxy/src/question.rs`), and
//!    `crates/logic/src/balance/explain.rs` lets them choose.
//! 4. `crates/serve/src/report/why.rs` has the result, for people and programs.

use std::sync::Arc;
use std::time::Instant;

use config::types::Protocol;
use logic::acl::{AccessList, Country, Verdict};
use logic::balance::turn::Coming;
use logic::balance::{Balancer, Selection};
use logic::http1::request::{self, Parse, RequestHead};
use logic::peers::Peer;
use logic::route::{Decision, PoolId};
use proxy::front::{Denied, Front};
use proxy::http::destination::{self, Arrived, Destination};
use proxy::question::Question;
use proxy::snapshot::{ListenerPlan, PoolPlan, Snapshot, http_settings};
use proxy::sticky_cookie::{self, Slot};
use proxy::upstream::Origin;
use proxy::why::{self, Client, Explained, PassthroughChoice};

use crate::report::past::PastReport;
use crate::report::why::{
    Answer, AnswerOutcome, DeniedBy, FallbackReason, ListenerStep, PoolStep, RefusedStep, RouteStep, Step,
    WhyReport,
};

mod asked;
mod listener;
mod past;
mod pending;
mod workers;

pub(crate) use workers::Silent;

pub(crate) use asked::{Asked, Configuration, Wanted};

/// Reason why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WhyError {
    #[error(transparent)]
    Asked(#[from] asked::AskedError),
    #[error(transparent)]
    Listener(#[from] listener::ListenerError),
    #[error(transparent)]
    Past(#[from] past::PastError),
    #[error(transparent)]
    Silent(#[from] workers::Silent),
    #[error("{}", .0.message)]
    Pending(Denied),
}

impl WhyError {
    /// Whether no session has ended that has the name.
    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self, Self::Past(past::PastError::Unknown(_)))
    }

    /// Lines after the message; may be empty.
    pub(crate) fn details(&self) -> &str {
        match self {
            Self::Pending(denied) => &denied.details,
            Self::Asked(_) | Self::Listener(_) | Self::Past(_) | Self::Silent(_) => "",
        }
    }
}

/// Tells of a session that has ended, and what the same one would get now.
pub(crate) async fn answer_of_past(front: &Front, id: &str) -> Result<PastReport, WhyError> {
    let session = past::find(front, id).await?;
    let plan = front.snapshot.load().listeners.get(&session.listener).cloned();
    let now = match plan.as_ref().map(|plan| past::again(&session, plan)) {
        None => Err(format!("listener {} is not served any more", session.listener)),
        Some(None) => Err("too little of its request was kept".to_owned()),
        Some(Some(Err(error))) => Err(error.to_string()),
        Some(Some(Ok(past::Again { asked, is_whole }))) => {
            let answer = answer(front, &asked).await.map_err(|error| error.to_string());
            answer.and_then(|report| match is_whole || is_denied_at_once(&report) {
                true => Ok(report),
                false => Err(format!(
                    "listener {} takes the client now, and it had sent no request",
                    session.listener
                )),
            })
        }
    };
    Ok(PastReport::read(session, now))
}

/// Whether the listener denies the client, also before it sends anything.
fn is_denied_at_once(report: &WhyReport) -> bool {
    let denies = |step: &Step| matches!(step, Step::Denied { by: DeniedBy::Listener, pool: None, .. });
    report.steps.iter().any(denies)
}

/// Explains a session under the configuration that is asked about.
pub(crate) async fn answer(front: &Front, asked: &Asked) -> Result<WhyReport, WhyError> {
    let snapshot = match asked.configuration {
        Configuration::Served => front.snapshot.load_full(),
        Configuration::Pending => pending::snapshot(front).await.map_err(WhyError::Pending)?,
    };
    let (plan, found) = listener::find(&snapshot, asked)?;
    let mut steps = vec![Step::Listener(ListenerStep::read(&plan, found))];
    let standing = plan.settings.acl.as_ref().map_or(Verdict::Permit, |acl| acl.verdict(&asked.client));
    let denied_pool = plan.settings.denied_pool;
    if standing == Verdict::Deny {
        let pool = denied_pool.map(|pool| snapshot.pool(pool).settings.name.to_string());
        let acl = plan.settings.acl.as_deref();
        let entry = entry_of(&snapshot, acl, Some(asked.client));
        steps.push(Step::Denied { by: DeniedBy::Listener, list: name_of(acl), entry, pool });
    }
    let denied_pool = denied_pool.filter(|_| standing == Verdict::Deny);
    let destination = match &plan.settings.protocol {
        _ if standing == Verdict::Deny && denied_pool.is_none() => {
            Err(Answer::of(match &plan.settings.tarpit {
                Some(_) => AnswerOutcome::Tarpit,
                None => AnswerOutcome::Denied,
            }))
        }
        Protocol::Http(_) => of_request(front, &snapshot, &plan, standing, asked, &mut steps),
        Protocol::TlsPassthrough(_) => match denied_pool {
            Some(pool) => Ok(Destined::of_client(pool, asked.client)),
            None => of_server_name(&snapshot, &plan, asked, &mut steps),
        },
        Protocol::Tcp(settings) => {
            Ok(Destined::of_client(denied_pool.unwrap_or(settings.pool), asked.client))
        }
        Protocol::Udp(settings) => Ok(Destined::of_client(settings.pool, asked.client)),
        // No scheme finds one: what decides about packets is known to their worker alone.
        Protocol::Dsr(_) => Err(Answer::of(AnswerOutcome::NotExplained)),
    };
    let answer = match destination {
        Ok(Destined { pool, judged, head }) => {
            let named = snapshot.pool(pool);
            let mut pool = why::serving(&snapshot, named).clone();
            if pool.id != named.id {
                steps.push(fallback(named, &pool, FallbackReason::Unavailable));
            }
            let origin = match &plan.settings.protocol {
                Protocol::Udp(_) => Origin::Datagram,
                _ => Origin::Client,
            };
            loop {
                let (key, cookie) = match &head {
                    Some((head, request)) => {
                        let key = destination::key(&pool.settings.hash_key, asked.client, head, request);
                        (key, sticky_cookie::slot(pool.cookie.as_ref(), head, request))
                    }
                    None => (why::key_of_client(&pool, asked.client), Slot::Absent),
                };
                let balancers = balancers(front, &snapshot, &pool).await?;
                let client = Client { peer: asked.client, judged, cookie, origin };
                let explained = why::explain(&pool, client, key, &balancers, Instant::now());
                let answer = answer_of(&pool, &plan, &explained);
                let left = left_for(origin, &explained);
                steps.push(Step::Pool(Box::new(PoolStep::read(&pool, asked.client, key, explained))));
                let Some((next, reason)) = why::after(&snapshot, &pool).zip(left) else { break answer };
                steps.push(fallback(&pool, next, reason));
                pool = next.clone();
            }
        }
        Err(own) => own,
    };
    let country = country(&snapshot, asked.client).map(|country| country.to_string());
    let (generation, client) = (snapshot.generation, shown(asked.client));
    let configuration = asked.configuration.as_str();
    Ok(WhyReport { configuration, generation, client, country, steps, result: answer })
}

/// Country of a client; `None` without a database, or if it does not know the address.
fn country(snapshot: &Snapshot, client: Peer) -> Option<Country> {
    snapshot.config.geoip.as_ref()?.countries.of(client.ip()?)
}

fn acl_of<'r>(decision: &Decision<'r>) -> Option<&'r AccessList> {
    match decision {
        Decision::Route(route) => route.acl.as_deref(),
        _ => None,
    }
}

fn name_of(acl: Option<&AccessList>) -> Option<String> {
    acl.map(|acl| acl.name().to_owned())
}

/// The entry of a list that decides about a client, as it was written.
fn entry_of(snapshot: &Snapshot, acl: Option<&AccessList>, client: Option<Peer>) -> Option<String> {
    let client = client?;
    acl?.deciding(&client, country(snapshot, client)).map(|entry| entry.to_string())
}

/// Address of a client, without its port if that is unknown.
fn shown(client: Peer) -> String {
    match client {
        Peer::Ip(address) if address.port() == 0 => address.ip().to_string(),
        other => other.to_string(),
    }
}

fn lossy(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// A session on its way to a pool.
struct Destined {
    pool: PoolId,
    /// The client that access lists of backends judge.
    judged: Option<Peer>,
    /// The request, if it is one.
    head: Option<(Vec<u8>, RequestHead)>,
}

impl Destined {
    fn of_client(pool: PoolId, client: Peer) -> Self {
        Self { pool, judged: Some(client), head: None }
    }
}

/// Goes the way of a request up to its pool. `Err` if it reaches none.
fn of_request(
    front: &Front,
    snapshot: &Snapshot,
    plan: &ListenerPlan,
    standing: Verdict,
    asked: &Asked,
    steps: &mut Vec<Step>,
) -> Result<Destined, Answer> {
    let (Some(settings), Some(routes)) = (http_settings(plan), &plan.routes) else {
        return Err(Answer::refused(404));
    };
    let head = asked.head();
    let request: RequestHead = match request::parse(&head, &settings.limits) {
        Ok(Parse::Complete(request)) => request,
        Ok(Parse::Incomplete) => return Err(Answer::refused(400)),
        Err(refusal) => {
            steps.push(Step::Refused(RefusedStep::read(refusal)));
            return Err(Answer::refused(refusal.status()));
        }
    };
    let arrived = if plan.tls.is_some() { Arrived::OverTls } else { Arrived::InTheClear };
    let challenges = &front.state.acme.challenges;
    let question = destination::RouteQuestion {
        settings,
        routes,
        challenges,
        validation: &front.state.validation,
        listener: &plan.settings.name,
        arrived,
        peer: asked.client,
        standing,
        denied_pool: plan.settings.denied_pool,
        head: &head,
        request: &request,
    };
    // Whether the source sends requests too fast is not told: it depends on when the request comes.
    let destination = question.destination(|| Ok(()));
    let mut explain = || {
        let step = question.with_facts(|facts| RouteStep::read(snapshot, routes, facts));
        steps.push(Step::Route(Box::new(step)));
    };
    match destination {
        Destination::Pool(pool, ..) => {
            if standing == Verdict::Permit {
                explain();
            }
            let judged = question.client_behind_proxies();
            Ok(Destined { pool, judged, head: Some((head, request)) })
        }
        Destination::Denied => {
            explain();
            let client = question.client_behind_proxies();
            let (list, entry) = question.with_facts(|facts| {
                let decision = routes.decide(facts);
                let acl = acl_of(&decision);
                (name_of(acl), entry_of(snapshot, acl, client))
            });
            steps.push(Step::Denied { by: DeniedBy::Route, list, entry, pool: None });
            Err(Answer::refused(403))
        }
        Destination::TooMany(_) => Err(Answer::refused(429)),
        Destination::Redirect(status, location) => {
            explain();
            let query = (!request.query.is_empty()).then(|| lossy(request.query.of(&head)));
            let authority = lossy(request.authority.of(&head));
            let location = location.expand(&authority, request.path(&head), query.as_deref());
            Err(Answer::redirect(status.code(), location))
        }
        Destination::Respond(respond, _) => {
            explain();
            Err(Answer::penstock(respond.status()))
        }
        Destination::NoRoute => {
            explain();
            Err(Answer::refused(404))
        }
        Destination::Ambiguous(_) => {
            explain();
            Err(Answer::refused(400))
        }
        Destination::Loop(_) => {
            explain();
            steps.push(Step::Loop);
            Err(Answer::refused(508))
        }
        Destination::AcmeChallenge(_) => {
            steps.push(Step::AcmeChallenge);
            Err(Answer::penstock(200))
        }
        Destination::Validation(..) => {
            steps.push(Step::OtpValidation);
            Err(Answer::penstock(200))
        }
        Destination::RedirectToHttps(port) => {
            steps.push(Step::RedirectToHttps { port });
            Err(Answer::penstock(308))
        }
    }
}

/// Goes the way of a TLS client whose TLS is passed through.
fn of_server_name(
    snapshot: &Snapshot,
    plan: &ListenerPlan,
    asked: &Asked,
    steps: &mut Vec<Step>,
) -> Result<Destined, Answer> {
    let Some(routes) = &plan.routes else { return Err(Answer::closed()) };
    let host = asked.server_name();
    let facts = why::passthrough_facts(host.as_deref());
    steps.push(Step::Route(Box::new(RouteStep::read(snapshot, routes, &facts))));
    let decision = routes.decide(&facts);
    match why::chosen_by(&decision, asked.client) {
        PassthroughChoice::Pool(pool) => Ok(Destined::of_client(pool, asked.client)),
        PassthroughChoice::NoRoute => Err(Answer::closed()),
        PassthroughChoice::Denied => {
            let acl = acl_of(&decision);
            let entry = entry_of(snapshot, acl, Some(asked.client));
            steps.push(Step::Denied { by: DeniedBy::Route, list: name_of(acl), entry, pool: None });
            Err(Answer::of(AnswerOutcome::Denied))
        }
    }
}

/// Copies the balancers of all workers for a pool.
async fn balancers(
    front: &Front,
    snapshot: &Arc<Snapshot>,
    pool: &PoolPlan,
) -> Result<Vec<Balancer>, workers::Silent> {
    if front.questions.is_empty() {
        return Ok((0..front.state.workers).map(|worker| pool.balancer(worker)).collect());
    }
    let ask = |answer| Question::Balancer { snapshot: snapshot.clone(), pool: pool.id, answer };
    workers::ask(front, ask).await
}

fn fallback(from: &PoolPlan, to: &PoolPlan, reason: FallbackReason) -> Step {
    let (from, to) = (from.settings.name.to_string(), to.settings.name.to_string());
    Step::Fallback { from, to, reason }
}

/// Why a session leaves a pool for its fallback; `None` if it does not. A datagram does not.
fn left_for(origin: Origin, explained: &Explained) -> Option<FallbackReason> {
    match (origin, explained.explanation.coming()?) {
        (Origin::Datagram, _) => None,
        (_, Coming::Chose(Selection::Denied)) => Some(FallbackReason::Denied),
        (_, Coming::Chose(Selection::Unavailable | Selection::AllTried)) => Some(FallbackReason::Unavailable),
        _ => None,
    }
}

/// The end of a session that comes to a pool.
fn answer_of(pool: &PoolPlan, plan: &ListenerPlan, explained: &Explained) -> Answer {
    let is_http = plan.settings.protocol.is_http();
    let no_backend = |outcome| match is_http {
        true => Answer { status: Some(503), ..Answer::of(outcome) },
        false => Answer::of(outcome),
    };
    let explanation = &explained.explanation;
    let certain = || match explanation.only().and_then(Selection::backend) {
        Some(index) => {
            let backend = Some(pool.backends[index].state.name.to_string());
            Answer { backend, ..Answer::of(AnswerOutcome::Backend) }
        }
        None => Answer::of(AnswerOutcome::OneOfSeveral),
    };
    match explanation.coming() {
        Some(Coming::Chose(Selection::Remembered(_) | Selection::Picked(_))) => certain(),
        Some(Coming::Chose(Selection::Denied)) if is_http => Answer::refused(403),
        Some(Coming::Chose(Selection::Denied)) => Answer::of(AnswerOutcome::Denied),
        Some(Coming::Chose(Selection::Unavailable | Selection::AllTried)) | None => {
            no_backend(AnswerOutcome::NoBackend)
        }
        Some(Coming::Waits | Coming::Chose(Selection::AllBusy)) => Answer::of(AnswerOutcome::Queue),
        Some(Coming::QueueFull) => no_backend(AnswerOutcome::QueueFull),
    }
}
