//! The tables of docs/pen.md: every option and command of Pen, and what becomes of it.

use super::command::Command;
use super::option::Opt;
use super::row::{Form, Row};

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
    };
    format!("| `{word}` | {} | {form} |\n", row.meaning)
}
