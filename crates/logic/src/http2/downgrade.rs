//! Converts an HTTP/2 request to the head of an HTTP/1.1 request (RFC 9113 section 8.3, RFC 8441 section 5). Every
//! field that HTTP/1.1 could read as a different message is checked, also if the frame layer has checked it.
//! `http1::request` then parses the result, with the same rules and limits as for any client.

use super::malformed::Malformed;
use crate::http1::grammar::is_token;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// The field section had END_STREAM.
    None,
    Follows,
}

/// Framing of the bytes after the fields in HTTP/1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upload {
    None,
    Length(u64),
    Chunked,
    /// Bytes are forwarded unchanged after the backend has switched protocols.
    Tunnel,
}

/// Request that may be forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Downgraded {
    /// Complete HTTP/1.1 head.
    pub head: Vec<u8>,
    pub upload: Upload,
}

/// Names and values of trailers.
pub type Trailers = Vec<(Vec<u8>, Vec<u8>)>;

/// Converts `fields`, which include the pseudo-headers, in the order received. `key` is a new Sec-WebSocket-Key, which
/// HTTP/2 does not have (RFC 8441 section 5).
pub fn request<'f>(
    fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>,
    body: Body,
    key: &str,
) -> Result<Downgraded, Malformed> {
    let mut pseudo = Pseudo::default();
    let mut regular = Regular::default();
    for (name, value) in fields {
        match name {
            [b':', ..] if regular.seen => return Err(Malformed::PseudoLate),
            [b':', ..] => pseudo.read(name, value)?,
            // `:protocol` takes its place (RFC 8441 section 5): the backend gets `key` only.
            b"sec-websocket-key" if pseudo.protocol.is_some() => regular.leave_out(value)?,
            _ => regular.read(name, value)?,
        }
    }
    let method = pseudo.method.ok_or(Malformed::PseudoMissing)?;
    if !is_token(method) {
        return Err(Malformed::MethodSyntax);
    }
    match (method, pseudo.protocol) {
        (b"CONNECT", None) => connect(&pseudo, &regular),
        (b"CONNECT", Some(protocol)) => extended_connect(&pseudo, regular, protocol, key),
        (_, Some(_)) => Err(Malformed::PseudoUnexpected),
        (_, None) => ordinary(&pseudo, regular, method, body),
    }
}

/// Checks the trailers of a request. Returns them in the form that `http1::chunked::write_end` takes.
pub fn trailers<'f>(fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>) -> Result<Trailers, Malformed> {
    fields
        .into_iter()
        .map(|(name, value)| {
            if name.starts_with(b":") {
                return Err(Malformed::PseudoLate);
            }
            check_name(name)?;
            check_value(value)?;
            let forbidden = is_of_connection(name)
                || matches!(
                    name,
                    b"te"
                        | b"trailer"
                        | b"host"
                        | b"content-length"
                        | b"expect"
                        | b"authorization"
                        | b"cookie"
                );
            match forbidden {
                true => Err(Malformed::TrailerForbidden),
                false => Ok((name.to_vec(), value.to_vec())),
            }
        })
        .collect()
}

/// Pseudo-headers (RFC 9113 section 8.3.1, RFC 8441 section 4).
#[derive(Default)]
struct Pseudo<'f> {
    method: Option<&'f [u8]>,
    scheme: Option<&'f [u8]>,
    authority: Option<&'f [u8]>,
    path: Option<&'f [u8]>,
    protocol: Option<&'f [u8]>,
}

impl<'f> Pseudo<'f> {
    fn read(&mut self, name: &[u8], value: &'f [u8]) -> Result<(), Malformed> {
        let place = match name {
            b":method" => &mut self.method,
            b":scheme" => &mut self.scheme,
            b":authority" => &mut self.authority,
            b":path" => &mut self.path,
            b":protocol" => &mut self.protocol,
            _ => return Err(Malformed::PseudoUnknown),
        };
        if place.is_some() {
            return Err(Malformed::PseudoRepeated);
        }
        check_value(value)?;
        *place = Some(value);
        Ok(())
    }

    fn check_scheme(&self) -> Result<(), Malformed> {
        let scheme = self.scheme.ok_or(Malformed::PseudoMissing)?;
        match scheme.eq_ignore_ascii_case(b"http") || scheme.eq_ignore_ascii_case(b"https") {
            true => Ok(()),
            false => Err(Malformed::SchemeUnknown),
        }
    }

