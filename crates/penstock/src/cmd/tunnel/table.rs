//! A tunnel as people read about it.

use std::fmt::Write as _;
use std::time::Duration;

use fleet::tunnel::status::ForwardStatus;
use fleet::tunnel::{Status, UP};
use logic::elapsed;

use crate::output::plain;

/// Everything that is known of it, for people.
pub fn table(status: &Status) -> String {
    let mut out = String::new();
    let step = if status.step == UP { String::new() } else { format!(", step {}", status.step) };
    let _ = writeln!(out, "{}: {}{step}, process {}", status.tunnel, connection(status), status.process);
    if let Some(mounted) = &status.mounted {
        let _ = writeln!(out, "  mounted   {}", plain(mounted));
    }
    if let Some(error) = &status.error {
        let when = when(status.error_age, State::of(status.error_mended, status.error_mended_age));
        let _ = writeln!(out, "  last loss {when}: {}", plain(error));
    }
    let width = status.forwards.iter().map(|forward| forward.name.len()).max().unwrap_or(0).max(9);
    for forward in &status.forwards {
        let _ = writeln!(out, "  {:width$} {}", forward.name, way(forward));
        let service = match forward.service.as_str() {
            "unchecked" => "not checked".to_owned(),
            service @ ("answers" | "fails") if status.connection != "up" => {
                let before = if service == "answers" { "it answered" } else { "it failed" };
                let since = lasting(status.since);
                format!("{} not asked {since}; {before} before: {}", forward.check, plain(&forward.said))
            }
            "unknown" if status.connections > 1 => {
                format!("{} not asked yet on this connection", forward.check)
            }
            "unknown" => format!("{} not asked yet", forward.check),
            "answers" if forward.error.is_some() && !forward.error_mended => {
                format!("{} answered before the last error: {}", forward.check, plain(&forward.said))
            }
            service => {
                format!("{} {service} {}: {}", forward.check, lasting(forward.since), plain(&forward.said))
            }
        };
        let _ = writeln!(
            out,
            "  {:width$} {service}; {} open, {} in all, {} B sent, {} B received",
            "", forward.open, forward.total, forward.sent, forward.received
        );
        if let Some(error) = &forward.error {
            let when = when(forward.error_age, State::of(forward.error_mended, forward.error_mended_age));
            let _ = writeln!(out, "  {:width$} last error {when}: {}", "", plain(error));
        }
    }
    out
}

/// How its connection stands, and what is to be said about the services behind it.
fn connection(status: &Status) -> String {
    let (host, since) = (&status.host, lasting(status.since));
    let named = |service: &str| {
        let some = status.forwards.iter().filter(|forward| forward.service == service);
        some.map(|forward| forward.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    match (status.connection.as_str(), status.next_attempt) {
        ("up", _) if status.is_well() => format!("up to {host} {since}"),
        ("up", _) => match named("fails") {
            fails if fails.is_empty() => format!("connected to {host} {since}, not proved yet"),
            fails => format!("connected to {host} {since}, not answering: {fails}"),
        },
        ("waiting", Some(next)) => {
            let next = elapsed::or_just_now(time(next), || format!("in {}", spoken(next)));
            format!("no connection to {host} {since}, tried again {}", next.trim_start_matches("just "))
        }
        _ => format!("no connection to {host} {since}, connecting"),
    }
}

/// How it went after something had gone wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// It has been well for so many seconds, if that is known.
    Mended(Option<f64>),
    Open,
}

impl State {
    fn of(mended: bool, age: Option<f64>) -> Self {
        if mended { Self::Mended(age) } else { Self::Open }
    }
}

/// When something went wrong, and whether it went well since.
fn when(age: Option<f64>, state: State) -> String {
    let ago = age.map_or_else(|| "some time ago".to_owned(), ago);
    match state {
        State::Mended(Some(age)) => format!("{ago}, well {}", lasting(age)),
        State::Mended(None) => format!("{ago}, well since"),
        State::Open => ago,
    }
}

fn way(forward: &ForwardStatus) -> String {
    match (forward.kind.as_str(), &forward.connect) {
        ("remote", Some(connect)) => format!("{} there -> {connect} here", forward.listen),
        (_, Some(connect)) => format!("{} -> {connect}", forward.listen),
        (_, None) => format!("{} -> SOCKS5", forward.listen),
    }
}

/// What a tunnel does, for whoever would bring it up once more.
pub fn busy(status: &Status) -> String {
    let how = match status.step.as_str() {
        UP => "is up already".to_owned(),
        "job" => "is up already, for a command".to_owned(),
        step @ ("sync" | "unmount" | "unmount-lazy" | "unmounted" | "wait" | "down") => {
            format!("is on its way down (step {step})")
        }
        step => format!("is on its way up (step {step})"),
    };
    let (name, process) = (&status.tunnel, status.process);
    format!("tunnel {name} {how}: process {process}; `penstock tunnel down {name}` ends it")
}

/// `2 min ago`, or `just now`.
pub fn ago(seconds: f64) -> String {
    elapsed::ago(time(seconds), || spoken(seconds))
}

/// `for 2 min`, or `since just now`.
fn lasting(seconds: f64) -> String {
    elapsed::lasting(time(seconds), || spoken(seconds))
}

/// No time where it is none: a clock that was set back gives less than zero.
fn time(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

/// A time for people.
fn spoken(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 60.0 => format!("{seconds:.0} s"),
        seconds if seconds < 7200.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.1} h", seconds / 3600.0),
    }
}
