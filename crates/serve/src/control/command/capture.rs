//! `capture`: packets of the sessions of one listener, for the client to write into a file.

use std::time::Duration;

use config::types::Transport;
use logic::pcapng;
use logic::peers::PeerSetEntry;
use proxy::front::Front;
use proxy::snapshot::ListenerPlan;
use serde_json::json;
use state::capture::Wanted;
use state::events::Level;
use text::nearest::nearest;
use text::units;

use super::packets::{Counts, Source};

/// Longest time, and largest size in bytes, of a capture.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
const LARGEST: u64 = 1 << 40;

/// A capture or trace whose packets are sent to the client.
pub(in crate::control) struct Running {
    pub(in crate::control) source: Source,
    pub(in crate::control) time: Duration,
    pub(in crate::control) size: u64,
    /// Number of packets at which it ends.
    pub(in crate::control) packets: u64,
    /// `capture of listener web`
    pub(in crate::control) what: String,
    /// The beginning of the file.
    pub(in crate::control) start: Vec<u8>,
    /// A line before the packets, which is no Base64.
    pub(in crate::control) note: Option<String>,
}

/// Why a listener has no sessions that can be captured. `None` if it has.
fn not_captured(plan: &ListenerPlan) -> Option<String> {
    match plan.settings.protocol.transport() {
        Transport::Stream | Transport::Datagram => None,
        Transport::Packet => Some(format!(
            "listener \"{}\" forwards packets, which are not captured: captures have TCP, HTTP/1.1, HTTP/2 and UDP. \
             `penstock ctl dsr trace --service {} --to FILE` writes its packets",
            plan.settings.name, plan.settings.name
        )),
    }
}

/// Why a capture ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::control) enum CaptureEnd {
    Time,
    Size,
    Packets,
    /// The client asked for the end.
    Client,
    ClientGone,
    NoRights,
}

/// What was sent to the client so far.
#[derive(Default)]
pub(in crate::control) struct Sent {
    pub(in crate::control) bytes: u64,
    pub(in crate::control) packets: u64,
}

impl Sent {
    pub(in crate::control) fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.packets += pcapng::packets(bytes);
    }
}

/// A capture that has ended.
pub(in crate::control) struct Total {
    pub(in crate::control) counts: Counts,
    pub(in crate::control) packets: u64,
    pub(in crate::control) bytes: u64,
    /// Largest size that it could have.
    pub(in crate::control) size: u64,
    pub(in crate::control) end: CaptureEnd,
}

impl Total {
    pub(in crate::control) fn words(&self) -> String {
        let count =
            |number: u64, noun: &str| units::count(usize::try_from(number).unwrap_or(usize::MAX), noun);
        let lost = match self.counts.left_out {
            0 => String::new(),
            bytes => format!(", {} left out, because they were taken too slowly", units::bytes(bytes)),
        };
        let missed = match self.counts.missed {
            None | Some(0) => String::new(),
            Some(missed) => {
                format!(", {} not looked at, because there were too many", count(missed, "packet"))
            }
        };
        let end = match self.end {
            CaptureEnd::Size => {
                format!("; it ended early: more would not fit into {}", units::bytes(self.size))
            }
            CaptureEnd::NoRights => {
                "; it ended early: the configuration took the right to it away".to_owned()
            }
            CaptureEnd::Time => "; its time is over".to_owned(),
            CaptureEnd::Packets => "; that is the number that was asked for".to_owned(),
            CaptureEnd::Client | CaptureEnd::ClientGone => "; it was stopped".to_owned(),
        };
        let sessions = self.counts.sessions.map(|sessions| format!(" of {}", count(sessions, "session")));
        let (packets, sessions) = (count(self.packets, "packet"), sessions.unwrap_or_default());
        format!("{packets}{sessions}, {}{lost}{missed}{end}", units::bytes(self.bytes))
    }

    /// The last line of the answer: it is no Base64.
    pub(in crate::control) fn line(&self) -> String {
        let end = match self.end {
            CaptureEnd::Time => "time",
            CaptureEnd::Size => "size",
            CaptureEnd::Packets => "packets",
            CaptureEnd::Client | CaptureEnd::ClientGone => "client",
            CaptureEnd::NoRights => "rights",
        };
        let total = json!({
            "packets": self.packets,
            "sessions": self.counts.sessions,
            "left_out": self.counts.left_out,
            "missed": self.counts.missed,
            "end": end,
            "text": self.words(),
        });
        format!("#{total}")
    }
}

/// Starts a capture. The error is a refusal with its reason, or `None` for wrong usage.
pub(super) fn run(front: &Front, who: &str, arguments: &[&str]) -> Result<Running, Option<String>> {
    let [listener, "for", time, "size", size, rest @ ..] = arguments else { return Err(None) };
    let client = match rest {
        [] => None,
        ["client", client] => Some(*client),
        _ => return Err(None),
    };
    let (time, size) = limits(time, size)?;
    let snapshot = front.snapshot.load();
    if let Some(why) = snapshot.listeners.get(*listener).and_then(|plan| not_captured(plan)) {
        return Err(Some(why));
    }
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
    Ok(Running {
        source: Source::Capture(capturing),
        time,
        size,
        packets: u64::MAX,
        what: format!("capture of listener {listener}"),
        start: pcapng::start(concat!("penstock ", env!("CARGO_PKG_VERSION")), listener),
        note: None,
    })
}

/// Longest time and largest size, as they were written.
pub(super) fn limits(time: &str, size: &str) -> Result<(Duration, u64), Option<String>> {
    let time = config::duration(time).map_err(|why| format!("--for {time}: {why}"))?;
    let size = size.parse::<u64>().ok().filter(|size| (1..=LARGEST).contains(size));
    let Some(size) = size else { return Err(None) };
    if time.is_zero() || time > LONGEST {
        return Err(Some("a capture takes 24h at most, and longer than 0".to_owned()));
    }
    Ok((time, size))
}
