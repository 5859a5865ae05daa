//! Strict parsing of a backend's response head (RFC 9112 sections 4 and 6). An ambiguous head is a fault of the
//! backend: the client gets 502, and the backend's connection is closed.

use super::chunked::ChunkFault;
use super::fields::{self, Coding, Fields, Listed};
use super::grammar::elements;
use super::head::{FoundLine, Headers, LeadingLine};
use super::refusal::Refusal;
use super::request::{
    BodyLength, Limits, MAX_HEAD, MethodKind, Parse, Persistence, RequestKind, UpgradeWish, Version,
};
use super::span::Span;
use super::target::parse_version;
use std::time::Duration;

pub use super::head::Progress;

/// Parsed response head: spans into the parsed bytes, and their meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// Length of the head in bytes, up to the body.
    pub len: usize,
    pub version: Version,
    /// Status code, 100 to 599.
    pub status: u16,
    /// Reason phrase, often empty.
    pub reason: Span,
    /// All header lines in order.
    pub headers: Headers,
    /// How the body ends, which also depends on the method of the request and on the status.
    pub body: BodyLength,
    /// Length of the body that a HEAD response or a 304 omits, from Content-Length.
    pub representation: Option<u64>,
    /// Whether the connection to the backend can be reused after the body. A byte after the body also prevents reuse.
    pub persistence: Persistence,
    /// Time for which the backend keeps an idle connection open (`Keep-Alive: timeout=N`).
    pub keep_alive_timeout: Option<Duration>,
    /// Value of `Upgrade`, of a 101 that the client asked for or of a 426.
    pub upgrade: Option<Span>,
    pub(super) listed: Listed,
}

impl ResponseHead {
    /// 1xx except 101: another head follows.
    pub fn is_interim(&self) -> bool {
        self.status < 200 && self.status != SWITCHING_PROTOCOLS
    }

    /// Value of the first line with this name. `head` is the buffer that was parsed.
    pub fn header<'h>(&self, head: &'h [u8], lower_name: &str) -> Option<&'h [u8]> {
        let line = self
            .headers
            .iter()
            .find(|line| line.name.of(head).eq_ignore_ascii_case(lower_name.as_bytes()))?;
        Some(line.value.of(head))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResponseFault {
    /// A fault for which requests are refused too.
    #[error("backend sent a broken head: {0}")]
    Flaw(Refusal),
    #[error(
        "backend sent something that is not an HTTP/1 response: if it speaks HTTP/2 only (gRPC), set http2 = \"on\" in its pool"
    )]
    StatusLine,
    #[error("backend answered in an unknown HTTP version")]
    Version,
    #[error("backend sent a status outside of 100 to 599")]
    Status,
    /// 101 to a request without `Upgrade`.
    #[error("backend switched protocols unasked")]
    UnaskedUpgrade,
    /// 101 without `Upgrade`.
    #[error("backend switched protocols without saying to which")]
    UnnamedUpgrade,
    /// The body violates the chunked coding, before any byte of the response was forwarded.
    #[error("backend sent a body that is malformed: {0}")]
    Body(ChunkFault),
    #[error("backend sent too many interim responses")]
    Interim,
}

impl ResponseFault {
    pub fn reason(self) -> &'static str {
        match self {
            Self::Flaw(refusal) => refusal.reason(),
            Self::StatusLine => "status-line",
            Self::Version => "version-unknown",
            Self::Status => "status-range",
            Self::UnaskedUpgrade => "unasked-upgrade",
            Self::UnnamedUpgrade => "unnamed-upgrade",
            Self::Body(_) => "body-malformed",
            Self::Interim => "too-many-interim",
        }
    }
}

impl From<Refusal> for ResponseFault {
    fn from(refusal: Refusal) -> Self {
        Self::Flaw(refusal)
    }
}

/// Parses a head. `bytes` is everything read from the backend and not yet consumed.
pub fn parse(
    bytes: &[u8],
    limits: &Limits,
    request: RequestKind,
) -> Result<Parse<ResponseHead>, ResponseFault> {
    resume(bytes, &mut Progress::default(), limits, request)
}

