//! Status of a tunnel as text for people.

use std::fmt::Write as _;
use std::time::Duration;

use fleet::tunnel::status::ForwardStatus;
use fleet::tunnel::{Status, UP};
use text::table::Table;
use text::units;

use crate::output::plain;

pub(super) fn table(status: &Status) -> String {
    let mut out = String::new();
    let step = if status.step == UP { String::new() } else { format!(", step {}", status.step) };
    let _ = writeln!(out, "{}: {}{step}, process {}", status.tunnel, connection(status), status.pid);
    let mut table = Table::indented("  ");
    if let Some(mounted) = &status.mounted {
        table.row(["mounted".to_owned(), plain(mounted)]);
    }
    if let Some(error) = &status.error {
        let when = when(status.error_age_seconds, State::of(status.recovered, status.recovered_seconds));
        table.row(["last loss".to_owned(), format!("{when}: {}", plain(error))]);
    }
    for forward in &status.forwards {
        table.row([forward.name.clone(), way(forward)]);
        let service = match forward.service.as_str() {
            "unchecked" => "not checked".to_owned(),
            service @ ("ok" | "failed") if status.connection != "connected" => {
                let before = if service == "ok" { "it was ok" } else { "it failed" };
                let since = lasting(status.since_seconds);
                format!("{} not checked {since}; {before} before: {}", forward.check, plain(&forward.detail))
            }
            "unknown" if status.connects > 1 => {
                format!("{} not checked yet on this connection", forward.check)
            }
            "unknown" => format!("{} not checked yet", forward.check),
            "ok" if forward.error.is_some() && !forward.recovered => {
                format!("{} was ok before the last error: {}", forward.check, plain(&forward.detail))
            }
            service => {
                format!(
                    "{} {service} {}: {}",
                    forward.check,
                    lasting(forward.since_seconds),
                    plain(&forward.detail)
                )
            }
        };
        let (bytes_in, bytes_out) = (units::bytes(forward.bytes_in), units::bytes(forward.bytes_out));
        let counts = format!(
            "{} connections, {} accepted, {bytes_in} in, {bytes_out} out",
            forward.connections, forward.accepted
        );
        table.row([String::new(), format!("{service}; {counts}")]);
        if let Some(error) = &forward.error {
            let when =
                when(forward.error_age_seconds, State::of(forward.recovered, forward.recovered_seconds));
            table.row([String::new(), format!("last error {when}: {}", plain(error))]);
        }
    }
    out + &table.render()
}

/// Describes the state of the connection and of the services behind it.
fn connection(status: &Status) -> String {
    let (host, since) = (&status.host, lasting(status.since_seconds));
    let named = |service: &str| {
        let some = status.forwards.iter().filter(|forward| forward.service == service);
        some.map(|forward| forward.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    match (status.connection.as_str(), status.retry_in_seconds) {
        ("connected", _) if status.is_ok() => format!("connected to {host} {since}"),
        ("connected", _) => match named("failed") {
            failed if failed.is_empty() => format!("connected to {host} {since}, services not checked yet"),
            failed => format!("connected to {host} {since}, failed: {failed}"),
        },
        ("retrying", Some(next)) => {
            let next = match time(next) {
                next if next < Duration::from_secs(1) => "now".to_owned(),
                next => format!("in {}", units::duration(next)),
            };
            format!("not connected to {host} {since}, retrying {next}")
        }
        _ => format!("not connected to {host} {since}, connecting"),
    }
}

/// State after an error.
#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// The service works again, since this many seconds if known.
    Recovered(Option<f64>),
    Open,
}

impl State {
    fn of(recovered: bool, age: Option<f64>) -> Self {
        if recovered { Self::Recovered(age) } else { Self::Open }
    }
}

/// Formats the age of an error, and the time since recovery.
fn when(age: Option<f64>, state: State) -> String {
    let ago = age.map_or_else(|| "some time ago".to_owned(), ago);
    match state {
        State::Recovered(Some(age)) => format!("{ago}, ok {}", lasting(age)),
        State::Recovered(None) => format!("{ago}, ok since"),
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

/// Describes what a running tunnel is doing, for an operator who tries to bring it up again.
pub(super) fn busy(status: &Status) -> String {
    let how = match status.step.as_str() {
        UP => "is up already".to_owned(),
        "job" => "is up already: `tunnel with` runs a command through it".to_owned(),
        step @ ("sync" | "unmount" | "unmount-lazy" | "unmounted" | "wait" | "down") => {
            format!("is going down (step {step})")
        }
        step => format!("is coming up (step {step})"),
    };
    let (name, pid) = (&status.tunnel, status.pid);
    format!("tunnel {name} {how}: process {pid}; `penstock tunnel down {name}` ends it")
}

/// `2 min 3 s ago`, or `just now`.
pub(super) fn ago(seconds: f64) -> String {
    units::ago(time(seconds))
}

/// `for 2 min 3 s`, or `since just now`.
fn lasting(seconds: f64) -> String {
    units::lasting(time(seconds))
}

/// Converts seconds; negative values, after a change of the clock, become zero.
fn time(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}
