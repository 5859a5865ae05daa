//! Answers that we give ourselves: error pages and redirects.

use std::cell::Cell;
use std::time::Duration;

use config::types::HttpSettings;
use logic::http1::error_page;
use logic::http1::request::{MethodKind, Persistence};

use super::session::{After, Client, Session, persistence};
use super::{RequestId, body};
use crate::ending::Received;
use crate::outcome::Outcome;

/// What an error page says.
pub(super) struct Page<'a> {
    pub(super) status: u16,
    pub(super) detail: &'a str,
    pub(super) persistence: Persistence,
    pub(super) extra: &'a [(&'a str, &'a str)],
}

impl Page<'_> {
    /// A page after which the connection is closed.
    pub(super) fn closing() -> Self {
        Page { status: 500, detail: "", persistence: Persistence::Close, extra: &[] }
    }
}

/// Answers a request with an error page.
pub(super) async fn refuse(
    session: &Session<'_>,
    client: &Client,
    outcome: &mut Outcome,
    status: u16,
    detail: &str,
    extra: &[(&str, &str)],
) -> After {
    let persistence = own_persistence(session, client);
    let page = Page { status, detail, persistence, extra };
    let received = Some(&*session.received);
    // Boxed: a request that is forwarded does not carry the state of this.
    Box::pin(write_page(session.settings, client, &page, received, hsts(session), outcome)).await
}

/// Writes an error page; `received` is absent when the request could not be read.
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
    let mut extra = vec![(&*settings.request_id_header, outcome.request_id.as_str())];
    extra.extend_from_slice(page.extra);
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

/// Answers a request with a redirect.
pub(super) async fn redirect(
    session: &Session<'_>,
    client: &Client,
    outcome: &mut Outcome,
    status: u16,
    location: &str,
) -> After {
    let persistence = own_persistence(session, client);
    let mut out = Vec::with_capacity(512);
    let received = &session.received;
    error_page::write_redirect(
        &mut out,
        &error_page::Redirect {
            status,
            location,
            persistence,
            method: received.request.kind(&received.head).method,
            extra: &[(&session.settings.request_id_header, outcome.request_id.as_str())],
            hsts: hsts(session),
        },
    );
    outcome.status = status;
    send(client, &out, persistence, session.settings.timeouts.write, outcome).await
}

/// Answers a request with a short text of our own.
pub(super) async fn give(session: &Session<'_>, client: &Client, outcome: &mut Outcome, text: &str) -> After {
    let persistence = own_persistence(session, client);
    let mut out = Vec::with_capacity(512);
    let received = &session.received;
    let method = received.request.kind(&received.head).method;
    let extra = [(&*session.settings.request_id_header, outcome.request_id.as_str())];
    error_page::write_text(&mut out, text, persistence, method, &extra);
    outcome.status = 200;
    send(client, &out, persistence, session.settings.timeouts.write, outcome).await
}

async fn send(
    client: &Client,
    out: &[u8],
    persistence: Persistence,
    limit: Duration,
    outcome: &mut Outcome,
) -> After {
    let written = Cell::new(0);
    let sent = body::write(&client.timer, &client.stream, out, &[], limit, &written).await;
    outcome.bytes_out += written.get();
    match (sent, persistence) {
        (Err(_), _) => After::Drop,
        (Ok(()), Persistence::KeepAlive) => After::KeepAlive,
        (Ok(()), Persistence::Close) => After::Close,
    }
}

/// Value of Strict-Transport-Security for this session.
pub(super) fn hsts<'a>(session: &Session<'a>) -> Option<&'a str> {
    session.plan.tls.as_ref().and(session.settings.hsts.as_deref())
}

/// The connection goes on after our own answer only if no body is left to be read.
fn own_persistence(session: &Session<'_>, client: &Client) -> Persistence {
    match body::Reader::new(session.received.request.body) {
        None => persistence(session, &client.buffer),
        Some(_) => Persistence::Close,
    }
}
