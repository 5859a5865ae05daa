//! An answer to `why` for people: a line for each step, a table of the backends, and the result.

use std::time::Duration;

use text::table::Table;
use text::terminal::line;
use text::units;

use super::{
    Answer, AnswerOutcome, BackendStep, DeniedBy, FallbackReason, Found, ListenerStep, NearRoute, PoolStep,
    RouteStep, Step, StickyStep, WhyReport,
};
use crate::report::tables::{condition, push_line};

pub fn text(report: &WhyReport) -> String {
    let mut out = String::new();
    if report.configuration == "pending" {
        push_line(&mut out, "pending   with the changes of the open transaction, which are not served");
    }
    for step in &report.steps {
        match step {
            Step::Listener(step) => listener(&mut out, step, report),
            Step::Refused(step) => {
                push_line(&mut out, &format!("request   refused: {} ({})", line(&step.detail), step.reason));
            }
            Step::AcmeChallenge => {
                push_line(
                    &mut out,
                    "request   the question of a certificate authority (ACME): answered at once",
                );
            }
            Step::OtpValidation => {
                push_line(
                    &mut out,
                    "request   a question about a one-time password: answered from the store of [otp]",
                );
            }
            Step::RedirectToHttps { port } => {
                push_line(
                    &mut out,
                    &format!("request   redirect-to-https: every request goes to port {port}"),
                );
            }
            Step::Route(step) => route(&mut out, step),
            Step::Denied { by, list, entry, pool } => {
                let (list, entry) = (list.as_deref(), entry.as_deref());
                push_line(&mut out, &denied(*by, list, entry, pool.as_deref()));
            }
            Step::Fallback { from, to, reason } => {
                let lacks = match reason {
                    FallbackReason::Unavailable => "no available backend",
                    FallbackReason::Denied => "no backend for this client",
                };
                let (from, to) = (line(from), line(to));
                push_line(&mut out, &format!("pool      {from} has {lacks}: its fallback serves, {to}"));
            }
            Step::Loop => push_line(&mut out, "request   it has passed through Penstock too often: a loop"),
            Step::Pool(step) => pool(&mut out, step, &report.client),
        }
    }
    push_line(&mut out, &result(&report.result));
    out
}

fn listener(out: &mut String, step: &ListenerStep, report: &WhyReport) {
    let found = match step.found {
        Found::ByName => "as asked",
        Found::ByPort => "found by its port",
        Found::OnlyOne => "no listener has this port; the only one of its protocol",
    };
    let country = report.country.as_ref().map_or(String::new(), |country| format!(" ({country})"));
    push_line(out, &format!("client    {}{country}", line(&report.client)));
    push_line(out, &format!("listener  {} ({}): {found}", line(&step.name), step.protocol));
    if let Some(most) = step.max_connections.filter(|most| step.connections >= *most) {
        push_line(
            out,
            &format!("          it has {} of {most} connections: no new one now", step.connections),
        );
    }
}

fn denied(by: DeniedBy, list: Option<&str>, entry: Option<&str>, pool: Option<&str>) -> String {
    let whose = match by {
        DeniedBy::Listener => "of the listener",
        DeniedBy::Route => "of the route",
    };
    let goes = pool.map_or(String::new(), |pool| format!(": it goes to denied-pool {}", line(pool)));
    let name = list.map_or(String::new(), |list| format!(", [acl.{}],", line(list)));
    let decides = entry.map_or("its default".to_owned(), line);
    format!("denied    the access list {whose}{name} denies the client ({decides}){goes}")
}

fn route(out: &mut String, step: &RouteStep) {
    let leads_to = line(step.leads_to.as_deref().unwrap_or_default());
    let others = match step.others {
        0 => String::new(),
        others => format!("; {}", units::count_of(others, "other does not match", "others do not match")),
    };
    let said = match (step.decided_by, step.number, &step.conditions) {
        ("route", Some(number), Some(conditions)) => {
            format!("route     {number}: {} -> {leads_to}{others}", line(conditions))
        }
        ("default-pool", ..) if step.near.is_empty() && step.others == 0 => {
            format!("route     none configured -> {leads_to}")
        }
        ("default-pool", ..) => format!("route     none matches -> {leads_to}, the default{others}"),
        ("ambiguous-path", ..) => {
            let why = step.ambiguity.as_deref().unwrap_or_default();
            format!("route     {}: programs could read it in two ways", line(why))
        }
        _ => format!("route     none matches, and the listener has no default pool{others}"),
    };
    push_line(out, &said);
    for near in &step.near {
        push_line(
            out,
            &format!(
                "  nearly  {}: {} -> {}: {}",
                near.number,
                line(&near.conditions),
                line(&near.leads_to),
                missed(near)
            ),
        );
    }
}

fn missed(near: &NearRoute) -> String {
    match near.missed_by {
        "too-late" => "matches, but comes later".to_owned(),
        "header" => format!("not with this header {}", line(near.header.as_deref().unwrap_or_default())),
        other => format!("another {other}"),
    }
}

fn pool(out: &mut String, step: &PoolStep, client: &str) {
    let hash = match (&step.hash_key, &step.key) {
        (Some(by), Some(key)) => format!(" by {}, hash {key}", line(by)),
        _ => String::new(),
    };
    push_line(out, &format!("pool      {} ({}{hash})", line(&step.name), step.balance));
    if let Some(owner) = &step.owner {
        push_line(out, &format!("owner     {}: the key is its own while all backends are up", line(owner)));
    }
    if let Some(step) = &step.sticky {
        push_line(out, &sticky(step, client));
    }
    if step.fails_open {
        push_line(out, "health    none is healthy: all of them are used (all-down = \"fail-open\")");
    }
    if step.waiting > 0 {
        push_line(out, &format!("queue     {} wait already, of at most {}", step.waiting, step.queue));
    }
    let mut table = Table::indented("  ");
    for backend in &step.backends {
        table.row([line(&backend.name), line(&reasons(backend))]);
    }
    out.push_str(&table.render());
    for choice in &step.workers {
        let backend = choice.backend.as_deref().map_or("none".to_owned(), line);
        push_line(out, &format!("worker {}  would choose {backend}", choice.worker));
    }
}

