//! A session that has ended, for `penstock ctl why --session`.

use std::time::{Duration, Instant};

use logic::access_log::Kind;
use logic::attempts::Fault;
use logic::balance::view::{How, Seen};
use logic::retry::Idempotence;
use proxy::past::PastSession;
use serde::Serialize;
use state::ending::Ending;
use text::table::Table;
use text::terminal::line;
use text::units;

use super::milliseconds;
use super::tables::push_line;
use super::why::WhyReport;

#[derive(Clone, Debug, Serialize)]
pub struct PastReport {
    pub request_id: Option<String>,
    pub client: String,
    pub listener: String,
    /// `http`, `tcp` or `udp`.
    pub kind: &'static str,
    pub method: Option<String>,
    pub host: Option<String>,
    pub target: Option<String>,
    /// Whether only the beginning of the target was kept.
    pub target_cut: bool,
    pub status: Option<u16>,
    pub pool: Option<String>,
    pub backend: Option<String>,
    /// `picked`, `remembered` or `not-chosen`.
    pub chosen: &'static str,
    /// What the last choice saw of each backend.
    pub backends: Vec<PastBackend>,
    pub attempts: u32,
    /// The first three attempts that failed, and the last one.
    pub failed: Vec<FailedAttempt>,
    /// Why the request was not sent to another backend after it failed at one.
    pub not_repeated: Option<String>,
    pub moved: u32,
    pub hedged: u32,
    pub ended_seconds: u64,
    pub duration_ms: f64,
    pub queued_ms: Option<f64>,
    pub outcome: &'static str,
    /// What the same session would get now; `null` if that is not known.
    pub now: Option<WhyReport>,
    /// Why `now` is `null`.
    pub now_unknown: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct PastBackend {
    pub name: String,
    /// `open`, `unavailable`, `at-limit` or `tried`.
    pub seen: &'static str,
}

#[derive(Clone, Debug, Serialize)]
pub struct FailedAttempt {
    /// `null` for a backend of another pool, before the fallback, or beyond the first 15 of its pool.
    pub backend: Option<String>,
    /// See `failed` in the access log.
    pub fault: &'static str,
    /// What the backend did.
    pub words: &'static str,
}

/// Says that a request was not sent again because it could be executed twice. A session that has ended well had the
/// response of a backend after those that failed.
fn not_repeated(session: &PastSession) -> Option<String> {
    let method = session.method.as_deref()?;
    let (_, fault) = session.failed.last()?;
    let is_sent = matches!(fault, Fault::Closed | Fault::Timeout | Fault::Down | Fault::BadResponse);
    (is_sent
        && session.ending != Ending::Ok.word()
        && Idempotence::of(method) == Idempotence::NotIdempotent
        && session.status.is_some_and(|it| it >= 500))
    .then(|| {
        format!("{method} is not repeated: the backend had the request, and may have done what it asks for")
    })
}

impl PastReport {
    /// `now` is what the same session would get, or why that is not known.
    pub fn read(session: PastSession, now: Result<WhyReport, String>) -> Self {
        let (now, now_unknown) = match now {
            Ok(now) => (Some(now), None),
            Err(why) => (None, Some(why)),
        };
        let ended = Instant::now().saturating_duration_since(session.started + session.took);
        let backend = |(name, seen): &(std::sync::Arc<str>, Seen)| PastBackend {
            name: name.to_string(),
            seen: seen.word(),
        };
        let not_repeated = not_repeated(&session);
        let failed = session.failed.iter().map(|(backend, fault)| FailedAttempt {
            backend: backend.as_ref().map(|name| name.to_string()),
            fault: fault.word(),
            words: fault.words(),
        });
        Self {
            failed: failed.collect(),
            not_repeated,
            request_id: session.id,
            client: session.client.to_string(),
            listener: session.listener.to_string(),
            kind: match session.kind {
                Kind::Http => "http",
                Kind::Tcp => "tcp",
                Kind::Udp => "udp",
            },
            method: session.method,
            host: session.host,
            target: session.target,
            target_cut: session.is_target_cut,
            status: session.status,
            pool: session.pool.map(|name| name.to_string()),
            backend: session.backend.map(|name| name.to_string()),
            chosen: session.how.word(),
            backends: session.backends.iter().map(backend).collect(),
            attempts: session.attempts,
            moved: session.moved,
            hedged: session.hedged,
            ended_seconds: ended.as_secs(),
            duration_ms: milliseconds(session.took),
            queued_ms: session.queued.map(milliseconds),
            outcome: session.ending,
            now,
            now_unknown,
        }
    }
}

/// A backend of which only the fault was kept.
const NOT_NOTED: &str = "a backend that was not noted (of another pool, or beyond the first 15)";

/// The session for people.
pub fn text(report: &PastReport) -> String {
    let mut out = String::new();
    let id = report.request_id.as_deref().unwrap_or("without a request id");
    let ended = units::ago(Duration::from_secs(report.ended_seconds));
    let took = units::duration(Duration::from_secs_f64(report.duration_ms / 1e3));
    push_line(&mut out, &format!("session   {}, ended {ended}, after {took}", line(id)));
    push_line(&mut out, &format!("client    {}", line(&report.client)));
    push_line(&mut out, &format!("listener  {} ({})", line(&report.listener), report.kind));
    if let (Some(method), Some(target)) = (&report.method, &report.target) {
        let cut = if report.target_cut { "..." } else { "" };
        let host = report.host.as_deref().unwrap_or_default();
        push_line(&mut out, &format!("request   {} {}{}{cut}", line(method), line(host), line(target)));
    }
    if let Some(pool) = &report.pool {
        push_line(&mut out, &format!("pool      {}", line(pool)));
    }
    if let Some(queued) = report.queued_ms {
        let queued = units::duration(Duration::from_secs_f64(queued / 1e3));
        push_line(&mut out, &format!("queue     it waited {queued} for a backend"));
    }
    if let Some(backend) = &report.backend {
        push_line(&mut out, &format!("backend   {}: {}", line(backend), how(report)));
        let mut table = Table::indented("  ");
        for one in &report.backends {
            table.row([line(&one.name), seen(report, one)]);
        }
        out.push_str(&table.render());
    }
    if !report.failed.is_empty() {
        push_line(&mut out, "failed    at these backends, in this order:");
        let mut table = Table::indented("  ");
        for one in &report.failed {
            let name = one.backend.as_deref().map_or(NOT_NOTED.to_owned(), line);
            table.row([name, one.words.to_owned()]);
        }
        out.push_str(&table.render());
        if let Some(why) = &report.not_repeated {
            push_line(&mut out, &format!("  {}", line(why)));
        }
    }
    let status = report.status.map_or(String::new(), |status| format!(", status {status}"));
    push_line(&mut out, &format!("outcome   {}{status}", report.outcome));
    if let Some(now) = &report.now {
        push_line(&mut out, "\nThe same now, without its header lines:");
        out.push_str(&super::why::text(now));
    }
    if let Some(why) = &report.now_unknown {
        push_line(&mut out, &format!("\nWhat the same would get now is not known: {}", line(why)));
    }
    out
}

fn how(report: &PastReport) -> String {
    let mut all = Vec::new();
    if report.chosen == How::Remembered.word() {
        all.push("the sticky table, or its cookie, named it for the client".to_owned());
    } else {
        all.push("chosen by the policy of the pool".to_owned());
    }
    if report.attempts > 1 {
        all.push(format!("attempt {}", report.attempts));
    }
    if report.moved > 0 {
        all.push(format!("left {} that went down", units::count(report.moved as usize, "backend")));
    }
    if report.hedged > 0 {
        all.push("sent to two because the first was slow".to_owned());
    }
    all.join(", ")
}

/// What was to be said of a backend at the choice.
fn seen(report: &PastReport, one: &PastBackend) -> String {
    match one.seen {
        _ if report.backend.as_deref() == Some(&one.name) => "chosen".to_owned(),
        "open" => "could have taken it".to_owned(),
        "unavailable" => "was down, ejected or draining, had weight 0 (penstock ctl events), was on standby, or denied the client".to_owned(),
        "at-limit" => "was at its limit".to_owned(),
        _ => "had failed in this session".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn posted(status: u16, ending: Ending, failed: &[(Option<&str>, Fault)]) -> PastSession {
        let failed = failed.iter().map(|(backend, fault)| (backend.map(Into::into), *fault));
        PastSession {
            id: None,
            client: logic::peers::Peer::Unix,
            listener: "web".into(),
            kind: Kind::Http,
            method: Some("POST".to_owned()),
            host: None,
            target: Some("/".to_owned()),
            is_target_cut: false,
            status: Some(status),
            pool: Some("app".into()),
            backend: Some("two".into()),
            how: How::Picked,
            backends: Vec::new(),
            attempts: 2,
            failed: failed.collect(),
            moved: 1,
            hedged: 0,
            started: Instant::now(),
            took: Duration::ZERO,
            queued: None,
            ending: ending.word(),
        }
    }

    #[test]
    fn a_response_of_another_backend_is_none_of_a_request_that_was_not_repeated() {
        let down = [(Some("one"), Fault::Down)];
        let report = |session| PastReport::read(session, Err("no listener".to_owned()));
        assert!(report(posted(504, Ending::BackendTimeout, &down)).not_repeated.is_some());
        // The connection to the first was not there yet when it went down: the second had the request, and answered.
        assert_eq!(report(posted(500, Ending::Ok, &down)).not_repeated, None);
    }

    #[test]
    fn a_backend_without_a_name_is_said_to_be_none_that_was_noted() {
        let session = posted(502, Ending::BackendClosed, &[(None, Fault::Closed)]);
        let text = text(&PastReport::read(session, Err("it is gone".to_owned())));
        assert!(text.ends_with("\nWhat the same would get now is not known: it is gone\n"), "{text}");
        assert!(
            text.contains("a backend that was not noted (of another pool, or beyond the first 15)"),
            "{text}"
        );
    }
}