/// Like [`parse`], but scans only bytes that are new since the last call with this `progress`.
pub fn resume(
    bytes: &[u8],
    progress: &mut Progress,
    limits: &Limits,
    request: RequestKind,
) -> Result<Parse<ResponseHead>, ResponseFault> {
    const FRONT: &[u8] = b"HTTP/";
    let seen = bytes.len().min(FRONT.len());
    if bytes[..seen] != FRONT[..seen] {
        return Err(ResponseFault::StatusLine);
    }
    let longest = limits.head.min(MAX_HEAD);
    let (line, status_line) = match progress.find_first_line(bytes, LeadingLine::Refuse, longest, limits)? {
        FoundLine::Incomplete => return Ok(Parse::Incomplete),
        FoundLine::New(line) => (line, Some(parse_status_line(bytes, line.end)?)),
        FoundLine::Known(line) => (line, None),
    };
    let mut headers = Headers::new();
    let Some(len) = progress.find_headers(bytes, line, limits, &mut headers)? else {
        return Ok(Parse::Incomplete);
    };
    let (version, status, reason) = match status_line {
        Some(status_line) => status_line,
        None => parse_status_line(bytes, line.end)?,
    };
    let fields = fields::read(bytes, &headers)?;
    let upgrade = upgrade(&fields, version, status, request)?;
    let (body, persistence) = framing(&fields, version, status, request.method)?;
    Ok(Parse::Complete(ResponseHead {
        len,
        version,
        status,
        reason,
        body,
        representation: match (request.method, status) {
            // RFC 9110 section 8.6: never in 1xx and 204, for any method.
            (_, 100..200 | 204) => None,
            (MethodKind::Head, _) | (_, NOT_MODIFIED) => fields.length,
            _ => None,
        },
        persistence,
        keep_alive_timeout: fields.keep_alive.and_then(|span| keep_alive_timeout(span.of(bytes))),
        upgrade,
        listed: fields.options.listed,
        headers,
    }))
}

/// Parses `HTTP/1.1 200 OK`. The reason phrase may be missing, also without the space before it; it has no meaning (RFC
/// 9112 section 4).
fn parse_status_line(bytes: &[u8], end: usize) -> Result<(Version, u16, Span), ResponseFault> {
    let line = &bytes[..end];
    let version = line.get(..8).ok_or(ResponseFault::StatusLine)?;
    let version = parse_version(version).map_err(|refusal| match refusal {
        Refusal::VersionUnknown => ResponseFault::Version,
        _ => ResponseFault::StatusLine,
    })?;
    match &line[8..] {
        [b' ', digits @ ..] => {
            let (code, reason) = digits.split_at_checked(3).ok_or(ResponseFault::StatusLine)?;
            if !code.iter().all(u8::is_ascii_digit) || !(reason.is_empty() || reason[0] == b' ') {
                return Err(ResponseFault::StatusLine);
            }
            let status = code.iter().fold(0u16, |status, digit| status * 10 + u16::from(digit - b'0'));
            if !(100..600).contains(&status) {
                return Err(ResponseFault::Status);
            }
            let reason_start = if reason.is_empty() { end } else { 13 };
            Ok((version, status, Span::new(reason_start, end)))
        }
        _ => Err(ResponseFault::StatusLine),
    }
}

fn upgrade(
    fields: &Fields,
    version: Version,
    status: u16,
    request: RequestKind,
) -> Result<Option<Span>, ResponseFault> {
    match (status, request.upgrade) {
        (SWITCHING_PROTOCOLS, UpgradeWish::NotAsked) => Err(ResponseFault::UnaskedUpgrade),
        (SWITCHING_PROTOCOLS, UpgradeWish::Asked) => match fields.wanted_upgrade() {
            Some(protocol) if version == Version::Http11 => Ok(Some(protocol)),
            _ => Err(ResponseFault::UnnamedUpgrade),
        },
        (UPGRADE_REQUIRED, _) => Ok(fields.wanted_upgrade()),
        _ => Ok(None),
    }
}

/// Determines where the body ends (RFC 9112 section 6.3).
fn framing(
    fields: &Fields,
    version: Version,
    status: u16,
    method: MethodKind,
) -> Result<(BodyLength, Persistence), ResponseFault> {
    if fields.coding.is_some() && version == Version::Http10 {
        return Err(Refusal::CodingInOldVersion.into());
    }
    let persistence = fields.persistence(version);
    match (status, method, fields.coding, fields.length) {
        // These statuses never have a body. A backend that announces one may send it, so its connection is closed.
        (100..200 | NO_CONTENT, _, None, None | Some(0)) => Ok((BodyLength::None, persistence)),
        (100..200 | NO_CONTENT, ..) => Ok((BodyLength::None, Persistence::Close)),
        (NOT_MODIFIED, ..) | (_, MethodKind::Head, ..) => Ok((BodyLength::None, persistence)),
        (_, _, Some(Coding::Chunked), _) => Ok((BodyLength::Chunked, persistence)),
        (_, _, None, Some(length)) => Ok((BodyLength::Length(length), persistence)),
        (_, _, None, None) => Ok((BodyLength::UntilClose, Persistence::Close)),
    }
}

/// Parses `timeout=N`. The value is only a hint, so an invalid one is ignored.
fn keep_alive_timeout(value: &[u8]) -> Option<Duration> {
    elements(value).find_map(|parameter| {
        let (name, seconds) = parameter.split_at_checked(b"timeout=".len())?;
        if !name.eq_ignore_ascii_case(b"timeout=") {
            return None;
        }
        let seconds = std::str::from_utf8(seconds).ok()?.parse::<u32>().ok()?;
        Some(Duration::from_secs(seconds.into()))
    })
}

const SWITCHING_PROTOCOLS: u16 = 101;
const NO_CONTENT: u16 = 204;
const NOT_MODIFIED: u16 = 304;
const UPGRADE_REQUIRED: u16 = 426;
