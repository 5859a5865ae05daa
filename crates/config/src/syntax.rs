//! Parses TOML text into a tree of values, and words the syntax faults.

use std::ops::Range;
use std::string::FromUtf8Error;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use self::unclosed::Unclosed;
use crate::error::{Faults, Report};
use crate::files::MAX_TEXT;
use crate::quote::quote;
use crate::tree::{Node, NodeId, Nodes, Origin, Spans, Step, Table, Value};

mod unclosed;

/// Parses the text of a file, which begins at `base` in the text of all files. `None` if it is not TOML; the report
/// contains the reason.
pub(crate) fn read(text: &str, base: usize, nodes: &mut Nodes, report: &mut Report) -> Option<Table> {
    let (document, errors) = DeTable::parse_recoverable(text);
    let mut reader = Reader { text, base, nodes, report };
    let root = reader.nodes.root();
    if errors.is_empty() {
        return Some(reader.table(document.get_ref(), root));
    }
    match foreign_start(text) {
        Some((line, program)) => {
            let message = format!("not TOML: this looks like a configuration of {program}");
            let hint = "docs/config.md has every key: clients arrive at a [listener.NAME], servers are listed in a [pool.NAME]";
            drop(reader.report.stretch(reader.placed(Some(line)), message).hint(hint));
        }
        None => reader.syntax_faults(&errors, document.get_ref()),
    }
    None
}

/// Parses one section of the text, even if the rest is not TOML. `None` if a fault may affect the section.
pub(crate) fn read_section(
    text: &str,
    section: &str,
    nodes: &mut Nodes,
    report: &mut Report,
) -> Option<Table> {
    let (document, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        return read(text, 0, nodes, report);
    }
    // Each part begins at a line that starts with the section's name, and ends before the next header.
    let is_header = |at: usize| text[at..].trim_start_matches([' ', '\t']).starts_with('[');
    let lines = || std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1));
    let named = |at: &usize| text[*at..].trim_start_matches([' ', '\t', '[']).starts_with(section);
    let own = lines().filter(named).take(MOST_PARTS + 1).map(|from| {
        let to = lines().find(|at| *at > from && is_header(*at)).unwrap_or(text.len());
        from..to
    });
    let own: Vec<_> = own.collect();
    let concerns = |span: Option<Range<usize>>| {
        let Some(span) = span else { return true };
        own.iter().any(|own| {
            let is_before = span.start < own.start && span.end <= own.start;
            let is_behind = span.start >= own.end && own.end < text.len();
            !is_before && !is_behind
        })
    };
    let is_faulty = own.len() > MOST_PARTS || errors.iter().any(|error| concerns(error.span()));
    let is_named = document.get_ref().keys().any(|key| *key.get_ref() == section);
    // A list or text that is not closed before the section makes the parser take its header for something else: read
    // the lines of the section alone, with spaces before them, so that spans are those of the file.
    let header = format!("[{section}]");
    let alone = match &own[..] {
        [part] if (is_faulty || !is_named) && text[part.clone()].trim_start().starts_with(&header) => {
            " ".repeat(part.start) + &text[part.clone()]
        }
        _ => String::new(),
    };
    let (alone, errors) = DeTable::parse_recoverable(&alone);
    let document = match errors.is_empty() && alone.get_ref().contains_key(section) {
        true => alone,
        false if is_faulty || !is_named => return read(text, 0, nodes, report),
        false => document,
    };
    let mut reader = Reader { text, base: 0, nodes, report };
    let root = reader.nodes.root();
    Some(reader.table(document.get_ref(), root))
}

/// Largest number of lines with the section's name at their start; a file with more is not intact.
const MOST_PARTS: usize = 16;

/// Reports a file beyond the size limit.
pub(crate) fn too_long(name: &str, len: usize) -> Faults {
    let mut report = Report::new(name, "");
    drop(report.whole(format!("{len} bytes long: a configuration holds at most {} MiB", MAX_TEXT >> 20)));
    report.into_faults()
}

