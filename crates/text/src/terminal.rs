//! Safe output of text from others (peers, hosts, files): the text must not move the cursor of a terminal, change its
//! colours, or make a line look different.
//!
//! `crates/hosts/src/fleet/line.rs` prepares the output of hosts, which can have colours and bytes that are not text.

use std::borrow::Cow;
use std::fmt::Write as _;

/// True if a terminal shows the character without another effect.
#[must_use]
pub fn is_printable(c: char) -> bool {
    // Almost every character is one of these: the first comparison decides.
    matches!(c, ' '..='~') || (!c.is_control() && !is_invisible(c))
}

/// True for format characters (Unicode category Cf) and others that are invisible or move text (CVE-2021-42574).
#[must_use]
pub fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Replaces line ends and unsafe characters by U+FFFD.
#[must_use]
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if is_printable(c) { c } else { '\u{fffd}' }).collect()
}

/// Escapes the whole text as [`escaped`] does.
#[must_use]
pub fn line(text: &str) -> String {
    escaped(text, usize::MAX)
}

/// Escapes control characters and invisible characters (`\n`, `\u{1b}`, `\u{202e}`), so that the text is one line. A
/// text of more than `longest` characters is cut, with `…` at the end.
#[must_use]
pub fn escaped(text: &str, longest: usize) -> String {
    let mut out = String::with_capacity(text.len().min(longest));
    for (at, c) in text.chars().enumerate() {
        match c {
            _ if at == longest => {
                out.push('…');
                break;
            }
            c if is_printable(c) => out.push(c),
            c => out.extend(c.escape_default()),
        }
    }
    out
}

/// Escapes the text as [`escaped`] does, in double quotes, so that its end is visible. Quotes and backslashes in the
/// text get a backslash.
#[must_use]
pub fn quoted(text: &str, longest: usize) -> String {
    format!("\"{}\"", escaped(&text.replace('\\', r"\\").replace('"', "\\\""), longest))
}

/// Escapes unsafe characters in strings of a JSON text (RFC 8259 section 7), so that parsers get the original text.
/// Line ends between values stay.
#[must_use]
pub fn json(json: &str) -> Cow<'_, str> {
    if json.chars().all(|c| c == '\n' || is_printable(c)) {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if c == '\n' || is_printable(c) {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a String cannot fail.
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
        assert_eq!(escaped(text, 80), "a\\u{1b}[2J\\u{9b}b\\u{202e}c\\n\\u{e0041}ü");
        assert_eq!(quoted("a\"\\b\n", 80), r#""a\"\\b\n""#);
        assert_eq!((escaped("abcdef", 3), escaped("abc", 3)), ("abc…".to_owned(), "abc".to_owned()));
    }
}