    fn checked_path(&self, method: &[u8]) -> Result<&'f [u8], Malformed> {
        match self.path.ok_or(Malformed::PseudoMissing)? {
            b"*" if method == b"OPTIONS" => Ok(b"*"),
            path @ [b'/', ..] if path.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'#') => Ok(path),
            _ => Err(Malformed::PathSyntax),
        }
    }
}

/// Regular fields; those with special rules are stored separately from `lines`.
#[derive(Default)]
struct Regular<'f> {
    seen: bool,
    host: Option<&'f [u8]>,
    length: Option<u64>,
    te: bool,
    /// Cookie fields joined into one (RFC 9113 section 8.2.3).
    cookie: Vec<u8>,
    lines: Vec<u8>,
}

impl<'f> Regular<'f> {
    fn read(&mut self, name: &'f [u8], value: &'f [u8]) -> Result<(), Malformed> {
        self.seen = true;
        check_name(name)?;
        check_value(value)?;
        match name {
            _ if is_of_connection(name) => return Err(Malformed::ConnectionField),
            b"te" if value.eq_ignore_ascii_case(b"trailers") => self.te = true,
            b"te" => return Err(Malformed::Te),
            b"host" if self.host.is_some() => return Err(Malformed::HostRepeated),
            b"host" => self.host = Some(value),
            b"content-length" if self.length.is_some() => return Err(Malformed::LengthRepeated),
            b"content-length" => self.length = Some(parse_length(value)?),
            b"cookie" => {
                if !self.cookie.is_empty() {
                    self.cookie.extend_from_slice(b"; ");
                }
                self.cookie.extend_from_slice(value);
            }
            _ => push_line(&mut self.lines, name, value),
        }
        Ok(())
    }

    /// Bytes of the lines that it becomes.
    fn len(&self) -> usize {
        self.lines.len() + self.cookie.len()
    }

    /// Checks a field that is not forwarded.
    fn leave_out(&mut self, value: &[u8]) -> Result<(), Malformed> {
        self.seen = true;
        check_value(value)
    }

