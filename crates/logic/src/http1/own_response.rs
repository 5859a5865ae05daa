//! A response that a route gives by itself.

use std::io::Write as _;

use super::forward::Changes;
use super::line::{push_length, push_line};
use super::reason::reason_phrase;
use super::request::Persistence;
use crate::route::{HeaderEdits, Respond};

#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    pub persistence: Persistence,
    /// Fields that every response of Penstock's own has.
    pub extra: &'a [(&'a str, &'a str)],
    /// Value of `Strict-Transport-Security`; only with TLS.
    pub hsts: Option<&'a str>,
    /// Changes of responses, of the listener and of the route.
    pub edits: &'a [&'a HeaderEdits],
}

/// Appends the head of the response. Its body follows, unless the method is HEAD.
pub fn write_head(out: &mut Vec<u8>, respond: &Respond, head: &Head<'_>) {
    let status = respond.status();
    // Writing to a Vec cannot fail.
    let _ = write!(out, "HTTP/1.1 {status} {}\r\n", reason_phrase(status));
    let changes = Changes::new(head.edits, |edits| &edits.response);
    let body = respond.body();
    let fields = [("Content-Type", respond.content_type()), ("Cache-Control", "no-store")];
    let own = fields.into_iter().skip(usize::from(body.is_empty()));
    let hsts = head.hsts.map(|policy| ("Strict-Transport-Security", policy));
    for (name, value) in own.chain(hsts).chain(head.extra.iter().copied()) {
        if !changes.touch(name.as_bytes()) {
            push_line(out, name.as_bytes(), value.as_bytes());
        }
    }
    changes.write_set(out);
    // RFC 9110 section 8.6: not with a 204.
    if status != 204 {
        push_length(out, body.len() as u64);
    }
    push_line(
        out,
        b"Connection",
        if head.persistence == Persistence::Close { b"close" } else { b"keep-alive" },
    );
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::{HeaderEdit, RespondStatus};

    fn text(status: u16, body: &str, edits: &HeaderEdits) -> String {
        let status = RespondStatus::try_from(status).unwrap();
        let respond = Respond::new(status, "text/html".parse().unwrap(), body.into()).unwrap();
        let mut out = Vec::new();
        let head = Head {
            persistence: Persistence::KeepAlive,
            extra: &[("Date", "now")],
            hsts: Some("max-age=1"),
            edits: &[edits, &HeaderEdits::default()],
        };
        write_head(&mut out, &respond, &head);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_head_says_what_the_route_does_and_changes_of_responses_apply() {
        assert_eq!(
            text(418 + 3, "<p>", &HeaderEdits::default()),
            "HTTP/1.1 421 Misdirected Request\r\nContent-Type: text/html\r\nCache-Control: no-store\r\n\
             Strict-Transport-Security: max-age=1\r\nDate: now\r\nContent-Length: 3\r\nConnection: keep-alive\r\n\r\n"
        );
        let edits = HeaderEdits {
            request: Vec::new(),
            response: vec![
                HeaderEdit::set("cache-control", "max-age=60").unwrap(),
                HeaderEdit::set("X-Site", "a").unwrap(),
                HeaderEdit::remove("Strict-Transport-Security").unwrap(),
            ],
        };
        assert_eq!(
            text(204, "", &edits),
            "HTTP/1.1 204 No Content\r\nDate: now\r\ncache-control: max-age=60\r\nX-Site: a\r\n\
             Connection: keep-alive\r\n\r\n"
        );
    }
}