/// Reports a file that is not UTF-8.
pub(crate) fn not_utf8(name: &str, error: &FromUtf8Error) -> Faults {
    let mut report = Report::new(name, "");
    let at = error.utf8_error().valid_up_to();
    let bytes = error.as_bytes();
    let line = bytes[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
    let message = format!("not UTF-8: byte 0x{:02x} at offset {at} (line {line})", bytes[at]);
    let hint = if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        "this looks like UTF-16: save the file as UTF-8"
    } else {
        "save the file as UTF-8"
    };
    drop(report.whole(message).hint(hint));
    report.into_faults()
}

struct Reader<'a> {
    text: &'a str,
    /// Place of the text in the text of all files.
    base: usize,
    nodes: &'a mut Nodes,
    report: &'a mut Report,
}

impl Reader<'_> {
    fn table(&mut self, from: &DeTable<'_>, id: NodeId) -> Table {
        let mut keys: Vec<_> = from.iter().collect();
        // TOML allows a table to continue later: sort by the first appearance.
        keys.sort_by_key(|(key, _)| key.span().start);
        let mut table = Table::default();
        for (key, value) in keys {
            let spans = Spans { key: self.placed(Some(key.span())), value: self.span_of(value) };
            let name = key.get_ref().to_string();
            let child = self.nodes.add(Some(id), Step::Key(name.clone()), spans, Origin::File);
            match self.value(value, child) {
                Some(value) => table.push(name, Node { id: child, value }),
                None => self.nodes.mark_broken(id, &name),
            }
        }
        table
    }

    fn value(&mut self, from: &Spanned<DeValue<'_>>, id: NodeId) -> Option<Value> {
        Some(match from.get_ref() {
            DeValue::String(text) => Value::Text(text.to_string()),
            DeValue::Integer(integer) => match i64::from_str_radix(integer.as_str(), integer.radix()) {
                Ok(integer) => Value::Integer(integer),
                Err(_) => {
                    drop(self.report.at(self.nodes, id, "this number is too large"));
                    return None;
                }
            },
            DeValue::Float(float) => Value::Float(float.as_str().parse().unwrap_or(f64::NAN)),
            DeValue::Boolean(switch) => Value::Switch(*switch),
            DeValue::Datetime(time) => Value::Time(time.to_string()),
            DeValue::Array(list) => {
                let mut entries = Vec::with_capacity(list.len());
                for (at, entry) in list.iter().enumerate() {
                    let key =
                        matches!(entry.get_ref(), DeValue::Table(_)).then(|| self.header_of(entry)).flatten();
                    let spans = Spans { key, value: self.span_of(entry) };
                    let child = self.nodes.add(Some(id), Step::Entry(at), spans, Origin::File);
                    match self.value(entry, child) {
                        Some(value) => entries.push(Node { id: child, value }),
                        None => self.nodes.mark_incomplete(id),
                    }
                }
                Value::List(entries)
            }
            DeValue::Table(table) => Value::Table(self.table(table, id)),
        })
    }

    /// The place in the text of all files.
    fn placed(&self, span: Option<Range<usize>>) -> Option<Range<usize>> {
        span.map(|span| self.base + span.start..self.base + span.end)
    }

    /// Place of a value; `None` for a table with a header, whose key has the place.
    fn span_of(&self, value: &Spanned<DeValue<'_>>) -> Option<Range<usize>> {
        let span = value.span();
        let is_table = matches!(value.get_ref(), DeValue::Table(_) | DeValue::Array(_));
        let first = self.text.as_bytes().get(span.start).copied();
        let second = self.text.as_bytes().get(span.start + 1).copied();
        let is_written = match value.get_ref() {
            DeValue::Table(_) => first == Some(b'{'),
            DeValue::Array(list) => {
                first == Some(b'[')
                    && !(second == Some(b'[') && list.iter().all(|entry| is_header(self.text, entry)))
            }
            _ => true,
        };
        self.placed((!span.is_empty() && (is_written || !is_table)).then_some(span))
    }

    /// Place of the header of an entry in a list of tables.
    fn header_of(&self, entry: &Spanned<DeValue<'_>>) -> Option<Range<usize>> {
        self.placed(is_header(self.text, entry).then(|| entry.span()))
    }

    /// Reports only the first fault of each line, because it usually causes the others.
    fn syntax_faults(&mut self, errors: &[toml::de::Error], document: &DeTable<'_>) {
        // The parser reports faults of tokens before those of lines: restore the order of the file.
        let mut errors: Vec<_> = errors.iter().collect();
        errors.sort_by_key(|error| error.span().map_or(0, |span| span.start));
        // What stands behind a list without an end may be good: only what the parser reports before it is reported.
        let unclosed = unclosed::find(self.text);
        if let Some(unclosed) = &unclosed {
            errors.retain(|error| error.span().is_some_and(|span| span.end < unclosed.last));
            self.unclosed_list(unclosed);
        }
        let mut last_line = None;
        // A repeated section would repeat each of its keys too: report only the section.
        let mut twice_until = 0;
        for error in errors {
            let start = error.span().map_or(0, |span| span.start);
            let line = line_start(self.text, start);
            let is_duplicate = error.message().starts_with("duplicate key");
            if last_line == Some(line) || (is_duplicate && start < twice_until) {
                continue;
            }
            last_line = Some(line);
            if self.report.is_full() {
                drop(self.report.whole(""));
            } else if is_duplicate {
                if self.text[line..].trim_start().starts_with('[') {
                    twice_until = self.text[start..].find("\n[").map_or(self.text.len(), |at| start + at);
                }
                self.duplicate(error.span(), line, document);
            } else {
                let written = error.span().and_then(|span| self.text.get(span)).unwrap_or_default();
                let hint = syntax_hint(error.message(), first_line(&self.text[line..]), written);
                let message = format!("not TOML: {}", plain_words(error.message(), written));
                let place = self.placed(error.span());
                drop(self.report.stretch(place, message).maybe_hint(hint.map(str::to_owned)));
            }
        }
    }

    fn unclosed_list(&mut self, unclosed: &Unclosed) {
        let line = |at: usize| self.report.place(self.base + at..self.base + at).line;
        let (last, next) = (line(unclosed.last), line(unclosed.next));
        let before = match unclosed.next < self.text.len() {
            true => format!("line {next}, where something else begins"),
            false => "the end of the file".to_owned(),
        };
        let message = format!("not TOML: this list has no end: a ] is missing before {before}");
        let hint = format!("write the ] behind the last entry, in line {last} or below it");
        let place = self.placed(Some(unclosed.open.clone()));
        drop(self.report.stretch(place, message).hint(hint));
    }

    fn duplicate(&mut self, span: Option<Range<usize>>, line: usize, document: &DeTable<'_>) {
        let key = span.clone().and_then(|span| self.text.get(span)).unwrap_or_default();
        let header = first_line(&self.text[line..]).split('#').next().unwrap_or_default().trim();
        let (written, first) = if header.starts_with('[') {
            let same = |line: &&str| line.split('#').next().is_some_and(|line| line.trim() == header);
            let above = self.text[..line].lines();
            (header, above.enumerate().filter(|(_, line)| same(line)).map(|(at, _)| at + 1).last())
        } else {
            let before = span.as_ref().map_or(0, |span| span.start);
            let first = first_key(self.text, document, key, before);
            (key, self.placed(first).map(|first| self.report.place(first).line))
        };
        let hint = first.map(|first| format!("the first one is in line {first}: keep one of them"));
        let message = format!("{} is given twice", quote(written));
        let place = self.placed(span);
        drop(self.report.stretch(place, message).maybe_hint(hint));
    }
}

