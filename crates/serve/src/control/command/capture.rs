//! `capture`: packets of the sessions of one listener, for the client to write into a file.

use std::time::Duration;

use logic::peers::PeerSetEntry;
use proxy::front::Front;
use state::capture::{Capturing, Wanted};
use state::events::Level;
use text::nearest::nearest;
use text::units;

/// Longest time, and largest size in bytes, of a capture.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
const LARGEST: u64 = 1 << 40;

/// A capture whose packets are sent to the client.
pub(in crate::control) struct Running {
    pub(in crate::control) capturing: Capturing,
    pub(in crate::control) time: Duration,
    pub(in crate::control) size: u64,
    pub(in crate::control) listener: String,
}

/// Starts a capture. The error is a refusal with its reason, or `None` for wrong usage.
pub(super) fn run(front: &Front, who: &str, arguments: &[&str]) -> Result<Running, Option<String>> {
    let [listener, "for", time, "size", size, rest @ ..] = arguments else { return Err(None) };
    let client = match rest {
        [] => None,
        ["client", client] => Some(*client),
        _ => return Err(None),
    };
    let time = config::duration(time).map_err(|why| format!("for {time}: {why}"))?;
    let size = size.parse::<u64>().ok().filter(|size| (1..=LARGEST).contains(size));
    let Some(size) = size else { return Err(None) };
    if time.is_zero() || time > LONGEST {
        return Err(Some("a capture takes 24h at most, and longer than 0".to_owned()));
    }
    let snapshot = front.snapshot.load();
    if !snapshot.listeners.contains_key(*listener) {
        let near = nearest(listener, snapshot.listeners.keys().map(|name| &**name));
        let near = near.map_or(String::new(), |near| format!(", did you mean \"{near}\"?"));
        return Err(Some(format!("no listener \"{listener}\"{near}")));
    }
    let clients = match client.map(str::parse::<PeerSetEntry>).transpose() {
        Ok(entry) => entry.map(|entry| [entry].into_iter().collect()),
        Err(error) => return Err(Some(format!("client: {error}"))),
    };
    let wanted = Wanted { listener: (*listener).to_owned(), clients, by: who.to_owned() };
    let capturing = front.state.captures.start(wanted).map_err(|other| {
        format!("{other} captures already: one capture at a time, so that it stays small")
    })?;
    let whom = client.map_or("all clients".to_owned(), |client| format!("clients {client}"));
    let lasts = units::duration(time);
    let message = format!("{who} captures the bytes of {whom} of listener {listener} for {lasts}");
    front.state.events.record(Level::Warning, "capture", message);
    Ok(Running { capturing, time, size, listener: (*listener).to_owned() })
}
