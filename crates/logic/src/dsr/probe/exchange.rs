//! An HTTP request to the VIP of a service, over a connection whose segments are frames of ours: the kernel would send them to
//! the machine that has the VIP. The request is one segment, the answer is read as far as its head; the rest is acknowledged until it
//! ends, so that the server sees no broken client, and then the connection is reset.

use std::net::SocketAddr;

use crate::health::{Cause, Check, CheckMethod, StatusRange};
use crate::http1::request::{Limits, MethodKind, Parse, RequestKind, UpgradeWish};
use crate::http1::response::{self, Progress};

/// Longest request: longer ones do not fit into a segment on every way, and then the backend is asked for a connection alone.
pub(super) const LONGEST: usize = 1000;

/// As much of an answer is read.
const ANSWER_LIMIT: usize = 16 * 1024;

/// A segment that goes back to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Back {
    Reset {
        sequence: u32,
    },
    /// Without a payload it acknowledges what has come.
    Data {
        sequence: u32,
        acknowledged: u32,
        payload: Vec<u8>,
    },
}

/// A segment of a server, without SYN and RST.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Came<'a> {
    pub(super) sequence: u32,
    pub(super) payload: &'a [u8],
    /// It ends its side of the connection.
    pub(super) is_last: bool,
}

#[derive(Debug)]
pub(super) struct Exchange {
    request: Vec<u8>,
    /// Our sequence number at the request.
    own: u32,
    /// The next one of the server.
    next: u32,
    answer: Vec<u8>,
    taken: usize,
    progress: Progress,
    method: CheckMethod,
    expect: StatusRange,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The head of the answer is not there yet.
    Head,
    /// The verdict is known.
    Tail,
}

/// The request of a check to a backend with this name; `None`: it is asked for a connection alone.
fn request(check: &Check, backend: &str) -> Option<(Vec<u8>, CheckMethod, StatusRange)> {
    let Check::Http { path, host, method, expect } = check else { return None };
    let own = backend.parse::<SocketAddr>().map_or_else(
        |_| backend.to_owned(),
        |own| match own {
            SocketAddr::V4(own) if own.port() == 80 => own.ip().to_string(),
            SocketAddr::V6(own) if own.port() == 80 => format!("[{}]", own.ip()),
            own => own.to_string(),
        },
    );
    let text = method.request(path, host.as_deref().unwrap_or(&own));
    (text.len() <= LONGEST).then(|| (text.into_bytes(), *method, *expect))
}

impl Exchange {
    /// A server has accepted the connection: `own` and `next` are the numbers behind both SYNs.
    pub(super) fn begin(check: &Check, backend: &str, [own, next]: [u32; 2]) -> Option<Self> {
        let (request, method, expect) = request(check, backend)?;
        Some(Self {
            request,
            own,
            next,
            answer: Vec::new(),
            taken: 0,
            progress: Progress::default(),
            method,
            expect,
            phase: Phase::Head,
        })
    }

    /// The request, also again if the server has not seen it.
    pub(super) fn ask(&self) -> Back {
        Back::Data { sequence: self.own, acknowledged: self.next, payload: self.request.clone() }
    }

    /// Our sequence number behind the request.
    fn end(&self) -> u32 {
        self.own.wrapping_add(self.request.len() as u32)
    }

    /// Whether a segment that acknowledges this number is of this connection.
    pub(super) fn is_acknowledged_by(&self, acknowledged: u32) -> bool {
        acknowledged.wrapping_sub(self.own) <= self.request.len() as u32
    }

    /// Whether a RST with these numbers is of this connection; one that answers a segment of ours acknowledges nothing.
    pub(super) fn is_reset_by(&self, sequence: u32, acknowledged: u32) -> bool {
        sequence == self.next || acknowledged != 0 && self.is_acknowledged_by(acknowledged)
    }

    /// Takes a segment. Returns the verdict, once, and what goes back.
    pub(super) fn take(&mut self, came: &Came<'_>) -> (Option<Cause>, Option<Back>) {
        if came.payload.is_empty() && !came.is_last {
            return (None, None);
        }
        let ack = |it: &Self| Back::Data { sequence: it.end(), acknowledged: it.next, payload: Vec::new() };
        // What has come before is there already, and what is missing comes again.
        let known = self.next.wrapping_sub(came.sequence) as usize;
        let Some(new) = came.payload.get(known..) else { return (None, Some(ack(self))) };
        self.next = self.next.wrapping_add(new.len() as u32);
        self.taken += new.len();
        let verdict = match self.phase {
            Phase::Head => self.read(new, came.is_last),
            Phase::Tail => None,
        };
        if verdict.is_some() {
            self.phase = Phase::Tail;
            self.answer = Vec::new();
        }
        let is_over = came.is_last
            || self.taken >= ANSWER_LIMIT
            || matches!(verdict, Some(Cause::BadResponse(_) | Cause::ClosedEarly));
        let back = if is_over { Back::Reset { sequence: self.end() } } else { ack(self) };
        (verdict, Some(back))
    }

