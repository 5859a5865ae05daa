//! The words of the commands that show open sessions and end them, and what they do.

use std::net::SocketAddr;
use std::time::Duration;

use logic::peers::{Peer, PeerSet, PeerSetEntry};
use logic::sessions::{Facts, Filter, SessionName, Sort};
use proxy::front::Front;
use proxy::listing::{Asked, EndedSession, Row, Target};
use proxy::live::Speaks;
use serde_json::json;
use state::events::Level;
use text::nearest::nearest;
use text::terminal::line;
use text::units;

use super::client::PeerCredentials;
use crate::report::sessions::{MOST_SHOWN, SessionsReport};
use crate::sessions::{self, Detail, Found};

/// Sessions shown if the command names no number.
const SHOWN: usize = 50;

/// Sessions that one command ends at most.
const MOST_ENDED: usize = 100_000;

/// Ended sessions that have an event of their own; the rest is counted in one.
const MOST_TOLD: usize = 20;

const OPTIONS: [&str; 7] =
    ["--listener", "--backend", "--client", "--longer-than", "--sort", "--limit", "--yes"];

/// The words of a command.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    filter: Filter,
    sort: Option<Sort>,
    limit: Option<usize>,
    consent: Consent,
    /// The error if no session matches: no listener or backend that is served has the name in the command.
    unknown: Option<String>,
}

/// Whether sessions may be ended that the operator has not named one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Consent {
    Given,
    #[default]
    NotGiven,
}

/// Why a command is refused.
pub(super) struct Wrong {
    pub(super) message: String,
    /// Lines after the message; may be empty.
    pub(super) details: String,
}

impl From<String> for Wrong {
    fn from(message: String) -> Self {
        Self { message, details: String::new() }
    }
}

impl From<&str> for Wrong {
    fn from(message: &str) -> Self {
        message.to_owned().into()
    }
}

/// A test whether a word is a whole part of an address.
pub(super) type HasPart = fn(&str, &str) -> bool;

impl Wanted {
    /// Whether the words are a question, and name no sessions.
    pub(super) fn is_question(&self) -> bool {
        self.consent == Consent::NotGiven && self.filter.names.is_empty()
    }

    /// Whether the words say which sessions are to be ended.
    pub(super) fn is_order(&self) -> bool {
        !self.filter.is_empty() && self.sort.is_none() && self.limit.is_none()
    }
}

/// Finds the sessions.
pub(super) async fn list(front: &Front, wanted: Wanted) -> Result<SessionsReport, Wrong> {
    let most = wanted.limit.unwrap_or(SHOWN);
    let sort = wanted.sort.unwrap_or(Sort::Age);
    let asked = Asked { filter: wanted.filter, sort, most };
    let found = sessions::find(front, asked, Detail::Full).await.map_err(|why| why.to_string())?;
    match wanted.unknown {
        Some(unknown) if found.matched == 0 => Err(unknown.into()),
        _ => Ok(SessionsReport::read(found)),
    }
}

/// What became of an order to end sessions.
pub(super) struct Ended {
    ended: Vec<EndedSession>,
    not_open: Vec<String>,
}

impl Ended {
    pub(super) fn text(&self) -> String {
        let mut out = lines(self.ended.iter().take(MOST_TOLD).map(ended_short));
        match self.ended.len() - self.ended.len().min(MOST_TOLD) {
            0 => {}
            more => out.push_str(&format!("ended {more} more\n")),
        }
        out + &lines(self.not_open.iter().map(|name| format!("not open: {name}")))
    }

    pub(super) fn json(&self) -> String {
        let whole = self.ended.iter().filter(|one| one.requests.is_empty());
        let whole: Vec<u64> = whole.map(|one| one.row.place.number.0).collect();
        let requests: Vec<&String> = self.ended.iter().flat_map(|one| &one.requests).collect();
        json!({ "ended": whole, "ended_requests": requests, "not_open": self.not_open }).to_string()
    }
}

