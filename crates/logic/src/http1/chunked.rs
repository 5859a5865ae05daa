//! Chunked coding (RFC 9112 section 7.1): a strict incremental decoder that accepts input in pieces of any size, and
//! the parts of an encoder. The decoder never copies data: it returns which bytes of the input are data. Extensions are
//! checked and removed.

use super::field::Field;
use super::grammar::{is_control, is_token, is_token_byte, trim};
use super::limits::TrailerLimits;
use std::mem;

/// Limits of everything in a chunked body except the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkLimits {
    pub trailers: TrailerLimits,
    /// Maximum bytes of the extensions of one chunk.
    pub extension: usize,
}

impl Default for ChunkLimits {
    fn default() -> Self {
        Self { trailers: TrailerLimits::default(), extension: 256 }
    }
}

impl ChunkLimits {
    /// Limits of a body that this program has framed itself, after it has read it within others.
    pub const OUR_OWN: Self =
        Self { trailers: TrailerLimits { bytes: usize::MAX, fields: usize::MAX }, extension: 256 };

    #[must_use]
    pub fn of_trailers(trailers: TrailerLimits) -> Self {
        Self { trailers, ..Self::default() }
    }
}

/// Result of decoding the start of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// `len` bytes of the input, from `offset`, are data; `offset + len` bytes were consumed.
    Data {
        /// Bytes of framing before the data.
        offset: usize,
        len: usize,
    },
    /// All of the input was framing; more input is needed.
    NeedMore {
        /// Bytes consumed.
        consumed: usize,
    },
    /// End of the body; bytes after it belong to the next message. Trailers are in [`Decoder::trailers`].
    End {
        /// Bytes consumed.
        consumed: usize,
    },
}

/// Why a chunked body is not forwarded. The connection must be closed, because the end of the message is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChunkFault {
    #[error("chunk size is not 1 to 16 hexadecimal digits")]
    Size,
    /// The sum of the chunk sizes exceeds `i64::MAX`.
    #[error("chunk sizes are too large to be counted")]
    Overflow,
    #[error("malformed chunk extension")]
    Extension,
    /// The extensions of a chunk are longer than [`ChunkLimits::extension`].
    #[error("chunk extensions are longer than allowed")]
    ExtensionTooLong,
    /// CR without LF, or LF without CR.
    #[error("a chunk line does not end with CR LF")]
    LineEnd,
    /// The data is longer or shorter than its chunk size.
    #[error("chunk data is not followed by CR LF")]
    DataEnd,
    #[error("malformed trailer line")]
    Trailer,
    /// A field that must not be a trailer (RFC 9110 section 6.5.1).
    #[error("trailer holds a field for framing, routing or authentication")]
    ForbiddenTrailer,
    /// The trailers have more bytes or lines than [`ChunkLimits::trailers`].
    #[error("trailers have more bytes or lines than limits.trailers and limits.trailer-fields allow")]
    TrailersTooLarge,
}

