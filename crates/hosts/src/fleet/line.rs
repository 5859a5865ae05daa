//! Splits the output of a remote command into lines, and makes lines safe for a terminal. A line that arrives whole in
//! one read is never copied. Memory is limited: a line longer than the limit is delivered in pieces, each marked as
//! cut.

use memchr::{memchr, memchr_iter, memrchr};
use std::borrow::Cow;
use std::fmt::Write;

use text::terminal::is_invisible;

/// Default limit of a line, in bytes.
pub const LONGEST: usize = 64 * 1024;

/// Splits one output stream of one host into lines.
#[derive(Debug)]
pub struct LineSplitter {
    /// Start of a line whose end has not arrived; at most `longest` bytes.
    pending: Vec<u8>,
    longest: usize,
    /// True if pieces of the current line were already delivered.
    inside: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Bytes as the host sent them, without the line end (`\n` or `\r\n`). A UTF-8 character is never split.
    pub bytes: &'a [u8],
    pub end: End,
    pub start: Start,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Line,
    /// The line is longer than the limit; the next piece continues the line.
    Cut,
    /// The stream ended without a line end.
    Stream,
}

/// Position of a piece in its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    Line,
    /// The piece continues a line that was cut.
    Within,
}

impl Start {
    /// Text to show before the piece.
    #[must_use]
    pub fn mark(self) -> &'static str {
        match self {
            Self::Line => "",
            Self::Within => "(continued) ",
        }
    }
}

impl LineSplitter {
    /// Cuts lines of more than `longest` bytes. The minimum is 4, the longest UTF-8 character.
    #[must_use]
    pub fn new(longest: usize) -> Self {
        Self { pending: Vec::new(), longest: longest.max(4), inside: false }
    }

