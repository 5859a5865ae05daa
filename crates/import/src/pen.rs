//! Pen 0.34.1: its command line, and its files of penctl commands, whose language is that of `-O` too.
//!
//! `reader` reads both into the state of `model`: `take` takes the options of the table `option`, `execute` the commands of the
//! table `command`. `emit` writes the configuration, `emit_dsr` that of `dsr_if`.
//! `inventory` makes the tables of docs/pen.md, and a test translates the example of each of their rows.

mod acl;
mod address;
mod command;
mod emit;
mod emit_dsr;
mod emit_tls;
mod emitter;
mod execute;
pub mod inventory;
mod model;
mod option;
mod place;
mod pool;
mod reader;
mod row;
mod saved;
mod take;
mod upstream;

use crate::keys::{self, NewKey, State};
use crate::{Faults, Outside, Translation};
use reader::Reader;

/// Translates the arguments of Pen, without the name of the program.
///
/// # Errors
/// What Pen does not accept either, all of it.
pub fn command_line(words: &[String], outside: &Outside<'_>) -> Result<Translation, Faults> {
    translate(words, outside, keys::of_this_version)
}

/// Translates a file of commands, as `-F` reads it. The command line in the first lines of a file that `write` made counts
/// too: it says where Pen listened.
///
/// # Errors
/// Lines that have no meaning in Pen, all of them.
pub fn file(name: &str, text: &str, outside: &Outside<'_>) -> Result<Translation, Faults> {
    let mut reader = Reader::new(outside);
    reader.command_line(&saved::command_line(text));
    reader.text(name, text, 0);
    emit::emit(reader, &format!("Translated from: {name}"), keys::of_this_version)
}

fn translate(
    words: &[String],
    outside: &Outside<'_>,
    keys: fn(NewKey) -> State,
) -> Result<Translation, Faults> {
    let mut reader = Reader::new(outside);
    reader.command_line(words);
    let shown: Vec<_> = words.iter().map(|word| text::shell::word(word)).collect();
    emit::emit(reader, &format!("Translated from: pen {}", shown.join(" ")), keys)
}

#[cfg(test)]
mod generated;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod words;
