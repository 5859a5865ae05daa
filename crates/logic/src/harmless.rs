//! Text that others chose (peers, hosts, files) on its way to a person: nothing in it may move the cursor of a terminal, change
//! its colours, or make a line read as something else.
//!
//! What hosts print is shown by [`crate::fleet::line::harmless`], which knows colours and bytes that are no text.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether a terminal shows this and does not obey it.
#[must_use]
pub fn is_harmless(c: char) -> bool {
    !c.is_control() && !is_invisible(c)
}

/// Format characters (Unicode category Cf), line separators and others that show nothing, or move what stands beside them
/// (CVE-2021-42574).
#[must_use]
pub fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// One line, with U+FFFD in place of everything else.
#[must_use]
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if is_harmless(c) { c } else { '\u{fffd}' }).collect()
}

/// One line, with control characters written out (`\n`, `\u{1b}`) and U+FFFD in place of what is invisible; of more than
/// `longest` characters the first, and `…`.
#[must_use]
pub fn escaped(text: &str, longest: usize) -> String {
    let mut out = String::with_capacity(text.len().min(longest));
    for (at, c) in text.chars().enumerate() {
        if at == longest {
            out.push('…');
            break;
        }
        match c {
            c if c.is_control() => out.extend(c.escape_default()),
            c if is_invisible(c) => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// JSON whose strings are escaped (RFC 8259 section 7) wherever they have what is not harmless, so that its readers get what
/// was said. Line ends between values stay.
#[must_use]
pub fn json(json: &str) -> Cow<'_, str> {
    if json.chars().all(|c| c == '\n' || is_harmless(c)) {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if c == '\n' || is_harmless(c) {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a string does not fail.
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_is_left() {
        let text = "a\x1b[2J\u{9b}b\u{202e}c\n\u{e0041}ü";
        assert_eq!(plain(text), "a\u{fffd}[2J\u{fffd}b\u{fffd}c\u{fffd}\u{fffd}ü");
        assert_eq!(escaped(text, 80), "a\\u{1b}[2J\\u{9b}b\u{fffd}c\\n\u{fffd}ü");
        assert_eq!((escaped("abcdef", 3), escaped("abc", 3)), ("abc…".to_owned(), "abc".to_owned()));
    }
}
