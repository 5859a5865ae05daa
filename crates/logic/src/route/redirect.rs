//! Redirects: the status and where to.

use std::fmt;
use std::str::FromStr;

/// Status of a redirect (RFC 9110 section 15.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RedirectStatus {
    /// 301: for good; clients may turn POST into GET.
    MovedPermanently,
    /// 302: for now; clients may turn POST into GET.
    Found,
    /// 303: look there with GET.
    SeeOther,
    /// 307: for now, with the same method.
    TemporaryRedirect,
    /// 308: for good, with the same method.
    PermanentRedirect,
}

impl RedirectStatus {
    /// The number on the wire.
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

/// A number that is no status of a redirect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no redirect: use 301, 302, 303, 307 or 308")]
pub struct RedirectStatusError(pub u16);

/// Where a redirect leads: a text in which `{host}`, `{path}` and `{query}` stand for those of the request.
/// `{query}` brings its own `?` and is empty if there is none.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Location(Box<str>);

impl Location {
    /// As written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Fills in the request: `host` as it may be repeated (with its port if wanted), `path` as it came,
    /// `query` without `?`. The result is always a valid field value: bytes outside visible ASCII are
    /// percent-encoded.
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

/// At the very beginning, `//evil.example` would name another host (RFC 3986 section 4.2) and clients read
/// `\` as `/`: there the path keeps a single slash.
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

/// Splits at the next `{name}`.
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

/// Why a text is no [`Location`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LocationError {
    /// Nothing is written.
    #[error("the target of a redirect is empty")]
    Empty,
    /// A character that does not stand in a URL as it is.
    #[error("`{}` does not belong in a URL: write it percent-encoded", .0.escape_debug())]
    Character(char),
    /// A name in braces that stands for nothing.
    #[error("`{{{0}}}` stands for nothing: there are {{host}}, {{path}} and {{query}}")]
    Placeholder(Box<str>),
    /// A brace without its partner.
    #[error("a brace stands alone")]
    Brace,
    /// Neither a URL nor a path.
    #[error("a redirect leads to `http://...`, `https://...`, or a path that begins with `/`")]
    Beginning,
    /// `/{path}` would begin with two slashes and so name another host.
    #[error("`/{{path}}` would begin with `//`: {{path}} brings its own slash")]
    SlashPath,
}