fn is_header(text: &str, entry: &Spanned<DeValue<'_>>) -> bool {
    matches!(entry.get_ref(), DeValue::Table(_))
        && text.get(entry.span().start..).is_some_and(|rest| rest.starts_with("[["))
}

/// Removes the quoted text from the parser's message, because the excerpt shows the text.
fn plain_words(message: &str, written: &str) -> String {
    let message = message.trim();
    if message.is_empty() {
        return format!("{} is not expected here", quote(written));
    }
    message.replace('\n', " ")
}

fn line_start(text: &str, at: usize) -> usize {
    let before = text.get(..at).unwrap_or(text);
    before.rfind('\n').map_or(0, |at| at + 1)
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// Returns the first significant line, and the program whose configuration begins with that line.
fn foreign_start(text: &str) -> Option<(Range<usize>, &'static str)> {
    const BLOCKS: [&str; 6] = ["server", "http", "upstream", "events", "stream", "location"];
    const SECTIONS: [&str; 5] = ["frontend", "backend", "listen", "global", "defaults"];
    let mut start = 0;
    let line = text.split_inclusive('\n').find_map(|whole| {
        let from = start;
        start += whole.len();
        let line = whole.split('#').next().unwrap_or_default();
        let from = from + (line.len() - line.trim_start().len());
        let line = line.trim();
        (!line.is_empty()).then(|| from..from + line.len())
    })?;
    let written = text.get(line.clone())?;
    let begins = written.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic());
    if !begins || written.contains(['=', '"', '[']) {
        return None;
    }
    let mut words = written.split_ascii_whitespace();
    let first = words.next()?;
    let more = words.count();
    let block = first.trim_end_matches('{');
    // The opening brace of a block may be in the next line.
    let is_block = BLOCKS.contains(&block) && (written.ends_with('{') || !written.contains(':'));
    if is_block || (more > 0 && written.ends_with(';')) {
        return Some((line, "nginx"));
    }
    (SECTIONS.contains(&first) && more <= 1 && !written.ends_with('{')).then_some((line, "HAProxy"))
}

