//! Faults as text for people.

use std::fmt::Write;

use super::{Fault, Faults, Position, Severity};
use text::terminal::is_printable;

pub(super) fn render(faults: &Faults) -> String {
    let mut out = String::new();
    for fault in &faults.list {
        head(&mut out, faults, fault);
        if let Some(place) = fault.place {
            excerpt(&mut out, faults, place);
        }
        if let Some(hint) = &fault.hint {
            let _ = writeln!(out, "  hint: {hint}");
        }
    }
    tail(&mut out, faults);
    out
}

/// `error: FILE:LINE:COLUMN: KEY: MESSAGE`
fn head(out: &mut String, faults: &Faults, fault: &Fault) {
    out.push_str(match fault.severity {
        Severity::Error => "error: ",
        Severity::Warning => "warning: ",
    });
    match (fault.place, &fault.from) {
        (Some(place), _) => {
            let (file, _) = faults.file_of(place);
            let _ = write!(out, "{file}:{}:{}: ", place.line, place.column);
        }
        (None, Some(from)) => {
            let _ = write!(out, "{from}: ");
        }
        (None, None) => {
            let _ = write!(out, "{}: ", faults.file);
        }
    }
    if !fault.path.is_empty() {
        let _ = write!(out, "{}: ", fault.path);
    }
    out.push_str(&fault.message);
    out.push('\n');
}

/// Writes the line of the file and underlines the place.
fn excerpt(out: &mut String, faults: &Faults, place: Position) {
    // Show only `WIDTH` characters around the fault: a line may be as long as the file.
    let at = place.column - 1;
    let from = if at > WIDTH * 3 / 4 { at - WIDTH / 2 } else { 0 };
    let before = faults.text[..place.start].char_indices().rev().take(at - from);
    let first = before.last().map_or(place.start, |(first, _)| first);
    let end =
        faults.text[first..].char_indices().nth(WIDTH + 1).map_or(faults.text.len(), |(end, _)| first + end);
    let line = faults.text[first..end].split(['\n', '\r']).next().unwrap_or_default();
    let visible = shown(faults, first, line);
    let marked = &faults.text[place.start..place.end.min(first + line.len()).max(place.start)];
    let marked = marked.chars().count().max(1);

    let mut source = String::new();
    let mut marks = String::new();
    if from > 0 {
        source.push_str("...");
        marks.push_str("   ");
    }
    let mut characters = visible.chars();
    for (column, character) in (from..).zip(characters.by_ref().take(WIDTH)) {
        let width = if character == '\t' { 4 } else { 1 };
        let mark = if column < at {
            ' '
        } else if column < at + marked {
            '^'
        } else {
            '\0'
        };
        match character {
            '\t' => source.push_str("    "),
            plain => source.push(plain),
        }
        if mark != '\0' {
            marks.extend(std::iter::repeat_n(mark, width));
        }
    }
    if characters.next().is_some() {
        source.push_str("...");
    }
    if !marks.contains('^') {
        marks.push('^');
    }
    let number = place.line.to_string();
    let _ = writeln!(out, "  {number} | {source}");
    let _ = writeln!(out, "  {:width$} | {marks}", "", width = number.len());
}

/// Replaces secrets and terminal control characters in a line, one character for each.
fn shown(faults: &Faults, first: usize, line: &str) -> String {
    let last = first + line.len();
    let masked = faults.masked.as_deref().unwrap_or_default();
    let masked: Vec<_> = masked.iter().filter(|mask| mask.start < last && mask.end > first).collect();
    let lower = line.to_ascii_lowercase();
    // Without a parsed tree there are no masks: hide the value of a line that contains a secret word.
    let guessed = if faults.masked.is_none() && SECRET_WORDS.iter().any(|word| lower.contains(word)) {
        line.find(['"', '\'']).map_or(line.len(), |at| at + 1)
    } else {
        line.len()
    };
    line.char_indices()
        .map(|(at, character)| {
            let offset = first + at;
            if at >= guessed || masked.iter().any(|mask| mask.contains(&offset)) {
                '*'
            } else if character == '\t' || is_printable(character) {
                character
            } else {
                '\u{fffd}'
            }
        })
        .collect()
}

fn tail(out: &mut String, faults: &Faults) {
    let errors = faults.count(Severity::Error);
    let warnings = faults.count(Severity::Warning);
    if faults.left_out > 0 {
        let _ = writeln!(out, "... and {} more", faults.left_out);
    }
    let counted = |count: usize, noun: &str| match count {
        1 => format!("1 {noun}"),
        many => format!("{many} {noun}s"),
    };
    match (errors, warnings) {
        (0, 0) => {}
        (0, _) => {
            let _ = writeln!(out, "{}", counted(warnings, "warning"));
        }
        (_, 0) => {
            let _ = writeln!(out, "{}", counted(errors, "error"));
        }
        _ => {
            let _ = writeln!(out, "{}, {}", counted(errors, "error"), counted(warnings, "warning"));
        }
    }
}

/// Largest number of characters shown of a line.
const WIDTH: usize = 120;

/// Words in lines that may contain a secret.
const SECRET_WORDS: [&str; 7] =
    ["authorization", "cookie", "token", "secret", "password", "passwd", "api-key"];
