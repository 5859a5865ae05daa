//! Strict parsing of a backend's response head (RFC 9112 sections 4 and 6).
//! What is ambiguous is a fault of the backend: the session answers 502 and closes that connection.

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

/// A parsed response head: spans into the bytes it was parsed from, plus what they mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// Bytes up to the body.
    pub len: usize,
    /// Version of the backend.
    pub version: Version,
    /// 100 to 599.
    pub status: u16,
    /// Reason phrase, often empty.
    pub reason: Span,
    /// All header lines in their order.
    pub headers: Headers,
    /// How the body ends, with regard to the method of the request and the status.
    pub body: BodyLength,
    /// Length of the body that HEAD and 304 do not send, if the backend told it.
    pub representation: Option<u64>,
    /// Whether the connection to the backend may be used again once the body is read. Any byte behind the
    /// body forbids it too.
    pub persistence: Persistence,
    /// How long the backend keeps an idle connection (`Keep-Alive: timeout=N`).
    pub keep_alive_timeout: Option<Duration>,
    /// Value of `Upgrade` of a 101 that was asked for, or of a 426.
    pub upgrade: Option<Span>,
    pub(super) listed: Listed,
}

impl ResponseHead {
    /// 1xx: another head follows, except for 101.
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

/// What is wrong with a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResponseFault {
    /// The same flaw is refused in requests.
    #[error("backend sent a broken head: {0}")]
    Flaw(Refusal),
    /// The first line is not a status line.
    #[error(
        "backend sent something that is not an HTTP/1 response: if it speaks HTTP/2 only (gRPC), set http2 = \"on\" in its pool"
    )]
    StatusLine,
    /// Not HTTP/1.0 or HTTP/1.1.
    #[error("backend answered in an unknown HTTP version")]
    Version,
    /// Not 100 to 599.
    #[error("backend sent a status outside of 100 to 599")]
    Status,
    /// 101 without having been asked.
    #[error("backend switched protocols unasked")]
    UnaskedUpgrade,
    /// 101 without saying to what.
    #[error("backend switched protocols without saying to which")]
    UnnamedUpgrade,
    /// The body breaks the chunked coding, before a byte of the response was passed on.
    #[error("backend sent a body that breaks the chunked coding")]
    Body,
    /// More than a response may have in front of it.
    #[error("backend sent too many interim responses")]
    Interim,
}

impl ResponseFault {
    /// Word for logs and metric labels.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Flaw(refusal) => refusal.reason(),
            Self::StatusLine => "status-line",
            Self::Version => "version-unknown",
            Self::Status => "status-range",
            Self::UnaskedUpgrade => "unasked-upgrade",
            Self::UnnamedUpgrade => "unnamed-upgrade",
            Self::Body => "body-fault",
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

/// Like [`parse`], but looks only at bytes that are new since the last call with this `progress`.
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
            // RFC 9110 section 8.6: never in 1xx and 204, whatever the method.
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

/// `HTTP/1.1 200 OK`. The reason may be missing, even with the space before it: that changes nothing (RFC
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

/// RFC 9112 section 6.3.
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
        // These never have a body; a backend that announces one may well send it, so nothing more is read
        // from it.
        (100..200 | NO_CONTENT, _, None, None | Some(0)) => Ok((BodyLength::None, persistence)),
        (100..200 | NO_CONTENT, ..) => Ok((BodyLength::None, Persistence::Close)),
        (NOT_MODIFIED, ..) | (_, MethodKind::Head, ..) => Ok((BodyLength::None, persistence)),
        (_, _, Some(Coding::Chunked), _) => Ok((BodyLength::Chunked, persistence)),
        (_, _, None, Some(length)) => Ok((BodyLength::Length(length), persistence)),
        (_, _, None, None) => Ok((BodyLength::UntilClose, Persistence::Close)),
    }
}

/// A hint only, so what cannot be read is as good as absent.
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