fn sticky(step: &StickyStep, client: &str) -> String {
    if step.by == "cookie" {
        return match (&step.backend, step.known) {
            (Some(backend), _) => {
                let gone = if step.used { "" } else { ", which takes no session now" };
                format!("sticky    the cookie names {}{gone}", line(backend))
            }
            (None, true) => "sticky    the cookie names no backend: it is ignored and replaced".to_owned(),
            (None, false) => "sticky    no cookie: a new client".to_owned(),
        };
    }
    let client = line(client);
    match (&step.backend, step.seen_seconds, step.used) {
        (Some(backend), Some(seen), used) => {
            let gone = if used { "" } else { ", which takes no session now" };
            let seen = units::ago(Duration::from_secs(seen));
            format!("sticky    {client} has {}, last seen {seen}{gone}", line(backend))
        }
        (None, Some(_), _) => format!("sticky    the backend of {client} has left the pool"),
        _ => format!("sticky    {client} is not known: a new client"),
    }
}

fn reasons(backend: &BackendStep) -> String {
    let all: Vec<String> = backend.reasons.iter().map(|reason| words(backend, reason)).collect();
    let start = if backend.slow_start { ", in slow start" } else { "" };
    let share = backend.share.filter(|share| *share > 0.0);
    let share = share.map_or(String::new(), |share| format!(": {:.0} % of the sessions", share * 100.0));
    format!("{}{share}{start}", all.join("; "))
}

/// Says why a backend gets the session or not.
fn words(backend: &BackendStep, reason: &str) -> String {
    match reason {
        "down" | "ejected" => {
            let Some(down) = &backend.down else { return reason.to_owned() };
            let since = units::lasting(Duration::from_secs(down.state_seconds));
            let cause = down.cause.as_ref().map_or(String::new(), |cause| format!(": {cause}"));
            let returns =
                down.returns_after.map_or(String::new(), |needed| format!("; returns {}", condition(needed)));
            format!("{reason} {since}{cause}{returns}")
        }
        "half-open" => "half-open: it has all the sessions that it may have on trial".to_owned(),
        "draining" => match &backend.drained {
            Some(drain) => {
                let ago = units::ago(Duration::from_secs(drain.seconds));
                let left = drain.seconds_left.map(|left| units::duration(Duration::from_secs(left.max(1))));
                let left = left.map_or(String::new(), |left| format!(", for {left} more"));
                format!("draining: by {}, {ago}{left}", drain.by)
            }
            None => reason.to_owned(),
        },
        "weight-zero" => "weight 0".to_owned(),
        "at-limit" => {
            let most = backend.max_connections.unwrap_or_default();
            format!("at its limit: {} of {most} sessions", backend.in_flight)
        }
        "at-soft-limit" => {
            let most = backend.soft_max_connections.unwrap_or_default();
            format!("at its soft limit: {} of {most} sessions, only clients that it knows", backend.in_flight)
        }
        "denied" => "its access list denies the client".to_owned(),
        "standby" => format!("standby: priority {}, and a lower number has room", backend.priority),
        "slower" => "slower, by its response time and sessions".to_owned(),
        "above-bound" => "above its share of the sessions (balance-bound)".to_owned(),
        "client-of-another" => "another backend has this client".to_owned(),
        "not-its-turn" => format!("not its turn ({})", units::count(backend.in_flight as usize, "session")),
        "busier" => format!("busier: {}", units::count(backend.in_flight as usize, "session")),
        "not-the-owner" => "the key belongs to another backend".to_owned(),
        other => other.to_owned(),
    }
}

fn result(result: &Answer) -> String {
    let status = result.status.map_or(String::new(), |status| format!(" {status}"));
    match result.outcome {
        AnswerOutcome::Backend => {
            format!("=> backend {}", line(result.backend.as_deref().unwrap_or_default()))
        }
        AnswerOutcome::OneOfSeveral => {
            "=> one of the chosen backends: the worker that accepts it, or chance, decides".to_owned()
        }
        AnswerOutcome::Queue => "=> it waits in the queue of the pool".to_owned(),
        AnswerOutcome::QueueFull => {
            format!("=> refused{status}: every backend is at its limit, and nothing more may wait")
        }
        AnswerOutcome::NoBackend => format!("=> refused{status}: no backend takes sessions"),
        AnswerOutcome::Redirect | AnswerOutcome::Penstock => {
            let location = result.location.as_ref().map_or(String::new(), |to| format!(" to {}", line(to)));
            format!("=> penstock itself answers{status}{location}")
        }
        AnswerOutcome::Denied => "=> refused: an access list denies the client".to_owned(),
        AnswerOutcome::Tarpit => {
            "=> held without a byte (tarpit): an access list denies the client".to_owned()
        }
        AnswerOutcome::Closed => "=> closed: no route for this server name".to_owned(),
        AnswerOutcome::Refused => format!("=> refused{status}"),
        AnswerOutcome::NotExplained => {
            "=> not explained: a dsr listener forwards packets, and only their worker knows the flows"
                .to_owned()
        }
    }
}
