//! The demo's live table, from two readings of the status and the results of the demo's own requests. On a terminal it
//! is drawn in place; elsewhere it is an occasional line. At most 80 columns wide.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use text::terminal::plain;
use text::units;

use crate::status::{Latency, Sample, Status};
use crate::traffic::Window;

/// The table, with the previous reading.
#[derive(Debug)]
pub struct Table {
    /// Names of the backends by their addresses.
    names: Vec<(String, &'static str)>,
    before: Option<(Instant, Status)>,
    view: View,
    notes: Vec<String>,
    /// Number of lines that the last drawing took.
    drawn: usize,
    /// Time and state of the last line for a log.
    said: Option<(Instant, LoggedState)>,
}

/// State whose change causes a new line in a log. Rates and times are left out, since they change all the time.
#[derive(Debug, PartialEq, Eq)]
struct LoggedState {
    requests: u64,
    failed: Option<u64>,
    health: Vec<String>,
    trouble: Option<String>,
}

#[derive(Clone, Debug, Default)]
struct View {
    uptime: u64,
    requests: u64,
    rate: Option<f64>,
    connections: u64,
    degraded: usize,
    backends: Vec<Row>,
    clients: Option<Clients>,
    trouble: Option<String>,
}

#[derive(Clone, Debug)]
struct Row {
    name: String,
    health: String,
    seconds: u64,
    requests: u64,
    rate: Option<f64>,
    failures: u64,
    latency: Latency,
}

/// Results of the demo's own requests since the previous reading.
#[derive(Clone, Debug)]
struct Clients {
    answered: u64,
    failed: u64,
    failed_in_all: u64,
    latency: Latency,
}

impl Table {
    /// Creates an empty table. `names` has the names of backends by their addresses.
    pub fn new(names: Vec<(String, &'static str)>) -> Self {
        Self { names, before: None, view: View::default(), notes: Vec::new(), drawn: 0, said: None }
    }

    /// Adds a reading of the status, and the results of the demo's own requests since the previous reading.
    pub fn update(&mut self, sample: Sample, window: Option<Window>) {
        let failed_before = self.view.clients.as_ref().map_or(0, |clients| clients.failed_in_all);
        self.view.clients = window.map(|window| clients(&window, failed_before));
        match sample.status {
            Err(why) => self.view.trouble = Some(why),
            Ok(status) => {
                self.view.trouble = None;
                let before = self.before.as_ref().map(|(at, status)| (sample.at.duration_since(*at), status));
                let view = view(&status, before, &self.names);
                self.view = View { clients: self.view.clients.take(), ..view };
                self.before = Some((sample.at, status));
            }
        }
    }

    /// Adds an event, which is shown below the table.
    pub fn note(&mut self, note: String) {
        if self.notes.len() == NOTES {
            self.notes.remove(0);
        }
        self.notes.push(note);
    }

    /// The table as text, with the control sequences that overwrite the previous table.
    pub fn draw(&mut self) -> String {
        let lines = self.lines();
        // No automatic wrap (DECAWM off): a wrapped line would make the number of lines to go up wrong.
        let mut out = String::from("\x1b[?7l");
        if self.drawn > 0 {
            let _ = write!(out, "\x1b[{}A", self.drawn);
        }
        for line in &lines {
            let _ = writeln!(out, "\r\x1b[2K{line}");
        }
        out.push_str("\x1b[J\x1b[?7h");
        self.drawn = lines.len();
        out
    }

    /// A line for a log, if the state has changed since the last line or `SILENCE` has passed.
    pub fn news(&mut self, now: Instant) -> Option<String> {
        let view = &self.view;
        let news = LoggedState {
            requests: view.requests,
            failed: view.clients.as_ref().map(|clients| clients.failed_in_all),
            health: view.backends.iter().map(|row| row.health.clone()).collect(),
            trouble: view.trouble.clone(),
        };
        if self.said.as_ref().is_some_and(|(at, said)| *said == news && now.duration_since(*at) < SILENCE) {
            return None;
        }
        self.said = Some((now, news));
        Some(self.line())
    }

    fn line(&self) -> String {
        let view = &self.view;
        let mut line = match &view.trouble {
            Some(why) => format!("demo: no status: {}", plain(why)),
            None => format!("demo: {} requests, {} requests/s", view.requests, rate(view.rate)),
        };
        if let Some(clients) = &view.clients {
            let Latency { p50_ms, p99_ms } = clients.latency;
            let _ = write!(
                line,
                ", {} failed, p50 {} ms, p99 {} ms",
                clients.failed,
                millis(p50_ms),
                millis(p99_ms)
            );
        }
        for row in &view.backends {
            let _ = write!(line, " | {} {} {}/s", row.name, row.health, rate(row.rate));
        }
        line.push('\n');
        line
    }

    fn lines(&self) -> Vec<String> {
        let view = &self.view;
        let mut lines = vec![String::new()];
        lines.push(format!(
            "front door  up {}, {} requests, {}/s, {} connections, {} degraded",
            duration(view.uptime),
            view.requests,
            rate(view.rate),
            view.connections,
            view.degraded
        ));
        if let Some(clients) = &view.clients {
            lines.push(format!(
                "clients     {} answered, {} failed now, {} in all, p50 {} ms, p99 {} ms",
                clients.answered,
                clients.failed,
                clients.failed_in_all,
                millis(clients.latency.p50_ms),
                millis(clients.latency.p99_ms)
            ));
        }
        if let Some(why) = &view.trouble {
            lines.push(format!("no status   {}", plain(why)));
        }
        lines.push(String::new());
        lines.push(row(["backend", "health", "for", "requests", "req/s", "failed", "p50 ms", "p99 ms"]));
        for backend in &view.backends {
            lines.push(row([
                &backend.name,
                &backend.health,
                &duration(backend.seconds),
                &backend.requests.to_string(),
                &rate(backend.rate),
                &backend.failures.to_string(),
                &millis(backend.latency.p50_ms),
                &millis(backend.latency.p99_ms),
            ]));
        }
        if !self.notes.is_empty() {
            lines.push(String::new());
            lines.extend(self.notes.iter().map(|note| plain(note)));
        }
        lines.iter_mut().for_each(|line| *line = line.chars().take(WIDTH).collect());
        lines
    }
}

fn view(status: &Status, before: Option<(Duration, &Status)>, names: &[(String, &'static str)]) -> View {
    let requests = |status: &Status| status.listeners.iter().map(|listener| listener.sessions).sum::<u64>();
    let backends = status.pools.iter().flat_map(|pool| &pool.backends).map(|backend| {
        let earlier = before.and_then(|(elapsed, status)| {
            let mut all = status.pools.iter().flat_map(|pool| &pool.backends);
            Some((elapsed, all.find(|other| other.name == backend.name)?.sessions))
        });
        let name = names.iter().find(|(address, _)| *address == backend.name);
        Row {
            name: plain(name.map_or(backend.name.as_str(), |(_, name)| name)),
            health: plain(if backend.admission == "draining" { &backend.admission } else { &backend.state }),
            seconds: backend.state_seconds,
            requests: backend.sessions,
            rate: earlier.and_then(|(elapsed, earlier)| per_second(backend.sessions, earlier, elapsed)),
            failures: backend.failures,
            latency: backend.latency,
        }
    });
    View {
        uptime: status.uptime_seconds,
        requests: requests(status),
        rate: before.and_then(|(elapsed, before)| per_second(requests(status), requests(before), elapsed)),
        connections: status.connections.now,
        degraded: status.degraded.len(),
        backends: backends.collect(),
        clients: None,
        trouble: None,
    }
}

fn clients(window: &Window, failed_before: u64) -> Clients {
    let at = |quantile| match window.latency.len() {
        0 => None,
        _ => Some(window.latency.value_at_quantile(quantile) as f64 / 1e3),
    };
    Clients {
        answered: window.answered,
        failed: window.failed,
        failed_in_all: failed_before + window.failed,
        latency: Latency { p50_ms: at(0.5), p99_ms: at(0.99) },
    }
}

fn per_second(now: u64, before: u64, elapsed: Duration) -> Option<f64> {
    let seconds = elapsed.as_secs_f64();
    // A counter has decreased because the front door was restarted.
    (seconds > 0.0).then(|| now.saturating_sub(before) as f64 / seconds)
}

fn row(cells: [&str; 8]) -> String {
    let [name, health, since, requests, rate, failed, p50, p99] = cells;
    format!("{name:<11} {health:<9} {since:>9} {requests:>9} {rate:>8} {failed:>7} {p50:>9} {p99:>9}")
}

fn rate(rate: Option<f64>) -> String {
    rate.map_or("-".to_owned(), |rate| format!("{rate:.1}"))
}

fn millis(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.2}"))
}

fn duration(seconds: u64) -> String {
    units::or_just_now(Duration::from_secs(seconds))
}

/// Width of the table, in columns.
const WIDTH: usize = 80;

/// After this time without a change a log gets a line too.
const SILENCE: Duration = Duration::from_secs(60);

/// Number of events on the screen.
const NOTES: usize = 4;

#[cfg(test)]
mod tests;