/// Returns a hint for common mistakes of users of other formats.
fn syntax_hint(message: &str, line: &str, written: &str) -> Option<&'static str> {
    let line = line.trim();
    let (key, value) = line.split_once('=').map_or((line, ""), |(key, value)| (key.trim(), value.trim()));
    let unquoted = |value: &str| {
        value.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric() || b":/*.$".contains(&byte))
    };
    if message.contains("inline table with a dotted key") {
        Some(
            "a table in braces is whole: write this key into the braces, or each of its keys in a line, as in tls.certificates = \"/etc/penstock/certs\"",
        )
    } else if line.starts_with("//") || line.starts_with(';') {
        Some("comments begin with #")
    } else if line.starts_with('[') && !line.contains(']') {
        Some("a section ends in ]")
    } else if !line.contains('=') && line.contains(':') {
        Some("keys and values are joined by =, as in bind = \":80\"")
    } else if !line.contains('=') && line.ends_with('{') {
        Some("sections are written as [listener.web]")
    } else if line.contains('=') && value.is_empty() {
        Some("a value is missing after =")
    } else if value.matches('"').count() % 2 == 1 {
        Some("a closing \" is missing")
    } else if value.starts_with('[') && value.matches('[').count() > value.matches(']').count() {
        Some("a list ends in ], and its entries are separated by commas")
    } else if message.contains("array") {
        Some("a list ends in ], and its entries are separated by commas: is the one before this closed?")
    } else if matches!(value, "yes" | "no" | "on" | "off" | "True" | "False") {
        Some("booleans are true or false; text stands in quotes")
    } else if !key.starts_with('[') && (unquoted(value) || unquoted(written)) && !value.contains('"') {
        Some("text stands in quotes, as in bind = \":80\"")
    } else if !line.contains('=') && !line.starts_with('[') {
        Some("keys and values are joined by =, as in bind = \":80\"")
    } else {
        None
    }
}

/// Finds the last place before `before` where the same key begins a line or is a header.
fn first_key(text: &str, table: &DeTable<'_>, written: &str, before: usize) -> Option<Range<usize>> {
    let name = written.trim_matches(['"', '\'']);
    let mut found: Option<Range<usize>> = None;
    let mut tables = vec![table];
    while let Some(table) = tables.pop() {
        for (key, value) in table {
            let span = key.span();
            let later = found.as_ref().is_none_or(|found| found.start < span.start);
            let begins_line = {
                let line = text.get(..span.start).and_then(|text| text.rsplit('\n').next()).unwrap_or("x");
                let line = line.trim_start();
                line.is_empty() || line.starts_with('[')
            };
            if key.get_ref() == name && span.start < before && later && begins_line {
                found = Some(span);
            }
            if let DeValue::Table(table) = value.get_ref() {
                tables.push(table);
            }
        }
    }
    found
}