/// Ends the sessions, or says which cannot be ended.
pub(super) async fn end(front: &Front, wanted: Wanted, who: PeerCredentials) -> Result<Ended, Wrong> {
    let Wanted { filter, consent, unknown, .. } = wanted;
    let names = filter.names.clone();
    let asked = Asked { filter, sort: Sort::Age, most: MOST_ENDED };
    let Found { sessions, .. } =
        sessions::find(front, asked, Detail::Places).await.map_err(|why| why.to_string())?;
    if names.is_empty() && consent == Consent::NotGiven && !sessions.is_empty() {
        let all = units::count(sessions.len(), "session");
        return Err(Wrong {
            message: format!("{all} would be ended, none was: --yes ends them"),
            details: lines(sessions.iter().take(MOST_TOLD).map(|session| short(&session.row))),
        });
    }
    let targets = sessions.iter().map(|session| target(&session.row, &names));
    let (ended, all_answered) = sessions::end(front, targets).await;
    tell(front, &ended, &who);
    if let Err(why) = all_answered {
        let ended = Ended { ended, not_open: Vec::new() };
        return Err(Wrong { message: format!("{why}: sessions may be open still"), details: ended.text() });
    }
    let is_gone = |name: &&SessionName| !ended.iter().any(|one| is_of(name, one));
    let not_open: Vec<String> = names.iter().filter(is_gone).map(shown).collect();
    match (&ended[..], &not_open[..]) {
        ([], []) => Err(unknown.unwrap_or_else(|| "no open session matches".to_owned()).into()),
        ([], [name]) => Err(format!("no open session {name}: it has ended, or never was").into()),
        ([], _) => Err(Wrong {
            message: "none of these sessions is open".to_owned(),
            details: lines(not_open.into_iter()),
        }),
        _ => Ok(Ended { ended, not_open }),
    }
}

/// What is to be ended of a session that was found by these names. A request of HTTP/2 is ended alone, unless the whole
/// connection is named too.
fn target(row: &Row, names: &[SessionName]) -> Target {
    let facts = Facts {
        number: row.place.number,
        listener: "",
        client: row.client,
        age: Duration::ZERO,
        requests: &[],
    };
    let is_named = names.iter().any(|name| name.is_of(&facts));
    let requests = match row.speaks == Speaks::Http2 && !is_named {
        true => names.iter().filter_map(|name| match name {
            SessionName::Request(id) => Some(id.clone()),
            SessionName::Number(_) | SessionName::Client(_) => None,
        }),
        false => return Target { place: row.place, requests: Vec::new() },
    };
    Target { place: row.place, requests: requests.collect() }
}

/// Records who has ended which sessions.
fn tell(front: &Front, ended: &[EndedSession], who: &PeerCredentials) {
    let events = &front.state.events;
    for one in ended.iter().take(MOST_TOLD) {
        let subject = format!("listener.{}", one.row.listener);
        events.record(Level::Info, subject, format!("{who}: {}", ended_short(one)));
    }
    if ended.len() > MOST_TOLD {
        let more = units::count(ended.len() - MOST_TOLD, "more session");
        events.record(Level::Info, "control", format!("{who}: ended {more}"));
    }
}

fn is_of(name: &SessionName, EndedSession { row, requests }: &EndedSession) -> bool {
    if !requests.is_empty() {
        return matches!(name, SessionName::Request(id) if requests.contains(id));
    }
    let request = row.request_id.as_deref().unwrap_or_default();
    name.is_of(&Facts {
        number: row.place.number,
        listener: &row.listener,
        client: row.client,
        age: Duration::ZERO,
        requests: &[("", request)],
    })
}

fn shown(name: &SessionName) -> String {
    match name {
        SessionName::Number(number) => number.0.to_string(),
        SessionName::Client(client) => client.to_string(),
        SessionName::Request(id) => line(id),
    }
}

/// Says that the session with this name is open. `None` if none is, or if the workers do not say so in time.
pub(super) async fn still_open(front: &Front, name: &str) -> Option<Wrong> {
    let filter = Filter { names: vec![SessionName::parse(name)?], ..Filter::default() };
    let asked = Asked { filter, sort: Sort::Age, most: 1 };
    let found = sessions::find(front, asked, Detail::Places).await.ok()?;
    let row = &found.sessions.first()?.row;
    let client = row.client;
    Some(Wrong {
        message: format!("session {} is still open", line(name)),
        details: format!(
            "  {}\n  hint: `penstock ctl sessions` shows it; when it has ended, `penstock ctl why --session {client}` tells \
             of it",
            short(row)
        ),
    })
}

/// What was ended, in one line.
fn ended_short(EndedSession { row, requests }: &EndedSession) -> String {
    let requests: Vec<_> = requests.iter().map(|id| line(id)).collect();
    match &requests[..] {
        [] => format!("ended {}", short(row)),
        [one] => format!("ended request {one} of {}", short(row)),
        several => format!("ended requests {} of {}", several.join(", "), short(row)),
    }
}

/// A session in one line.
fn short(row: &Row) -> String {
    let (listener, client, speaks) = (line(&row.listener), row.client, row.speaks.word());
    let backend =
        row.backends.first().map_or_else(String::new, |one| format!(", backend {}", line(&one.name)));
    let age = units::duration(Duration::from_secs(row.age.as_secs()));
    format!(
        "session {}: listener {listener}, client {client}, {speaks}{backend}, open for {age}",
        row.place.number.0
    )
}

