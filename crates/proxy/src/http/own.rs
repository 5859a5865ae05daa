//! Requests that go to no backend: each gets a response of our own.

use std::borrow::Cow;

use logic::route::RedirectStatus;
use state::ending::Ending;
use state::events::Level;

use super::answer;
use super::destination::{Destination, lower, text};
use super::session::{After, Client, RequestContext};
use crate::admission::whole_seconds;
use crate::outcome::Outcome;
use crate::snapshot::PoolPlan;

pub(super) async fn answer_ourselves(
    session: &RequestContext<'_>,
    client: &Client,
    outcome: &mut Outcome,
    own: &Destination<'_>,
) -> After {
    let received = &*session.received;
    let (head, request) = (&received.head[..], &received.request);
    match own {
        Destination::AcmeChallenge(answer) => {
            outcome.end(Ending::AcmeChallenge);
            answer::give(session, client, outcome, answer).await
        }
        Destination::Validation(validation, question) => {
            outcome.end(Ending::OtpValidation);
            let query = text(request.query.of(head));
            let answer = validation.answer(*question, query, session.arrival.peer.ip()).await;
            answer::give(session, client, outcome, &answer).await
        }
        Destination::RedirectToHttps(port) => {
            let host = lower(text(request.host.of(head)));
            redirect_to_https(session, client, outcome, &host, *port).await
        }
        Destination::Redirect(status, location) => {
            let query = (!request.query.is_empty()).then(|| text(request.query.of(head)));
            let authority = text(request.authority.of(head));
            let location = location.expand(authority, request.path(head), query);
            outcome.end(Ending::Redirected);
            answer::redirect(session, client, outcome, status.code(), &location).await
        }
        Destination::Respond(respond, edits) => {
            outcome.end(Ending::Responded);
            answer::respond(session, client, outcome, respond, edits).await
        }
        Destination::NoRoute => {
            outcome.end(Ending::NoRoute);
            let detail = "No service is configured for this address.";
            answer::refuse(session, client, outcome, 404, detail, &[]).await
        }
        Destination::Denied => deny(session, client, outcome).await,
        Destination::TooMany(wait) => {
            outcome.end(Ending::RequestRate);
            let wait = whole_seconds(*wait).to_string();
            let detail = "Too many requests come from this address. Please try again shortly.";
            answer::refuse(session, client, outcome, 429, detail, &[("Retry-After", &wait)]).await
        }
        Destination::Ambiguous(ambiguity) => {
            outcome.end(Ending::AmbiguousPath);
            let detail = format!("The request was refused: {ambiguity}.");
            answer::refuse(session, client, outcome, 400, &detail, &[]).await
        }
        Destination::Loop(pool) => {
            let pool = session.current().pool(*pool);
            outcome.pool = Some(pool.clone());
            outcome.end(Ending::RequestLoop);
            tell_of_loop(session, pool);
            let detail = "Request loop: this request has passed through this proxy too often.";
            answer::refuse(session, client, outcome, 508, detail, &[]).await
        }
        // It is forwarded.
        Destination::Pool(..) => After::Drop,
    }
}

/// Answers a client that an access list denies.
pub(super) async fn deny(session: &RequestContext<'_>, client: &Client, outcome: &mut Outcome) -> After {
    outcome.end(Ending::Denied);
    answer::refuse(session, client, outcome, 403, "This address may not use this service.", &[]).await
}

/// Reports a request loop to the operator. Clients can forge the header field, so the events are limited.
fn tell_of_loop(session: &RequestContext<'_>, pool: &PoolPlan) {
    let state = &session.worker.front.state;
    if session.plan.state.loops_told.may(session.now.duration_since(state.started)) {
        let message = format!(
            "requests go in a circle: one that had come through Penstock {} times was to go to pool {} and got 508; \
             see whether a backend of that pool leads back here (or the client has forged CDN-Loop)",
            session.received.request.hops.count(),
            pool.settings.name,
        );
        state.events.record(Level::Warning, format!("listener.{}", session.plan.settings.name), message);
    }
}

async fn redirect_to_https(
    session: &RequestContext<'_>,
    client: &Client,
    outcome: &mut Outcome,
    host: &str,
    port: u16,
) -> After {
    let received = &session.received;
    let request = &received.request;
    if host.is_empty() {
        outcome.end(Ending::NoRoute);
        let detail = "This address serves https only, and the request names no host to redirect to.";
        return answer::refuse(session, client, outcome, 400, detail, &[]).await;
    }
    let origin = text(request.origin.of(&received.head));
    let origin =
        if origin.starts_with('/') { Cow::Borrowed(origin) } else { Cow::Owned(format!("/{origin}")) };
    let location = match port {
        443 => format!("https://{host}{origin}"),
        port => format!("https://{host}:{port}{origin}"),
    };
    outcome.end(Ending::Redirected);
    answer::redirect(session, client, outcome, RedirectStatus::PermanentRedirect.code(), &location).await
}
