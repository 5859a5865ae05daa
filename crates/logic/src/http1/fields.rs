//! Parses the header lines that define framing and connection use (RFC 9112 sections 6 and 9). Used for requests and
//! responses; does not read the first line.

use super::field::{Field, Spelling, spelling};
use super::grammar::{elements, is_token};
use super::hops::Hops;
use super::refusal::Refusal;
use super::span::{HeaderSpan, Span};
use super::version::{Persistence, Version};
use smallvec::SmallVec;

/// Whether a sender accepts trailers (`TE: trailers` with `Connection: TE`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trailers {
    Accepted,
    #[default]
    NotAccepted,
}

/// Header names that `Connection` lists, except options with a special meaning.
pub(super) type Listed = SmallVec<[Span; 4]>;

/// Result of reading all header lines.
#[derive(Default)]
pub(super) struct Fields {
    pub(super) host: Option<Span>,
    pub(super) length: Option<u64>,
    pub(super) coding: Option<Coding>,
    pub(super) options: Options,
    pub(super) expect: Expect,
    pub(super) upgrade: Upgrade,
    pub(super) trailers: Trailers,
    pub(super) keep_alive: Option<Span>,
    pub(super) hops: Hops,
}

/// Transfer coding of a body; only `chunked` is supported.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Coding {
    Chunked,
}

#[derive(Default)]
pub(super) struct Options {
    close: bool,
    keep_alive: bool,
    upgrade: bool,
    te: bool,
    count: usize,
    pub(super) listed: Listed,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Expect {
    #[default]
    Absent,
    Continue,
    /// The header is repeated, or has a value other than `100-continue`.
    Unknown,
}

#[derive(Clone, Copy, Default)]
pub(super) enum Upgrade {
    #[default]
    Absent,
    Wanted(Span),
    /// The header is repeated, malformed or `h2c`, and is not forwarded.
    Ignored,
}

/// Reads all lines. Returns a refusal if the end of the message is in doubt.
pub(super) fn read(head: &[u8], headers: &[HeaderSpan]) -> Result<Fields, Refusal> {
    let mut fields = Fields::default();
    for header in headers {
        let value = header.value.of(head);
        match header.field {
            Field::Host if fields.host.is_some() => return Err(Refusal::HostRepeated),
            Field::Host => fields.host = Some(header.value),
            Field::ContentLength if fields.length.is_some() => return Err(Refusal::LengthRepeated),
            Field::ContentLength => fields.length = Some(parse_length(value)?),
            Field::TransferEncoding if fields.coding.is_some() => return Err(Refusal::CodingRepeated),
            Field::TransferEncoding => fields.coding = Some(parse_coding(value)?),
            Field::Connection => fields.options.read(head, value)?,
            Field::Expect => fields.expect = fields.expect.read(value),
            Field::Upgrade => fields.upgrade = fields.upgrade.read(header.value, value),
            Field::KeepAlive => fields.keep_alive = Some(header.value),
            Field::CdnLoop => fields.hops = fields.hops.read(value),
            Field::Te if elements(value).any(|element| element.eq_ignore_ascii_case(b"trailers")) => {
                fields.trailers = Trailers::Accepted;
            }
            _ => {}
        }
    }
    if fields.length.is_some() && fields.coding.is_some() {
        return Err(Refusal::LengthAndCoding);
    }
    if !fields.options.te {
        fields.trailers = Trailers::NotAccepted;
    }
    Ok(fields)
}

impl Fields {
    /// Whether the connection stays open after this message (RFC 9112 section 9.3).
    pub(super) fn persistence(&self, version: Version) -> Persistence {
        match (version, &self.options) {
            (_, options) if options.close => Persistence::Close,
            (Version::Http11, _) => Persistence::KeepAlive,
            (Version::Http10, options) if options.keep_alive => Persistence::KeepAlive,
            (Version::Http10, _) => Persistence::Close,
        }
    }

    /// Protocols of `Upgrade`, if `Connection` lists it.
    pub(super) fn wanted_upgrade(&self) -> Option<Span> {
        match self.upgrade {
            Upgrade::Wanted(protocols) if self.options.upgrade => Some(protocols),
            _ => None,
        }
    }
}

impl Options {
    fn read(&mut self, head: &[u8], value: &[u8]) -> Result<(), Refusal> {
        for option in value.split(|&byte| byte == b',').map(super::grammar::trim) {
            self.count += 1;
            if self.count > MOST_OPTIONS {
                return Err(Refusal::ConnectionTooLong);
            }
            if option.is_empty() {
                continue; // RFC 9110 section 5.6.1.2: empty list elements are to be accepted
            }
            if !is_token(option) {
                return Err(Refusal::ConnectionSyntax);
            }
            match option.len() {
                2 if option.eq_ignore_ascii_case(b"te") => self.te = true,
                5 if option.eq_ignore_ascii_case(b"close") => self.close = true,
                7 if option.eq_ignore_ascii_case(b"upgrade") => self.upgrade = true,
                10 if option.eq_ignore_ascii_case(b"keep-alive") => self.keep_alive = true,
                _ if FRAMING.iter().any(|name| spelling(option, name) != Spelling::Different) => {
                    return Err(Refusal::ConnectionNamesFraming);
                }
                _ => self.listed.push(Span::within(head, option)),
            }
        }
        Ok(())
    }
}

impl Expect {
    fn read(self, value: &[u8]) -> Self {
        match self {
            Self::Absent if value.eq_ignore_ascii_case(b"100-continue") => Self::Continue,
            _ => Self::Unknown,
        }
    }
}

impl Upgrade {
    fn read(self, span: Span, value: &[u8]) -> Self {
        let acceptable = !value.is_empty()
            && elements(value).all(|protocol| {
                let mut parts = protocol.splitn(2, |&byte| byte == b'/');
                parts.all(is_token) && !protocol.eq_ignore_ascii_case(b"h2c")
            });
        match self {
            Self::Absent if acceptable => Self::Wanted(span),
            _ => Self::Ignored,
        }
    }
}

/// Parses a decimal number: no sign, no blank, no list (RFC 9110 section 8.6).
fn parse_length(value: &[u8]) -> Result<u64, Refusal> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return Err(Refusal::LengthSyntax);
    }
    if value.len() <= SURE_TO_FIT {
        return Ok(value.iter().fold(0, |length, digit| length * 10 + u64::from(digit - b'0')));
    }
    value
        .iter()
        .try_fold(0u64, |length, digit| length.checked_mul(10)?.checked_add(u64::from(digit - b'0')))
        // Many programs use signed numbers, in which a length above `i64::MAX` would be negative.
        .filter(|length| i64::try_from(*length).is_ok())
        .ok_or(Refusal::LengthOverflow)
}

/// Digits of which every number fits into an `i64`.
const SURE_TO_FIT: usize = 18;

fn parse_coding(value: &[u8]) -> Result<Coding, Refusal> {
    if value.eq_ignore_ascii_case(b"chunked") {
        Ok(Coding::Chunked)
    } else if !is_token(value) || value.eq_ignore_ascii_case(b"identity") {
        Err(Refusal::CodingSyntax)
    } else {
        Err(Refusal::CodingUnknown)
    }
}

/// Names that a client must not make Penstock remove: without them the message would have another meaning.
const FRAMING: [&[u8]; 5] = [b"host", b"content-length", b"transfer-encoding", b"connection", b"expect"];

/// Maximum number of options: each option is compared with each header line.
const MOST_OPTIONS: usize = 32;
