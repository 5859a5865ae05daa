//! The report as tables for people: degraded things first, and nothing from outside can steer the terminal.

use std::fmt::Write as _;
use std::time::Duration;

use logic::elapsed;

use super::descriptors::Descriptors;
use super::{AdmissionReport, BackendReport, Counters, ListenerReport, Phase, PoolReport, Status};
use crate::events::{Event, Level};
use crate::plural::plural;

/// The whole status.
pub fn status(status: &Status) -> String {
    let mut out = String::new();
    let phase = match status.phase {
        Phase::Serving => "serving",
        Phase::Draining => "DRAINING",
    };
    let uptime = Duration::from_secs(status.uptime_seconds);
    let limit = status.connections.max.map_or(String::new(), |max| format!(" of {max}"));
    push_line(
        &mut out,
        &format!(
            "penstock {}, pid {}, {phase} {}, generation {}, {}, {}{limit} connections",
            status.version,
            status.pid,
            elapsed::lasting(uptime, || duration(uptime)),
            status.generation,
            plural(status.workers, "worker"),
            status.connections.now,
        ),
    );
    descriptors(&mut out, &status.descriptors);
    if !status.degraded.is_empty() {
        push_line(&mut out, &format!("\nDEGRADED ({})", status.degraded.len()));
        let mut table = Table::default();
        for degraded in &status.degraded {
            table.row([printable(&degraded.subject), printable(&degraded.reason)]);
        }
        table.render(&mut out);
    }
    push_line(&mut out, "\nLISTENERS");
    listeners(&mut out, &status.listeners);
    pools_into(&mut out, &status.pools);
    counters(&mut out, &status.counters);
    out
}

/// Pools with their backends; the backends that do not serve come first and say why.
pub fn pools(pools: &[PoolReport]) -> String {
    let mut out = String::new();
    pools_into(&mut out, pools);
    out.trim_start_matches('\n').to_owned()
}

/// One event as a line without its end.
pub fn event(event: &Event) -> String {
    let level = match event.level {
        Level::Info => "info",
        Level::Warning => "warning",
        Level::Error => "error",
    };
    format!("{} {level:<7} {}: {}", event.at, printable(&event.subject), printable(&event.message))
}

/// `text` on one line, with everything escaped that a terminal could obey or that reverses the reading order.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        // Cc is what terminals obey; the others are zero-width marks, line separators and bidirectional overrides.
        let hidden = matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
        if char.is_control() || hidden {
            out.extend(char.escape_default());
        } else {
            out.push(char);
        }
    }
    out
}

/// A duration as people say it: `850 us`, `12.5 ms`, `3 s`, `4 min 5 s`, `3 h 12 min`, `5 d 3 h`.
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 if duration.as_micros() == 0 => "<1 us".to_owned(),
        0 if duration.as_micros() < 1000 => format!("{} us", duration.as_micros()),
        0 => format!("{:.1} ms", duration.as_secs_f64() * 1e3),
        1..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// A byte count with a binary unit: `512 B`, `1.5 KiB`, `23.0 GiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

fn descriptors(out: &mut String, descriptors: &Descriptors) {
    let Some(limit) = descriptors.limit else { return };
    let open = descriptors.open.map_or(String::new(), |open| format!("{open} open of "));
    let kinds: Vec<_> = descriptors
        .places
        .kinds()
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(kind, count)| format!("{kind} {count}"))
        .collect();
    let kinds = if kinds.is_empty() { String::new() } else { format!(": {}", kinds.join(", ")) };
    push_line(
        out,
        &format!(
            "descriptors: {open}{limit}; {} kept back; traffic has {} of {}{kinds}",
            descriptors.reserve, descriptors.taken, descriptors.traffic
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
    let mut table = Table::default();
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
            printable(&listener.name),
            listener.protocol.to_owned(),
            printable(&bound),
            listener.connections.to_string(),
            listener.sessions.to_string(),
            statuses.success.to_string(),
            statuses.redirect.to_string(),
            statuses.client_error.to_string(),
            statuses.server_error.to_string(),
            bytes(listener.bytes_in),
            bytes(listener.bytes_out),
            milliseconds(listener.latency.p50_ms),
            milliseconds(listener.latency.p99_ms),
        ]);
    }
    table.render(out);
    for listener in listeners.iter().filter(|listener| !listener.endings.is_empty()) {
        let endings: Vec<_> =
            listener.endings.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        push_line(
            out,
            &format!("  {}: not ended well: {}", printable(&listener.name), printable(&endings.join(", "))),
        );
    }
}

fn pools_into(out: &mut String, pools: &[PoolReport]) {
    for pool in pools {
        let waiting = if pool.waiting == 0 { String::new() } else { format!(", {} waiting", pool.waiting) };
        push_line(
            out,
            &format!(
                "\nPOOL {} ({}): {} of {} available{waiting}",
                printable(&pool.name),
                pool.balance,
                pool.available,
                plural(pool.backends.len(), "backend"),
            ),
        );
        let mut backends: Vec<_> = pool.backends.iter().collect();
        backends.sort_by_key(|backend| rank(backend));
        let mut table = Table::default();
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
            "last verdict",
        ]);
        for backend in backends {
            table.row(backend_row(backend));
        }
        table.render(out);
    }
}