/// Reads the words of a command.
pub(super) fn read(front: &Front, words: &[&str], has_part: HasPart) -> Result<Wanted, Wrong> {
    let mut wanted = Wanted::default();
    let mut rest = words.iter().copied();
    while let Some(word) = rest.next() {
        let mut value = || rest.next().ok_or_else(|| Wrong::from(format!("{word}: a value is missing")));
        let filter = &mut wanted.filter;
        match word {
            "--listener" => {
                let name = value()?;
                wanted.unknown = wanted.unknown.or_else(|| unknown_listener(front, name));
                filter.listener = Some(name.to_owned());
            }
            "--backend" => {
                let name = value()?;
                let meant = backend(front, name, has_part)?;
                wanted.unknown = wanted.unknown.or(meant.unknown);
                filter.backend = Some(meant.name);
            }
            "--client" => filter.client = Some(network(value()?)?),
            "--longer-than" => {
                let text = value()?;
                let age =
                    config::duration(text).map_err(|why| format!("--longer-than {}: {why}", line(text)))?;
                filter.longer_than = Some(age);
            }
            "--sort" => {
                let sort = value()?.parse::<Sort>().map_err(|why| format!("--sort: {why}"))?;
                wanted.sort = Some(sort);
            }
            "--limit" => {
                let limit = value()?.parse().ok().filter(|limit| (1..=MOST_SHOWN).contains(limit));
                let wrong = || Wrong::from(format!("--limit: a number from 1 to {MOST_SHOWN}"));
                wanted.limit = Some(limit.ok_or_else(wrong)?);
            }
            "--yes" => wanted.consent = Consent::Given,
            option if option.starts_with("--") => {
                let hint =
                    nearest(option, OPTIONS).map_or(String::new(), |name| format!(", did you mean {name}?"));
                return Err(format!("unknown option \"{}\"{hint}", line(option)).into());
            }
            name => match SessionName::parse(name) {
                Some(name) => filter.names.push(name),
                None => {
                    let wrong = line(name);
                    return Err(format!(
                        "\"{wrong}\" is no session: give its id (penstock ctl sessions), the address and port of its client, or \
                         the id of its request"
                    )
                    .into());
                }
            },
        }
    }
    Ok(wanted)
}

/// What is wrong with the name of a listener that is not served. One that was removed may still have sessions.
fn unknown_listener(front: &Front, wanted: &str) -> Option<String> {
    let snapshot = front.snapshot.load();
    let names = snapshot.listeners.keys().map(|name| &**name);
    if names.clone().any(|name| name == wanted) {
        return None;
    }
    let more = match nearest(wanted, names) {
        Some(name) => format!(", did you mean \"{name}\"?"),
        None => ", and no open session of one that was removed matches".to_owned(),
    };
    Some(format!("no listener \"{}\"{more}", line(wanted)))
}

/// The backend that is meant. One that was removed may still have sessions: its whole name finds them.
fn backend(front: &Front, wanted: &str, has_part: HasPart) -> Result<Meant, Wrong> {
    let served = |name: &str| Ok(Meant { name: name.to_owned(), unknown: None });
    let snapshot = front.snapshot.load();
    let mut names: Vec<String> = snapshot
        .pools
        .iter()
        .flat_map(|plan| plan.backends.iter().map(|backend| backend.state.name.to_string()))
        .collect();
    names.sort_unstable();
    names.dedup();
    if wanted.is_empty() || names.iter().any(|name| name == wanted) {
        return served(wanted);
    }
    let found: Vec<_> = names.iter().filter(|name| has_part(name, wanted)).collect();
    match &found[..] {
        [one] => served(one),
        [] if wanted.contains(':') => {
            let unknown = format!(
                "no pool has a backend \"{}\", and no open session of one that was removed matches",
                line(wanted)
            );
            Ok(Meant { name: wanted.to_owned(), unknown: Some(unknown) })
        }
        [] => Err(Wrong {
            message: format!("no backend \"{}\"; the backends are:", line(wanted)),
            details: lines(names.into_iter()),
        }),
        _ => Err(Wrong {
            message: format!("\"{}\" could be any of these", line(wanted)),
            details: lines(found.into_iter().cloned()),
        }),
    }
}

/// The backend that an operator means, and the error if no open session is on it.
struct Meant {
    name: String,
    unknown: Option<String>,
}

fn network(text: &str) -> Result<PeerSet, Wrong> {
    // The address and port as `sessions` shows them.
    let entry = text.parse::<PeerSetEntry>().or_else(|why| {
        text.parse::<SocketAddr>()
            .map(|address| PeerSetEntry::Network(Peer::Ip(address).ip().unwrap_or(address.ip()).into()))
            .map_err(|_| why)
    });
    let entry = entry.map_err(|why| format!("--client {}: {why}", line(text)))?;
    Ok([entry].into_iter().collect())
}

fn lines(lines: impl Iterator<Item = String>) -> String {
    lines.map(|line| line + "\n").collect()
}
