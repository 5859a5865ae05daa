//! Path prefixes of routes, and the normalized form of a request's path that is compared with them.

use std::fmt;
use std::str::FromStr;

use smallvec::SmallVec;

/// Path prefix of whole segments: `/api` matches `/api` and `/api/x`, but not `/apix`; `/api/` matches only paths below
/// it. `/` matches every path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PathPrefix(Box<str>);

impl PathPrefix {
    /// The prefix `/`, which matches every path.
    pub fn root() -> Self {
        PathPrefix("/".into())
    }

    pub fn is_root(&self) -> bool {
        &*self.0 == "/"
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Tells whether `path`, normalized by [`comparable`], begins with this prefix.
    pub(super) fn matches(&self, path: &[u8]) -> bool {
        let prefix = self.0.as_bytes();
        if self.is_root() {
            return true;
        }
        let Some(rest) = path.strip_prefix(prefix) else {
            return false;
        };
        prefix.ends_with(b"/") || rest.is_empty() || rest[0] == b'/'
    }
}

impl Default for PathPrefix {
    fn default() -> Self {
        PathPrefix::root()
    }
}

impl fmt::Display for PathPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for PathPrefix {
    type Err = PathPrefixError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if !text.starts_with('/') {
            return Err(PathPrefixError::NoSlash);
        }
        if text.contains('%') {
            return Err(PathPrefixError::Encoded);
        }
        if let Some(other) = text.chars().find(|c| !c.is_ascii_graphic() || matches!(c, '?' | '#' | '\\')) {
            return Err(PathPrefixError::Character(other));
        }
        if text.contains("//") {
            return Err(PathPrefixError::EmptySegment);
        }
        if text.split('/').any(|segment| is_dot_segment(segment.as_bytes())) {
            return Err(PathPrefixError::DotSegment);
        }
        Ok(PathPrefix(text.into()))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathPrefixError {
    #[error("a path begins with `/`")]
    NoSlash,
    /// Paths are compared after decoding, so a percent-encoding would never match.
    #[error("a path is compared after decoding, so it is written without percent-encoding")]
    Encoded,
    /// A character that must be percent-encoded in a path.
    #[error("`{}` does not belong in a path", .0.escape_debug())]
    Character(char),
    /// `//` would never match: repeated `/` in the request's path are merged first.
    #[error("`//` never matches: runs of `/` are merged before paths are compared")]
    EmptySegment,
    #[error("a path holds no `.` or `..` segments")]
    DotSegment,
}

/// Why two programs could map one path to two different resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum PathAmbiguity {
    /// A segment `.` or `..`: plain, percent-encoded, or followed by `;` and parameters.
    #[error("the path holds a dot segment")]
    DotSegment,
    #[error("the path holds an encoded slash")]
    EncodedSlash,
    /// A backslash, plain or percent-encoded.
    #[error("the path holds a backslash")]
    Backslash,
    /// A control character, plain or percent-encoded.
    #[error("the path holds a control character")]
    Control,
    #[error("the path holds a broken percent-encoding")]
    BrokenEncoding,
    /// Percent-encoded overlong UTF-8 that a lenient decoder reads as an ASCII character.
    #[error("the path holds an overlong character")]
    Overlong,
    /// `#` or `?`, which cannot be part of a path.
    #[error("the path holds a delimiter")]
    Delimiter,
}

/// Normalized path, to be compared with prefixes.
pub(super) enum Comparable<'a> {
    AsItCame(&'a [u8]),
    Rewritten(SmallVec<[u8; 128]>),
}

impl Comparable<'_> {
    pub(super) fn root() -> Self {
        Comparable::AsItCame(b"/")
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Comparable::AsItCame(bytes) => bytes,
            Comparable::Rewritten(bytes) => bytes,
        }
    }
}

/// Decodes unreserved characters (RFC 3986 section 2.3) and merges repeated `/`. Returns an error for an ambiguous
/// path.
pub(super) fn comparable(path: &str) -> Result<Comparable<'_>, PathAmbiguity> {
    let bytes = if path.is_empty() { b"/" } else { path.as_bytes() };
    let mut rewritten: SmallVec<[u8; 128]> = SmallVec::new();
    let mut at = 0;
    while at < bytes.len() {
        let (byte, width) = read(&bytes[at..])?;
        if width == 3 && !is_unreserved(byte) {
            rewritten.extend_from_slice(&bytes[at..at + 3]);
        } else if !(byte == b'/' && rewritten.last() == Some(&b'/')) {
            rewritten.push(byte);
        }
        at += width;
    }
    if rewritten.split(|byte| *byte == b'/').any(is_dot_segment) {
        return Err(PathAmbiguity::DotSegment);
    }
    if rewritten.as_slice() == bytes {
        return Ok(Comparable::AsItCame(bytes));
    }
    Ok(Comparable::Rewritten(rewritten))
}

/// Reads one byte of a path, plain or percent-encoded. Also returns its length in the path.
fn read(rest: &[u8]) -> Result<(u8, usize), PathAmbiguity> {
    match rest[0] {
        b'%' => {
            let byte = percent(rest).ok_or(PathAmbiguity::BrokenEncoding)?;
            match byte {
                b'/' => Err(PathAmbiguity::EncodedSlash),
                b'\\' => Err(PathAmbiguity::Backslash),
                0..=0x1f | 0x7f => Err(PathAmbiguity::Control),
                0xc0 | 0xc1 if matches!(percent(&rest[3..]), Some(0x80..=0xbf)) => {
                    Err(PathAmbiguity::Overlong)
                }
                _ => Ok((byte, 3)),
            }
        }
        b'\\' => Err(PathAmbiguity::Backslash),
        b'#' | b'?' => Err(PathAmbiguity::Delimiter),
        0..=0x20 | 0x7f => Err(PathAmbiguity::Control),
        byte => Ok((byte, 1)),
    }
}

/// Decodes the percent-encoding at the start of `rest`.
fn percent(rest: &[u8]) -> Option<u8> {
    let [b'%', high, low, ..] = *rest else {
        return None;
    };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Servlet containers remove a segment's parameters before they resolve dots, so `..;x` is a dot segment too.
fn is_dot_segment(segment: &[u8]) -> bool {
    let end = segment.windows(3).position(|part| part.eq_ignore_ascii_case(b"%3b")).unwrap_or(segment.len());
    let name = segment[..end].split(|byte| *byte == b';').next().unwrap_or_default();
    matches!(name, b"." | b"..")
}
