//! Lines of our text files: words, comments and faults.

use std::fmt;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Line number from 1; 0 for the whole file.
    pub line: usize,
    /// Fault and advice.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            f.write_str(&self.message)
        } else {
            write!(f, "line {}: {}", self.line, self.message)
        }
    }
}

/// Words of a line without its comment. A blank in parentheses does not end a word: `from=rotation(proved by …)`.
pub(super) fn words(line: &str) -> Vec<&str> {
    let mut words = Vec::with_capacity(6);
    let (mut start, mut depth) = (None, 0_u32);
    for (at, c) in line.char_indices() {
        match c {
            '#' if start.is_none() => return words,
            c if c.is_whitespace() && depth == 0 => {
                if let Some(from) = start.take() {
                    words.push(&line[from..at]);
                }
            }
            c => {
                start = start.or(Some(at));
                match c {
                    '(' => depth += 1,
                    ')' => depth = depth.saturating_sub(1),
                    _ => {}
                }
            }
        }
    }
    if let Some(from) = start {
        words.push(&line[from..]);
    }
    words
}

/// Comment at the end of a line, with its `#`.
pub(super) fn comment(line: &str) -> Option<&str> {
    let mut before = ' ';
    for (at, c) in line.char_indices() {
        if c == '#' && before.is_whitespace() {
            return Some(&line[at..]);
        }
        before = c;
    }
    None
}

/// Splits a file into lines, and refuses truncated and damaged files.
pub(super) fn whole_lines(text: &str) -> Result<Vec<&str>, Fault> {
    if text.is_empty() {
        return Err(Fault {
            line: 0,
            message: "the file is empty: restore it, or remove it and enrol the host anew".into(),
        });
    }
    for (at, line) in text.lines().enumerate() {
        if line.chars().any(|c| c.is_control() && c != '\t') {
            let message = "a control character: the file is damaged; restore it, or take the line out".into();
            return Err(Fault { line: at + 1, message });
        }
    }
    if !text.ends_with('\n') {
        let message =
            "the last line has no end: the file may be cut; if the line is whole, end it with a newline"
                .into();
        return Err(Fault { line: text.lines().count(), message });
    }
    Ok(text.lines().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_end_at_white_space_outside_parentheses() {
        assert_eq!(
            words("pin  k from=rotation(proved by X) 2026-01-01 # why"),
            ["pin", "k", "from=rotation(proved by X)", "2026-01-01"]
        );
        assert_eq!(words("a b#c"), ["a", "b#c"]);
        assert_eq!(comment("addr x  # hints # more"), Some("# hints # more"));
        assert_eq!(comment("a#b"), None);
    }
}
