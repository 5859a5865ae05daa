//! The tables of docs/pen.md: every option and command of Pen, and what becomes of it.

use super::command::Command;
use super::option::Opt;
use super::row::{Form, Row};
use crate::keys::{self, NewKey, State};

/// The options, as a table in Markdown.
#[must_use]
pub fn options() -> String {
    let rows = Opt::ALL.iter().map(|option| line(&format!("-{option}"), &option.row()));
    table("option", rows.collect())
}

/// The commands, as a table in Markdown.
#[must_use]
pub fn commands() -> String {
    let rows = Command::ALL.iter().map(|command| line(command.as_str(), &command.row()));
    table("command", rows.collect())
}

/// The keys that an option or command needs and this version lacks; empty if there is none.
#[must_use]
pub fn awaited() -> String {
    let lacks = NewKey::ALL.iter().filter(|key| keys::of_this_version(**key) == State::Awaited);
    let lacks: Vec<_> = lacks.map(|key| format!("`{key}`")).collect();
    if lacks.is_empty() {
        return String::new();
    }
    format!("This version does not have {} yet: what needs one of them is `missing`.\n", lacks.join(", "))
}

fn table(what: &str, rows: String) -> String {
    format!("| {what} | in Pen | in Penstock |\n|---|---|---|\n{rows}")
}

fn line(word: &str, row: &Row) -> String {
    let word = if row.argument.is_empty() { word.to_owned() } else { format!("{word} {}", row.argument) };
    let form = match row.form {
        Form::Keys(keys) => keys.to_owned(),
        Form::Needless(why) => format!("needs nothing: {why}"),
        Form::Elsewhere(what) => format!("elsewhere: {what}"),
        Form::Gone(why) => format!("gone: {why}"),
        Form::Missing(why) => format!("**not translated**: {why}"),
    };
    format!("| `{word}` | {} | {form} |\n", row.meaning)
}
