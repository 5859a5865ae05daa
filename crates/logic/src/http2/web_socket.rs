//! Converts the opening handshake of a WebSocket to an extended CONNECT for an HTTP/2 backend, and the backend's answer
//! to the answer of an HTTP/1.1 handshake (RFC 8441 section 5). HTTP/2 has neither Sec-WebSocket-Key nor
//! Sec-WebSocket-Accept: Penstock checks the key itself and calculates the answer to it.

use base64ct::{Base64, Encoding};
use sha1::{Digest, Sha1};

use super::downgrade::{Body, push_line};
use super::malformed::Malformed;
use super::upgrade::{self, Download, Response};
use crate::http1::grammar::elements;
use crate::http1::refusal::Refusal;
use crate::http1::request::{MethodKind, RequestHead};

/// Value of `:protocol` of the extended CONNECT.
pub const PROTOCOL: &str = "websocket";

/// Value of Sec-WebSocket-Accept (RFC 6455 section 4.2.2), by which the client sees that its key was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accept(String);

/// Returns the answer to the key of a request for a WebSocket. `None` for any other request: HTTP/2 has no other
/// upgrade, and a server may ignore one (RFC 9110 section 7.8).
pub fn asked(head: &[u8], request: &RequestHead) -> Result<Option<Accept>, Refusal> {
    let Some(protocols) = request.upgrade else { return Ok(None) };
    if !elements(protocols.of(head)).any(|protocol| protocol.eq_ignore_ascii_case(PROTOCOL.as_bytes())) {
        return Ok(None);
    }
    let mut keys = request.headers.iter().filter(|line| line.name.of(head).eq_ignore_ascii_case(KEY));
    match (keys.next(), keys.next()) {
        (Some(key), None) if is_key(key.value.of(head)) => Ok(Some(answer_to(key.value.of(head)))),
        _ => Err(Refusal::WebSocketKey),
    }
}

/// Regular fields of the extended CONNECT.
pub fn fields<'h>(head: &'h [u8], request: &'h RequestHead) -> impl Iterator<Item = (&'h [u8], &'h [u8])> {
    upgrade::fields(head, request).filter(|(name, _)| !is_of_handshake(name))
}

/// Converts a final response: success is a switch of protocols, anything else is an ordinary response.
pub fn response<'f>(
    status: u16,
    reason: &str,
    fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>,
    body: Body,
    accept: &Accept,
) -> Result<Response, Malformed> {
    if !(200..300).contains(&status) {
        return upgrade::response(status, reason, fields, body, MethodKind::Other);
    }
    let mut head =
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n".to_vec();
    push_line(&mut head, b"Sec-WebSocket-Accept", accept.0.as_bytes());
    for (name, value) in fields {
        upgrade::check(name, value)?;
        if !is_of_handshake(name) {
            push_line(&mut head, name, value);
        }
    }
    head.extend_from_slice(b"\r\n");
    Ok(Response { head, body: Download::Tunnel })
}

/// Tells whether a field belongs to the HTTP/1.1 form of the handshake only. A Content-Length would give the bytes of
/// the WebSocket a limit.
fn is_of_handshake(name: &[u8]) -> bool {
    [KEY, b"sec-websocket-accept", b"content-length"].iter().any(|other| name.eq_ignore_ascii_case(other))
}

/// Tells whether `value` is 16 bytes in base64. The bits that the last digit has too many are not checked: servers
/// differ there.
fn is_key(value: &[u8]) -> bool {
    let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    match value.strip_suffix(b"==") {
        Some(digits) => digits.len() == 22 && digits.iter().all(is_digit),
        None => false,
    }
}

fn answer_to(key: &[u8]) -> Accept {
    let hash = Sha1::new().chain_update(key).chain_update(GUID).finalize();
    Accept(Base64::encode_string(&hash))
}

const KEY: &[u8] = b"sec-websocket-key";

