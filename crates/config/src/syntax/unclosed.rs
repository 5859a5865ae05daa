//! Finds a list whose `]` is missing. The parser goes on to read what follows as entries of the list, and reports the
//! first place where that is no longer possible, often far below.

use std::ops::Range;

/// A list that is not closed before the next key, section, or the end of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unclosed {
    /// The `[` of the list.
    pub(super) open: Range<usize>,
    /// End of its last entry, or of the `[`.
    pub(super) last: usize,
    /// Start of the next key or section; the length of the text if there is none.
    pub(super) next: usize,
}

/// Returns the first list that is not closed. `None` also if brackets or quotes are wrong in another way.
pub(super) fn find(text: &str) -> Option<Unclosed> {
    let bytes = text.as_bytes();
    // The opening brackets that are not closed yet.
    let mut open: Vec<usize> = Vec::new();
    let (mut at, mut last, mut is_value) = (0, 0, false);
    while at < bytes.len() {
        let starts_line = at == 0 || bytes[at - 1] == b'\n';
        if starts_line {
            let list = open.last().filter(|list| bytes[**list] == b'[');
            if let Some(&list) = list.filter(|_| begins_anew(&text[at..])) {
                return Some(Unclosed { open: list..list + 1, last, next: at });
            }
            if open.is_empty() {
                is_value = false;
                if is_header(line_at(text, at)) {
                    at += line_at(text, at).len();
                    continue;
                }
            }
        }
        match bytes[at] {
            b'#' => {
                at += line_at(text, at).len();
                continue;
            }
            b'"' | b'\'' => {
                at = end_of_text(text, at)?;
                last = at;
                continue;
            }
            b'=' if open.is_empty() => is_value = true,
            b'[' | b'{' if is_value => open.push(at),
            b']' | b'}' if is_value => {
                let opened = open.pop()?;
                if bytes[opened] + 2 != bytes[at] {
                    return None;
                }
            }
            _ => {}
        }
        at += 1;
        if !bytes[at - 1].is_ascii_whitespace() {
            last = at;
        }
    }
    let list = open.iter().rev().find(|list| bytes[**list] == b'[')?;
    (open.last() == Some(list)).then(|| Unclosed { open: *list..list + 1, last, next: text.len() })
}

/// Tests whether a line can be no entry of a list: `key = ...`, or a header.
fn begins_anew(rest: &str) -> bool {
    let line = line_at(rest, 0).trim_start();
    is_header(line) || is_key(line)
}

/// `[listener.web]` or `[[rule]]`. A nested list of numbers, booleans or texts is none.
fn is_header(line: &str) -> bool {
    let line = line.trim_start();
    let Some(inner) = line.strip_prefix("[[").or_else(|| line.strip_prefix('[')) else { return false };
    let (name, after) = inner.split_once(']').unwrap_or((inner, ""));
    let name = name.trim();
    let first = name.split('.').next().unwrap_or_default().trim();
    let is_word =
        !first.is_empty() && first.bytes().all(is_bare) && !matches!(first, "true" | "false" | "inf" | "nan");
    let is_number = first.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'-' | b'_'));
    let ends = after.trim_start_matches(']').trim_start();
    is_word && !is_number && !name.contains(',') && (ends.is_empty() || ends.starts_with('#'))
}

/// `key = `, `a.b = ` or `"a b" = `
fn is_key(line: &str) -> bool {
    let Some((key, _)) = line.split_once('=') else { return false };
    let key = key.trim_end();
    let bare =
        |key: &str| !key.is_empty() && key.bytes().all(|byte| is_bare(byte) || matches!(byte, b'.' | b' '));
    let quoted = |mark: char| {
        let inner = key.strip_prefix(mark).and_then(|key| key.strip_suffix(mark));
        inner.is_some_and(|inner| !inner.contains([mark, '\\']))
    };
    bare(key) || quoted('"') || quoted('\'')
}

