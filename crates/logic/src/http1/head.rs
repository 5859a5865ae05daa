//! Finds the end of a head and splits it into header lines, for requests and responses. All rules for line ends and
//! control bytes are checked here on the raw bytes.

use super::field::Field;
use super::grammar::{clean_len, is_token, token_len, trim};
use super::limits::{Limits, MAX_HEAD};
use super::refusal::Refusal;
use super::span::{HeaderSpan, Span};
use smallvec::SmallVec;

/// Header lines of a head. The inline capacity is small: a parsed head is moved several times, and moving room for two
/// dozen lines each time costs more than one allocation.
pub(super) type Headers = SmallVec<[HeaderSpan; 8]>;

/// How far an incomplete head has been scanned; keeps the work linear in its size, however small the received pieces
/// are. Start with the default for every message. Between two calls only append bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    scanned: usize,
    first_line: Option<FirstLine>,
}

/// Position of the first line; `end` is the offset of its CR.
#[derive(Clone, Copy, Debug)]
pub(super) struct FirstLine {
    pub(super) start: usize,
    pub(super) end: usize,
}

pub(super) enum FoundLine {
    Incomplete,
    /// The first line ended in the new bytes.
    New(FirstLine),
    Known(FirstLine),
}

/// Whether one empty line before the first line is skipped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LeadingLine {
    Skip,
    Refuse,
}

impl Progress {
    /// Finds the first line. A line longer than `longest` bytes is refused as `TargetTooLong`.
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
        if from == start {
            // Usual case, nothing scanned before: one pass finds the line end and checks the bytes.
            let end = start + clean_len(&window[start..]);
            if end > start && window[end..].starts_with(LINE_END) {
                return Ok(self.found(FirstLine { start, end }));
            }
        }
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
                Ok(self.found(line))
            }
        }
    }

    fn found(&mut self, line: FirstLine) -> FoundLine {
        self.first_line = Some(line);
        self.scanned = line.end + 1;
        FoundLine::New(line)
    }

    /// Splits a complete head into `headers` (passed in, because returning it would copy much) and returns the length
    /// of the head. Must be called after the first line was found.
    pub(super) fn find_headers(
        &mut self,
        bytes: &[u8],
        line: FirstLine,
        limits: &Limits,
        headers: &mut Headers,
    ) -> Result<Option<usize>, Refusal> {
        let first = line.end + LINE_END.len();
        let window = &bytes[..bytes.len().min(limits.head).min(MAX_HEAD)];
        // Usual case: the rest arrived at once and is valid, so one pass is enough. All else is checked below, in an
        // order that gives the same result however the bytes arrive.
        if self.scanned <= first
            && let Ok(len) = cut_lines(window, first, limits.headers, headers)
        {
            return Ok(Some(len));
        }
        let Some(len) = self.find_end(bytes, line, limits)? else { return Ok(None) };
        let head = &bytes[..len];
        check_bytes(&head[first..])?;
        cut_lines(head, first, limits.headers, headers).map(Some)
    }

    /// Finds the empty line and returns the length of the head.
    fn find_end(&mut self, bytes: &[u8], line: FirstLine, limits: &Limits) -> Result<Option<usize>, Refusal> {
        let limit = limits.head.min(MAX_HEAD);
        let window = &bytes[..bytes.len().min(limit)];
        // Starts one byte earlier: a line end in the last byte is checked again with the byte after it.
        let from = self.scanned.saturating_sub(1).max(line.end + 1).min(window.len());
        for at in memchr::memchr_iter(b'\n', &window[from..]) {
            let newline = from + at;
            if window[newline - 1] != b'\r' {
                return Err(Refusal::BareLf);
            }
            if window[newline - 2] == b'\n' {
                return Ok(Some(newline + 1));
            }
            if matches!(window.get(newline + 1), Some(b' ' | b'\t')) {
                return Err(Refusal::Folded);
            }
        }
        self.scanned = window.len();
        if window.len() == limit { Err(Refusal::HeadTooLarge) } else { Ok(None) }
    }
}

/// Splits the header lines from `start` to the empty line in one pass, and returns the end of the head. For a complete
/// head that has passed [`check_bytes`], an error is final; for other bytes it means that a full check is needed.
fn cut_lines(bytes: &[u8], start: usize, most: usize, headers: &mut Headers) -> Result<usize, Refusal> {
    headers.clear();
    let mut at = start;
    loop {
        let rest = &bytes[at..];
        if rest.starts_with(LINE_END) {
            return Ok(at + LINE_END.len());
        }
        if headers.len() == most {
            return Err(Refusal::TooManyHeaders);
        }
        let line = cut(rest)?;
        let (name, value) = (Span::new(at, at + line.name.len()), Span::within(bytes, line.value));
        headers.push(HeaderSpan { name, value, field: line.field });
        at += line.len;
    }
}

/// Header line; `len` includes the line end.
struct Line<'a> {
    name: &'a [u8],
    value: &'a [u8],
    field: Field,
    len: usize,
}

/// Splits the line at the start of `bytes` into name and value (RFC 9112 section 5).
fn cut(bytes: &[u8]) -> Result<Line<'_>, Refusal> {
    let colon = token_len(bytes);
    let (name, rest) = bytes.split_at(colon);
    let [b':', rest @ ..] = rest else { return Err(explain(bytes)) };
    if name.is_empty() {
        return Err(explain(bytes));
    }
    let value = &rest[..clean_len(rest)];
    if !rest[value.len()..].starts_with(LINE_END) {
        return Err(Refusal::ControlByte);
    }
    let field = Field::of(name).map_err(|_| Refusal::FramingImitation)?;
    Ok(Line { name, value: trim(value), field, len: colon + 1 + value.len() + LINE_END.len() })
}

/// Returns the reason why the line at the start of `bytes` does not begin with a name and a colon.
#[cold]
fn explain(bytes: &[u8]) -> Refusal {
    let line = &bytes[..clean_len(bytes)];
    let Some(colon) = memchr::memchr(b':', line) else { return Refusal::NoColon };
    match &line[..colon] {
        [] => Refusal::EmptyName,
        [front @ .., b' ' | b'\t'] if is_token(trim(front)) => Refusal::BlankBeforeColon,
        _ => Refusal::NameSyntax,
    }
}

/// Refuses every control byte except HTAB, and CR and LF as a pair.
fn check_bytes(bytes: &[u8]) -> Result<(), Refusal> {
    let mut at = 0;
    loop {
        at += clean_len(&bytes[at..]);
        match &bytes[at..] {
            [] => return Ok(()),
            [b'\r', b'\n', ..] => at += LINE_END.len(),
            _ => break,
        }
    }
    let bare = bytes.iter().enumerate().any(|(at, &byte)| byte == b'\r' && bytes.get(at + 1) != Some(&b'\n'));
    Err(if bare { Refusal::BareCr } else { Refusal::ControlByte })
}

const LINE_END: &[u8] = b"\r\n";
