//! Faults of a configuration with place, message and hint. All faults are collected, for people and for programs.

use std::fmt;
use std::ops::Range;

use serde_json::json;

mod render;

use crate::files::{self, Places};
use crate::tree::{NodeId, Nodes, Origin};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Place in the file; `None` for the environment, a flag, or the file as a whole.
    pub place: Option<Position>,
    /// Source of a value that is not in the file: `environment PENSTOCK_X`, `--backend`.
    pub from: Option<String>,
    /// The key, such as `listener.web.pool`; entries of lists are counted from 1. Empty for the file as a whole.
    pub path: String,
    pub message: String,
    /// Advice for the operator.
    pub hint: Option<String>,
    pub severity: Severity,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The configuration is refused; nothing changes.
    Error,
    /// The configuration is usable, but probably not intended.
    Warning,
}

/// A range of the text of its file. `start` and `end` count from the first file where there are several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1; a tab is one character.
    pub column: usize,
    /// Byte offset of the start.
    pub start: usize,
    /// Byte offset after the end.
    pub end: usize,
}

/// The faults of one configuration in the order of the file. `Display` formats them for people.
#[derive(Clone, Debug)]
pub struct Faults {
    file: String,
    /// The text of all files.
    text: String,
    places: Box<Places>,
    /// Byte ranges of secrets; `None` if the text is not valid TOML.
    masked: Option<Vec<Range<usize>>>,
    list: Vec<Fault>,
    /// Number of faults beyond [`MAX_FAULTS`].
    left_out: usize,
}

impl Faults {
    /// Returns the faults, sorted by place.
    pub fn iter(&self) -> std::slice::Iter<'_, Fault> {
        self.list.iter()
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Reports whether any fault is an error and not a warning.
    pub fn has_errors(&self) -> bool {
        self.list.iter().any(|fault| fault.severity == Severity::Error)
    }

    /// Formats each fault for people: message, line of the file with the place underlined, hint; then a count.
    pub fn render(&self) -> String {
        render::render(self)
    }

    /// Formats the faults for programs: `{ "file", "ok", "errors", "warnings", "faults": [...] }`.
    pub fn to_json(&self) -> serde_json::Value {
        let faults: Vec<_> = self.list.iter().map(|fault| self.fault_json(fault)).collect();
        let errors = self.count(Severity::Error);
        json!({
            "file": self.file,
            "ok": errors == 0,
            "errors": errors,
            "warnings": self.count(Severity::Warning),
            "faults": faults,
        })
    }

    /// Adds a fault whose place is known, in the order of the file.
    pub(crate) fn insert(&mut self, fault: Fault) {
        let key = |fault: &Fault| (fault.place.is_none(), fault.place.map(|place| place.start));
        let at = self.list.partition_point(|before| key(before) <= key(&fault));
        self.list.insert(at, fault);
    }

    /// Returns the name of the file that a place is in, and the offset of its first byte.
    fn file_of(&self, place: Position) -> (&str, usize) {
        self.places.file(place.start).unwrap_or((&self.file, 0))
    }

    fn fault_json(&self, fault: &Fault) -> serde_json::Value {
        let (file, first) = fault.place.map_or((&*self.file, 0), |place| self.file_of(place));
        json!({
            "severity": match fault.severity {
                Severity::Error => "error",
                Severity::Warning => "warning",
            },
            "file": file,
            "line": fault.place.map(|place| place.line),
            "column": fault.place.map(|place| place.column),
            "start": fault.place.map(|place| place.start - first),
            "end": fault.place.map(|place| place.end - first),
            // `check` takes no values from flags, so `from` is an environment variable.
            "variable": fault.from.as_ref().and_then(|from| from.strip_prefix("environment ")),
            "path": fault.path,
            "message": fault.message,
            "hint": fault.hint,
        })
    }

