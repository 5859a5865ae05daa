//! A tunnel as people read about it.

use std::fmt::Write as _;

use fleet::tunnel::Status;
use fleet::tunnel::status::ForwardStatus;

use crate::output::plain;

/// Everything that is known of it, for people.
pub fn table(status: &Status) -> String {
    let mut out = String::new();
    let since = spoken(status.since);
    let _ = writeln!(
        out,
        "{}: {} to {} for {since}, step {}, process {}",
        status.tunnel, status.connection, status.host, status.step, status.process
    );
    if let Some(mounted) = &status.mounted {
        let _ = writeln!(out, "  mounted   {}", plain(mounted));
    }
    if let Some(error) = &status.error {
        let when = when(status.error_age, status.error_mended);
        let _ = writeln!(out, "  last loss {when}: {}", plain(error));
    }
    let width = status.forwards.iter().map(|forward| forward.name.len()).max().unwrap_or(0).max(9);
    for forward in &status.forwards {
        let _ = writeln!(out, "  {:width$} {}", forward.name, way(forward));
        let service = match forward.service.as_str() {
            "unchecked" => "not checked".to_owned(),
            "unknown" => format!("{} not asked yet", forward.check),
            service => {
                format!("{} {service} for {}: {}", forward.check, spoken(forward.since), plain(&forward.said))
            }
        };
        let _ = writeln!(
            out,
            "  {:width$} {service}; {} open, {} in all, {} B sent, {} B received",
            "", forward.open, forward.total, forward.sent, forward.received
        );
        if let Some(error) = &forward.error {
            let when = when(forward.error_age, forward.error_mended);
            let _ = writeln!(out, "  {:width$} last error {when}: {}", "", plain(error));
        }
    }
    out
}

/// When something went wrong, and whether it went well since.
fn when(age: Option<f64>, mended: bool) -> String {
    let ago = age.map_or_else(|| "some time ago".to_owned(), |age| format!("{} ago", spoken(age)));
    if mended { format!("{ago}, well since") } else { ago }
}

fn way(forward: &ForwardStatus) -> String {
    match (forward.kind.as_str(), &forward.connect) {
        ("remote", Some(connect)) => format!("{} there -> {connect} here", forward.listen),
        (_, Some(connect)) => format!("{} -> {connect}", forward.listen),
        (_, None) => format!("{} -> SOCKS5", forward.listen),
    }
}

fn spoken(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 60.0 => format!("{seconds:.0} s"),
        seconds if seconds < 7200.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.1} h", seconds / 3600.0),
    }
}
