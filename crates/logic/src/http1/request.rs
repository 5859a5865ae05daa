//! Strict parsing of a request head (RFC 9112 sections 2 to 6).
//! Gives spans and their meaning; never copies, never reads a body.

use super::field::Field;
use super::fields::{self, Coding, Expect, Fields, Listed};
use super::head::{FoundLine, Headers, LeadingLine};
use super::hops::Hops;
use super::host;
use super::refusal::Refusal;
use super::span::Span;
use super::target::{self, RequestLine};
use crate::route::HeaderLookup;

pub use super::head::Progress;

/// Most bytes a head may have whatever the limits say: offsets are 32 bits wide.
pub const MAX_HEAD: usize = 16 * 1024 * 1024;

/// What one message may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a head, with its first and its empty line; never more than [`MAX_HEAD`].
    pub head: usize,
    /// Header lines.
    pub headers: usize,
    /// Bytes of a request target.
    pub target: usize,
    /// Bytes of a body with a stated length; a chunked one must be counted while it passes.
    pub body: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { head: 32 * 1024, headers: 100, target: 8 * 1024, body: None }
    }
}

/// How a body ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyLength {
    /// There is none.
    #[default]
    None,
    /// After this many bytes.
    Length(u64),
    /// With the last chunk.
    Chunked,
    /// With the connection; responses only.
    UntilClose,
}

/// What becomes of a connection after a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// It may carry another one.
    KeepAlive,
    /// It is closed.
    Close,
}

/// The versions that are spoken here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1
    Http11,
}

/// The `Expect` header (RFC 9110 section 10.1.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expectation {
    /// The client sends its body at once.
    #[default]
    None,
    /// The client waits for `100 Continue` before it sends its body.
    Continue,
}

/// Whether a sender wants trailers (`TE: trailers` with `Connection: TE`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trailers {
    /// They are kept.
    Accepted,
    /// They may be dropped.
    #[default]
    NotAccepted,
}

/// Result of looking at bytes that may not be all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parse<T> {
    /// More bytes are needed.
    Incomplete,
    /// It is all there.
    Complete(T),
}

/// What a response parser must know of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestKind {
    /// HEAD responses have no body.
    pub method: MethodKind,
    /// `101` is an answer only to one who asked.
    pub upgrade: UpgradeWish,
}

/// The methods that change how a response is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MethodKind {
    /// HEAD
    Head,
    /// Any other.
    Other,
}

/// Whether the request that was forwarded asked for another protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpgradeWish {
    /// It did.
    Asked,
    /// It did not.
    NotAsked,
}

/// A parsed request head: spans into the bytes it was parsed from, plus what they mean. Owned, so it can
/// live across awaits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// Bytes up to the body, with an empty line that was skipped in front.
    pub len: usize,
    /// The method, a token.
    pub method: Span,
    /// The target as sent.
    pub target: Span,
    /// Path and query as sent, without scheme and authority; empty if the target has neither.
    pub origin: Span,
    /// The raw path; empty if an absolute target has none, see [`RequestHead::path`].
    pub path: Span,
    /// The raw query without its '?'.
    pub query: Span,
    /// `host[:port]` that counts: that of an absolute target wins over `Host` (RFC 9112 section 3.2.2).
    /// Empty only in HTTP/1.0.
    pub authority: Span,
    /// The host in `authority`, case as sent, without port and trailing dot; IPv6 in brackets.
    pub host: Span,
    /// The version.
    pub version: Version,
    /// All header lines in their order.
    pub headers: Headers,
    /// How the body ends.
    pub body: BodyLength,
    /// What the client wants to do with the connection afterwards.
    pub persistence: Persistence,
    /// Whether the client waits before it sends a body.
    pub expectation: Expectation,
    /// Value of `Upgrade`, if `Connection` lists it, the method is GET, there is no body and it is not
    /// `h2c`.
    pub upgrade: Option<Span>,
    /// Whether the client takes trailers in the response.
    pub trailers: Trailers,
    /// How often it has passed through Penstock already.
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

    /// The headers as the router wants them.
    pub fn lookup<'h>(&'h self, head: &'h [u8]) -> impl HeaderLookup + 'h {
        Lookup { head, request: self }
    }

    /// The method as text.
    pub fn method<'h>(&self, head: &'h [u8]) -> &'h str {
        text(self.method.of(head))
    }

    /// The raw path as text; "/" where an absolute target has none, "*" for that of OPTIONS.
    pub fn path<'h>(&self, head: &'h [u8]) -> &'h str {
        match self.path.of(head) {
            [] if self.method.of(head) == b"OPTIONS" && self.origin.is_empty() => "*",
            [] => "/",
            path => text(path),
        }
    }

    /// What the parser of the response must know.
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

/// Parses a head. `bytes` is everything read and not yet consumed; one empty line in front is skipped (RFC
/// 9112 section 2.2).
/// For heads that arrive in many pieces use [`resume`].
pub fn parse(bytes: &[u8], limits: &Limits) -> Result<Parse<RequestHead>, Refusal> {
    resume(bytes, &mut Progress::default(), limits)
}

/// Like [`parse`], but looks only at bytes that are new since the last call with this `progress`.
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
    understand(bytes, len, headers, request_line, limits).map(Parse::Complete)
}

fn understand(
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
        // RFC 9110 section 10.1.1: to be ignored in HTTP/1.0, and there is nothing to wait for without a
        // body.
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

/// The authority that counts. `Host` must be right even where an absolute target overrides it.
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
        // What is not passed on must not decide where the request goes.
        let line = self.request.headers.iter().find(|line| {
            !matches!(line.field, Field::Dropped | Field::Imitation)
                && line.name.of(self.head).eq_ignore_ascii_case(lower_case_name.as_bytes())
        })?;
        Some(line.value.of(self.head))
    }
}

/// Methods and targets are visible ASCII, so this never fails on them.
fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

/// First byte of a TLS record that holds a ClientHello (RFC 8446 section 5.1).
const TLS_HANDSHAKE: u8 = 0x16;
