//! Paths of values, such as `pool.app.backends`, `listener.web.route.2` or `pool."my.pool".balance`.

use std::fmt;

use super::error::EditError;
use crate::quote::quote;
use crate::tree::is_bare;

/// Path of a value; it has at least one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path(Vec<Segment>);

/// Name of a key, or the place of an entry in a list: its number from 1, or its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) text: String,
    pub(crate) quotes: Quotes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quotes {
    Given,
    None,
}

impl Path {
    /// Reads a path. Names with other characters than letters, digits, `-` and `_` may stand in quotes.
    pub fn parse(text: &str) -> Result<Self, EditError> {
        let bad = |why: &str| {
            EditError::new(format!("{} is not the path of a value: {why}", quote(text)))
                .hint("write it as pool.app.backends, listener.web.route.2 or pool.\"my.pool\".balance")
        };
        let mut segments = Vec::new();
        let mut rest = text;
        loop {
            let (segment, after) = match rest.chars().next() {
                None => {
                    return Err(bad(if segments.is_empty() { "it is empty" } else { "it ends in a dot" }));
                }
                Some(mark @ ('"' | '\'')) => {
                    quoted(&rest[1..], mark).ok_or_else(|| bad("a quote is not closed"))?
                }
                Some(_) => bare(rest),
            };
            if segment.text.is_empty() && segment.quotes == Quotes::None {
                return Err(bad("a name is missing"));
            }
            segments.push(segment);
            rest = after;
            // Faults write the entry of a list as `route[2]`.
            while let Some(inside) = rest.strip_prefix('[') {
                let number = inside.split_once(']').filter(|(number, _)| is_number(number));
                let (number, after) = number.ok_or_else(|| bad("the number of an entry stands in [ ]"))?;
                segments.push(Segment { text: number.to_owned(), quotes: Quotes::None });
                rest = after;
            }
            if rest.is_empty() {
                break;
            }
            rest = rest
                .strip_prefix('.')
                .ok_or_else(|| bad("a dot is missing behind a closing quote or bracket"))?;
        }
        if segments.len() > MOST_SEGMENTS {
            return Err(bad("it is too long"));
        }
        Ok(Self(segments))
    }

    pub(crate) fn segments(&self) -> &[Segment] {
        &self.0
    }
}

/// No key is deeper; the dots of an address make segments too.
const MOST_SEGMENTS: usize = 64;

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Splits off a quoted name, whose opening quote was read.
fn quoted(text: &str, mark: char) -> Option<(Segment, &str)> {
    let mut name = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '\\' if mark == '"' => name.push(chars.next()?.1),
            end if end == mark => {
                return Some((Segment { text: name, quotes: Quotes::Given }, &text[at + end.len_utf8()..]));
            }
            other => name.push(other),
        }
    }
    None
}

/// Splits off a name without quotes. It ends at a dot, or at the `[2]` of an entry; other brackets belong to addresses.
fn bare(text: &str) -> (Segment, &str) {
    let end = text.char_indices().find(|(at, char)| match char {
        '.' => true,
        '[' => text[at + 1..].split_once(']').is_some_and(|(number, after)| {
            *at > 0 && is_number(number) && (after.is_empty() || after.starts_with(['.', '[']))
        }),
        _ => false,
    });
    let end = end.map_or(text.len(), |(at, _)| at);
    (Segment { text: text[..end].to_owned(), quotes: Quotes::None }, &text[end..])
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, segment) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str(".")?;
            }
            if segment.quotes == Quotes::None || is_bare(&segment.text) {
                f.write_str(&segment.text)?;
            } else {
                write!(f, "\"{}\"", segment.text.replace('\\', "\\\\").replace('"', "\\\""))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(path: &Path) -> Vec<&str> {
        path.0.iter().map(|segment| segment.text.as_str()).collect()
    }

    #[test]
    fn a_path_is_read_and_written_again() {
        for (written, texts) in [
            ("pool", vec!["pool"]),
            ("pool.app.backends", vec!["pool", "app", "backends"]),
            ("pool.\"my.pool\".balance", vec!["pool", "my.pool", "balance"]),
            ("listener.web.route.2.host", vec!["listener", "web", "route", "2", "host"]),
        ] {
            let path = Path::parse(written).unwrap();
            assert_eq!(self::texts(&path), texts);
            assert_eq!(path.to_string(), written);
        }
        let path = Path::parse("listener.web.route[2].host").unwrap();
        assert_eq!(path.to_string(), "listener.web.route.2.host");
        assert_eq!(texts(&Path::parse("pool.a.backends.[::1]:80").unwrap())[3], "[::1]:80");
        assert_eq!(Path::parse(r#"a."x\"y""#).unwrap().to_string(), r#"a."x\"y""#);
    }

    #[test]
    fn what_is_no_path_is_refused() {
        for bad in ["", ".", "a.", ".a", "a..b", "a.\"b", "\"a\"b", &"a.".repeat(80)] {
            let error = Path::parse(bad).unwrap_err();
            assert!(error.message.contains("is not the path of a value"), "{bad}: {error}");
        }
    }
}
