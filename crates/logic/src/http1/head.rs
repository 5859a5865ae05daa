//! Finds the end of a head and cuts it into header lines; the same for requests and responses.
//! Every rule on line ends and control bytes is checked here on the raw bytes; httparse only cuts names
//! from values.

use super::field::Field;
use super::grammar::is_token;
use super::refusal::Refusal;
use super::request::{Limits, MAX_HEAD};
use super::span::{HeaderSpan, Span};
use httparse::Header;
use smallvec::{SmallVec, smallvec};

/// Header lines of a head.
pub type Headers = SmallVec<[HeaderSpan; 24]>;

/// How far a head that arrives in pieces was looked at; keeps the work linear in its size however small the
/// pieces are.
/// Start with the default for every message. Between two calls bytes may only be appended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    scanned: usize,
    first_line: Option<FirstLine>,
}

/// Where the first line lies; `end` is the offset of its CR.
#[derive(Clone, Copy, Debug)]
pub(super) struct FirstLine {
    pub(super) start: usize,
    pub(super) end: usize,
}

/// A head that is there as a whole. `len` counts up to and with the empty line.
pub(super) struct Block {
    pub(super) first_line: FirstLine,
    pub(super) len: usize,
}

pub(super) enum FoundLine {
    /// The first line has not ended.
    Incomplete,
    /// The first line ended within the bytes that are new.
    New(FirstLine),
    Known(FirstLine),
}

/// Whether one empty line in front of the first line is skipped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LeadingLine {
    Skip,
    Refuse,
}

impl Progress {
    /// Finds the first line. `longest` is the most that it may have; what is longer is refused as
    /// `TargetTooLong`.
    pub(super) fn find_first_line(
        &mut self,
        bytes: &[u8],
        leading: LeadingLine,
        longest: usize,
        limits: &Limits,
    ) -> Result<FoundLine, Refusal> {
        if let Some(line) = self.first_line {
            return Ok(FoundLine::Known(line));
        }
        let start = match bytes {
            [b'\r', b'\n', ..] if leading == LeadingLine::Refuse => return Err(Refusal::EmptyLines),
            [b'\r', b'\n', b'\r', ..] => return Err(Refusal::EmptyLines),
            [b'\r', b'\n', ..] => 2,
            [b'\r'] => return Ok(FoundLine::Incomplete),
            [b'\r', ..] => return Err(Refusal::BareCr),
            [b'\n', ..] => return Err(Refusal::BareLf),
            _ => 0,
        };
        let limit = limits.head.min(MAX_HEAD);
        let window = &bytes[..bytes.len().min(start + longest + 2).min(limit)];
        let start = start.min(window.len());
        let from = self.scanned.clamp(start, window.len());
        match memchr::memchr(b'\n', &window[from..]) {
            None if window.len() == start + longest + 2 => Err(Refusal::TargetTooLong),
            None if window.len() == limit => Err(Refusal::HeadTooLarge),
            None => {
                self.scanned = window.len();
                Ok(FoundLine::Incomplete)
            }
            Some(at) => {
                let newline = from + at;
                if newline == start || bytes[newline - 1] != b'\r' {
                    return Err(Refusal::BareLf);
                }
                let line = FirstLine { start, end: newline - 1 };
                check_bytes(&bytes[start..line.end], 0)?;
                self.first_line = Some(line);
                self.scanned = newline;
                Ok(FoundLine::New(line))
            }
        }
    }

    /// Finds the empty line. To be called after the first line was found.
    pub(super) fn find_end(
        &mut self,
        bytes: &[u8],
        line: FirstLine,
        limits: &Limits,
    ) -> Result<Option<Block>, Refusal> {
        let limit = limits.head.min(MAX_HEAD);
        let window = &bytes[..bytes.len().min(limit)];
        // One byte back: a line end that was the last byte is looked at again, with the byte behind it.
        let from = self.scanned.saturating_sub(1).max(line.end + 1).min(window.len());
        for at in memchr::memchr_iter(b'\n', &window[from..]) {
            let newline = from + at;
            if window[newline - 1] != b'\r' {
                return Err(Refusal::BareLf);
            }
            if window[newline - 2] == b'\n' {
                return Ok(Some(Block { first_line: line, len: newline + 1 }));
            }
            if matches!(window.get(newline + 1), Some(b' ' | b'\t')) {
                return Err(Refusal::Folded);
            }
        }
        self.scanned = window.len();
        if window.len() == limit { Err(Refusal::HeadTooLarge) } else { Ok(None) }
    }
}

impl Block {
    /// Cuts the header lines; `bytes` is what the block was found in.
    pub(super) fn headers(&self, bytes: &[u8], limits: &Limits) -> Result<Headers, Refusal> {
        let head = &bytes[..self.len];
        let section = &head[self.first_line.end + 2..];
        let ends = memchr::memchr_iter(b'\n', section).count();
        check_bytes(section, ends)?;
        let lines = ends - 1;
        if lines > limits.headers {
            return Err(Refusal::TooManyHeaders);
        }
        let mut slots: SmallVec<[Header<'_>; 32]> = smallvec![httparse::EMPTY_HEADER; lines];
        match httparse::parse_headers(section, &mut slots) {
            Ok(httparse::Status::Complete((len, found))) if len == section.len() && found.len() == lines => {}
            _ => return Err(explain(section)),
        }
        let mut headers = Headers::with_capacity(lines);
        for slot in &slots {
            let name = slot.name.as_bytes();
            headers.push(HeaderSpan {
                name: Span::within(head, name),
                value: Span::within(head, slot.value),
                field: Field::of(name).map_err(|_| Refusal::FramingImitation)?,
            });
        }
        Ok(headers)
    }
}

/// Refuses every control byte but HTAB, apart from `line_ends` pairs of CR and LF. The caller has seen that
/// each LF stands behind a CR; so if the count fits, no other control byte is there. Counting has no
/// branches and is done many bytes at a time.
fn check_bytes(bytes: &[u8], line_ends: usize) -> Result<(), Refusal> {
    let controls: usize = bytes
        .chunks(240)
        .map(|chunk| usize::from(chunk.iter().map(|&byte| u8::from(is_control(byte))).sum::<u8>()))
        .sum();
    if controls == 2 * line_ends {
        return Ok(());
    }
    let bare = bytes.iter().enumerate().any(|(at, &byte)| byte == b'\r' && bytes.get(at + 1) != Some(&b'\n'));
    Err(if bare { Refusal::BareCr } else { Refusal::ControlByte })
}

pub(super) fn is_control(byte: u8) -> bool {
    (byte < 0x20 && byte != b'\t') || byte == 0x7f
}

/// Says what is wrong with header lines that could not be cut.
#[cold]
fn explain(section: &[u8]) -> Refusal {
    for line in section.split(|&byte| byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            continue;
        }
        let Some(colon) = memchr::memchr(b':', line) else { return Refusal::NoColon };
        match &line[..colon] {
            [] => return Refusal::EmptyName,
            [name @ .., b' ' | b'\t'] if is_token(super::grammar::trim(name)) => {
                return Refusal::BlankBeforeColon;
            }
            name if !is_token(name) => return Refusal::NameSyntax,
            _ => {}
        }
    }
    Refusal::NameSyntax
}