fn is_bare(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

fn line_at(text: &str, at: usize) -> &str {
    text[at..].split('\n').next().unwrap_or_default()
}

/// Returns the end of the text that begins at `at` with a quote. `None` if it has none.
fn end_of_text(text: &str, at: usize) -> Option<usize> {
    let rest = &text[at..];
    let mark = rest.get(..1)?;
    let long = mark.repeat(3);
    if let Some(inner) = rest.strip_prefix(long.as_str()) {
        let mut from = 0;
        loop {
            let end = from + inner[from..].find(long.as_str())?;
            if mark == "'" || !is_escaped(inner, end) {
                // Up to two quotes may stand before the closing ones.
                let more =
                    inner[end + 3..].bytes().take(2).take_while(|byte| [*byte] == mark.as_bytes()).count();
                return Some(at + 3 + end + 3 + more);
            }
            from = end + 1;
        }
    }
    let inner = line_at(text, at + 1);
    let mut ends = inner.match_indices(mark).map(|(end, _)| end);
    ends.find(|end| mark == "'" || !is_escaped(inner, *end)).map(|end| at + 1 + end + 1)
}

fn is_escaped(text: &str, at: usize) -> bool {
    text.as_bytes()[..at].iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The text between the place where a list opens and its last entry, and what follows.
    fn found(text: &str) -> Option<(&str, &str)> {
        let unclosed = find(text)?;
        assert_eq!(&text[unclosed.open.clone()], "[");
        Some((&text[unclosed.open.start..unclosed.last], &text[unclosed.next..]))
    }

    #[test]
    fn a_list_without_an_end_is_found_where_it_begins() {
        assert_eq!(
            found("a = [\n  \"x\", # [\n  'y\\'\n\nb = 1\n"),
            Some(("[\n  \"x\", # [\n  'y\\'", "b = 1\n"))
        );
        assert_eq!(found("a = [1, 2\n[pool.app]\n"), Some(("[1, 2", "[pool.app]\n")));
        assert_eq!(found("a = [1, 2\n[[pool.app]] # x\n"), Some(("[1, 2", "[[pool.app]] # x\n")));
        assert_eq!(found("[a]\nb = [\n[1, 2],\n\"b = \"\n"), Some(("[\n[1, 2],\n\"b = \"", "")));
        assert_eq!(
            found("a = [\"\"\"\nb = [\n\\\"\"\"\"\"\",\nb.c = 2"),
            Some(("[\"\"\"\nb = [\n\\\"\"\"\"\"\",", "b.c = 2"))
        );
        assert_eq!(found("a = [[1, 2],\n[3\n\"b\" = 2"), Some(("[3", "\"b\" = 2")), "the inner one");
        assert_eq!(found("a = [{ b = 1,\nc = [\nd = 1"), Some(("[", "d = 1")));
    }

    #[test]
    fn lists_with_an_end_and_other_faults_are_left_alone() {
        for text in [
            "a = [\n[1],\n[true],\n[\"x\"],\n[2.5],\n[a, b],\n]\n[b]\nc = []\n",
            "a = \"[\" # [\nb = '[\"'\n",
            "[x\"y]\n",
            "a = [\n{ b = 1,\n  c = 2 },\n]\nb = 1",
            // A quote or a brace is missing, not the bracket.
            "a = [\"x, \"y\"]\nb = 1",
            "a = [{ b = 1 ]\nc = 1",
            "a = [1]]\nb = 1",
            "a = {\nb = 1",
        ] {
            assert_eq!(found(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_is_too_strange(text in "[\\[\\]{}=\"'#\\\\a1ü.\n ]{0,40}") {
            if let Some(unclosed) = find(&text) {
                prop_assert!(unclosed.open.end <= unclosed.last.max(unclosed.open.end));
                prop_assert!(text.is_char_boundary(unclosed.last) && text.is_char_boundary(unclosed.next));
                prop_assert!(unclosed.last <= unclosed.next);
            }
        }
    }
}
