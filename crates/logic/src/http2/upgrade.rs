//! Converts an HTTP/1.1 request to the fields of an HTTP/2 request, and an HTTP/2 response to an HTTP/1.1 head (RFC
//! 9113 section 8). A response that HTTP/1.1 could read as a different message is refused, whatever the frame layer
//! checks. `http1::response` then parses the result, with the same rules and limits as for any backend.

use super::downgrade::{Body, check_name, check_value, is_of_connection, parse_length, push_line};
use super::malformed::Malformed;
use crate::grpc;
use crate::http1::field::Field;
use crate::http1::request::{MethodKind, RequestHead, Trailers};

/// Fields for the backend, without `Host`, which becomes `:authority`. `head` is the request head as written for the
/// backend and parsed again; names keep their case.
pub fn fields<'h>(head: &'h [u8], request: &'h RequestHead) -> impl Iterator<Item = (&'h [u8], &'h [u8])> {
    let te = (request.trailers == Trailers::Accepted).then_some((&b"te"[..], &b"trailers"[..]));
    let regular = request.headers.iter().filter_map(move |line| {
        let name = line.name.of(head);
        let of_connection = match line.field {
            Field::Host
            | Field::Connection
            | Field::KeepAlive
            | Field::TransferEncoding
            | Field::Upgrade
            | Field::Te => true,
            // Fields that clients must not send are already removed from this head: a `Client-Cert` here comes from
            // Penstock.
            Field::Dropped => is_of_connection(&name.to_ascii_lowercase()),
            _ => false,
        };
        (!of_connection).then(|| (name, line.value.of(head)))
    });
    regular.chain(te)
}

/// Framing of a response's body in HTTP/1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Download {
    None,
    Length(u64),
    Chunked,
    /// Bytes of a WebSocket, up to the end of the stream.
    Tunnel,
}

/// Response that may be forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Complete HTTP/1.1 head.
    pub head: Vec<u8>,
    pub body: Download,
}

/// Converts a final response to a request with `method`.
pub fn response<'f>(
    status: u16,
    reason: &str,
    fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>,
    body: Body,
    method: MethodKind,
) -> Result<Response, Malformed> {
    if !(200..=999).contains(&status) {
        return Err(Malformed::StatusUnexpected);
    }
    let mut head = status_line(status, reason);
    let (mut length, mut is_rpc) = (None, false);
    for (name, value) in fields {
        check(name, value)?;
        match name {
            b"content-length" if length.is_some() => return Err(Malformed::LengthRepeated),
            b"content-length" => length = Some(parse_length(value)?),
            b"content-type" => {
                is_rpc |= grpc::is_content_type(value);
                push_line(&mut head, name, value);
            }
            _ => push_line(&mut head, name, value),
        }
    }
    let without = method == MethodKind::Head || matches!(status, 204 | 304);
    let body = match (body, length) {
        // Length of the body that a HEAD request or a 304 omits; a 204 has no Content-Length (RFC 9110 section 8.6).
        (_, length) if without => {
            if let Some(length) = length.filter(|_| status != 204) {
                push_line(&mut head, b"content-length", length.to_string().as_bytes());
            }
            Download::None
        }
        (Body::None, Some(1..)) => return Err(Malformed::LengthMismatch),
        (Body::None, _) => {
            head.extend_from_slice(b"content-length: 0\r\n");
            Download::None
        }
        // gRPC sends its status in trailers, which HTTP/1.1 cannot carry after a Content-Length body.
        (Body::Follows, Some(length)) if !is_rpc => {
            push_line(&mut head, b"content-length", length.to_string().as_bytes());
            Download::Length(length)
        }
        (Body::Follows, _) => {
            head.extend_from_slice(b"transfer-encoding: chunked\r\n");
            Download::Chunked
        }
    };
    // An HTTP/2 stream carries only one response.
    head.extend_from_slice(b"connection: close\r\n\r\n");
    Ok(Response { head, body })
}

/// Converts an interim response.
pub fn interim<'f>(
    status: u16,
    reason: &str,
    fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>,
) -> Result<Vec<u8>, Malformed> {
    // HTTP/2 has no 101 (RFC 9113 section 8.6).
    if !(100..=199).contains(&status) || status == 101 {
        return Err(Malformed::StatusUnexpected);
    }
    let mut head = status_line(status, reason);
    for (name, value) in fields {
        check(name, value)?;
        if name != b"content-length" {
            push_line(&mut head, name, value);
        }
    }
    head.extend_from_slice(b"\r\n");
    Ok(head)
}

fn status_line(status: u16, reason: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status} {reason}\r\n").into_bytes()
}

