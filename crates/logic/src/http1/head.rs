//! Finds the end of a head and cuts it into header lines; the same for requests and responses.
//! Every rule on line ends and control bytes is checked here on the raw bytes.

use super::field::Field;
use super::grammar::{is_token, is_token_byte, trim};
use super::refusal::Refusal;
use super::request::{Limits, MAX_HEAD};
use super::span::{HeaderSpan, Span};
use smallvec::SmallVec;

/// Header lines of a head. Few have room inside: a parsed head is moved several times on its way, and copying room for two
/// dozen lines each time costs more than one allocation.
pub type Headers = SmallVec<[HeaderSpan; 8]>;

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
                check_bytes(&bytes[start..line.end])?;
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
        let first = self.first_line.end + LINE_END;
        check_bytes(&head[first..])?;
        let mut headers = Headers::new();
        let mut start = first;
        for at in memchr::memchr_iter(b'\n', &head[first..]) {
            let end = first + at + 1 - LINE_END;
            if end == start {
                break; // the empty line
            }
            if headers.len() == limits.headers {
                return Err(Refusal::TooManyHeaders);
            }
            headers.push(cut(head, start, end)?);
            start = end + LINE_END;
        }
        Ok(headers)
    }
}

/// Cuts the line in `head[start..end]` into name and value (RFC 9112 section 5). Its bytes are no control bytes but HTAB.
fn cut(head: &[u8], start: usize, end: usize) -> Result<HeaderSpan, Refusal> {
    let line = &head[start..end];
    let colon = line.iter().position(|&byte| !is_token_byte(byte)).unwrap_or(line.len());
    if colon == 0 || line.get(colon) != Some(&b':') {
        return Err(explain(line));
    }
    let name = &line[..colon];
    Ok(HeaderSpan {
        name: Span::new(start, start + colon),
        value: Span::within(head, trim(&line[colon + 1..])),
        field: Field::of(name).map_err(|_| Refusal::FramingImitation)?,
    })
}

/// Says why a line does not begin with a name and a colon.
#[cold]
fn explain(line: &[u8]) -> Refusal {
    let Some(colon) = memchr::memchr(b':', line) else { return Refusal::NoColon };
    match &line[..colon] {
        [] => Refusal::EmptyName,
        [front @ .., b' ' | b'\t'] if is_token(trim(front)) => Refusal::BlankBeforeColon,
        _ => Refusal::NameSyntax,
    }
}

/// Refuses every control byte but HTAB and the pairs of CR and LF that end lines. The caller has seen that each LF stands
/// behind a CR; so if there are twice as many control bytes as LFs, no other control byte is there. Counting has no branches and is
/// done many bytes at a time.
fn check_bytes(bytes: &[u8]) -> Result<(), Refusal> {
    let (mut controls, mut newlines) = (0, 0);
    for chunk in bytes.chunks(240) {
        controls += usize::from(chunk.iter().map(|&byte| u8::from(is_control(byte))).sum::<u8>());
        newlines += usize::from(chunk.iter().map(|&byte| u8::from(byte == b'\n')).sum::<u8>());
    }
    if controls == 2 * newlines {
        return Ok(());
    }
    let bare = bytes.iter().enumerate().any(|(at, &byte)| byte == b'\r' && bytes.get(at + 1) != Some(&b'\n'));
    Err(if bare { Refusal::BareCr } else { Refusal::ControlByte })
}

pub(super) fn is_control(byte: u8) -> bool {
    (byte < 0x20 && byte != b'\t') || byte == 0x7f
}

/// Bytes of CR and LF.
const LINE_END: usize = 2;
