//! The report as tables for people: degraded parts first; control characters in text from outside are escaped.

use std::time::Duration;

use state::Admission;
use state::events::{Event, Level};
use text::table::Table;
use text::terminal::{escaped, line};
use text::units;
use text::wrap::wrapped;

use super::descriptors::Descriptors;
use super::{BackendReport, Counters, ListenerReport, Phase, PoolReport, ReturnReport, Status};

pub fn status(status: &Status) -> String {
    let mut out = String::new();
    let uptime = Duration::from_secs(status.uptime_seconds);
    let phase = match status.phase {
        Phase::Serving => format!("serving {}", units::lasting(uptime)),
        Phase::Draining => format!("started {}", units::ago(uptime)),
    };
    let limit = status.connections.max.map_or(String::new(), |max| format!(" of {max}"));
    push_line(
        &mut out,
        &format!(
            "penstock {}, pid {}, {phase}, generation {}, {}, {}{limit} connections",
            status.version,
            status.pid,
            status.generation,
            units::count(status.workers, "worker"),
            status.connections.now,
        ),
    );
    if let Some(stopping) = &status.stopping {
        push_line(&mut out, &stopping.words());
    }
    if status.unsaved_changes > 0 {
        let unsaved = units::count(status.unsaved_changes, "unsaved change");
        let advice = match status.phase {
            Phase::Serving => "`penstock ctl diff` shows, `penstock ctl save` writes the file",
            Phase::Draining => {
                "`penstock ctl show` has what is served; the next process begins with the file"
            }
        };
        push_line(&mut out, &format!("{unsaved}: {advice}"));
    }
    for pending in &status.pending.lines {
        push_line(&mut out, &line(pending));
    }
    descriptors(&mut out, &status.descriptors);
    push_line(&mut out, &line(&status.confinement.line()));
    if let Some(engine) = status.engine.line() {
        push_line(&mut out, &line(&engine));
    }
    if let Some(older) = &status.older {
        push_line(&mut out, &line(&older.line()));
    }
    for stored in status.stored_lines() {
        push_line(&mut out, &line(&stored));
    }
    if !status.degraded.is_empty() {
        push_line(&mut out, &format!("\nDEGRADED ({})", status.degraded.len()));
        let mut table = Table::indented("  ");
        for degraded in &status.degraded {
            table.row([line(&degraded.subject), line(&degraded.reason)]);
        }
        out.push_str(&table.render());
    }
    push_line(&mut out, "\nLISTENERS");
    listeners(&mut out, &status.listeners);
    pools_into(&mut out, &status.pools, 1);
    counters(&mut out, &status.counters);
    out
}

/// Lists pools with their backends and the last verdicts. Backends that do not serve come first.
pub fn pools(pools: &[PoolReport]) -> String {
    let mut out = String::new();
    pools_into(&mut out, pools, 3);
    out.trim_start_matches('\n').to_owned()
}

/// Formats one event without its last newline. Further lines of its message are indented.
pub fn event(event: &Event) -> String {
    let level = match event.level {
        Level::Info => "info",
        Level::Warning => "warning",
        Level::Error => "error",
    };
    let message: Vec<_> = event.message.lines().map(line).collect();
    format!("{} {level:<7} {}: {}", event.at, line(&event.subject), message.join("\n    "))
}

fn descriptors(out: &mut String, descriptors: &Descriptors) {
    let Some(limit) = descriptors.limit else { return };
    let open = descriptors.open.map_or(String::new(), |open| format!("{open} open of "));
    let kinds: Vec<_> = descriptors
        .by_use
        .kinds()
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(kind, count)| format!("{kind} {count}"))
        .collect();
    let kinds = if kinds.is_empty() { String::new() } else { format!(": {}", kinds.join(", ")) };
    push_line(
        out,
        &format!(
            "descriptors: {open}{limit}; {} reserved; traffic uses {} of {}{kinds}",
            descriptors.reserve, descriptors.used, descriptors.traffic_limit
        ),
    );
    let refused: Vec<_> = descriptors
        .refused
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(reason, count)| format!("{reason} {count}"))
        .collect();
    if !refused.is_empty() {
        push_line(out, &format!("descriptors refused: {}", refused.join(", ")));
    }
}