impl ChunkFault {
    pub fn reason(self) -> &'static str {
        match self {
            Self::Size => "chunk-size",
            Self::Overflow => "chunk-overflow",
            Self::Extension => "chunk-extension",
            Self::ExtensionTooLong => "chunk-extension-too-long",
            Self::LineEnd => "chunk-line-end",
            Self::DataEnd => "chunk-data-end",
            Self::Trailer => "trailer-syntax",
            Self::ForbiddenTrailer => "trailer-forbidden",
            Self::TrailersTooLarge => "trailers-too-large",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Decoder {
    limits: ChunkLimits,
    state: State,
    /// Chunk size while the size line is read, then the number of data bytes still to come.
    remaining: u64,
    total: u64,
    extension_bytes: usize,
    trailer_bytes: usize,
    line: Vec<u8>,
    trailers: Vec<(Vec<u8>, Vec<u8>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Number of digits so far.
    Size(u8),
    Extension(Extension),
    SizeLf,
    Data,
    DataCr,
    DataLf,
    TrailerLine,
    TrailerLf,
    Done,
    Failed(ChunkFault),
}

/// State inside `;name=value`. Blanks around ';' and '=' ("bad whitespace") are refused: no current sender writes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extension {
    NameStart,
    Name,
    ValueStart,
    Value,
    Quoted,
    QuotedPair,
    AfterQuoted,
}

impl Decoder {
    pub fn new(limits: ChunkLimits) -> Self {
        Self {
            limits,
            state: State::Size(0),
            remaining: 0,
            total: 0,
            extension_bytes: 0,
            trailer_bytes: 0,
            line: Vec::new(),
            trailers: Vec::new(),
        }
    }

    /// Decodes the start of `input`. The caller calls again with the rest. After a fault every call returns the same
    /// fault.
    pub fn decode(&mut self, input: &[u8]) -> Result<Step, ChunkFault> {
        for (at, &byte) in input.iter().enumerate() {
            match self.state {
                State::Data => {
                    let len = usize::try_from(self.remaining).unwrap_or(usize::MAX).min(input.len() - at);
                    self.remaining -= len as u64;
                    if self.remaining == 0 {
                        self.state = State::DataCr;
                    }
                    return Ok(Step::Data { offset: at, len });
                }
                State::Done => return Ok(Step::End { consumed: at }),
                State::Failed(fault) => return Err(fault),
                _ => {}
            }
            match self.take(byte) {
                Ok(next) => self.state = next,
                Err(fault) => {
                    self.state = State::Failed(fault);
                    return Err(fault);
                }
            }
            if self.state == State::Done {
                return Ok(Step::End { consumed: at + 1 });
            }
        }
        match self.state {
            State::Done => Ok(Step::End { consumed: 0 }),
            State::Failed(fault) => Err(fault),
            _ => Ok(Step::NeedMore { consumed: input.len() }),
        }
    }

    /// Trailer fields, complete at the end of the body.
    pub fn trailers(&self) -> &[(Vec<u8>, Vec<u8>)] {
        &self.trailers
    }

    /// Sum of the chunk sizes so far, including the current chunk; the caller compares it with the body limit.
    pub fn announced(&self) -> u64 {
        self.total
    }

    fn take(&mut self, byte: u8) -> Result<State, ChunkFault> {
        match (self.state, byte) {
            (State::Size(digits @ 0..16), b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                let digit = char::from(byte).to_digit(16).ok_or(ChunkFault::Size)?;
                self.remaining = self.remaining << 4 | u64::from(digit);
                Ok(State::Size(digits + 1))
            }
            (State::Size(0), _) => Err(ChunkFault::Size),
            (State::Size(_), b'\r') => Ok(State::SizeLf),
            (State::Size(_), b';') => {
                self.extension_bytes = 0;
                self.count_extension()?;
                Ok(State::Extension(Extension::NameStart))
            }
            (State::Size(_), b'\n') => Err(ChunkFault::LineEnd),
            (State::Size(_), _) => Err(ChunkFault::Size),
            (State::Extension(extension), b'\r') if extension.may_end() => Ok(State::SizeLf),
            (State::Extension(_), b'\r' | b'\n') => Err(ChunkFault::LineEnd),
            (State::Extension(extension), _) => {
                self.count_extension()?;
                extension.take(byte).map(State::Extension).ok_or(ChunkFault::Extension)
            }
            (State::SizeLf, b'\n') => self.start_data(),
            (State::SizeLf, _) => Err(ChunkFault::LineEnd),
            (State::DataCr, b'\r') => Ok(State::DataLf),
            (State::DataLf, b'\n') => Ok(State::Size(0)),
            (State::DataCr | State::DataLf, _) => Err(ChunkFault::DataEnd),
            (State::TrailerLine, b'\r') => Ok(State::TrailerLf),
            (State::TrailerLine, b'\n') => Err(ChunkFault::LineEnd),
            (State::TrailerLine, _) => {
                self.count_trailer()?;
                self.line.push(byte);
                Ok(State::TrailerLine)
            }
            (State::TrailerLf, b'\n') if self.line.is_empty() => Ok(State::Done),
            (State::TrailerLf, b'\n') => self.end_trailer(),
            (State::TrailerLf, _) => Err(ChunkFault::LineEnd),
            // `decode` handles these states itself.
            (state @ (State::Data | State::Done | State::Failed(_)), _) => Ok(state),
        }
    }

    fn count_extension(&mut self) -> Result<(), ChunkFault> {
        self.extension_bytes += 1;
        if self.extension_bytes > self.limits.extension { Err(ChunkFault::ExtensionTooLong) } else { Ok(()) }
    }

    fn count_trailer(&mut self) -> Result<(), ChunkFault> {
        self.trailer_bytes += 1;
        if self.trailer_bytes > self.limits.trailers.bytes {
            Err(ChunkFault::TrailersTooLarge)
        } else {
            Ok(())
        }
    }

    fn start_data(&mut self) -> Result<State, ChunkFault> {
        if self.remaining == 0 {
            return Ok(State::TrailerLine);
        }
        // Many programs use signed numbers, so the limit is `i64::MAX`.
        self.total = self
            .total
            .checked_add(self.remaining)
            .filter(|total| i64::try_from(*total).is_ok())
            .ok_or(ChunkFault::Overflow)?;
        Ok(State::Data)
    }

    fn end_trailer(&mut self) -> Result<State, ChunkFault> {
        if self.trailers.len() >= self.limits.trailers.fields {
            return Err(ChunkFault::TrailersTooLarge);
        }
        let mut line = mem::take(&mut self.line);
        let colon = memchr::memchr(b':', &line).ok_or(ChunkFault::Trailer)?;
        let value = trim(&line[colon + 1..]).to_vec();
        line.truncate(colon);
        if !is_token(&line) || value.iter().any(|&byte| is_control(byte)) {
            return Err(ChunkFault::Trailer);
        }
        if is_forbidden(&line) {
            return Err(ChunkFault::ForbiddenTrailer);
        }
        self.trailers.push((line, value));
        Ok(State::TrailerLine)
    }
}

impl Extension {
    fn may_end(self) -> bool {
        matches!(self, Self::Name | Self::Value | Self::AfterQuoted)
    }

    fn take(self, byte: u8) -> Option<Self> {
        match (self, byte) {
            (Self::NameStart | Self::Name, _) if is_token_byte(byte) => Some(Self::Name),
            (Self::Name, b'=') => Some(Self::ValueStart),
            (Self::ValueStart, b'"') => Some(Self::Quoted),
            (Self::ValueStart | Self::Value, _) if is_token_byte(byte) => Some(Self::Value),
            (Self::Name | Self::Value | Self::AfterQuoted, b';') => Some(Self::NameStart),
            (Self::Quoted, b'"') => Some(Self::AfterQuoted),
            (Self::Quoted, b'\\') => Some(Self::QuotedPair),
            (Self::Quoted | Self::QuotedPair, _) if !is_control(byte) => Some(Self::Quoted),
            _ => None,
        }
    }
}

/// Fields that a receiver may merge into the head, where they would change earlier decisions (RFC 9110 section 6.5.1).
/// Includes spellings that a gateway may read as such a field.
fn is_forbidden(name: &[u8]) -> bool {
    match Field::of(name) {
        Err(_) => true,
        Ok(Field::Other) => {
            let canonical: Vec<u8> = name
                .iter()
                .map(|b| if b.is_ascii_alphanumeric() { b.to_ascii_lowercase() } else { b'-' })
                .collect();
            FORBIDDEN.binary_search(&canonical.as_slice()).is_ok()
                || [&b"if-"[..], b"proxy-"].iter().any(|family| canonical.starts_with(family))
        }
        Ok(_) => true,
    }
}

/// Forbidden trailers besides the fields of [`Field`]; sorted.
const FORBIDDEN: [&[u8]; 23] = [
    b"age",
    b"authorization",
    b"cache-control",
    b"content-encoding",
    b"content-range",
    b"content-type",
    b"cookie",
    b"cookie2",
    b"date",
    b"expires",
    b"location",
    b"max-forwards",
    b"origin",
    b"pragma",
    b"range",
    b"retry-after",
    b"set-cookie",
    b"set-cookie2",
    b"strict-transport-security",
    b"vary",
    b"via",
    b"warning",
    b"www-authenticate",
];

/// Writes the line before a chunk of `len` bytes. `len` must not be 0, which would end the body.
pub fn write_chunk_header(out: &mut Vec<u8>, len: usize) {
    debug_assert!(len > 0);
    let digits = (usize::BITS - len.leading_zeros()).div_ceil(4).max(1);
    for place in (0..digits).rev() {
        out.push(b"0123456789abcdef"[len >> (4 * place) & 0xf]);
    }
    out.extend_from_slice(b"\r\n");
}

pub fn write_end(out: &mut Vec<u8>, trailers: &[(Vec<u8>, Vec<u8>)]) {
    out.extend_from_slice(b"0\r\n");
    for (name, value) in trailers {
        for part in [name, &b": "[..], value, b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes all input. Returns the data, the trailers as text, and the bytes after the body.
    fn decode(mut input: &[u8]) -> Result<(Vec<u8>, String, usize), ChunkFault> {
        let mut decoder = Decoder::new(ChunkLimits::default());
        let mut data = Vec::new();
        loop {
            match decoder.decode(input)? {
                Step::Data { offset, len } => {
                    data.extend_from_slice(&input[offset..offset + len]);
                    input = &input[offset + len..];
                }
                Step::NeedMore { consumed } => {
                    assert_eq!(consumed, input.len());
                    panic!("incomplete body in a test");
                }
                Step::End { consumed } => {
                    let trailers = decoder.trailers().iter();
                    let text = trailers
                        .map(|(n, v)| format!("{}={}|", n.escape_ascii(), v.escape_ascii()))
                        .collect();
                    return Ok((data, text, input.len() - consumed));
                }
            }
        }
    }

    #[test]
    fn data_and_trailers_come_out_and_the_next_message_stays() {
        let (data, trailers, left) =
            decode(b"5;a=\"x\\\";y\";b\r\nhello\r\n1\r\n!\r\n00\r\nX-Sum: 1 \r\nb:\r\n\r\nGET").unwrap();
        assert_eq!((data.as_slice(), trailers.as_str(), left), (&b"hello!"[..], "X-Sum=1|b=|", 3));
    }

    #[test]
    fn the_list_of_forbidden_trailers_is_sorted() {
        assert!(FORBIDDEN.is_sorted());
    }

    #[test]
    fn trailers_and_extensions_have_bounds() {
        let many = format!("0\r\n{}\r\n", "a: b\r\n".repeat(33));
        assert_eq!(decode(many.as_bytes()), Err(ChunkFault::TrailersTooLarge));
        let long = format!("0\r\na: {}\r\n\r\n", "b".repeat(9000));
        assert_eq!(decode(long.as_bytes()), Err(ChunkFault::TrailersTooLarge));
        let extension = |len: usize| format!("1;{}\r\nx\r\n0\r\n\r\n", "e".repeat(len));
        assert!(decode(extension(255).as_bytes()).is_ok());
        assert_eq!(decode(extension(256).as_bytes()), Err(ChunkFault::ExtensionTooLong));
    }

    #[test]
    fn sizes_that_overflow_are_refused_alone_and_in_sum() {
        let mut decoder = Decoder::new(ChunkLimits::default());
        assert!(matches!(decoder.decode(b"7fffffffffffffff\r\nx"), Ok(Step::Data { offset: 18, len: 1 })));
        assert_eq!(decode(b"8000000000000000\r\nx"), Err(ChunkFault::Overflow));
        assert_eq!(decode(b"FFFFFFFFFFFFFFFF\r\nx"), Err(ChunkFault::Overflow));
        assert_eq!(decode(b"10000000000000000\r\nx"), Err(ChunkFault::Size));
    }

    #[test]
    fn a_decoder_that_failed_or_ended_stays_so() {
        let mut decoder = Decoder::new(ChunkLimits::default());
        assert_eq!(decoder.decode(b"x"), Err(ChunkFault::Size));
        assert_eq!(decoder.decode(b""), Err(ChunkFault::Size));
        assert_eq!(decoder.decode(b"0\r\n\r\n"), Err(ChunkFault::Size));
        let mut decoder = Decoder::new(ChunkLimits::default());
        assert_eq!(decoder.decode(b"0\r\n\r\nab"), Ok(Step::End { consumed: 5 }));
        assert_eq!(decoder.decode(b"ab"), Ok(Step::End { consumed: 0 }));
        assert_eq!(decoder.decode(b""), Ok(Step::End { consumed: 0 }));
    }

    #[test]
    fn what_the_encoder_writes_is_decoded_to_the_same() {
        let mut out = Vec::new();
        for len in [1usize, 15, 16, 255, 256, 4096, 70000] {
            write_chunk_header(&mut out, len);
            out.extend(std::iter::repeat_n(b'x', len));
            out.extend_from_slice(b"\r\n");
        }
        let plain = out.len();
        write_end(&mut out, &[(b"a".to_vec(), b"b c".to_vec())]);
        let (data, trailers, left) = decode(&out).unwrap();
        assert_eq!(
            (data.len(), trailers.as_str(), left),
            (1 + 15 + 16 + 255 + 256 + 4096 + 70000, "a=b c|", 0)
        );
        out.truncate(plain);
        write_end(&mut out, &[]);
        assert!(decode(&out).is_ok());
    }
}
