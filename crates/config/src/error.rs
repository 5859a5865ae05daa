//! Faults of a configuration: where, what is wrong, what to do. All of them at once, for people and for programs.

use std::fmt;
use std::ops::Range;

use serde_json::json;

mod render;

use crate::tree::{NodeId, Nodes, Origin};

/// One fault of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where in the file; `None` for what has no line: the environment, a flag, the file as a whole.
    pub place: Option<Place>,
    /// What brought the value, if that is no line of the file: `environment PENSTOCK_X`, `--backend`.
    pub from: Option<String>,
    /// The key, such as `listener.web.pool`; entries of lists are counted from 1. Empty for the file as a whole.
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub hint: Option<String>,
    /// Whether the configuration can be used all the same.
    pub severity: Severity,
}

/// Whether a fault makes the configuration unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// It does: nothing is changed.
    Error,
    /// It does not, but is hardly meant.
    Warning,
}

/// A stretch of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1; a tab is one.
    pub column: usize,
    /// First byte in the text.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

/// The faults of one configuration, in the order of the file. `Display` writes them for people.
#[derive(Clone, Debug)]
pub struct Faults {
    file: String,
    text: String,
    /// Stretches of the text that are never shown; `None` before the text could be read into values.
    masked: Option<Vec<Range<usize>>>,
    list: Vec<Fault>,
    /// Faults beyond [`MAX_FAULTS`].
    left_out: usize,
}

impl Faults {
    /// The faults, sorted by place.
    pub fn iter(&self) -> std::slice::Iter<'_, Fault> {
        self.list.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether one of them makes the configuration unusable.
    pub fn has_errors(&self) -> bool {
        self.list.iter().any(|fault| fault.severity == Severity::Error)
    }

    /// For people: per fault a head, the line of the file with what is meant underlined, and a hint; a count at the end.
    pub fn render(&self) -> String {
        render::render(self)
    }

    /// For programs: `{ "file", "ok", "errors", "warnings", "faults": [...] }`.
    pub fn to_json(&self) -> serde_json::Value {
        let faults: Vec<_> = self.list.iter().map(fault_json).collect();
        let errors = self.count(Severity::Error);
        json!({
            "file": self.file,
            "ok": errors == 0,
            "errors": errors,
            "warnings": self.count(Severity::Warning),
            "faults": faults,
        })
    }

    fn count(&self, severity: Severity) -> usize {
        let listed = self.list.iter().filter(|fault| fault.severity == severity).count();
        // Only errors can be so many that some are left out: warnings are counted with them.
        if severity == Severity::Error { listed + self.left_out } else { listed }
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render())
    }
}

impl std::error::Error for Faults {}

impl<'a> IntoIterator for &'a Faults {
    type Item = &'a Fault;
    type IntoIter = std::slice::Iter<'a, Fault>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

fn fault_json(fault: &Fault) -> serde_json::Value {
    json!({
        "severity": match fault.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        },
        "line": fault.place.map(|place| place.line),
        "column": fault.place.map(|place| place.column),
        "start": fault.place.map(|place| place.start),
        "end": fault.place.map(|place| place.end),
        "from": fault.from,
        "path": fault.path,
        "message": fault.message,
        "hint": fault.hint,
    })
}

/// Collects the faults of one text.
#[derive(Debug)]
pub(crate) struct Report {
    faults: Faults,
    /// First byte of each line.
    lines: Vec<usize>,
}

impl Report {
    pub(crate) fn new(file: &str, text: &str) -> Self {
        let starts = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Report {
            faults: Faults {
                file: file.to_owned(),
                text: text.to_owned(),
                masked: None,
                list: Vec::new(),
                left_out: 0,
            },
            lines: std::iter::once(0).chain(starts).collect(),
        }
    }

    pub(crate) fn text(&self) -> &str {
        &self.faults.text
    }

    /// Whether further faults are only counted: then their wording is not worth any work.
    pub(crate) fn is_full(&self) -> bool {
        self.faults.list.len() >= MAX_FAULTS
    }

    /// Stretches of the text that are never shown.
    pub(crate) fn mask(&mut self, stretches: Vec<Range<usize>>) {
        self.faults.masked = Some(stretches);
    }

    pub(crate) fn has_errors(&self) -> bool {
        self.faults.has_errors()
    }

    pub(crate) fn push(&mut self, fault: Fault) {
        if self.is_full() {
            self.faults.left_out += 1;
        } else {
            self.faults.list.push(fault);
        }
    }