pub(super) fn check(name: &[u8], value: &[u8]) -> Result<(), Malformed> {
    check_name(name)?;
    check_value(value)?;
    match is_of_connection(name) || name == b"te" {
        true => Err(Malformed::ConnectionField),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::request::{self, Limits, Parse};

    fn converted(head: &str) -> Vec<String> {
        let Ok(Parse::Complete(request)) = request::parse(head.as_bytes(), &Limits::default()) else {
            panic!("not a request: {head}")
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        fields(head.as_bytes(), &request)
            .map(|(name, value)| format!("{}={}", text(name), text(value)))
            .collect()
    }

    #[test]
    fn fields_of_one_connection_stay_behind_and_te_trailers_does_not() {
        let head = "POST /a HTTP/1.1\r\nHost: a\r\nConnection: te\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\n\
                    Keep-Alive: timeout=5\r\nX-A: 1\r\nProxy-Connection: close\r\n\r\n";
        assert_eq!(converted(head), ["X-A=1", "te=trailers"]);
        assert_eq!(converted("GET / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\n\r\n"), [""; 0]);
    }

    #[test]
    fn what_was_written_for_the_backend_about_the_client_goes_there() {
        let head = "GET / HTTP/1.1\r\nHost: a\r\nClient-Cert: :BBBB:\r\nX-Client-Cert-Subject: CN=me\r\n\
                    X-Forwarded-For: 192.0.2.1\r\nx_forwarded_port: 1\r\nHTTP2-Settings: x\r\n\r\n";
        let expected = [
            "Client-Cert=:BBBB:",
            "X-Client-Cert-Subject=CN=me",
            "X-Forwarded-For=192.0.2.1",
            "x_forwarded_port=1",
        ];
        assert_eq!(converted(head), expected);
    }

    fn answered(status: u16, fields: &[(&str, &str)], body: Body) -> Result<(String, Download), Malformed> {
        let fields = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let response = response(status, "X", fields, body, MethodKind::Other)?;
        Ok((String::from_utf8(response.head).unwrap(), response.body))
    }

    #[test]
    fn a_response_gets_the_framing_that_its_end_and_its_length_allow() {
        let length = [("content-length", "5")];
        let (head, body) = answered(200, &length, Body::Follows).unwrap();
        assert_eq!(head, "HTTP/1.1 200 X\r\ncontent-length: 5\r\nconnection: close\r\n\r\n");
        assert_eq!(body, Download::Length(5));
        assert_eq!(answered(200, &[], Body::Follows).unwrap().1, Download::Chunked);
        assert_eq!(answered(200, &[], Body::None).unwrap().1, Download::None);
        assert_eq!(answered(304, &length, Body::None).unwrap().1, Download::None);
        assert_eq!(answered(200, &length, Body::None), Err(Malformed::LengthMismatch));
        let rpc = [("content-type", "application/grpc+proto"), ("content-length", "5")];
        assert_eq!(answered(200, &rpc, Body::Follows).unwrap().1, Download::Chunked);
    }

    #[test]
    fn nothing_that_could_become_another_message_passes() {
        for (name, value, why) in [
            ("x", "a\r\nb: c", Malformed::ValueSyntax),
            ("x", "a\nb", Malformed::ValueSyntax),
            ("x", "a\0b", Malformed::ValueSyntax),
            ("x", " a", Malformed::ValueBlank),
            ("x:y", "a", Malformed::NameSyntax),
            ("x y", "a", Malformed::NameSyntax),
            ("", "a", Malformed::NameSyntax),
            (":status", "200", Malformed::NameSyntax),
            ("X", "a", Malformed::NameCase),
            ("connection", "close", Malformed::ConnectionField),
            ("transfer-encoding", "chunked", Malformed::ConnectionField),
            ("keep-alive", "timeout=5", Malformed::ConnectionField),
            ("upgrade", "websocket", Malformed::ConnectionField),
            ("te", "trailers", Malformed::ConnectionField),
            ("content-length", "+5", Malformed::LengthSyntax),
            ("content-length", "5, 5", Malformed::LengthSyntax),
        ] {
            assert_eq!(answered(200, &[(name, value)], Body::Follows), Err(why), "{name}: {value:?}");
        }
        let twice = [("content-length", "5"), ("content-length", "5")];
        assert_eq!(answered(200, &twice, Body::Follows), Err(Malformed::LengthRepeated));
        assert_eq!(answered(101, &[], Body::Follows), Err(Malformed::StatusUnexpected));
        assert_eq!(interim(101, "X", []), Err(Malformed::StatusUnexpected));
    }
}
