//! Writes header lines: forwarded ones and new ones.

use std::io::Write;
use std::net::IpAddr;
use std::ops::Range;

use super::span::HeaderSpan;

/// Writes forwarded header lines. Adjacent lines that have exactly Penstock's format (one space after the colon) are
/// copied together: most lines have.
pub(super) struct KeptLines<'a> {
    head: &'a [u8],
    /// Lines not yet copied, with the line end of the last one.
    run: Range<usize>,
}

impl<'a> KeptLines<'a> {
    /// `head` is the buffer that was parsed.
    pub(super) fn new(head: &'a [u8]) -> Self {
        Self { head, run: 0..0 }
    }

    /// Adds the next forwarded line; lines must be added in the order of the head.
    pub(super) fn keep(&mut self, out: &mut Vec<u8>, line: &HeaderSpan) {
        let (name, value) = (line.name, line.value);
        let (start, end) = (name.start as usize, value.end as usize + LINE_END.len());
        let is_ours = self.head.get(name.end as usize..value.start as usize) == Some(COLON)
            && self.head.get(value.end as usize..end) == Some(LINE_END);
        if is_ours && self.run.end == start {
            self.run.end = end;
            return;
        }
        self.finish(out);
        if is_ours {
            self.run = start..end;
        } else {
            push_clean_line(out, name.of(self.head), value.of(self.head));
        }
    }

    /// Copies the remaining lines.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.head.get(self.run.clone()).unwrap_or_default());
        self.run = 0..0;
    }
}

/// Appends a header line. The value must not contain control bytes: it is Penstock's own, or from a parsed head.
///
/// Inlined, so that the compiler stores a constant name instead of calling a copy function: saves 30 instructions per
/// line.
#[inline(always)]
pub(super) fn push_clean_line(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    for part in [name, COLON, value, LINE_END] {
        out.extend_from_slice(part);
    }
}

/// Appends a header line. CR, LF and NUL, which only a value from outside a parsed head can contain, become spaces.
pub(super) fn push_line(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(COLON);
    let start = out.len();
    out.extend_from_slice(value);
    for byte in &mut out[start..] {
        if matches!(byte, b'\r' | b'\n' | 0) {
            *byte = b' ';
        }
    }
    out.extend_from_slice(LINE_END);
}

pub(super) fn push_length(out: &mut Vec<u8>, length: u64) {
    out.extend_from_slice(b"Content-Length: ");
    push_decimal(out, length);
    out.extend_from_slice(LINE_END);
}

/// Appends a number. The standard library's formatting needs ten times as many instructions.
pub(super) fn push_decimal(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

pub(super) fn push_ip(out: &mut Vec<u8>, ip: IpAddr) {
    let IpAddr::V4(ip) = ip else {
        let _ = write!(out, "{ip}");
        return;
    };
    let mut text = [0; 16];
    let mut len = 0;
    let mut put = |byte| {
        text[len] = byte;
        len += 1;
    };
    for octet in ip.octets() {
        if octet >= 100 {
            put(b'0' + octet / 100);
        }
        if octet >= 10 {
            put(b'0' + octet / 10 % 10);
        }
        put(b'0' + octet % 10);
        put(b'.');
    }
    out.extend_from_slice(&text[..len - 1]);
}

const COLON: &[u8] = b": ";
const LINE_END: &[u8] = b"\r\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_addresses_are_written_as_the_standard_library_does() {
        for number in [0, 7, 10, 99, 100, 65535, u64::MAX] {
            let mut out = Vec::new();
            push_decimal(&mut out, number);
            assert_eq!(out, number.to_string().into_bytes());
        }
        for ip in ["0.0.0.0", "127.0.0.1", "255.254.10.100", "::1", "2001:db8::7"] {
            let ip: IpAddr = ip.parse().unwrap();
            let mut out = Vec::new();
            push_ip(&mut out, ip);
            assert_eq!(out, ip.to_string().into_bytes());
        }
    }
}
