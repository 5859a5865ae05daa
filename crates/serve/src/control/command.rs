//! The commands of the control socket. One table holds names, arguments, help and handlers; `help` and "did you mean"
//! are made from it.

use std::sync::Arc;

use serde_json::{Value, json};

use super::client::Who;
use crate::events::{Event, Level};
use crate::front::Front;
use crate::report::{self, Status, text};
use crate::state::{Admission, BackendState};

/// Largest weight that an operator may set: the largest that a configuration may have.
const MAX_WEIGHT: u32 = 1000;

/// Events shown unless a number is given.
const EVENTS: usize = 50;

/// What is to be done with a line: mostly it is done already.
pub(super) enum Step {
    /// An empty line.
    Nothing,
    Answer(String),
    Refused(Refusal),
    Reload(Format),
    Stop(Format),
    Follow(Following),
}

/// Why a command was not carried out.
#[derive(Debug)]
pub(super) struct Refusal {
    /// One line.
    pub(super) message: String,
    /// Lines below it, or nothing.
    pub(super) details: String,
}

/// Events to show, and then those that come.
pub(super) struct Following {
    pub(super) count: usize,
    pub(super) format: Format,
}

/// How an answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    Json,
}

/// Runs one line.
pub(super) fn run(line: &str, front: &Arc<Front>, who: Who) -> Step {
    let mut words = match split(line) {
        Ok(words) => words,
        Err(message) => return Step::Refused(message.into()),
    };
    let mut format = Format::Text;
    if words.len() > 1 {
        if words.last().is_some_and(|word| word == "json") {
            words.pop();
            format = Format::Json;
        } else if words[0] == "json" {
            words.remove(0);
            format = Format::Json;
        }
    }
    let Some((name, arguments)) = words.split_first() else { return Step::Nothing };
    let Some(command) = COMMANDS.iter().find(|command| command.name == name) else {
        return Step::Refused(unknown(name));
    };
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let call = Call { front, command, arguments: &arguments, format, who };
    (command.run)(&call).unwrap_or_else(Step::Refused)
}

/// One event as a line.
pub(super) fn event_line(format: Format, event: &Event) -> String {
    match format {
        Format::Text => text::event(event),
        Format::Json => to_json(event),
    }
}

/// A sentence as an answer, or as `{"COMMAND": SENTENCE}`.
pub(super) fn said(format: Format, command: &str, sentence: &str) -> String {
    match format {
        Format::Text => sentence.to_owned(),
        Format::Json => json!({ command: sentence }).to_string(),
    }
}

struct Command {
    name: &'static str,
    arguments: &'static str,
    help: &'static str,
    run: fn(&Call<'_>) -> Result<Step, Refusal>,
}

const COMMANDS: &[Command] = &[
    Command {
        name: "status",
        arguments: "",
        help: "what is served, degraded things first",
        run: |call| {
            call.expect_arguments(0)?;
            let status = Status::read(call.front);
            Ok(call.answer(|| text::status(&status), || to_json(&status)))
        },
    },
    Command {
        name: "backends",
        arguments: "[POOL]",
        help: "backends with health and share of traffic",
        run: backends,
    },
    Command {
        name: "certs",
        arguments: "[NAME]",
        help: "certificates, broken ones first, then by the time they have left",
        run: certificates,
    },
    Command {
        name: "events",
        arguments: "[N] [follow]",
        help: "the last N things that happened; with `follow` those to come, until you send a line",
        run: events,
    },
    Command {
        name: "drain",
        arguments: "[POOL] BACKEND",
        help: "no new sessions for a backend; those it has go on",
        run: |call| admit(call, Admission::Draining),
    },
    Command {
        name: "ready",
        arguments: "[POOL] BACKEND",
        help: "its share of sessions again for a drained backend",
        run: |call| admit(call, Admission::Ready),
    },
    Command {
        name: "weight",
        arguments: "[POOL] BACKEND N|default",
        help: "another share for a backend until the next start",
        run: weight,
    },
    Command {
        name: "reload",
        arguments: "",
        help: "read the configuration again; a bad one changes nothing",
        run: |call| call.expect_arguments(0).map(|()| Step::Reload(call.format)),
    },
    Command {
        name: "stop",
        arguments: "",
        help: "drain and end, as SIGTERM does",
        run: |call| call.expect_arguments(0).map(|()| Step::Stop(call.format)),
    },
    Command { name: "help", arguments: "", help: "this list", run: help },
];

/// A command with what it was called with.
struct Call<'a> {
    front: &'a Arc<Front>,
    command: &'a Command,
    arguments: &'a [&'a str],
    format: Format,
    who: Who,
}

