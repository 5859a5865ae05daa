//! Redirects: the status code and the target.

use std::fmt;
use std::str::FromStr;

/// Status code of a redirect (RFC 9110 section 15.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RedirectStatus {
    /// 301: permanent; clients may change POST to GET.
    MovedPermanently,
    /// 302: temporary; clients may change POST to GET.
    Found,
    /// 303: the client repeats the request with GET.
    SeeOther,
    /// 307: temporary, with the same method.
    TemporaryRedirect,
    /// 308: permanent, with the same method.
    PermanentRedirect,
}

impl RedirectStatus {
    pub fn code(self) -> u16 {
        match self {
            RedirectStatus::MovedPermanently => 301,
            RedirectStatus::Found => 302,
            RedirectStatus::SeeOther => 303,
            RedirectStatus::TemporaryRedirect => 307,
            RedirectStatus::PermanentRedirect => 308,
        }
    }
}

impl TryFrom<u16> for RedirectStatus {
    type Error = RedirectStatusError;

    fn try_from(code: u16) -> Result<Self, Self::Error> {
        Ok(match code {
            301 => RedirectStatus::MovedPermanently,
            302 => RedirectStatus::Found,
            303 => RedirectStatus::SeeOther,
            307 => RedirectStatus::TemporaryRedirect,
            308 => RedirectStatus::PermanentRedirect,
            _ => return Err(RedirectStatusError(code)),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not a redirect: use 301, 302, 303, 307 or 308")]
pub struct RedirectStatusError(pub u16);

/// Target of a redirect: text in which `{host}`, `{path}` and `{query}` are replaced by those of the request. `{query}`
/// includes its `?` and is empty if the request has no query.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Location(Box<str>);

impl Location {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Replaces the placeholders. `host` may include a port, `path` is the path of the request unchanged, `query` has
    /// no `?`. The result is always a valid field value: bytes outside visible ASCII are percent-encoded.
    pub fn expand(&self, host: &str, path: &str, query: Option<&str>) -> String {
        let mut out = String::with_capacity(self.0.len() + host.len() + path.len() + 16);
        let mut rest = &*self.0;
        while let Some((before, name, after)) = next_placeholder(rest) {
            out.push_str(before);
            match name {
                "host" => push_visible(&mut out, host),
                "path" => push_path(&mut out, path),
                _ => {
                    if let Some(query) = query {
                        out.push('?');
                        push_visible(&mut out, query);
                    }
                }
            }
            rest = after;
        }
        out.push_str(rest);
        out
    }
}

/// At the start of the target, `//evil.example` would name another host (RFC 3986 section 4.2), and clients read `\` as
/// `/`: the path there begins with exactly one slash.
fn push_path(out: &mut String, path: &str) {
    if out.is_empty() {
        out.push('/');
        push_visible(out, path.trim_start_matches(['/', '\\']));
    } else {
        push_visible(out, path);
    }
}

fn push_visible(out: &mut String, text: &str) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        if byte.is_ascii_graphic() {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(char::from(DIGITS[usize::from(byte >> 4)]));
            out.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }
}

/// Splits `text` at the next `{name}`.
fn next_placeholder(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once('{')?;
    let (name, after) = rest.split_once('}')?;
    Some((before, name, after))
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Location {
    type Err = LocationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Err(LocationError::Empty);
        }
        if let Some(other) = text.chars().find(|c| !c.is_ascii_graphic()) {
            return Err(LocationError::Character(other));
        }
        let mut rest = text;
        while let Some((before, name, after)) = next_placeholder(rest) {
            if before.contains('}') {
                return Err(LocationError::Brace);
            }
            if !matches!(name, "host" | "path" | "query") {
                return Err(LocationError::Placeholder(name.into()));
            }
            rest = after;
        }
        if rest.contains(['{', '}']) {
            return Err(LocationError::Brace);
        }
        let absolute = text.starts_with("http://") || text.starts_with("https://");
        if !(absolute || text.starts_with('/') || text.starts_with("{path}")) {
            return Err(LocationError::Beginning);
        }
        if text.starts_with("/{path}") {
            return Err(LocationError::SlashPath);
        }
        Ok(Location(text.into()))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LocationError {
    #[error("the target of a redirect is empty")]
    Empty,
    /// A character that must be percent-encoded in a URL.
    #[error("`{}` does not belong in a URL: write it percent-encoded", .0.escape_debug())]
    Character(char),
    /// An unknown name in braces.
    #[error("unknown placeholder `{{{0}}}`: known are {{host}}, {{path}} and {{query}}")]
    Placeholder(Box<str>),
    #[error("a brace is not closed or not opened")]
    Brace,
    /// The target is neither an http URL nor a path.
    #[error("a redirect leads to `http://...`, `https://...`, or a path that begins with `/`")]
    Beginning,
    /// `/{path}` would begin with two slashes, so it would name another host.
    #[error("`/{{path}}` would begin with `//`: {{path}} brings its own slash")]
    SlashPath,
}
