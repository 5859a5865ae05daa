//! What the next process is told of the request by which a session began, before client and backend agreed on another protocol
//! (WebSocket): what its line in the access log says, and what operators see of its connection.

use std::time::Duration;

use logic::http1::request::{self, Limits, Parse};
use serde::{Deserialize, Serialize};
use state::ending::Received;

/// Longest head that is sent, in bytes. A byte may take two in JSON, and a message between the processes has at most 32 KiB.
pub const LONGEST: usize = 12 * 1024;

/// Header fields that the access log shows, beside `Host`.
const SHOWN: [&str; 2] = ["user-agent", "referer"];

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CarriedRequest {
    /// The parts of its head that the access log shows, as a head in HTTP/1.1. Each character is a byte.
    pub head: String,
    pub id: String,
    /// Status of the answer.
    pub status: u16,
    /// What client and backend speak since: `websocket`, or `upgraded` for other protocols.
    pub speaks: String,
    /// Bytes of both heads, which are not among those of the session.
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub first_byte: Option<Duration>,
    pub response_time: Option<Duration>,
    /// Why attempts at other backends failed.
    pub failed: Vec<String>,
    /// Age of the client's connection, and bytes of earlier requests on it.
    pub connected: Duration,
    pub earlier_in: u64,
    pub earlier_out: u64,
}

/// Returns the head for [`CarriedRequest::head`]; `None` if it is too long for a message.
pub(crate) fn shown(received: &Received) -> Option<String> {
    let Received { head, request } = received;
    let [method, target, host] =
        [request.method, request.target, request.authority].map(|span| span.of(head));
    let mut lines = [method, b" ", target, b" HTTP/1.1\r\nHost: ", host, b"\r\n"].concat();
    for name in SHOWN {
        if let Some(value) = request.header(head, name) {
            lines.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
        }
    }
    lines.extend(b"\r\n");
    (lines.len() <= LONGEST).then(|| lines.into_iter().map(char::from).collect())
}

impl CarriedRequest {
    /// The request, as far as it is told. `None` if this version cannot read it.
    pub(crate) fn received(&self) -> Option<Received> {
        let head: Vec<u8> = self.head.chars().map(|byte| u8::try_from(byte).ok()).collect::<Option<_>>()?;
        let limits = Limits { head: head.len(), target: head.len(), ..Limits::default() };
        match request::parse(&head, &limits) {
            Ok(Parse::Complete(request)) => Some(Received { head, request }),
            Ok(Parse::Incomplete) | Err(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(head: &[u8]) -> Received {
        let Ok(Parse::Complete(request)) = request::parse(head, &Limits::default()) else {
            panic!("no request")
        };
        Received { head: head.to_owned(), request }
    }

    #[test]
    fn a_request_comes_out_as_it_went_in() {
        for head in [
            &b"GET /chat?room=%20\"1\" HTTP/1.1\r\nReferer: https://a.example/\r\nHost: a.example:80\r\n\
               Cookie: secret\r\nUser-Agent: caf\xe9 \\ \xff\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"[..],
            b"GET http://b.example/ HTTP/1.1\r\nHost: a.example\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a.example\r\nUser-Agent:\r\n\r\n",
        ] {
            let before = received(head);
            let told = CarriedRequest { head: shown(&before).unwrap(), ..CarriedRequest::default() };
            assert!(!told.head.contains("secret"), "{told:?}");
            let after = told.received().unwrap();
            let parts = |received: &Received| {
                let Received { head, request } = received;
                let spans = [request.method, request.target, request.authority];
                let fields =
                    ["user-agent", "referer"].map(|name| request.header(head, name).map(<[u8]>::to_owned));
                (spans.map(|span| span.of(head).to_owned()), fields)
            };
            assert_eq!(parts(&before), parts(&after));
            assert_eq!(shown(&after), shown(&before), "at the next upgrade");
        }
    }

    #[test]
    fn a_head_that_no_message_has_room_for_and_one_that_cannot_be_read_are_none() {
        let long = format!("GET / HTTP/1.1\r\nHost: a\r\nReferer: {}\r\n\r\n", "x".repeat(LONGEST));
        assert_eq!(shown(&received(long.as_bytes())), None);
        for head in ["", "GET / HTTP/1.1\r\nHost: a\r\n", "GET / HTTP/1.1\r\nHost: \u{100}\r\n\r\n"] {
            let told = CarriedRequest { head: head.to_owned(), ..CarriedRequest::default() };
            assert!(told.received().is_none(), "{head:?}");
        }
    }
}
