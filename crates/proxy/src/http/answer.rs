//! Responses that penstock writes itself: error pages and redirects.

use std::cell::Cell;
use std::time::{Duration, SystemTime};

use config::types::{Hsts, HttpSettings};
use logic::http1::request::{MethodKind, Persistence};
use logic::http1::{error_page, own_response};
use logic::route::{HeaderEdits, Respond};
use state::ending::Received;
use state::events::http_date;
use tls::Issuer;

use super::session::{After, Client, RequestContext, persistence};
use super::{RequestId, body};
use crate::arrival::Arrival;
use crate::outcome::Outcome;

/// Contents of an error page.
pub(super) struct Page<'a> {
    pub(super) status: u16,
    pub(super) detail: &'a str,
    pub(super) persistence: Persistence,
    pub(super) extra: &'a [(&'a str, &'a str)],
}

impl Page<'_> {
    /// Error page after which the connection is closed.
    pub(super) fn closing() -> Self {
        Page { status: 500, detail: "", persistence: Persistence::Close, extra: &[] }
    }
}

pub(super) async fn refuse(
    session: &RequestContext<'_>,
    client: &Client,
    outcome: &mut Outcome,
    status: u16,
    detail: &str,
    extra: &[(&str, &str)],
) -> After {
    let persistence = own_persistence(session, client);
    let page = Page { status, detail, persistence, extra };
    let received = Some(&*session.received);
    // Boxed: a forwarded request does not hold the state of an error page.
    Box::pin(write_page(
        session.settings,
        client,
        &page,
        received,
        hsts(session.settings, session.arrival),
        outcome,
    ))
    .await
}

/// Writes an error page; `received` is `None` if the request could not be read.
pub(super) async fn write_page(
    settings: &HttpSettings,
    client: &Client,
    page: &Page<'_>,
    received: Option<&Received>,
    hsts: Option<&str>,
    outcome: &mut Outcome,
) -> After {
    if outcome.request_id.is_none() {
        outcome.request_id = RequestId::new();
    }
    let date = date();
    let mut extra = page.extra.to_vec();
    extra.extend(own_fields(settings, outcome, &date));
    let mut out = Vec::with_capacity(1024);
    error_page::write(
        &mut out,
        &error_page::Page {
            status: page.status,
            detail: page.detail,
            request_id: outcome.request_id.as_str(),
            accept: received.and_then(|received| received.request.header(&received.head, "accept")),
            persistence: page.persistence,
            method: received
                .map_or(MethodKind::Other, |received| received.request.kind(&received.head).method),
            extra: &extra,
            hsts,
        },
    );
    outcome.status = page.status;
    send(client, &out, page.persistence, settings.timeouts.write, outcome).await
}

pub(super) async fn redirect(
    session: &RequestContext<'_>,
    client: &Client,
    outcome: &mut Outcome,
    status: u16,
    location: &str,
) -> After {
    let persistence = own_persistence(session, client);
    let mut out = Vec::with_capacity(512);
    let received = &session.received;
    let date = date();
    let extra: Vec<_> = own_fields(session.settings, outcome, &date).collect();
    error_page::write_redirect(
        &mut out,
        &error_page::Redirect {
            status,
            location,
            persistence,
            method: received.request.kind(&received.head).method,
            extra: &extra,
            hsts: hsts(session.settings, session.arrival),
        },
    );
    outcome.status = status;
    send(client, &out, persistence, session.settings.timeouts.write, outcome).await
}

/// Answers a request with a short text.
pub(super) async fn give(
    session: &RequestContext<'_>,
    client: &Client,
    outcome: &mut Outcome,
    text: &str,
) -> After {
    let persistence = own_persistence(session, client);
    let mut out = Vec::with_capacity(512);
    let received = &session.received;
    let method = received.request.kind(&received.head).method;
    let date = date();
    let extra: Vec<_> = own_fields(session.settings, outcome, &date).collect();
    error_page::write_text(&mut out, text, persistence, method, &extra);
    outcome.status = 200;
    send(client, &out, persistence, session.settings.timeouts.write, outcome).await
}

/// Answers as a route says.
pub(super) async fn respond(
    session: &RequestContext<'_>,
    client: &Client,
    outcome: &mut Outcome,
    respond: &Respond,
    edits: &HeaderEdits,
) -> After {
    let persistence = own_persistence(session, client);
    let mut out = Vec::with_capacity(512);
    let received = &session.received;
    let date = date();
    let extra: Vec<_> = own_fields(session.settings, outcome, &date).collect();
    let head = own_response::Head {
        persistence,
        extra: &extra,
        hsts: hsts(session.settings, session.arrival),
        edits: &[&session.settings.edits, edits],
    };
    own_response::write_head(&mut out, respond, &head);
    outcome.status = respond.status();
    let body = match received.request.kind(&received.head).method {
        MethodKind::Head => "",
        _ => respond.body(),
    };
    send_both(client, &out, body.as_bytes(), persistence, session.settings.timeouts.write, outcome).await
}

/// Fields of every response of penstock's own.
fn own_fields<'a>(
    settings: &'a HttpSettings,
    outcome: &'a Outcome,
    date: &'a str,
) -> impl Iterator<Item = (&'a str, &'a str)> {
    let id = settings.request_id_header.as_deref().map(|name| (name, outcome.request_id.as_str()));
    id.into_iter().chain([(DATE, date)])
}

/// Value of the field `Date`, which a server with a clock must send (RFC 9110 section 6.6.1).
fn date() -> String {
    http_date(SystemTime::now())
}

const DATE: &str = "Date";

async fn send(
    client: &Client,
    out: &[u8],
    persistence: Persistence,
    limit: Duration,
    outcome: &mut Outcome,
) -> After {
    send_both(client, out, &[], persistence, limit, outcome).await
}

async fn send_both(
    client: &Client,
    head: &[u8],
    body: &[u8],
    persistence: Persistence,
    limit: Duration,
    outcome: &mut Outcome,
) -> After {
    let written = Cell::new(0);
    let sent = super::body::write(&client.timer, &client.stream, head, body, limit, &written).await;
    outcome.bytes_out += written.get();
    match (sent, persistence) {
        (Err(_), _) => After::Drop,
        (Ok(()), Persistence::KeepAlive) => After::KeepAlive,
        (Ok(()), Persistence::Close) => After::Close,
    }
}

/// Value of Strict-Transport-Security for a client.
pub(super) fn hsts<'a>(settings: &'a HttpSettings, client: &Arrival) -> Option<&'a str> {
    match (&settings.hsts, client.tls, client.issuer) {
        (_, None, _) | (Hsts::IfIssuerTrusted, Some(_), Issuer::Unknown) => None,
        (hsts, Some(_), _) => hsts.value(),
    }
}

/// Keeps the connection after an own response only if no request body is left unread.
fn own_persistence(session: &RequestContext<'_>, client: &Client) -> Persistence {
    match body::Reader::new(session.received.request.body, &session.settings.limits) {
        None => persistence(session, &client.buffer),
        Some(_) => Persistence::Close,
    }
}