/// RFC 6455 section 1.3.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::request::{self, Limits, Parse};
    use crate::http1::request::{RequestKind, UpgradeWish};
    use crate::http1::response as http1_response;

    const HANDSHAKE: &str = "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Protocol: chat\r\nSec-WebSocket-Extensions: permessage-deflate\r\nContent-Length: 0\r\n\
        Cookie: a=b\r\n\r\n";

    fn parsed(head: &str) -> RequestHead {
        let Ok(Parse::Complete(request)) = request::parse(head.as_bytes(), &Limits::default()) else {
            panic!("not a request: {head}")
        };
        request
    }

    fn asked_in(head: &str) -> Result<Option<Accept>, Refusal> {
        asked(head.as_bytes(), &parsed(head))
    }

    fn text(bytes: &[u8]) -> String {
        String::from_utf8_lossy(bytes).into_owned()
    }

    #[test]
    fn the_answer_to_a_key_is_that_of_the_rfc() {
        let accept = Accept("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=".to_owned()); // RFC 6455 section 1.3
        assert_eq!(asked_in(HANDSHAKE), Ok(Some(accept.clone())));
        for spelling in ["WebSocket", "other, websocket"] {
            let head = HANDSHAKE.replace("Upgrade: websocket", &format!("Upgrade: {spelling}"));
            assert_eq!(asked_in(&head), Ok(Some(accept.clone())), "{spelling}");
        }
    }

    #[test]
    fn what_asks_for_no_web_socket_is_an_ordinary_request() {
        for head in [
            HANDSHAKE.replace("Upgrade: websocket", "Upgrade: other"),
            HANDSHAKE.replace("Connection: upgrade", "Connection: keep-alive"),
            HANDSHAKE.replace("GET", "POST"),
        ] {
            assert_eq!(asked_in(&head), Ok(None), "{head}");
        }
    }

    #[test]
    fn a_handshake_needs_exactly_one_key_of_sixteen_bytes() {
        const LINE: &str = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        for lines in [
            String::new(),
            LINE.repeat(2),
            "Sec-WebSocket-Key:\r\n".to_owned(),
            LINE.replace("==", ""),
            LINE.replace("==", "AA=="),
            LINE.replace("dGhl", "dGh!"),
        ] {
            assert_eq!(asked_in(&HANDSHAKE.replace(LINE, &lines)), Err(Refusal::WebSocketKey), "{lines}");
        }
    }

    #[test]
    fn the_fields_of_the_handshake_in_http1_stay_behind() {
        let request = parsed(HANDSHAKE);
        let fields: Vec<_> = fields(HANDSHAKE.as_bytes(), &request)
            .map(|(name, value)| format!("{}={}", text(name), text(value)))
            .collect();
        let expected = [
            "Sec-WebSocket-Version=13",
            "Sec-WebSocket-Protocol=chat",
            "Sec-WebSocket-Extensions=permessage-deflate",
            "Cookie=a=b",
        ];
        assert_eq!(fields, expected);
    }

    fn answered(status: u16, fields: &[(&str, &str)], body: Body) -> Result<(String, Download), Malformed> {
        let fields = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let response = response(status, "X", fields, body, &Accept("abc".to_owned()))?;
        Ok((text(&response.head), response.body))
    }

    #[test]
    fn success_is_a_switch_of_protocols_with_the_answer_of_penstock() {
        let theirs =
            [("sec-websocket-protocol", "chat"), ("sec-websocket-accept", "false"), ("content-length", "0")];
        for (status, body) in [(200, Body::Follows), (204, Body::Follows), (200, Body::None)] {
            let (head, download) = answered(status, &theirs, body).unwrap();
            assert_eq!(download, Download::Tunnel);
            let expected = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
                            Sec-WebSocket-Accept: abc\r\nsec-websocket-protocol: chat\r\n\r\n";
            assert_eq!(head, expected);
            let kind = RequestKind { method: MethodKind::Other, upgrade: UpgradeWish::Asked };
            let parsed = http1_response::parse(head.as_bytes(), &Limits::default(), kind);
            assert!(matches!(parsed, Ok(Parse::Complete(head)) if head.status == 101));
        }
    }

    #[test]
    fn a_refusal_is_an_ordinary_response() {
        let (head, download) = answered(403, &[("content-length", "5")], Body::Follows).unwrap();
        assert_eq!(head, "HTTP/1.1 403 X\r\ncontent-length: 5\r\nconnection: close\r\n\r\n");
        assert_eq!(download, Download::Length(5));
    }

    #[test]
    fn no_field_of_a_success_can_become_another_message() {
        for (name, value, why) in [
            ("x", "a\r\nb: c", Malformed::ValueSyntax),
            ("x:y", "a", Malformed::NameSyntax),
            ("X", "a", Malformed::NameCase),
            ("upgrade", "other", Malformed::ConnectionField),
            ("transfer-encoding", "chunked", Malformed::ConnectionField),
        ] {
            assert_eq!(answered(200, &[(name, value)], Body::Follows), Err(why), "{name}: {value:?}");
        }
        assert_eq!(answered(101, &[], Body::Follows), Err(Malformed::StatusUnexpected));
    }
}
