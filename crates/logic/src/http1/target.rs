//! Request line: method, target, version (RFC 9112 section 3).

use super::grammar::token_len;
use super::host;
use super::limits::Limits;
use super::refusal::Refusal;
use super::span::Span;
use super::version::Version;

/// Maximum length of a method in bytes; the longest registered one has 17.
pub(super) const LONGEST_METHOD: usize = 32;

/// Bytes of a request line besides its target: method, two spaces, version.
pub(super) const BESIDE_TARGET: usize = LONGEST_METHOD + 2 + 8;

pub(super) struct RequestLine {
    pub(super) method: Span,
    pub(super) target: Span,
    pub(super) version: Version,
    pub(super) parts: TargetParts,
}

/// Parts of a target. `origin` is path and query as sent; it is empty for an http URI without path and query.
pub(super) struct TargetParts {
    pub(super) origin: Span,
    pub(super) path: Span,
    pub(super) query: Span,
    pub(super) authority: Option<(Span, Span)>,
}

/// Parses `bytes[start..end]`, a line without its CRLF and without control bytes.
pub(super) fn parse(bytes: &[u8], start: usize, end: usize, limits: &Limits) -> Result<RequestLine, Refusal> {
    let line = &bytes[start..end];
    if line == b"PRI * HTTP/2.0" {
        return Err(Refusal::Http2Preface);
    }
    let first = token_len(line);
    let method = &line[..first];
    if method.is_empty() || line.get(first).is_some_and(|byte| *byte != b' ') {
        return Err(Refusal::MethodSyntax);
    }
    if method.len() > LONGEST_METHOD {
        return Err(Refusal::MethodTooLong);
    }
    let rest = line.get(first + 1..).ok_or(Refusal::RequestLine)?;
    let Some(second) = rest.iter().position(|byte| *byte == b' ') else {
        return Err(if rest.is_empty() { Refusal::RequestLine } else { Refusal::NoVersion });
    };
    let (target, version) = (&rest[..second], &rest[second + 1..]);
    let is_plain = matches!(version, b"HTTP/1.1" | b"HTTP/1.0");
    if target.is_empty() || !is_plain && version.iter().any(|byte| matches!(byte, b' ' | b'\t')) {
        return Err(Refusal::RequestLine);
    }
    if target.len() > limits.target {
        return Err(Refusal::TargetTooLong);
    }
    let version = parse_version(version)?;
    check_method(method)?;
    let target = Span::within(bytes, target);
    Ok(RequestLine {
        method: Span::within(bytes, method),
        target,
        version,
        parts: split(bytes, method, target)?,
    })
}

pub(super) fn parse_version(version: &[u8]) -> Result<Version, Refusal> {
    match version {
        b"HTTP/1.1" => Ok(Version::Http11),
        b"HTTP/1.0" => Ok(Version::Http10),
        [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
            if major.is_ascii_digit() && minor.is_ascii_digit() =>
        {
            Err(Refusal::VersionUnknown)
        }
        _ => Err(Refusal::VersionSyntax),
    }
}

/// Refuses a standard method in another case, since methods are case-sensitive. A backend that reads `head` as HEAD
/// would omit the body that Penstock waits for, and Penstock would read the next response on the connection as this
/// body.
fn check_method(method: &[u8]) -> Result<(), Refusal> {
    const STANDARD: [&[u8]; 9] =
        [b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"PATCH"];
    if method == b"CONNECT" {
        return Err(Refusal::MethodConnect);
    }
    let mixed = method.iter().any(u8::is_ascii_lowercase);
    if mixed && STANDARD.iter().any(|standard| method.eq_ignore_ascii_case(standard)) {
        return Err(Refusal::MethodCase);
    }
    Ok(())
}

fn split(bytes: &[u8], method: &[u8], target: Span) -> Result<TargetParts, Refusal> {
    let text = target.of(bytes);
    // Only visible ASCII. `#` would start a fragment, which a request must not contain (RFC 9112 section 3.2).
    if text.iter().any(|&byte| !byte.is_ascii_graphic() || byte == b'#') {
        return Err(Refusal::TargetSyntax);
    }
    if text == b"*" {
        return match method {
            b"OPTIONS" => {
                Ok(TargetParts { origin: target, path: target, query: Span::default(), authority: None })
            }
            _ => Err(Refusal::TargetSyntax),
        };
    }
    let (start, end) = (target.start as usize, target.end as usize);
    if text[0] == b'/' {
        return Ok(with_query(bytes, start, end, None));
    }
    let scheme = ["http://", "https://"]
        .into_iter()
        .find(|scheme| {
            text.get(..scheme.len()).is_some_and(|front| front.eq_ignore_ascii_case(scheme.as_bytes()))
        })
        .ok_or(Refusal::TargetSyntax)?;
    let authority_start = start + scheme.len();
    let authority_end =
        memchr::memchr2(b'/', b'?', &bytes[authority_start..end]).map_or(end, |at| authority_start + at);
    let authority = Span::new(authority_start, authority_end);
    let host = host::parse(bytes, authority)?;
    Ok(with_query(bytes, authority_end, end, Some((authority, host))))
}

fn with_query(bytes: &[u8], start: usize, end: usize, authority: Option<(Span, Span)>) -> TargetParts {
    let mark = memchr::memchr(b'?', &bytes[start..end]).map_or(end, |at| start + at);
    TargetParts {
        origin: Span::new(start, end),
        path: Span::new(start, mark),
        query: Span::new((mark + 1).min(end), end),
        authority,
    }
}