fn listeners(out: &mut String, listeners: &[ListenerReport]) {
    let mut table = Table::indented("  ");
    table.header([
        "name",
        "protocol",
        "bound",
        ">now",
        ">sessions",
        ">2xx",
        ">3xx",
        ">4xx",
        ">5xx",
        ">in",
        ">out",
        ">p50",
        ">p99",
    ]);
    for listener in listeners {
        let bound = if listener.bound.is_empty() { "-".to_owned() } else { listener.bound.join(" ") };
        let statuses = &listener.statuses;
        table.row([
            line(&listener.name),
            listener.protocol.to_owned(),
            line(&bound),
            listener.connections.to_string(),
            listener.sessions.to_string(),
            statuses.success.to_string(),
            statuses.redirect.to_string(),
            statuses.client_error.to_string(),
            statuses.server_error.to_string(),
            units::bytes(listener.bytes_in),
            units::bytes(listener.bytes_out),
            milliseconds(listener.latency.p50_ms),
            milliseconds(listener.latency.p99_ms),
        ]);
    }
    out.push_str(&table.render());
    for listener in listeners {
        let Some(hsts) = &listener.hsts else { continue };
        push_line(out, &format!("  {}: {}", line(&listener.name), line(&hsts.words())));
    }
    for listener in listeners.iter().filter(|listener| !listener.endings.is_empty()) {
        let endings: Vec<_> =
            listener.endings.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        push_line(
            out,
            &format!("  {}: ended with an error: {}", line(&listener.name), line(&endings.join(", "))),
        );
    }
}

fn pools_into(out: &mut String, pools: &[PoolReport], most: usize) {
    for pool in pools {
        let queued = if pool.queued == 0 { String::new() } else { format!(", {} queued", pool.queued) };
        let fallback = match &pool.fallback {
            Some(fallback) if fallback.sessions > 0 || pool.available == 0 => {
                let sessions = units::count_of(fallback.sessions as usize, "session", "sessions");
                format!(", {sessions} to fallback {}", line(&fallback.pool))
            }
            _ => String::new(),
        };
        push_line(
            out,
            &format!(
                "\nPOOL {} ({}): {}{queued}{fallback}{}",
                line(&pool.name),
                pool.balance,
                pool.availability(),
                pool.limited(),
            ),
        );
        if let Some(queue) = pool.queue.line() {
            push_line(out, &wrapped("  ", "    ", &queue, WIDTH));
        }
        let mut backends: Vec<_> = pool.backends.iter().collect();
        backends.sort_by_key(|backend| rank(backend));
        let mut table = Table::indented("  ").widest_first(NAME);
        table.header([
            "backend",
            "state",
            "for",
            ">weight",
            ">now",
            ">sessions",
            ">failed",
            ">retried",
            ">p50",
            ">p99",
        ]);
        for backend in &backends {
            let mut row = backend_row(backend);
            if row[0].chars().count() > NAME {
                table.row([std::mem::take(&mut row[0])]);
            }
            table.row(row);
        }
        out.push_str(&table.render());
        for backend in backends {
            if let Some(needed) = backend.returns_after {
                let line = format!("  {} returns {}", escaped(&backend.name, WIDTH - 60), condition(needed));
                push_line(out, &line);
            }
            for probe in backend.services.iter().filter(|probe| probe.vip.state == "down") {
                let start = format!("  {} ", escaped(&backend.name, WIDTH - 60));
                push_line(out, &wrapped(&start, "      ", &probe.line(), WIDTH));
            }
            verdicts(out, backend, most);
        }
    }
}