/// Those that do not serve come first.
fn rank(backend: &BackendReport) -> u8 {
    match (backend.state, backend.admission) {
        ("down", _) => 0,
        ("ejected", _) => 1,
        (_, AdmissionReport::Draining) => 2,
        ("unchecked", _) => 3,
        _ => 4,
    }
}

fn backend_row(backend: &BackendReport) -> [String; 11] {
    let state = match backend.admission {
        AdmissionReport::Ready => backend.state.to_owned(),
        AdmissionReport::Draining => format!("{}, draining", backend.state),
    };
    let since = Duration::from_secs(backend.state_seconds);
    let weight = match backend.weight_override {
        Some(weight) => format!("{weight} (file: {})", backend.weight),
        None => backend.weight.to_string(),
    };
    let now = match backend.max_connections {
        Some(max) => format!("{}/{max}", backend.in_flight),
        None => backend.in_flight.to_string(),
    };
    let verdict = backend.last_verdicts.first().map_or("-".to_owned(), |verdict| {
        format!("{}: {} ({})", verdict.source, printable(&verdict.cause), verdict.at)
    });
    [
        printable(&backend.name),
        state,
        elapsed::or_just_now(since, || duration(since)),
        weight,
        now,
        backend.sessions.to_string(),
        backend.failures.to_string(),
        backend.retries.to_string(),
        milliseconds(backend.latency.p50_ms),
        milliseconds(backend.latency.p99_ms),
        verdict,
    ]
}

fn counters(out: &mut String, counters: &Counters) {
    let rare: Vec<_> = [
        ("idle connections closed to make room", counters.evicted),
        ("pauses in accepting", counters.accept_pauses),
        ("log lines dropped", counters.log_lines_dropped),
        ("log lines not written", counters.log_lines_failed),
        ("sessions ended by a panic", counters.panics),
        ("reloads refused", counters.reloads_refused),
    ]
    .into_iter()
    .filter(|(_, count)| *count > 0)
    .collect();
    if rare.is_empty() {
        return;
    }
    push_line(out, "\nSINCE THE START");
    let mut table = Table::default();
    for (name, count) in rare {
        table.row([name.to_owned(), count.to_string()]);
    }
    table.render(out);
}

fn milliseconds(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| duration(Duration::from_secs_f64(value / 1e3)))
}

pub(super) fn push_line(out: &mut String, line: &str) {
    out.push_str(line);
    out.push('\n');
}

/// Columns as wide as their widest cell.
#[derive(Default)]
pub(super) struct Table {
    alignment: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// The first row. A `>` before a name aligns its column to the right.
    pub(super) fn header<const N: usize>(&mut self, names: [&str; N]) {
        self.alignment =
            names.iter().map(|name| if name.starts_with('>') { Align::Right } else { Align::Left }).collect();
        self.row(names.map(|name| name.trim_start_matches('>')));
    }

    pub(super) fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    pub(super) fn render(self, out: &mut String) {
        let count = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let mut columns: Vec<(Align, usize)> =
            (0..count).map(|at| (self.alignment.get(at).copied().unwrap_or(Align::Left), 0)).collect();
        for row in &self.rows {
            for (column, cell) in columns.iter_mut().zip(row) {
                column.1 = column.1.max(cell.chars().count());
            }
        }
        for row in &self.rows {
            let mut line = String::from("  ");
            for ((align, width), cell) in columns.iter().zip(row) {
                // Writing to a String cannot fail.
                let _ = match align {
                    Align::Left => write!(line, "{cell:<width$}  "),
                    Align::Right => write!(line, "{cell:>width$}  "),
                };
            }
            push_line(out, line.trim_end());
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Align {
    Left,
    Right,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_from_outside_steers_the_terminal() {
        assert_eq!(printable("a\x1b[31mb\r\nc\u{202e}d\u{9b}"), "a\\u{1b}[31mb\\r\\nc\\u{202e}d\\u{9b}");
        assert_eq!(printable("größer/ünïcode"), "größer/ünïcode");
    }

    #[test]
    fn durations_and_sizes_read_well() {
        let said = [400, 12_500, 3_000_000, 245_000_000, 11_520_000_000, 442_800_000_000]
            .map(|micros| duration(Duration::from_micros(micros)));
        assert_eq!(said, ["400 us", "12.5 ms", "3 s", "4 min 5 s", "3 h 12 min", "5 d 3 h"]);
        assert_eq!(duration(Duration::ZERO), "<1 us", "a latency below the unit");
        assert_eq!([0, 1023, 1536, u64::MAX].map(bytes), ["0 B", "1023 B", "1.5 KiB", "16.0 EiB"]);
    }

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::default();
        table.header(["name", ">count"]);
        table.row(["a long name", "7"]);
        table.row(["b", "1234567"]);
        let mut out = String::new();
        table.render(&mut out);
        assert_eq!(out, "  name           count\n  a long name        7\n  b            1234567\n");
    }

    #[test]
    fn only_a_header_says_how_its_column_is_aligned() {
        let mut table = Table::default();
        table.row([">x"]);
        table.row([">y"]);
        let mut out = String::new();
        table.render(&mut out);
        assert_eq!(out, "  >x\n  >y\n");
    }
}
