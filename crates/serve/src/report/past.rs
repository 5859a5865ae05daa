//! A session that has ended, for `penstock ctl why --session`.

use std::time::{Duration, Instant};

use logic::access_log::Kind;
use logic::balance::view::{How, Seen};
use proxy::past::PastSession;
use serde::Serialize;
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
    pub moved: u32,
    pub hedged: u32,
    pub ended_seconds: u64,
    pub duration_ms: f64,
    pub queued_ms: Option<f64>,
    pub outcome: &'static str,
    /// What the same session would get now; `null` if too little was kept.
    pub now: Option<WhyReport>,
}

#[derive(Clone, Debug, Serialize)]
pub struct PastBackend {
    pub name: String,
    /// `open`, `unavailable`, `at-limit` or `tried`.
    pub seen: &'static str,
}

impl PastReport {
    pub fn read(session: PastSession, now: Option<WhyReport>) -> Self {
        let ended = Instant::now().saturating_duration_since(session.started + session.took);
        let backend = |(name, seen): &(std::sync::Arc<str>, Seen)| PastBackend {
            name: name.to_string(),
            seen: seen.word(),
        };
        Self {
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
        }
    }
}

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
    let status = report.status.map_or(String::new(), |status| format!(", status {status}"));
    push_line(&mut out, &format!("outcome   {}{status}", report.outcome));
    if let Some(now) = &report.now {
        push_line(&mut out, "\nThe same now, without its header lines:");
        out.push_str(&super::why::text(now));
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