    fn read(&mut self, new: &[u8], is_last: bool) -> Option<Cause> {
        self.answer.extend(new);
        let kind = RequestKind {
            method: if self.method == CheckMethod::Head { MethodKind::Head } else { MethodKind::Other },
            upgrade: UpgradeWish::NotAsked,
        };
        let limits = Limits { head: ANSWER_LIMIT, ..Limits::default() };
        loop {
            match response::resume(&self.answer, &mut self.progress, &limits, kind) {
                Ok(Parse::Complete(head)) if head.is_interim() => {
                    self.answer.drain(..head.len);
                    self.progress = Progress::default();
                }
                Ok(Parse::Complete(head)) if self.expect.contains(head.status) => return Some(Cause::Passed),
                Ok(Parse::Complete(head)) => return Some(Cause::HttpStatus(head.status)),
                Ok(Parse::Incomplete) if is_last => return Some(Cause::ClosedEarly),
                Ok(Parse::Incomplete) if self.taken >= ANSWER_LIMIT => {
                    return Some(Cause::BadResponse("no final answer within 16 KiB".to_owned()));
                }
                Ok(Parse::Incomplete) => return None,
                Err(fault) => return Some(Cause::BadResponse(fault.to_string())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 Fine\r\nServer: x\r\n\r\n";

    fn check(path: &str) -> Check {
        Check::Http {
            path: path.into(),
            host: None,
            method: CheckMethod::Get,
            expect: StatusRange::default(),
        }
    }

    fn begun() -> Exchange {
        Exchange::begin(&check("/ok"), "192.0.2.21:80", [u32::MAX - 4, u32::MAX - 1]).unwrap()
    }

    fn came(at: u32, payload: &[u8]) -> Came<'_> {
        Came { sequence: (u32::MAX - 1).wrapping_add(at), payload, is_last: false }
    }

    #[test]
    fn an_answer_is_judged_in_whatever_pieces_and_however_often_they_come() {
        for size in 1..ANSWER.len() {
            let mut exchange = begun();
            let Back::Data { payload, .. } = exchange.ask() else { panic!() };
            assert!(payload.starts_with(b"GET /ok HTTP/1.1\r\nHost: 192.0.2.21\r\n"), "{payload:?}");
            assert_eq!(exchange.take(&came(0, b"")), (None, None), "an acknowledgement");
            let mut verdicts = Vec::new();
            for (at, piece) in ANSWER.chunks(size).enumerate() {
                let at = (at * size) as u32;
                let early = exchange.take(&came(at + 9000, piece));
                assert!(early.0.is_none() && matches!(early.1, Some(Back::Data { .. })));
                for _ in 0..2 {
                    let (verdict, back) = exchange.take(&came(at, piece));
                    verdicts.extend(verdict);
                    let Some(Back::Data { acknowledged, payload, .. }) = back else { panic!("{back:?}") };
                    let behind = acknowledged.wrapping_sub(u32::MAX - 1) as usize;
                    assert_eq!((behind, payload.len()), (at as usize + piece.len(), 0));
                }
            }
            assert_eq!(verdicts, [Cause::Passed], "{size}");
            // The body, and the end.
            let end = ANSWER.len() as u32;
            assert!(matches!(exchange.take(&came(end, b"body")), (None, Some(Back::Data { .. }))));
            let last = Came { is_last: true, ..came(end + 4, b"") };
            let sequence = (u32::MAX - 4).wrapping_add(exchange.request.len() as u32);
            assert_eq!(exchange.take(&last), (None, Some(Back::Reset { sequence })));
        }
    }

    #[test]
    fn wrong_and_missing_answers_have_their_causes_and_end_the_connection() {
        let take = |payload: &[u8], is_last| {
            let (verdict, back) = begun().take(&Came { is_last, ..came(0, payload) });
            (verdict, matches!(back, Some(Back::Reset { .. })))
        };
        assert_eq!(take(b"HTTP/1.1 503 No\r\n\r\n", false), (Some(Cause::HttpStatus(503)), false));
        assert_eq!(take(b"HTTP/1.1 200", true), (Some(Cause::ClosedEarly), true));
        assert_eq!(take(b"", true), (Some(Cause::ClosedEarly), true));
        let (verdict, is_over) = take(b"SSH-2.0-x\r\n", false);
        assert!(matches!(verdict, Some(Cause::BadResponse(_))) && is_over, "{verdict:?}");
        let endless = [&b"HTTP/1.1 200 OK\r\n"[..], &b"X: y\r\n".repeat(4000)].concat();
        let (verdict, is_over) = take(&endless, false);
        assert!(matches!(verdict, Some(Cause::BadResponse(_))) && is_over, "{verdict:?}");
    }

    #[test]
    fn segments_of_other_connections_are_told_apart_and_a_request_may_be_too_long() {
        let exchange = begun();
        let length = exchange.request.len() as u32;
        for (more, is_ours) in [(0, true), (1, true), (length, true), (length + 1, false), (u32::MAX, false)]
        {
            let acknowledged = (u32::MAX - 4).wrapping_add(more);
            assert_eq!(exchange.is_acknowledged_by(acknowledged), is_ours, "{more}");
        }
        assert!(exchange.is_reset_by(u32::MAX - 1, 0) && !exchange.is_reset_by(7, 0));
        let long = "x".repeat(LONGEST);
        assert!(Exchange::begin(&check(&long), "192.0.2.21:80", [0, 0]).is_none());
        assert!(Exchange::begin(&Check::Tcp, "192.0.2.21:80", [0, 0]).is_none());
        let host = |name| {
            let Back::Data { payload, .. } = Exchange::begin(&check("/"), name, [0, 0]).unwrap().ask() else {
                panic!()
            };
            String::from_utf8(payload).unwrap().lines().nth(1).unwrap().to_owned()
        };
        assert_eq!(host("[2001:db8::1]:80"), "Host: [2001:db8::1]");
        assert_eq!(host("192.0.2.21:8080"), "Host: 192.0.2.21:8080");
    }
}
