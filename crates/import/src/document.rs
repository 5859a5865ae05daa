//! A configuration in the making: sections with lines, and comments above the lines that they are about.

use std::collections::BTreeSet;

use text::terminal::plain;
use text::wrap::wrapped;

use crate::Note;

/// Width of comments.
const WIDTH: usize = 100;

#[derive(Debug, Default)]
pub(crate) struct Document {
    title: Vec<String>,
    sections: Vec<Section>,
}

#[derive(Debug)]
pub(crate) struct Section {
    head: String,
    comments: Vec<String>,
    lines: Vec<Line>,
}

#[derive(Debug)]
struct Line {
    comments: Vec<String>,
    key: String,
    value: String,
}

impl Document {
    /// Adds a comment at the top.
    pub(crate) fn title(&mut self, comment: impl Into<String>) {
        self.title.push(comment.into());
    }

    /// Begins a section, such as `listener.main`, or `[listener.main.route]` for an entry of a list.
    pub(crate) fn section(&mut self, head: impl Into<String>) -> &mut Section {
        self.sections.push(Section { head: head.into(), comments: Vec::new(), lines: Vec::new() });
        let last = self.sections.len() - 1;
        &mut self.sections[last]
    }

    /// All comments, also those of the title.
    pub(crate) fn comments(&self) -> BTreeSet<&str> {
        let of_sections = self.sections.iter().flat_map(|section| {
            section.comments.iter().chain(section.lines.iter().flat_map(|line| &line.comments))
        });
        self.title.iter().chain(of_sections).map(String::as_str).collect()
    }

    /// Adds the notes that no comment tells yet to the title.
    pub(crate) fn tell(&mut self, notes: &[Note]) {
        let told = self.comments();
        let comment = |note: &Note| format!("{}: {}", note.place, note.text);
        let more: Vec<_> =
            notes.iter().map(comment).filter(|comment| !told.contains(comment.as_str())).collect();
        self.title.extend(more);
    }

    /// Formats everything that has content.
    pub(crate) fn render(&self) -> String {
        let mut out = String::new();
        self.title.iter().for_each(|text| comment(&mut out, text));
        for section in &self.sections {
            if section.lines.is_empty() && section.comments.is_empty() {
                continue;
            }
            if !out.is_empty() {
                out.push('\n');
            }
            section.comments.iter().for_each(|text| comment(&mut out, text));
            if section.lines.is_empty() {
                continue;
            }
            out.push_str(&format!("[{}]\n", section.head));
            for line in &section.lines {
                line.comments.iter().for_each(|text| comment(&mut out, text));
                out.push_str(&format!("{} = {}\n", line.key, line.value));
            }
        }
        out
    }
}

impl Section {
    /// Adds a comment above the section.
    pub(crate) fn comment(&mut self, text: impl Into<String>) {
        self.comments.push(text.into());
    }

    /// Adds a line, with comments above it.
    pub(crate) fn put(&mut self, key: &str, value: impl Into<String>, comments: &[String]) {
        self.lines.push(Line { comments: comments.to_vec(), key: key.to_owned(), value: value.into() });
    }
}

fn comment(out: &mut String, text: &str) {
    out.push_str(&wrapped("# ", "# ", &plain(text), WIDTH));
    out.push('\n');
}

/// A text as TOML, in which the environment replaces nothing.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.replace("${", "$${").chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if text::terminal::is_printable(c) => out.push(c),
            c => out.push_str(&format!("\\U{:08X}", u32::from(c))),
        }
    }
    out.push('"');
    out
}

/// A list as TOML: on one line if it is short.
pub(crate) fn list(entries: &[String]) -> String {
    let line = format!("[{}]", entries.join(", "));
    if line.len() <= 80 {
        return line;
    }
    format!("[\n{}]", entries.iter().map(|entry| format!("  {entry},\n")).collect::<String>())
}

/// A number of seconds as a duration.
pub(crate) fn seconds(seconds: u64) -> String {
    quoted(&match seconds {
        0 => "0s".to_owned(),
        days if days % 86400 == 0 => format!("{}d", days / 86400),
        seconds => format!("{seconds}s"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_outside_can_neither_end_a_string_nor_a_comment() {
        assert_eq!(quoted("a\"b\\c\n${HOME}"), "\"a\\\"b\\\\c\\U0000000A$${HOME}\"");
        let mut document = Document::default();
        document.title("one\ntwo = 1");
        document.section("empty");
        let section = document.section("listener.main");
        section.put("bind", quoted(":80"), &["three\u{b}\rfour = 4".to_owned()]);
        let text = document.render();
        let code: Vec<_> = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
        assert_eq!(code, ["[listener.main]", "bind = \":80\""]);
    }

    #[test]
    fn durations_are_short() {
        assert_eq!([0, 90, 86400 * 365].map(seconds), ["\"0s\"", "\"90s\"", "\"365d\""]);
    }
}
