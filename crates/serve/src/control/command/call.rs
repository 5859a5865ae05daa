//! What a command gets, and what it gives back.

use std::pin::Pin;
use std::sync::Arc;

use access::policy::Role;
use logic::transaction::Ask;
use proxy::front::{Front, Upgrade};
use serde_json::json;
use state::BackendState;
use text::nearest::nearest;
use zeroize::Zeroizing;

use super::super::client::PeerCredentials;
use super::super::mail::Mail;
use super::super::sessions;
use super::capture;

/// Result of a command line: an answer, or an action that the session must still do.
pub(in super::super) enum Step {
    Nothing,
    Answer(String),
    /// An answer that is given when the state of the process is stored: a restart must have what it says.
    Marked(String, Format),
    Refused(Refusal),
    Reload(Format),
    Stop(Format),
    Upgrade(Upgrade, Format),
    /// A change of the configuration: the supervisor makes it, and answers.
    Change(Ask, Format),
    Follow(Following),
    /// Packets of sessions, until the time or the size is reached, or the client leaves.
    Capture(capture::Running),
    /// An answer that others have a part in, such as the workers.
    Later(Later),
    /// A one-time password, which allows changes for a time.
    Password(Zeroizing<String>),
    /// A command of SMTP, which clients send that log in by its grammar.
    Mail(Mail),
}

pub(in super::super) struct Later(
    pub(in super::super) Pin<Box<dyn Future<Output = Result<String, Refusal>> + Send>>,
);

#[derive(Debug)]
pub(in super::super) struct Refusal {
    pub(in super::super) message: String,
    /// Lines after the message; may be empty.
    pub(in super::super) details: String,
}

/// A request to show the last `count` events and then new events as they occur.
pub(in super::super) struct Following {
    pub(in super::super) count: usize,
    pub(in super::super) format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Format {
    Text,
    Json,
}

impl Format {
    pub(super) fn of(self, text: impl FnOnce() -> String, json: impl FnOnce() -> String) -> String {
        match self {
            Format::Text => text(),
            Format::Json => json(),
        }
    }
}

pub(in super::super) struct Command {
    pub(super) name: &'static str,
    /// What a client must be to give the command with these arguments.
    pub(super) role: fn(&[&str]) -> Role,
    pub(super) arguments: &'static str,
    pub(super) help: &'static str,
    pub(super) run: fn(&Call<'_>) -> Result<Step, Refusal>,
}

pub(super) struct Call<'a> {
    pub(super) front: &'a Arc<Front>,
    pub(super) command: &'a Command,
    pub(super) arguments: &'a [&'a str],
    pub(super) format: Format,
    pub(super) who: &'a PeerCredentials,
}

impl Call<'_> {
    pub(super) fn expect_arguments(&self, most: usize) -> Result<(), Refusal> {
        if self.arguments.len() <= most { Ok(()) } else { Err(self.usage()) }
    }

    pub(super) fn ask(&self, ask: Ask) -> Result<Step, Refusal> {
        Ok(Step::Change(ask, self.format))
    }

    pub(super) fn usage(&self) -> Refusal {
        format!("usage: {} {}", self.command.name, self.command.arguments).trim_end().to_owned().into()
    }

    pub(super) fn answer(&self, text: impl FnOnce() -> String, json: impl FnOnce() -> String) -> Step {
        Step::Answer(self.format.of(text, json))
    }

    /// Finds the backend for `[POOL] BACKEND`: an exact name, or else the only backend with this host, port or file.
    pub(super) fn backend(&self, words: &[&str]) -> Result<Arc<BackendState>, Refusal> {
        let (pool, wanted) = match *words {
            [wanted] => (None, wanted),
            [pool, wanted] => (Some(pool), wanted),
            _ => return Err(self.usage()),
        };
        if let Some(pool) = pool {
            self.expect_pool(pool)?;
        }
        let snapshot = self.front.snapshot.load();
        let all: Vec<_> = snapshot
            .pools
            .iter()
            .filter(|plan| pool.is_none_or(|pool| *plan.settings.name == *pool))
            .flat_map(|plan| plan.backends.iter().map(|backend| &backend.state))
            .collect();
        let mut found: Vec<_> = all.iter().filter(|backend| *backend.name == *wanted).collect();
        if found.is_empty() && !wanted.is_empty() {
            found = all.iter().filter(|backend| has_part(&backend.name, wanted)).collect();
        }
        match found[..] {
            [backend] => Ok((*backend).clone()),
            // No "did you mean" here: addresses look alike, and the most similar backend may be the wrong one.
            [] => Err(Refusal {
                message: match snapshot.pools.iter().any(|plan| *plan.settings.name == *wanted) {
                    true => format!("\"{wanted}\" is a pool: name one of its backends"),
                    false => format!("no backend \"{wanted}\"; the backends are:"),
                },
                details: self.both_words(all.iter().copied()),
            }),
            _ => Err(Refusal {
                message: format!("\"{wanted}\" could be any of these:"),
                details: self.both_words(found.iter().map(|backend| **backend)),
            }),
        }
    }

    /// The backends that could be meant, and how to name one.
    fn both_words<'b>(&self, backends: impl Iterator<Item = &'b Arc<BackendState>>) -> String {
        let list = lines(backends.map(|backend| format!("{} {}", backend.pool, backend.name)));
        let rest = self.command.arguments.replace("[POOL]", "POOL");
        format!("{list}  hint: `{} {rest}` with the two words of a line above names one\n", self.command.name)
    }

    pub(super) fn expect_pool(&self, wanted: &str) -> Result<(), Refusal> {
        let snapshot = self.front.snapshot.load();
        let mut names = snapshot.pools.iter().map(|plan| &*plan.settings.name);
        if names.clone().any(|name| name == wanted) {
            return Ok(());
        }
        Err(format!("no pool \"{wanted}\"{}", did_you_mean(wanted, &mut names)).into())
    }
}

impl From<String> for Refusal {
    fn from(message: String) -> Self {
        Self { message, details: String::new() }
    }
}

impl From<sessions::Wrong> for Refusal {
    fn from(wrong: sessions::Wrong) -> Self {
        Self { message: wrong.message, details: wrong.details }
    }
}

impl From<&str> for Refusal {
    fn from(message: &str) -> Self {
        message.to_owned().into()
    }
}

/// Whether `part` is the host, the port or the file of that address, or a label at the beginning of its host name. A piece of a port
/// or of an address is none: it may be meant for another backend.
pub(super) fn has_part(address: &str, part: &str) -> bool {
    let is_label = part.starts_with(|c: char| c.is_ascii_alphabetic()) && !address.starts_with("unix:");
    address.match_indices(part).any(|(at, _)| {
        let (before, after) = (&address[..at], &address[at + part.len()..]);
        (before.is_empty() || before.ends_with([':', '/', '@']))
            && (after.is_empty() || after.starts_with([':', '/', '@']) || is_label && after.starts_with('.'))
    })
}

pub(super) fn did_you_mean<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> String {
    nearest(wanted, names).map_or(String::new(), |name| format!(", did you mean \"{name}\"?"))
}

pub(super) fn lines(lines: impl Iterator<Item = String>) -> String {
    lines.map(|line| line + "\n").collect()
}

pub(super) fn to_json(value: &impl serde::Serialize) -> String {
    // Serialization fails only for maps with non-text keys; the report has none.
    serde_json::to_string(value).unwrap_or_else(|error| json!({ "error": error.to_string() }).to_string())
}
