//! Finds the end of a head and cuts it into header lines; the same for requests and responses.
//! Every rule on line ends and control bytes is checked here on the raw bytes.

use super::field::Field;
use super::grammar::{clean_len, is_token, token_len, trim};
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
        if from == start {
            // Nothing of it was looked at before, as mostly: one pass finds its end and sees that it is clean.
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

    /// Cuts the header lines into `headers` (lent, since they are large to hand back), if the head is there as a whole, and
    /// gives its length. To be called after the first line was found.
    pub(super) fn find_headers(
        &mut self,
        bytes: &[u8],
        line: FirstLine,
        limits: &Limits,
        headers: &mut Headers,
    ) -> Result<Option<usize>, Refusal> {
        let first = line.end + LINE_END.len();
        let window = &bytes[..bytes.len().min(limits.head).min(MAX_HEAD)];
        // Mostly the rest came in one piece and nothing is wrong with it: one pass does. Everything else is looked at
        // below, in an order that gives one verdict however the bytes arrive.
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

    /// Finds the empty line, and gives the length of the head.
    fn find_end(&mut self, bytes: &[u8], line: FirstLine, limits: &Limits) -> Result<Option<usize>, Refusal> {
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

/// Cuts the header lines that begin at `start`, up to the empty line, in one pass, and gives where the head ends. Of a head that is whole and has passed
/// [`check_bytes`] a refusal is the verdict; of other bytes it only says that they need a closer look.
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

/// A header line; `len` counts its end.
struct Line<'a> {
    name: &'a [u8],
    value: &'a [u8],
    field: Field,
    len: usize,
}

/// Cuts the line that `bytes` begin with into name and value (RFC 9112 section 5).
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

/// Says why the line that `bytes` begin with does not begin with a name and a colon.
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

/// Refuses every control byte but HTAB and the pairs of CR and LF that end lines.
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
