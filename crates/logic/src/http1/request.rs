//! Strict parsing of a request head (RFC 9112 sections 2 to 6). Returns spans and their meaning; never copies, never
//! reads a body.

use super::field::Field;
use super::fields::{self, Coding, Expect, Fields, Listed};
use super::head::{FoundLine, Headers, LeadingLine};
use super::hops::Hops;
use super::host;
use super::refusal::Refusal;
use super::span::Span;
use super::target::{self, RequestLine};
use crate::route::HeaderLookup;

pub use super::fields::Trailers;
pub use super::head::Progress;
pub use super::limits::{Limits, MAX_HEAD, TrailerLimits};
pub use super::version::{Persistence, Version};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyLength {
    #[default]
    None,
    /// The body ends after this number of bytes.
    Length(u64),
    Chunked,
    /// The body ends when the connection closes; only for responses.
    UntilClose,
}

/// `Expect` header (RFC 9110 section 10.1.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expectation {
    #[default]
    None,
    /// The client waits for `100 Continue` before it sends its body.
    Continue,
}

/// Result of parsing bytes that may be incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parse<T> {
    Incomplete,
    Complete(T),
}

/// Facts about the request that the response parser needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestKind {
    /// HEAD responses have no body.
    pub method: MethodKind,
    /// `101` is valid only if the request asked for an upgrade.
    pub upgrade: UpgradeWish,
}

/// Methods that change the framing of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MethodKind {
    Head,
    Other,
}

/// Whether the forwarded request had `Upgrade`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpgradeWish {
    Asked,
    NotAsked,
}

/// Parsed request head: spans into the parsed bytes, and their meaning. Owned, so it can be kept across awaits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// Length of the head in bytes, up to the body, with a skipped empty line before it.
    pub len: usize,
    pub method: Span,
    pub target: Span,
    /// Path and query as sent, without scheme and authority; empty if the target has neither.
    pub origin: Span,
    /// Raw path; empty if an absolute target has none, see [`RequestHead::path`].
    pub path: Span,
    /// Raw query without its '?'.
    pub query: Span,
    /// Effective `host[:port]`: an absolute target takes precedence over `Host` (RFC 9112 section 3.2.2). Empty only in
    /// HTTP/1.0.
    pub authority: Span,
    /// Host in `authority`, in the case sent, without port and trailing dot; IPv6 in brackets.
    pub host: Span,
    pub version: Version,
    pub headers: Headers,
    pub body: BodyLength,
    /// Whether the client wants to keep the connection open.
    pub persistence: Persistence,
    /// Whether the client waits before it sends a body.
    pub expectation: Expectation,
    /// Value of `Upgrade`. `None` if `Connection` does not list it, the method is not GET, there is a body, or it is
    /// `h2c`.
    pub upgrade: Option<Span>,
    /// Whether the client accepts trailers in the response.
    pub trailers: Trailers,
    /// Times that the request has passed through Penstock before.
    pub hops: Hops,
    pub(super) listed: Listed,
}

impl RequestHead {
    /// Value of the first line with this name. `head` is the buffer that was parsed.
    pub fn header<'h>(&self, head: &'h [u8], lower_name: &str) -> Option<&'h [u8]> {
        let line = self
            .headers
            .iter()
            .find(|line| line.name.of(head).eq_ignore_ascii_case(lower_name.as_bytes()))?;
        Some(line.value.of(head))
    }

    /// Header access for the router.
    pub fn lookup<'h>(&'h self, head: &'h [u8]) -> impl HeaderLookup + 'h {
        Lookup { head, request: self }
    }

    pub fn method<'h>(&self, head: &'h [u8]) -> &'h str {
        text(self.method.of(head))
    }

    /// Raw path as text; "/" if an absolute target has none, "*" if the request is OPTIONS without a path.
    pub fn path<'h>(&self, head: &'h [u8]) -> &'h str {
        match self.path.of(head) {
            [] if self.method.of(head) == b"OPTIONS" && self.origin.is_empty() => "*",
            [] => "/",
            path => text(path),
        }
    }

    pub fn kind(&self, head: &[u8]) -> RequestKind {
        RequestKind {
            method: match self.method.of(head) {
                b"HEAD" => MethodKind::Head,
                _ => MethodKind::Other,
            },
            upgrade: match self.upgrade {
                Some(_) => UpgradeWish::Asked,
                None => UpgradeWish::NotAsked,
            },
        }
    }
}

/// Parses a head. `bytes` is everything read and not yet consumed; one empty line before the head is skipped (RFC 9112
/// section 2.2). For heads that arrive in many pieces use [`resume`].
pub fn parse(bytes: &[u8], limits: &Limits) -> Result<Parse<RequestHead>, Refusal> {
    resume(bytes, &mut Progress::default(), limits)
}

