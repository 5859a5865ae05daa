//! Converts an HTTP/1.1 response head to the fields of an HTTP/2 response (RFC 9113 section 8.3.2).

use crate::http1::field::Field;
use crate::http1::response::ResponseHead;

/// Status for the client: 101 becomes 200 (RFC 8441 section 5).
pub fn status(response: &ResponseHead) -> u16 {
    match response.status {
        101 => 200,
        status => status,
    }
}

/// Fields for the client, with names in the case that the backend used. `head` is the buffer that was parsed.
pub fn fields<'h>(head: &'h [u8], response: &'h ResponseHead) -> impl Iterator<Item = (&'h [u8], &'h [u8])> {
    let switched = response.status == 101;
    response.headers.iter().filter_map(move |line| {
        let name = line.name.of(head);
        let of_connection = matches!(
            line.field,
            Field::Connection
                | Field::KeepAlive
                | Field::TransferEncoding
                | Field::Upgrade
                | Field::Te
                | Field::Dropped
                | Field::Imitation
        );
        // After a switch of protocols the client gets no Sec-WebSocket-Accept, because it sent no key, and no
        // Content-Length.
        let of_handshake = switched
            && (line.field == Field::ContentLength || name.eq_ignore_ascii_case(b"sec-websocket-accept"));
        (!of_connection && !of_handshake).then(|| (name, line.value.of(head)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::request::{Limits, MethodKind, Parse, RequestKind, UpgradeWish};
    use crate::http1::response;

    fn converted(head: &str, upgrade: UpgradeWish) -> (u16, Vec<String>) {
        let kind = RequestKind { method: MethodKind::Other, upgrade };
        let Ok(Parse::Complete(response)) = response::parse(head.as_bytes(), &Limits::default(), kind) else {
            panic!("not a response: {head}")
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let fields = fields(head.as_bytes(), &response);
        (status(&response), fields.map(|(name, value)| format!("{}={}", text(name), text(value))).collect())
    }

    #[test]
    fn fields_of_one_connection_stay_behind() {
        let head = "HTTP/1.1 200 OK\r\nServer: x\r\nConnection: close\r\nKeep-Alive: timeout=5\r\n\
                    Transfer-Encoding: chunked\r\nProxy-Connection: close\r\nTrailer: x-sum\r\n\r\n";
        let expected = vec!["Server=x".to_owned(), "Trailer=x-sum".to_owned()];
        assert_eq!(converted(head, UpgradeWish::NotAsked), (200, expected));
    }

    #[test]
    fn a_length_is_passed_on() {
        let head = "HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\n";
        assert_eq!(converted(head, UpgradeWish::NotAsked), (404, vec!["Content-Length=5".to_owned()]));
    }

    #[test]
    fn a_switch_of_protocols_is_a_success_without_its_handshake() {
        let head = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
                    Sec-WebSocket-Accept: abc\r\nSec-WebSocket-Protocol: chat\r\n\r\n";
        let expected = vec!["Sec-WebSocket-Protocol=chat".to_owned()];
        assert_eq!(converted(head, UpgradeWish::Asked), (200, expected));
    }
}