impl Call<'_> {
    fn expect_arguments(&self, most: usize) -> Result<(), Refusal> {
        if self.arguments.len() <= most { Ok(()) } else { Err(self.usage()) }
    }

    fn usage(&self) -> Refusal {
        format!("usage: {} {}", self.command.name, self.command.arguments).trim_end().to_owned().into()
    }

    fn answer(&self, text: impl FnOnce() -> String, json: impl FnOnce() -> String) -> Step {
        Step::Answer(match self.format {
            Format::Text => text(),
            Format::Json => json(),
        })
    }

    /// The backend that `[POOL] BACKEND` means: exactly this name, or the only one that holds this text.
    fn backend(&self, words: &[&str]) -> Result<Arc<BackendState>, Refusal> {
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
            found = all.iter().filter(|backend| backend.name.contains(wanted)).collect();
        }
        match found[..] {
            [backend] => Ok((*backend).clone()),
            // No guess here: addresses are alike, and the nearest one may be the one that must not be touched.
            [] => Err(Refusal {
                message: format!("no backend \"{wanted}\"; there are"),
                details: lines(all.iter().map(|backend| format!("{} {}", backend.pool, backend.name))),
            }),
            _ => Err(Refusal {
                message: format!("\"{wanted}\" could be any of these"),
                details: lines(found.iter().map(|backend| format!("{} {}", backend.pool, backend.name))),
            }),
        }
    }

    fn expect_pool(&self, wanted: &str) -> Result<(), Refusal> {
        let snapshot = self.front.snapshot.load();
        let mut names = snapshot.pools.iter().map(|plan| &*plan.settings.name);
        if names.clone().any(|name| name == wanted) {
            return Ok(());
        }
        Err(format!("no pool \"{wanted}\"{}", did_you_mean(wanted, &mut names)).into())
    }

    /// Says what was changed and by whom, to the caller and to everybody who reads the events.
    fn changed(&self, backend: &BackendState, change: &str, fact: (&str, Value)) -> Step {
        // The pool may serve again, or have nobody left: the checker's task of this backend looks at it.
        backend.wake_health.notify_one();
        self.front.state.events.record(Level::Info, backend.subject(), format!("{change} by {}", self.who));
        self.answer(
            || {
                format!(
                    "{} of pool {}: {change}",
                    text::printable(&backend.name),
                    text::printable(&backend.pool)
                )
            },
            || json!({ "pool": &*backend.pool, "backend": &*backend.name, fact.0: fact.1 }).to_string(),
        )
    }
}

fn backends(call: &Call<'_>) -> Result<Step, Refusal> {
    call.expect_arguments(1)?;
    let pool = call.arguments.first().copied();
    if let Some(pool) = pool {
        call.expect_pool(pool)?;
    }
    let pools = report::pools(call.front, pool);
    Ok(call.answer(|| text::pools(&pools), || to_json(&pools)))
}

fn certificates(call: &Call<'_>) -> Result<Step, Refusal> {
    call.expect_arguments(1)?;
    let wanted = call.arguments.first().copied();
    let all = report::certificates::read(call.front, wanted);
    Ok(call.answer(|| report::certificates::text(&all, wanted), || to_json(&all)))
}

fn events(call: &Call<'_>) -> Result<Step, Refusal> {
    let (arguments, follows) = match call.arguments {
        [rest @ .., "follow"] | ["follow", rest @ ..] => (rest, Follows::Yes),
        all => (all, Follows::No),
    };
    let count = match arguments {
        [] => EVENTS,
        [count] => count.parse().map_err(|_| call.usage())?,
        _ => return Err(call.usage()),
    };
    if follows == Follows::Yes {
        return Ok(Step::Follow(Following { count, format: call.format }));
    }
    let events = call.front.state.events.last(count);
    Ok(call.answer(|| lines(events.iter().map(text::event)), || to_json(&events)))
}

#[derive(PartialEq, Eq)]
enum Follows {
    Yes,
    No,
}

fn admit(call: &Call<'_>, admission: Admission) -> Result<Step, Refusal> {
    let backend = call.backend(call.arguments)?;
    backend.set_admission(admission);
    Ok(match admission {
        Admission::Draining => {
            let left = backend.in_flight.load(std::sync::atomic::Ordering::Relaxed);
            let change = format!("drained ({left} sessions left)");
            call.changed(&backend, &change, ("admission", json!("draining")))
        }
        Admission::Ready => call.changed(&backend, "ready", ("admission", json!("ready"))),
    })
}

