//! Messages of syslog (RFC 5424), and their frames: a datagram each (RFC 5426), the number of bytes before each in a
//! TCP stream (RFC 6587 section 3.4.1), a line feed behind each in a Unix stream.

/// What all messages of one sender have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Facility times 8 plus severity (RFC 5424 section 6.2.1).
    pub priority: u8,
    /// `-` if it is not known.
    pub host: String,
    pub app_name: String,
    pub process_id: u32,
    /// Type of the messages, such as `access`.
    pub message_id: &'static str,
}

/// How messages are separated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Each is a datagram.
    Datagram,
    /// `LENGTH MESSAGE`
    Counted,
    /// `MESSAGE\n`
    Lines,
}

/// Names of facilities, by their number.
pub const FACILITIES: [&str; 24] = [
    "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp",
    "ntp", "audit", "alert", "clock", "local0", "local1", "local2", "local3", "local4", "local5", "local6",
    "local7",
];

/// Names of severities, by their number.
pub const SEVERITIES: [&str; 8] = ["emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"];

/// Length of the longest name of an application (RFC 5424 section 6.2.5).
pub const LONGEST_APP_NAME: usize = 48;

/// Reports whether a text may be a field of the header: visible ASCII (RFC 5424 section 6, PRINTUSASCII).
pub fn is_field(text: &str, longest: usize) -> bool {
    (1..=longest).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Appends the frame of a line, which has no line feed. A message beyond `longest` bytes is cut at its end. `at` is the
/// time of the message (RFC 3339), if it is known.
pub fn frame(
    header: &Header,
    framing: Framing,
    at: Option<&str>,
    line: &[u8],
    longest: usize,
    out: &mut Vec<u8>,
) {
    let Header { priority, host, app_name, process_id, message_id } = header;
    let at = at.unwrap_or("-");
    // No STRUCTURED-DATA: the line has its own fields.
    let head = format!("<{priority}>1 {at} {host} {app_name} {process_id} {message_id} - ");
    let line = cut(line, longest.saturating_sub(head.len()));
    if framing == Framing::Counted {
        out.extend_from_slice(format!("{} ", head.len() + line.len()).as_bytes());
    }
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(line);
    if framing == Framing::Lines {
        out.push(b'\n');
    }
}

/// Returns the time at the beginning of a line of the access log: `2026-11-25T16:44:01.123Z` or `{"at":"...`.
pub fn time_of(line: &[u8]) -> Option<&str> {
    let text = line.strip_prefix(b"{\"at\":\"").unwrap_or(line);
    let end = text.iter().take(40).position(|byte| matches!(byte, b' ' | b'"'))?;
    let time = std::str::from_utf8(&text[..end]).ok()?;
    let digits = time.len() >= 20 && time.as_bytes()[..4].iter().all(u8::is_ascii_digit);
    (digits && time.as_bytes()[10] == b'T' && time.ends_with('Z')).then_some(time)
}

/// Cuts the severity off a line that begins with it, as `<4>`.
pub fn severity_of(line: &[u8]) -> (Option<u8>, &[u8]) {
    match line {
        [b'<', digit @ b'0'..=b'7', b'>', rest @ ..] => (Some(digit - b'0'), rest),
        _ => (None, line),
    }
}

/// The first bytes, without a part of a character.
fn cut(line: &[u8], longest: usize) -> &[u8] {
    if line.len() <= longest {
        return line;
    }
    let mut end = longest;
    while end > 0 && longest - end < 4 && line[end] & 0xc0 == 0x80 {
        end -= 1;
    }
    &line[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            priority: 16 * 8 + 6,
            host: "lb1".to_owned(),
            app_name: "penstock".to_owned(),
            process_id: 7,
            message_id: "access",
        }
    }

    fn framed(framing: Framing, line: &str, longest: usize) -> String {
        let mut out = Vec::new();
        frame(&header(), framing, time_of(line.as_bytes()), line.as_bytes(), longest, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_line_of_each_format_is_a_message_with_its_time() {
        let line = "2026-11-25T16:44:01.123Z web 192.0.2.1:5 http 200 ok";
        let message = format!("<134>1 2026-11-25T16:44:01.123Z lb1 penstock 7 access - {line}");
        assert_eq!(framed(Framing::Datagram, line, 1024), message);
        assert_eq!(framed(Framing::Counted, line, 1024), format!("{} {message}", message.len()));
        assert_eq!(framed(Framing::Lines, line, 1024), format!("{message}\n"));
        let json = "{\"at\":\"2026-11-25T16:44:01.123Z\",\"listener\":\"web\"}";
        assert!(framed(Framing::Datagram, json, 1024).starts_with("<134>1 2026-11-25T16:44:01.123Z lb1 "));
        assert!(
            framed(Framing::Datagram, "- web", 1024).starts_with("<134>1 - lb1 "),
            "no time is the nil value"
        );
        for strange in ["", "x", "2026-11-25", "20261125T164401.123000000Z x", "2026-11-25X16:44:01.123Z x"] {
            assert_eq!(time_of(strange.as_bytes()), None, "{strange}");
        }
    }

    #[test]
    fn a_line_may_begin_with_its_severity() {
        assert_eq!(severity_of(b"<4>x"), (Some(4), &b"x"[..]));
        for line in [&b"x"[..], b"", b"<8>x", b"<12>x", b"<4"] {
            assert_eq!(severity_of(line), (None, line));
        }
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        for longest in 60..80 {
            let message = framed(Framing::Datagram, &"\u{20ac}".repeat(40), longest);
            assert!(
                message.len() <= longest && message.len() + 3 > longest,
                "{} of {longest}",
                message.len()
            );
        }
        assert!(
            framed(Framing::Datagram, "x", 0).ends_with("access - "),
            "a limit below the header cuts the line only"
        );
    }
}