    fn count(&self, severity: Severity) -> usize {
        let listed = self.list.iter().filter(|fault| fault.severity == severity).count();
        // `left_out` counts as errors, because only errors can exceed the limit.
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

/// Collects the faults of one configuration.
#[derive(Debug)]
pub(crate) struct Report {
    faults: Faults,
}

impl Report {
    pub(crate) fn new(file: &str, text: &str) -> Self {
        Report {
            faults: Faults {
                file: file.to_owned(),
                text: text.to_owned(),
                places: Box::new(Places::new(text)),
                masked: None,
                list: Vec::new(),
                left_out: 0,
            },
        }
    }

    /// The text of all files.
    pub(crate) fn text(&self) -> &str {
        &self.faults.text
    }

    pub(crate) fn places(&self) -> &Places {
        &self.faults.places
    }

    /// Appends an included file. Returns the offset of its first byte.
    pub(crate) fn add_file(&mut self, path: &str, shown: String, text: &str) -> usize {
        let start = files::append(&mut self.faults.text, path, text);
        self.faults.places.add(shown, &self.faults.text, start);
        start
    }

    /// Reports whether `MAX_FAULTS` was reached: callers can then skip the work of wording further faults.
    pub(crate) fn is_full(&self) -> bool {
        self.faults.list.len() >= MAX_FAULTS
    }

    /// Sets the byte ranges of secrets.
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

    /// Adds a fault of a node's value.
    pub(crate) fn at(&mut self, nodes: &Nodes, id: NodeId, message: impl Into<String>) -> Draft<'_> {
        self.draft(nodes, id, nodes.value_span(id), message.into())
    }

    /// Adds a fault of a node's key: something is missing under the key, or the key is not allowed.
    pub(crate) fn at_key(&mut self, nodes: &Nodes, id: NodeId, message: impl Into<String>) -> Draft<'_> {
        self.draft(nodes, id, nodes.key_span(id), message.into())
    }

    /// Adds a fault of the file as a whole.
    pub(crate) fn whole(&mut self, message: impl Into<String>) -> Draft<'_> {
        self.draft_fault(None, None, String::new(), message.into())
    }

    /// Adds a fault of a range of the text without a node.
    pub(crate) fn stretch(&mut self, span: Option<Range<usize>>, message: impl Into<String>) -> Draft<'_> {
        let place = span.map(|span| self.place(span));
        self.draft_fault(place, None, String::new(), message.into())
    }

    /// Adds a fault of a variable or flag.
    pub(crate) fn outside(&mut self, from: String, message: impl Into<String>) -> Draft<'_> {
        self.draft_fault(None, Some(from), String::new(), message.into())
    }

    /// Returns ` (line 31)`, or the source of a node outside the file.
    pub(crate) fn whereabouts(&self, nodes: &Nodes, id: NodeId) -> String {
        match (nodes.origin(id).outside(), nodes.key_span(id)) {
            (Some(from), _) => format!(" ({from})"),
            (None, Some(span)) => format!(" ({})", self.faults.places.words(span.start, &self.faults.file)),
            (None, None) => String::new(),
        }
    }

    pub(crate) fn place(&self, span: Range<usize>) -> Position {
        let text = &self.faults.text;
        let start = floor_char(text, span.start);
        let end = floor_char(text, span.end.max(start));
        let line = self.faults.places.line(start);
        // `into_faults` computes the columns in one pass: a line may be as long as the file.
        Position { line, column: 0, start, end }
    }

    pub(crate) fn into_faults(mut self) -> Faults {
        // Faults without a place come last, in the order in which they were found.
        self.faults.list.sort_by_key(|fault| (fault.place.is_none(), fault.place.map(|place| place.start)));
        let (mut at, mut column) = (0, 1);
        for place in self.faults.list.iter_mut().filter_map(|fault| fault.place.as_mut()) {
            let first = self.faults.places.line_start(place.start);
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
        place: Option<Position>,
        from: Option<String>,
        path: String,
        message: String,
    ) -> Draft<'_> {
        let severity = Severity::Error;
        let fault = Fault { place, from, path, message, hint: None, severity };
        Draft { report: self, fault: Some(fault), derived: Derived::MayBeShown }
    }
}

/// An unfinished fault, added to the report on drop.
pub(crate) struct Draft<'a> {
    report: &'a mut Report,
    fault: Option<Fault>,
    derived: Derived,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Derived {
    MayBeShown,
    /// The value came from the environment, which may contain secrets.
    Hidden,
}

impl Draft<'_> {
    /// Sets advice that does not contain the value.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        if let Some(fault) = &mut self.fault {
            fault.hint = Some(hint.into());
        }
        self
    }

    /// Sets the hint if there is one.
    pub(crate) fn maybe_hint(self, hint: Option<String>) -> Self {
        match hint {
            Some(hint) => self.hint(hint),
            None => self,
        }
    }

    /// Sets advice that contains the value, unless the value must not be shown.
    pub(crate) fn hint_from_value(self, hint: impl Into<String>) -> Self {
        match self.derived {
            Derived::MayBeShown => self.hint(hint),
            Derived::Hidden => self,
        }
    }

    /// Makes the fault a warning: the configuration remains usable.
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

/// Returns the start of the character at or before `at`.
fn floor_char(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// Largest number of listed faults; further faults are only counted.
const MAX_FAULTS: usize = 200;