/// Says when an ejected backend returns.
pub(super) fn condition(needed: ReturnReport) -> String {
    let time = (needed.seconds > 0)
        .then(|| format!("after {}", units::duration(Duration::from_secs(needed.seconds))));
    let checks = (needed.passes > 0).then(|| {
        let checks = units::count(needed.passes as usize, "check");
        format!("when {checks} in a row {}", if needed.passes == 1 { "passes" } else { "pass" })
    });
    let all: Vec<_> = time.into_iter().chain(checks).collect();
    if all.is_empty() { "now".to_owned() } else { all.join(" and ") }
}

/// Lists the newest `most` verdicts of a backend, in lines of at most [`WIDTH`] characters.
fn verdicts(out: &mut String, backend: &BackendReport, most: usize) {
    if backend.last_verdicts.is_empty() {
        return;
    }
    push_line(out, &format!("  last of {}:", escaped(&backend.name, WIDTH - 12)));
    for verdict in backend.last_verdicts.iter().take(most) {
        // Milliseconds do not matter here, and JSON has them.
        let at = verdict.at.split_once('.').map_or(verdict.at.clone(), |(second, _)| format!("{second}Z"));
        let start = format!("    {at}  {}  {}  ", verdict.source, verdict.outcome);
        push_line(out, &wrapped(&start, "      ", &line(&verdict.cause), WIDTH));
    }
}

/// Width of a terminal in which a line of a usual backend needs no second one.
pub(super) const WIDTH: usize = 100;

/// A longer name of a backend has a line of its own, so that the others stay within [`WIDTH`].
const NAME: usize = 23;

/// Sort key: backends that do not serve come first.
pub(super) fn rank(backend: &BackendReport) -> u8 {
    match (backend.state, backend.admission) {
        ("down", _) => 0,
        ("ejected", _) => 1,
        _ if backend.lacks_vip() => 1,
        ("half-open", _) => 2,
        (_, Admission::Draining) => 3,
        ("unchecked", _) => 4,
        _ => 5,
    }
}

fn backend_row(backend: &BackendReport) -> [String; 10] {
    let since = Duration::from_secs(backend.state_seconds);
    let weight = match backend.weight_override {
        Some(weight) => format!("{weight} (file: {})", backend.weight),
        None => backend.weight.to_string(),
    };
    let now = match backend.max_connections {
        Some(max) => format!("{}/{max}", backend.in_flight),
        None => backend.in_flight.to_string(),
    };
    [
        line(&backend.name),
        backend.standing(),
        units::or_just_now(since),
        weight,
        now,
        backend.sessions.to_string(),
        backend.failures.to_string(),
        backend.retries.to_string(),
        milliseconds(backend.latency.p50_ms),
        milliseconds(backend.latency.p99_ms),
    ]
}

/// Counts of rare events that happened.
pub(super) fn rare(counters: &Counters) -> Vec<(&'static str, u64)> {
    [
        ("idle client connections closed to make room", counters.idle_clients_closed),
        ("pauses in accepting connections", counters.accept_pauses),
        ("log lines dropped", counters.log_lines_dropped),
        ("log lines not written", counters.log_lines_failed),
        ("log lines left out, of clients turned away", counters.log_lines_left_out),
        ("admin clients denied", counters.admin_clients_denied),
        ("sessions ended by a panic", counters.panics),
        ("reloads refused", counters.reloads_refused),
    ]
    .into_iter()
    .filter(|(_, count)| *count > 0)
    .collect()
}

fn counters(out: &mut String, counters: &Counters) {
    let rare = rare(counters);
    if rare.is_empty() {
        return;
    }
    push_line(out, "\nTOTALS");
    let mut table = Table::indented("  ");
    for (name, count) in rare {
        table.row([name.to_owned(), count.to_string()]);
    }
    out.push_str(&table.render());
}

pub(super) fn milliseconds(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| units::duration(Duration::from_secs_f64(value / 1e3)))
}

pub(super) fn push_line(out: &mut String, line: &str) {
    out.push_str(line);
    out.push('\n');
}