    /// Returns the authority: `:authority` and `host` may both be present, but must be equal.
    fn authority(&self, pseudo: &Pseudo<'f>) -> Result<Option<&'f [u8]>, Malformed> {
        if pseudo.authority.is_some_and(|authority| authority.iter().any(|byte| !byte.is_ascii_graphic())) {
            return Err(Malformed::AuthoritySyntax);
        }
        match (pseudo.authority, self.host) {
            (Some(authority), Some(host)) if !authority.eq_ignore_ascii_case(host) => {
                Err(Malformed::HostDiffers)
            }
            (Some(authority), _) => Ok(Some(authority)),
            (None, host) => Ok(host),
        }
    }
}

fn ordinary(
    pseudo: &Pseudo<'_>,
    regular: Regular<'_>,
    method: &[u8],
    body: Body,
) -> Result<Downgraded, Malformed> {
    pseudo.check_scheme()?;
    let path = pseudo.checked_path(method)?;
    let authority = regular.authority(pseudo)?;
    let mut head = start(method, path, authority, regular.len());
    let upload = match (body, regular.length) {
        (Body::None, Some(1..)) => return Err(Malformed::LengthMismatch),
        (Body::None, _) => Upload::None,
        (Body::Follows, Some(length)) => Upload::Length(length),
        (Body::Follows, None) => Upload::Chunked,
    };
    match (upload, regular.length) {
        (Upload::Chunked, _) => push_line(&mut head, b"transfer-encoding", b"chunked"),
        (_, Some(length)) => push_line(&mut head, b"content-length", length.to_string().as_bytes()),
        // RFC 9110 section 8.6: a POST, PUT or PATCH without a body should have `Content-Length: 0`. END_STREAM says
        // that there is no body.
        (_, None) if matches!(method, b"POST" | b"PUT" | b"PATCH") => {
            push_line(&mut head, b"content-length", b"0");
        }
        (_, None) => {}
    }
    if regular.te {
        head.extend_from_slice(b"te: trailers\r\nconnection: te\r\n");
    }
    Ok(Downgraded { head: finish(head, &regular), upload })
}

/// Converts a WebSocket over one HTTP/2 stream to an HTTP/1.1 upgrade.
fn extended_connect(
    pseudo: &Pseudo<'_>,
    regular: Regular<'_>,
    protocol: &[u8],
    key: &str,
) -> Result<Downgraded, Malformed> {
    pseudo.check_scheme()?;
    let path = pseudo.checked_path(b"GET")?;
    let authority = regular.authority(pseudo)?;
    if regular.length.is_some() {
        return Err(Malformed::LengthMismatch);
    }
    if protocol != b"websocket" {
        return Ok(refused_connect(authority));
    }
    let mut head = start(b"GET", path, authority, regular.len());
    head.extend_from_slice(b"connection: upgrade\r\nupgrade: websocket\r\n");
    push_line(&mut head, b"sec-websocket-key", key.as_bytes());
    Ok(Downgraded { head: finish(head, &regular), upload: Upload::Tunnel })
}

fn connect(pseudo: &Pseudo<'_>, regular: &Regular<'_>) -> Result<Downgraded, Malformed> {
    if pseudo.scheme.is_some() || pseudo.path.is_some() {
        return Err(Malformed::PseudoUnexpected);
    }
    if pseudo.authority.is_none() {
        return Err(Malformed::PseudoMissing);
    }
    Ok(refused_connect(regular.authority(pseudo)?))
}

/// Returns a CONNECT request, which `http1::request` refuses with a status for the client.
fn refused_connect(authority: Option<&[u8]>) -> Downgraded {
    let mut head = start(b"CONNECT", b"*", authority, 0);
    head.extend_from_slice(b"\r\n");
    Downgraded { head, upload: Upload::None }
}

fn start(method: &[u8], path: &[u8], authority: Option<&[u8]>, lines: usize) -> Vec<u8> {
    let named = authority.map_or(0, <[u8]>::len);
    let mut head = Vec::with_capacity(method.len() + path.len() + named + lines + 96);
    for part in [method, b" ", path, b" HTTP/1.1\r\n"] {
        head.extend_from_slice(part);
    }
    if let Some(authority) = authority {
        push_line(&mut head, b"host", authority);
    }
    head
}

fn finish(mut head: Vec<u8>, regular: &Regular<'_>) -> Vec<u8> {
    head.extend_from_slice(&regular.lines);
    if !regular.cookie.is_empty() {
        push_line(&mut head, b"cookie", &regular.cookie);
    }
    head.extend_from_slice(b"\r\n");
    head
}

/// Checks a field name (RFC 9113 section 8.2.1): a token without upper-case letters.
pub(super) fn check_name(name: &[u8]) -> Result<(), Malformed> {
    match name {
        _ if !is_token(name) => Err(Malformed::NameSyntax),
        _ if name.iter().any(u8::is_ascii_uppercase) => Err(Malformed::NameCase),
        _ => Ok(()),
    }
}

/// Checks a field value (RFC 9113 section 8.2.1) and refuses all other control bytes: HTTP/1.1 allows only HTAB.
pub(super) fn check_value(value: &[u8]) -> Result<(), Malformed> {
    if value.iter().any(|&byte| (byte < 0x20 && byte != b'\t') || byte == 0x7f) {
        return Err(Malformed::ValueSyntax);
    }
    match value {
        [b' ' | b'\t', ..] | [.., b' ' | b'\t'] => Err(Malformed::ValueBlank),
        _ => Ok(()),
    }
}

/// Tells whether `name` is a connection-specific field (RFC 9113 section 8.2.2).
pub(super) fn is_of_connection(name: &[u8]) -> bool {
    matches!(
        name,
        b"connection"
            | b"keep-alive"
            | b"proxy-connection"
            | b"transfer-encoding"
            | b"upgrade"
            | b"http2-settings"
    )
}

pub(super) fn parse_length(value: &[u8]) -> Result<u64, Malformed> {
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(value).ok().filter(|_| digits);
    // Many programs use signed numbers, in which a length above `i64::MAX` would be negative.
    text.and_then(|text| text.parse::<i64>().ok())
        .and_then(|length| u64::try_from(length).ok())
        .ok_or(Malformed::LengthSyntax)
}

pub(super) fn push_line(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    for part in [name, b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}