fn weight(call: &Call<'_>) -> Result<Step, Refusal> {
    let Some((weight, words)) = call.arguments.split_last() else { return Err(call.usage()) };
    let weight = match *weight {
        "default" => None,
        number => match number.parse::<u32>() {
            Ok(weight) if weight <= MAX_WEIGHT => Some(weight),
            _ => return Err(format!("a weight is a number from 0 to {MAX_WEIGHT}, or `default`").into()),
        },
    };
    let backend = call.backend(words)?;
    backend.set_weight_override(weight);
    let change = weight.map_or("weight as configured".to_owned(), |weight| format!("weight {weight}"));
    Ok(call.changed(&backend, &change, ("weight", json!(weight))))
}

fn help(call: &Call<'_>) -> Result<Step, Refusal> {
    let list = || {
        let list = COMMANDS.iter().map(|command| {
            format!("{:<34}{}", format!("{} {}", command.name, command.arguments), command.help)
        });
        let json = format!("{:<34}{}", "... json", "the same for programs: one line of JSON");
        lines(list.chain([json]))
    };
    let json = || {
        let list: Vec<_> = COMMANDS
            .iter()
            .map(|command| json!({ "name": command.name, "arguments": command.arguments, "help": command.help }))
            .collect();
        Value::from(list).to_string()
    };
    Ok(call.answer(list, json))
}

impl From<String> for Refusal {
    fn from(message: String) -> Self {
        Self { message, details: String::new() }
    }
}

impl From<&str> for Refusal {
    fn from(message: &str) -> Self {
        message.to_owned().into()
    }
}

fn unknown(name: &str) -> Refusal {
    let hint = did_you_mean(name, COMMANDS.iter().map(|command| command.name));
    let shown: String = name.chars().take(40).collect();
    format!("unknown command \"{shown}\"{hint}; `help` lists all").into()
}

fn did_you_mean<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> String {
    // The distance costs the product of both lengths, and nobody mistypes a name of this length.
    if wanted.len() > 100 {
        return String::new();
    }
    let near = names.map(|name| (distance(wanted, name), name)).min();
    match near {
        Some((distance, name)) if distance <= 1 + wanted.chars().count() / 4 => {
            format!(", did you mean \"{name}\"?")
        }
        _ => String::new(),
    }
}

/// Characters to insert, remove or replace (Levenshtein), one row of the table at a time.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (at, a) in left.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (column, b) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[right.len()]
}

/// Words of a line. `"..."` keeps blanks together; `\` inside takes the next character as it is.
fn split(line: &str) -> Result<Vec<String>, &'static str> {
    let mut words = Vec::new();
    let mut chars = line.chars().peekable();
    while let Some(first) = chars.next() {
        if first.is_ascii_whitespace() {
            continue;
        }
        let mut word = String::new();
        if first == '"' {
            loop {
                match chars.next() {
                    Some('"') => break,
                    Some('\\') => word.extend(chars.next()),
                    Some(char) => word.push(char),
                    None => return Err("a quote is not closed"),
                }
            }
        } else {
            word.push(first);
            while let Some(char) = chars.next_if(|char| !char.is_ascii_whitespace()) {
                word.push(char);
            }
        }
        words.push(word);
    }
    Ok(words)
}

fn lines(lines: impl Iterator<Item = String>) -> String {
    lines.map(|line| line + "\n").collect()
}

fn to_json(value: &impl serde::Serialize) -> String {
    // Only maps with keys that are not text can fail; the report has none.
    serde_json::to_string(value).unwrap_or_else(|error| json!({ "error": error.to_string() }).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_at_blanks_outside_quotes() {
        assert_eq!(split("  drain\tapp \"unix:/a b\\\"\" \r").unwrap(), ["drain", "app", "unix:/a b\""]);
        assert_eq!(split("\"\"").unwrap(), [""]);
        assert!(split("").unwrap().is_empty());
        assert!(split("drain \"unix:/a").is_err());
        assert!(split("\"a\\").is_err());
    }

    #[test]
    fn a_mistyped_name_is_guessed_and_a_strange_one_is_not() {
        assert_eq!(did_you_mean("statsu", ["status", "stop"].into_iter()), ", did you mean \"status\"?");
        assert_eq!(did_you_mean("GET", ["status", "stop"].into_iter()), "");
        assert_eq!(did_you_mean(&"x".repeat(4000), ["status"].into_iter()), "");
    }

    #[test]
    fn distance_counts_edits() {
        let cases = [("", "abc", 3), ("abc", "abc", 0), ("kitten", "sitting", 3), ("größe", "grosse", 3)];
        for (left, right, edits) in cases {
            assert_eq!(distance(left, right), edits, "{left} {right}");
        }
    }
}