    /// A fault of the value of a node.
    pub(crate) fn at(&mut self, nodes: &Nodes, id: NodeId, message: impl Into<String>) -> Draft<'_> {
        self.draft(nodes, id, nodes.value_span(id), message.into())
    }

    /// A fault of the key of a node: something is missing in it, or it should not be there.
    pub(crate) fn at_key(&mut self, nodes: &Nodes, id: NodeId, message: impl Into<String>) -> Draft<'_> {
        self.draft(nodes, id, nodes.key_span(id), message.into())
    }

    /// A fault of the file as a whole.
    pub(crate) fn whole(&mut self, message: impl Into<String>) -> Draft<'_> {
        self.draft_fault(None, None, String::new(), message.into())
    }

    /// A fault of a stretch of the text that is no node.
    pub(crate) fn stretch(&mut self, span: Option<Range<usize>>, message: impl Into<String>) -> Draft<'_> {
        let place = span.map(|span| self.place(span));
        self.draft_fault(place, None, String::new(), message.into())
    }

    /// A fault of what brought a value from outside the file.
    pub(crate) fn outside(&mut self, from: String, message: impl Into<String>) -> Draft<'_> {
        self.draft_fault(None, Some(from), String::new(), message.into())
    }

    /// ` (line 31)`, or where else the node came from.
    pub(crate) fn whereabouts(&self, nodes: &Nodes, id: NodeId) -> String {
        match (nodes.origin(id).outside(), nodes.key_span(id)) {
            (Some(from), _) => format!(" ({from})"),
            (None, Some(span)) => format!(" (line {})", self.place(span).line),
            (None, None) => String::new(),
        }
    }

    pub(crate) fn place(&self, span: Range<usize>) -> Place {
        let text = &self.faults.text;
        let start = floor_char(text, span.start);
        let end = floor_char(text, span.end.max(start));
        let line = self.lines.partition_point(|first| *first <= start);
        // Columns are counted once all faults are in order: a line may be as long as the file.
        Place { line, column: 0, start, end }
    }

    pub(crate) fn into_faults(mut self) -> Faults {
        // Those without a place come last, in the order in which they were found.
        self.faults.list.sort_by_key(|fault| (fault.place.is_none(), fault.place.map(|place| place.start)));
        let (mut at, mut column) = (0, 1);
        for place in self.faults.list.iter_mut().filter_map(|fault| fault.place.as_mut()) {
            let first = self.lines[place.line - 1];
            if at < first {
                (at, column) = (first, 1);
            }
            column += self.faults.text[at..place.start].bytes().filter(|byte| byte & 0xc0 != 0x80).count();
            at = place.start;
            place.column = column;
        }
        self.faults
    }

    fn draft(&mut self, nodes: &Nodes, id: NodeId, span: Option<Range<usize>>, message: String) -> Draft<'_> {
        let from = nodes.origin(id).outside();
        let span = if from.is_none() { span } else { None };
        let place = span.map(|span| self.place(span));
        let mut draft = self.draft_fault(place, from, nodes.path(id), message);
        draft.derived = match nodes.origin(id) {
            Origin::Default | Origin::File | Origin::Flag(_) => Derived::MayBeShown,
            Origin::Substituted(_) | Origin::Environment(_) => Derived::Hidden,
        };
        draft
    }

    fn draft_fault(
        &mut self,
        place: Option<Place>,
        from: Option<String>,
        path: String,
        message: String,
    ) -> Draft<'_> {
        let severity = Severity::Error;
        let fault = Fault { place, from, path, message, hint: None, severity };
        Draft { report: self, fault: Some(fault), derived: Derived::MayBeShown }
    }
}

/// A fault that is being written; it joins the report when it goes out of scope.
pub(crate) struct Draft<'a> {
    report: &'a mut Report,
    fault: Option<Fault>,
    derived: Derived,
}

/// Whether a hint may repeat the value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Derived {
    MayBeShown,
    /// It came from the environment, where secrets live.
    Hidden,
}

impl Draft<'_> {
    /// What to do, in words that do not repeat the value.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        if let Some(fault) = &mut self.fault {
            fault.hint = Some(hint.into());
        }
        self
    }

    /// The same, if there is something to say.
    pub(crate) fn maybe_hint(self, hint: Option<String>) -> Self {
        match hint {
            Some(hint) => self.hint(hint),
            None => self,
        }
    }

    /// What to do, in words made from the value: left out if the value must not be shown.
    pub(crate) fn hint_from_value(self, hint: impl Into<String>) -> Self {
        match self.derived {
            Derived::MayBeShown => self.hint(hint),
            Derived::Hidden => self,
        }
    }

    /// The configuration can be used all the same.
    pub(crate) fn warning(mut self) -> Self {
        if let Some(fault) = &mut self.fault {
            fault.severity = Severity::Warning;
        }
        self
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if let Some(fault) = self.fault.take() {
            self.report.push(fault);
        }
    }
}

/// A text in quotes as faults show it: no control characters, not longer than a line can hold.
pub(crate) fn quote(text: &str) -> String {
    const LONGEST: usize = 80;
    let mut out = String::from("\"");
    for (at, character) in text.chars().enumerate() {
        if at == LONGEST {
            out.push_str("...");
            break;
        }
        match character {
            '"' => out.push_str("\\\""),
            plain if is_plain(plain) => out.push(plain),
            other => out.extend(other.escape_default()),
        }
    }
    out.push('"');
    out
}

/// Whether a terminal shows the character as it is: nothing that moves the cursor, changes colours or turns the
/// direction of writing.
fn is_plain(character: char) -> bool {
    let bidi = matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    !character.is_control() && !bidi
}

/// The nearest start of a character at or before `at`.
fn floor_char(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// More faults than anyone reads are only counted.
const MAX_FAULTS: usize = 200;