    /// Adds received bytes, and calls `each` for every line that is complete.
    pub fn push(&mut self, mut bytes: &[u8], each: &mut dyn FnMut(Piece<'_>)) {
        if !self.pending.is_empty() {
            let Some(rest) = self.complete(bytes, each) else { return };
            bytes = rest;
        }
        let mut start = 0;
        for end in memchr_iter(b'\n', bytes) {
            self.give(&bytes[start..end], End::Line, each);
            start = end + 1;
        }
        let rest = self.give_excess(&bytes[start..], each);
        self.pending.extend_from_slice(rest);
    }

    /// Ends the stream, and delivers the last line if it had no line end.
    pub fn finish(&mut self, each: &mut dyn FnMut(Piece<'_>)) {
        if self.pending.is_empty() && !self.inside {
            return;
        }
        let pending = std::mem::take(&mut self.pending);
        self.give(&pending, End::Stream, each);
    }

    /// Start of a line whose end has not arrived, such as a prompt.
    #[must_use]
    pub fn pending(&self) -> &[u8] {
        &self.pending
    }

    /// Completes the pending line from `bytes` and returns the bytes after it. `None` if `bytes` has no line end.
    fn complete<'b>(&mut self, bytes: &'b [u8], each: &mut dyn FnMut(Piece<'_>)) -> Option<&'b [u8]> {
        let end = memchr(b'\n', bytes);
        let mut rest = &bytes[..end.unwrap_or(bytes.len())];
        let mut line = std::mem::take(&mut self.pending);
        while line.len() + rest.len() > self.longest {
            let (now, later) = rest.split_at((self.longest - line.len()).min(rest.len()));
            line.extend_from_slice(now);
            let whole = whole_characters(&line);
            self.give_piece(&line[..whole], End::Cut, each);
            line.drain(..whole);
            rest = later;
        }
        line.extend_from_slice(rest);
        match end {
            Some(end) => {
                self.give(&line, End::Line, each);
                line.clear();
                self.pending = line;
                Some(&bytes[end + 1..])
            }
            None => {
                self.pending = line;
                None
            }
        }
    }

    /// Delivers a whole line or its remainder, cut into pieces above the limit.
    fn give(&mut self, line: &[u8], end: End, each: &mut dyn FnMut(Piece<'_>)) {
        let line = match end {
            End::Line => line.strip_suffix(b"\r").unwrap_or(line),
            End::Cut | End::Stream => line,
        };
        let rest = self.give_excess(line, each);
        self.give_piece(rest, end, each);
    }

    /// Delivers pieces until the remainder is within the limit, and returns the remainder.
    fn give_excess<'b>(&mut self, mut line: &'b [u8], each: &mut dyn FnMut(Piece<'_>)) -> &'b [u8] {
        while line.len() > self.longest {
            let (now, later) = line.split_at(whole_characters(&line[..self.longest]));
            self.give_piece(now, End::Cut, each);
            line = later;
        }
        line
    }

    fn give_piece(&mut self, bytes: &[u8], end: End, each: &mut dyn FnMut(Piece<'_>)) {
        let start = if self.inside { Start::Within } else { Start::Line };
        self.inside = end == End::Cut;
        each(Piece { bytes, end, start });
    }
}

/// Number of bytes up to the last complete UTF-8 character of `bytes`.
pub(super) fn whole_characters(bytes: &[u8]) -> usize {
    let len = bytes.len();
    for back in 1..=3.min(len.saturating_sub(1)) {
        let byte = bytes[len - back];
        let needed = match byte {
            0xc0..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf7 => 4,
            0x80..=0xbf => continue,
            _ => 1,
        };
        return if needed > back { len - back } else { len };
    }
    len
}

/// Returns the part of `line` that a terminal would show after carriage returns (progress bars): the text after the
/// last one. The number is the count of overwritten texts.
#[must_use]
pub fn last_writing(line: &[u8]) -> (&[u8], usize) {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    match memrchr(b'\r', line) {
        None => (line, 0),
        Some(last) => (&line[last + 1..], memchr_iter(b'\r', line).count()),
    }
}

/// Converts a line to text without control sequences. Colours are removed, other control characters become their
/// Unicode pictures (`␛` for escape), invisible characters and changes of the writing direction become `<U+202E>`,
/// bytes that are not UTF-8 become `<FF>`. TAB stays. Borrows `line` if nothing changes.
#[must_use]
pub fn harmless(line: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(line) {
        Ok(text) if line.iter().fold(true, |plain, &byte| plain & is_plain(byte)) => Cow::Borrowed(text),
        Ok(text) if !line.is_ascii() && !text.chars().any(needs_care) => Cow::Borrowed(text),
        _ => Cow::Owned(rewritten(line)),
    }
}

/// Like [`harmless`], for text of Penstock that quotes others: banners, comments of keys, ids of certificates. Line
/// ends are made visible too.
#[must_use]
pub fn harmless_text(text: &str) -> Cow<'_, str> {
    harmless(text.as_bytes())
}

/// True for printable ASCII and TAB.
fn is_plain(byte: u8) -> bool {
    (0x20..0x7f).contains(&byte) | (byte == b'\t')
}

fn needs_care(sign: char) -> bool {
    (sign.is_control() && sign != '\t') || is_invisible(sign)
}

fn rewritten(line: &[u8]) -> String {
    let mut out = String::with_capacity(line.len() + 16);
    for chunk in line.utf8_chunks() {
        let mut text = chunk.valid();
        let mut before = ' ';
        while let Some(sign) = text.chars().next() {
            if let Some(behind) = without_colour(text) {
                text = behind;
                continue;
            }
            text = &text[sign.len_utf8()..];
            match sign {
                '\t' => out.push(sign),
                '\u{7f}' => out.push('\u{2421}'),
                // The pictures of control characters are U+2400 plus the character.
                '\0'..='\u{1f}' => out.push(char::from_u32(0x2400 + u32::from(sign)).unwrap_or('?')),
                // Zero-width joiners are a normal part of emoji and of words in some scripts.
                '\u{200c}' | '\u{200d}' if !before.is_ascii() => out.push(sign),
                _ if needs_care(sign) => {
                    let _ = write!(out, "<U+{:04X}>", u32::from(sign));
                }
                _ => out.push(sign),
            }
            before = sign;
        }
        for byte in chunk.invalid() {
            let _ = write!(out, "<{byte:02X}>");
        }
    }
    out
}

/// Removes a colour sequence (ECMA-48 SGR) or an erase sequence of `grep` at the start; `None` if there is neither.
fn without_colour(text: &str) -> Option<&str> {
    let body = text.strip_prefix("\u{1b}[")?;
    let end = body.find(|sign: char| !(sign.is_ascii_digit() || sign == ';' || sign == ':'))?;
    let (numbers, rest) = body.split_at(end);
    rest.strip_prefix('m').or_else(|| rest.strip_prefix('K').filter(|_| numbers.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Joins the pieces, each with a mark: `|` for a line end, `~` for a cut, `.` for the end of the stream.
    fn cut(longest: usize, reads: &[&[u8]]) -> String {
        let mut out = String::new();
        let mut cutter = LineSplitter::new(longest);
        let mut each = |piece: Piece<'_>| {
            out.push_str(std::str::from_utf8(piece.bytes).unwrap());
            out.push(match piece.end {
                End::Line => '|',
                End::Cut => '~',
                End::Stream => '.',
            });
        };
        for read in reads {
            cutter.push(read, &mut each);
            assert!(cutter.pending().len() <= longest.max(4));
        }
        cutter.finish(&mut each);
        out
    }

    #[test]
    fn lines_are_whole_however_they_come() {
        assert_eq!(cut(99, &[b"one\ntwo\n"]), "one|two|");
        assert_eq!(cut(99, &[b"on", b"e\nt", b"wo"]), "one|two.");
        assert_eq!(cut(99, &[b"one\r", b"\ntwo\r\n\r\n\n"]), "one|two|||");
        assert_eq!(cut(99, &[b"", b"\n"]), "|");
        assert_eq!(cut(99, &[]), "");
    }

    #[test]
    fn long_lines_come_in_pieces_that_cut_no_character() {
        assert_eq!(cut(4, &[b"abcdefghij\nk"]), "abcd~efgh~ij|k.");
        assert_eq!(cut(4, &[b"abc", b"de", b"fghij\n"]), "abcd~efgh~ij|");
        assert_eq!(cut(4, &["aäöü\n".as_bytes()]), "aä~öü|");
        assert_eq!(cut(4, &["ab😀c\n".as_bytes()]), "ab~😀~c|");
        assert_eq!(cut(4, &[b"abcd\nefgh\n"]), "abcd|efgh|");
    }

    #[test]
    fn a_piece_says_whether_it_goes_on() {
        let mut starts = Vec::new();
        let mut cutter = LineSplitter::new(4);
        cutter.push(b"abcdefg\nhi\n", &mut |piece| starts.push(piece.start));
        assert_eq!(starts, [Start::Line, Start::Within, Start::Line]);
    }

    #[test]
    fn terminals_obey_nothing() {
        for (line, shown) in [
            (&b"plain\ttext ~"[..], "plain\ttext ~"),
            (b"\x1b[1;31mred\x1b[0m \x1b[Kx", "red x"),
            (b"\x1b]0;title\x07", "␛]0;title␇"),
            (b"\x1b[2J\x1b[H", "␛[2J␛[H"),
            (b"\x1b[31", "␛[31"),
            (b"a\x00b\x7f", "a␀b␡"),
            (b"\xff\xfe ok", "<FF><FE> ok"),
            (b"\xe2\x82", "<E2><82>"),
            ("grün ✓ 日本".as_bytes(), "grün ✓ 日本"),
            ("\u{9b}31m".as_bytes(), "<U+009B>31m"),
            ("a\u{202e}b\u{200b}c\u{feff}".as_bytes(), "a<U+202E>b<U+200B>c<U+FEFF>"),
            ("👩\u{200d}💻 a\u{200d}b".as_bytes(), "👩\u{200d}💻 a<U+200D>b"),
        ] {
            assert_eq!(harmless(line), shown);
        }
        assert!(matches!(harmless("grün".as_bytes()), Cow::Borrowed(_)));
        assert!(matches!(harmless(b"plain"), Cow::Borrowed(_)));
    }

    #[test]
    fn progress_bars_show_what_a_terminal_would_show_last() {
        assert_eq!(last_writing(b"10%\r50%\r100%"), (&b"100%"[..], 2));
        assert_eq!(last_writing(b"10%\r100%\r"), (&b"100%"[..], 1));
        assert_eq!(last_writing(b"done"), (&b"done"[..], 0));
    }

    proptest::proptest! {
        #[test]
        fn cutting_loses_no_byte_wherever_reads_end(
            text in "[a-cä😀\n]{0,60}",
            cuts in proptest::collection::vec(0_usize..200, 0..6),
            longest in 4_usize..12,
        ) {
            let bytes = text.as_bytes();
            let mut ends: Vec<usize> = cuts.into_iter().map(|cut| cut % (bytes.len() + 1)).collect();
            ends.extend([0, bytes.len()]);
            ends.sort_unstable();
            let reads: Vec<&[u8]> = ends.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            let pieces = cut(longest, &reads);
            proptest::prop_assert_eq!(pieces.replace('|', "\n").replace(['~', '.'], ""), text);
            proptest::prop_assert!(pieces.split(['|', '~']).all(|piece| piece.len() <= longest + 1));
        }

        #[test]
        fn what_is_harmless_stays_as_it_is(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..40)) {
            let once = harmless(&bytes).into_owned();
            proptest::prop_assert!(!once.contains(|sign: char| sign.is_control() && sign != '\t'));
            proptest::prop_assert_eq!(harmless(once.as_bytes()), once.as_str());
        }
    }
}
