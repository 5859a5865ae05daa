//! Authority of a request: a name or an address with an optional port (RFC 9110 section 4.2, RFC 3986 section 3.2).
//! Stricter than the generic grammar: bytes that neither DNS nor an address can contain (`,`, `%`, `;`) are refused,
//! because two programs may read such hosts differently.

use super::refusal::Refusal;
use super::span::Span;
use std::net::Ipv6Addr;

/// Checks `authority` (a span of `head`) and returns its host: without port and trailing dot, with brackets.
pub(super) fn parse(head: &[u8], authority: Span) -> Result<Span, Refusal> {
    let bytes = authority.of(head);
    let host_len = host_len(bytes).map_err(|refusal| match bytes.contains(&b'@') {
        true => Refusal::UserInfo,
        false => refusal,
    })?;
    let start = authority.start as usize;
    Ok(Span::new(start, start + host_len))
}

fn host_len(bytes: &[u8]) -> Result<usize, Refusal> {
    if let [b'[', rest @ ..] = bytes {
        let close = memchr::memchr(b']', rest).ok_or(Refusal::HostSyntax)?;
        let address = std::str::from_utf8(&rest[..close]).map_err(|_| Refusal::HostSyntax)?;
        address.parse::<Ipv6Addr>().map_err(|_| Refusal::HostSyntax)?;
        check_port(&rest[close + 1..])?;
        return Ok(close + 2);
    }
    let (name, port) = bytes.split_at(name_len(bytes)?);
    check_port(port)?;
    Ok(name.strip_suffix(b".").unwrap_or(name).len())
}

fn check_port(port: &[u8]) -> Result<(), Refusal> {
    let digits = match port {
        [] => return Ok(()),
        [b':', digits @ ..] => digits,
        _ => return Err(Refusal::HostSyntax),
    };
    let value = digits.iter().try_fold(0u32, |value, byte| match byte {
        b'0'..=b'9' => Some(value * 10 + u32::from(byte - b'0')).filter(|value| *value <= 65535),
        _ => None,
    });
    value.map(|_| ()).ok_or(Refusal::HostSyntax)
}

/// Length of the name at the start of `bytes`: labels of letters, digits, '-' and '_', no empty label, at most one
/// trailing dot.
fn name_len(bytes: &[u8]) -> Result<usize, Refusal> {
    let mut previous = b'.';
    let mut len = 0;
    for &byte in bytes {
        match byte {
            _ if LABEL_BYTES[usize::from(byte)] => {}
            b'.' if previous != b'.' => {}
            b':' => break,
            _ => return Err(Refusal::HostSyntax),
        }
        previous = byte;
        len += 1;
    }
    let longest = LONGEST_NAME + usize::from(previous == b'.');
    if len == 0 || len > longest { Err(Refusal::HostSyntax) } else { Ok(len) }
}

/// Look-up table, for speed: every request has a host.
const LABEL_BYTES: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0u8;
    loop {
        table[byte as usize] = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if byte == u8::MAX {
            break table;
        }
        byte += 1;
    }
};

/// Maximum length of a DNS name in text form (RFC 1035 section 2.3.4).
const LONGEST_NAME: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;

    fn host_of(text: &str) -> Result<&str, Refusal> {
        let span = parse(text.as_bytes(), Span::new(0, text.len()))?;
        Ok(std::str::from_utf8(span.of(text.as_bytes())).unwrap())
    }

    #[test]
    fn port_and_trailing_dot_are_not_part_of_the_host() {
        assert_eq!(host_of("example.com"), Ok("example.com"));
        assert_eq!(host_of("Example.com:8080"), Ok("Example.com"));
        assert_eq!(host_of("example.com:"), Ok("example.com"));
        assert_eq!(host_of("example.com.:80"), Ok("example.com"));
        assert_eq!(host_of("[2001:db8::1]:443"), Ok("[2001:db8::1]"));
        assert_eq!(host_of("my_app"), Ok("my_app"));
        assert_eq!(host_of("127.0.0.1:65535"), Ok("127.0.0.1"));
    }

    #[test]
    fn hosts_that_two_programs_could_read_differently_are_refused() {
        for bad in [
            "",
            ".",
            "..",
            "a..b",
            ".a",
            "a b",
            "a,b",
            "a/b",
            "a%41",
            "a:b",
            "a:80:80",
            "a:65536",
            "a:+80",
            "a: 80",
            "[::1",
            "[::1]x",
            "[]",
            "[1.2.3.4]",
            "[fe80::1%eth0]",
            "::1",
            "a\\b",
            "a?b",
            "a#b",
            "é",
            "*",
            "a;b",
            ":80",
            "a:99999999999999999999",
        ] {
            assert_eq!(host_of(bad), Err(Refusal::HostSyntax), "{bad:?}");
        }
        assert_eq!(host_of("user@a"), Err(Refusal::UserInfo));
        assert_eq!(host_of(&"a".repeat(254)), Err(Refusal::HostSyntax));
    }
}