/// Like [`parse`], but scans only bytes that are new since the last call with this `progress`.
pub fn resume(bytes: &[u8], progress: &mut Progress, limits: &Limits) -> Result<Parse<RequestHead>, Refusal> {
    match bytes.first() {
        Some(&TLS_HANDSHAKE) => return Err(Refusal::TlsOnPlainPort),
        Some(&byte) if !super::grammar::is_token_byte(byte) && !matches!(byte, b'\r' | b'\n') => {
            return Err(Refusal::MethodSyntax);
        }
        Some(_) => {}
        None => return Ok(Parse::Incomplete),
    }
    let longest = limits.target.min(MAX_HEAD) + target::BESIDE_TARGET;
    let (line, request_line) = match progress.find_first_line(bytes, LeadingLine::Skip, longest, limits)? {
        FoundLine::Incomplete => return Ok(Parse::Incomplete),
        FoundLine::New(line) => (line, Some(target::parse(bytes, line.start, line.end, limits)?)),
        FoundLine::Known(line) => (line, None),
    };
    let mut headers = Headers::new();
    let Some(len) = progress.find_headers(bytes, line, limits, &mut headers)? else {
        return Ok(Parse::Incomplete);
    };
    let request_line = match request_line {
        Some(request_line) => request_line,
        None => target::parse(bytes, line.start, line.end, limits)?,
    };
    check_semantics(bytes, len, headers, request_line, limits).map(Parse::Complete)
}

fn check_semantics(
    bytes: &[u8],
    len: usize,
    headers: Headers,
    line: RequestLine,
    limits: &Limits,
) -> Result<RequestHead, Refusal> {
    let fields = fields::read(bytes, &headers)?;
    let (authority, host) = authority(bytes, &line, &fields)?;
    let body = body_length(&fields, line.version, limits)?;
    if fields.expect == Expect::Unknown {
        return Err(Refusal::ExpectationUnknown);
    }
    let has_body = !matches!(body, BodyLength::None | BodyLength::Length(0));
    let method = line.method.of(bytes);
    if has_body && method == b"TRACE" {
        return Err(Refusal::BodyInTrace); // RFC 9110 section 9.3.8
    }
    let may_upgrade = method == b"GET" && !has_body && line.version == Version::Http11;
    Ok(RequestHead {
        len,
        method: line.method,
        target: line.target,
        origin: line.parts.origin,
        path: line.parts.path,
        query: line.parts.query,
        authority,
        host,
        version: line.version,
        body,
        persistence: fields.persistence(line.version),
        // RFC 9110 section 10.1.1: ignored in HTTP/1.0; without a body there is nothing to wait for.
        expectation: match fields.expect {
            Expect::Continue if has_body && line.version == Version::Http11 => Expectation::Continue,
            _ => Expectation::None,
        },
        upgrade: fields.wanted_upgrade().filter(|_| may_upgrade),
        trailers: fields.trailers,
        hops: fields.hops,
        listed: fields.options.listed,
        headers,
    })
}

/// Returns the effective authority. `Host` must be valid even if an absolute target overrides it.
fn authority(bytes: &[u8], line: &RequestLine, fields: &Fields) -> Result<(Span, Span), Refusal> {
    let from_header = match fields.host {
        Some(span) => Some((span, host::parse(bytes, span)?)),
        None if line.version == Version::Http11 => return Err(Refusal::HostMissing),
        None => None,
    };
    Ok(line.parts.authority.or(from_header).unwrap_or_default())
}

fn body_length(fields: &Fields, version: Version, limits: &Limits) -> Result<BodyLength, Refusal> {
    match (fields.coding, fields.length) {
        (Some(Coding::Chunked), _) if version == Version::Http10 => Err(Refusal::CodingInOldVersion),
        (Some(Coding::Chunked), _) => Ok(BodyLength::Chunked),
        (None, Some(length)) if limits.body.is_some_and(|most| length > most) => Err(Refusal::BodyTooLarge),
        (None, Some(length)) => Ok(BodyLength::Length(length)),
        (None, None) => Ok(BodyLength::None),
    }
}

struct Lookup<'h> {
    head: &'h [u8],
    request: &'h RequestHead,
}

impl HeaderLookup for Lookup<'_> {
    fn header(&self, lower_case_name: &str) -> Option<&[u8]> {
        // A header that is not forwarded must not select the route.
        let line = self.request.headers.iter().find(|line| {
            !matches!(line.field, Field::Dropped | Field::Imitation)
                && line.name.of(self.head).eq_ignore_ascii_case(lower_case_name.as_bytes())
        })?;
        Some(line.value.of(self.head))
    }
}

/// Never fails: methods and targets are visible ASCII.
fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

/// First byte of a TLS record with a ClientHello (RFC 8446 section 5.1).
const TLS_HANDSHAKE: u8 = 0x16;
