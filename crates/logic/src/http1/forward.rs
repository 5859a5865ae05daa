//! Writes messages: the request for the backend, the response for the client. The output has exactly one framing header
//! and one Host, never copied from the input. Hop-by-hop fields are removed (RFC 9110 section 7.6.1).

use super::field::{Field, Spelling, is_alike, spelling};
use super::hops;
use super::line::{KeptLines, push_clean_line, push_decimal, push_ip, push_length, push_line};
use super::request::{BodyLength, Expectation, Persistence, RequestHead, Trailers, Version};
use super::response::ResponseHead;
use super::span::{HeaderSpan, Span};
use crate::peers::{Peer, PeerSet};
use crate::route::{HeaderEdit, HeaderEdits};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Facts about the client's connection, for the headers that inform the backend.
#[derive(Clone, Copy, Debug)]
pub struct Via<'a> {
    /// Address of the client, from the PROXY header if the sender is trusted.
    pub peer: Peer,
    /// Address of the listener; replaces the Host that an HTTP/1.0 client may omit.
    pub local: Option<SocketAddr>,
    /// Protocol between client and Penstock.
    pub scheme: Scheme,
    /// Whether the client's forwarding headers are trusted.
    pub trust: Trust,
    /// Name and value of the request id header, without control bytes. `None`: the client's header is not special.
    pub request_id: Option<(&'a str, &'a [u8])>,
    pub forwarded: ForwardedHeaders,
    /// Header fields from a verified client certificate: names that are never forwarded from clients, values without
    /// control bytes.
    pub client_certificate: &'a [(&'static str, Box<str>)],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Http,
    Https,
}

impl Scheme {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// Whether backends are told about the client in `X-Forwarded-*` and `Forwarded` (RFC 7239).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardedHeaders {
    Sent,
    /// They are not sent, and those of clients are removed, from trusted proxies as well.
    Removed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The peer is a listed proxy: its headers are kept and extended.
    TrustedProxy,
    /// Any other peer: its headers about addresses, schemes and ids are removed.
    Stranger,
}

/// Framing of a response's body for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseFraming {
    None,
    Length(u64),
    /// A body that is not chunked is split into chunks.
    Chunked,
    /// The body ends when the connection closes; chunked coding is removed.
    UntilClose,
}

/// Facts about the client that the response depends on.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    /// Whether the client's connection stays open after this response.
    pub persistence: Persistence,
    pub client: Version,
    /// From [`response_framing`].
    pub framing: ResponseFraming,
    /// Value of `Strict-Transport-Security`; only with TLS. A value from the backend takes precedence.
    pub hsts: Option<&'a str>,
    /// Name and value of the request id header, without control bytes.
    pub request_id: Option<(&'a str, &'a [u8])>,
}

/// Appends the head for a backend. `edits` are applied in order: those of the listener, then those of the route.
pub fn write_request(
    out: &mut Vec<u8>,
    head: &[u8],
    request: &RequestHead,
    via: &Via<'_>,
    edits: &[&HeaderEdits],
) {
    let changes = Changes::new(edits, |edits| &edits.request);
    // Not by doubling: a hundred requests of one connection may each hold a long head.
    out.reserve_exact(request.len + RESERVE);
    write_request_line(out, head, request);
    write_host(out, head, request, via, &changes);
    let id_header = via.request_id.map(|(name, _)| name.as_bytes());
    let told_by_us = via.forwarded == ForwardedHeaders::Sent;
    let mut lines = KeptLines::new(head);
    for line in &request.headers {
        let name = line.name.of(head);
        let kept = match line.field {
            Field::Other => id_header.is_none_or(|ours| spelling(name, ours) == Spelling::Different),
            Field::Trailer => request.body == BodyLength::Chunked,
            Field::ForwardedOther => told_by_us && via.trust == Trust::TrustedProxy,
            _ => false,
        };
        if kept && !is_listed(head, &request.listed, name) && !changes.touch_alike(name) {
            lines.keep(out, line);
        }
    }
    lines.finish(out);
    match request.body {
        BodyLength::Length(length) => push_length(out, length),
        BodyLength::Chunked => out.extend_from_slice(CHUNKED),
        BodyLength::None | BodyLength::UntilClose => {}
    }
    if request.expectation == Expectation::Continue {
        out.extend_from_slice(b"Expect: 100-continue\r\n");
    }
    write_connection_of_request(out, head, request);
    if told_by_us {
        write_forwarding(out, head, request, via, &changes);
    }
    hops::write(out, head, &request.headers, request.hops);
    if let Some((name, id)) = via.request_id.filter(|(name, _)| !changes.touch(name.as_bytes())) {
        push_clean_line(out, name.as_bytes(), id);
    }
    for (name, value) in via.client_certificate {
        if !changes.touch(name.as_bytes()) {
            push_line(out, name.as_bytes(), value.as_bytes());
        }
    }
    changes.write_set(out);
    out.extend_from_slice(b"\r\n");
}

/// Appends the head for the client. `edits` are applied in order.
pub fn write_response(
    out: &mut Vec<u8>,
    head: &[u8],
    response: &ResponseHead,
    answer: &Answer<'_>,
    edits: &[&HeaderEdits],
) {
    let changes = Changes::new(edits, |edits| &edits.response);
    out.reserve(response.len + RESERVE);
    write_status_line(out, head, response);
    let mut hsts = answer.hsts;
    let mut lines = KeptLines::new(head);
    for line in &response.headers {
        let name = line.name.of(head);
        let kept = match line.field {
            Field::Trailer => answer.framing == ResponseFraming::Chunked,
            field => is_end_to_end(field),
        };
        let replaced = answer.request_id.is_some_and(|(id, _)| name.eq_ignore_ascii_case(id.as_bytes()));
        if kept && !replaced && !is_listed(head, &response.listed, name) && !changes.touch(name) {
            if name.eq_ignore_ascii_case(HSTS) {
                hsts = None;
            }
            lines.keep(out, line);
        }
    }
    lines.finish(out);
    let persistence = match answer.framing {
        ResponseFraming::UntilClose => Persistence::Close,
        _ => answer.persistence,
    };
    match (answer.framing, response.representation) {
        (ResponseFraming::Length(length), _) | (ResponseFraming::None, Some(length)) => {
            push_length(out, length)
        }
        (ResponseFraming::Chunked, _) => out.extend_from_slice(CHUNKED),
        (ResponseFraming::None, None) | (ResponseFraming::UntilClose, _) => {}
    }
    write_connection_of_response(out, head, response, persistence, answer.client);
    if let Some(policy) = hsts.filter(|_| !changes.touch(HSTS)) {
        push_line(out, b"Strict-Transport-Security", policy.as_bytes());
    }
    if let Some((name, value)) = answer.request_id.filter(|(name, _)| !changes.touch(name.as_bytes())) {
        push_clean_line(out, name.as_bytes(), value);
    }
    changes.write_set(out);
    out.extend_from_slice(b"\r\n");
}

/// Selects the framing for a client of version `client`. HTTP/1.0 has no chunked coding. An HTTP/1.1 client gets
/// chunks, so that it detects a body that was cut off because the backend's connection closed.
pub fn response_framing(response: &ResponseHead, client: Version) -> ResponseFraming {
    match (response.body, client) {
        (BodyLength::None, _) => ResponseFraming::None,
        (BodyLength::Length(length), _) => ResponseFraming::Length(length),
        (BodyLength::Chunked | BodyLength::UntilClose, Version::Http11) => ResponseFraming::Chunked,
        (BodyLength::Chunked | BodyLength::UntilClose, Version::Http10) => ResponseFraming::UntilClose,
    }
}

/// Adds a field to a complete head. `value` has no line end.
pub fn append_field(head: &mut Vec<u8>, name: &str, value: &str) {
    head.truncate(head.len().saturating_sub(2));
    for part in [name, ": ", value, "\r\n\r\n"] {
        head.extend_from_slice(part.as_bytes());
    }
}

/// Appends an interim response (100, 102, 103) for an HTTP/1.1 client.
pub fn write_interim(out: &mut Vec<u8>, head: &[u8], response: &ResponseHead) {
    write_status_line(out, head, response);
    let mut lines = KeptLines::new(head);
    for line in &response.headers {
        if is_end_to_end(line.field) && !is_listed(head, &response.listed, line.name.of(head)) {
            lines.keep(out, line);
        }
    }
    lines.finish(out);
    out.extend_from_slice(b"\r\n");
}

/// Returns the client that a request comes from: behind trusted proxies the last address in `X-Forwarded-For` that is none
/// of them. `None` if a trusted proxy tells an address that cannot be read, or tells it in `Forwarded` only.
pub fn client_behind(head: &[u8], request: &RequestHead, peer: Peer, trusted: &PeerSet) -> Option<Peer> {
    if !trusted.contains(&peer) {
        return Some(peer);
    }
    let told = ClientForwarded { head, headers: &request.headers, listed: &request.listed };
    let mut client = peer;
    for value in told.values(Field::ForwardedFor).rev() {
        for entry in value.rsplit(|byte| *byte == b',') {
            client = Peer::Ip(forwarded_address(entry)?);
            if !trusted.contains(&client) {
                return Some(client);
            }
        }
    }
    let is_elsewhere = client == peer && told.any(Field::Forwarded);
    (!is_elsewhere).then_some(client)
}

/// Reads `192.0.2.7`, `192.0.2.7:4711`, `2001:db8::7`, `[2001:db8::7]` or `[2001:db8::7]:4711`.
fn forwarded_address(entry: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(entry.trim_ascii()).ok()?;
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    match bare.parse::<IpAddr>() {
        Ok(ip) => Some(SocketAddr::new(ip, 0)),
        Err(_) => text.parse().ok(),
    }
}

/// Returns the request id of a trusted proxy: one line of 1 to 128 letters, digits and `-_.:/+=@`. Any other value is
/// ignored.
pub fn trusted_request_id<'h>(
    head: &'h [u8],
    request: &RequestHead,
    trust: Trust,
    name: Option<&str>,
) -> Option<&'h str> {
    let name = name.filter(|_| trust == Trust::TrustedProxy)?;
    let mut lines =
        request.headers.iter().filter(|line| line.name.of(head).eq_ignore_ascii_case(name.as_bytes()));
    let value = lines.next()?.value.of(head);
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=@".contains(byte);
    if lines.next().is_some() || !(1..=128).contains(&value.len()) || !value.iter().all(plain) {
        return None;
    }
    std::str::from_utf8(value).ok()
}

fn write_request_line(out: &mut Vec<u8>, head: &[u8], request: &RequestHead) {
    out.extend_from_slice(request.method.of(head));
    out.push(b' ');
    match request.origin.of(head) {
        [] => out.extend_from_slice(request.path(head).as_bytes()),
        origin => {
            if origin.starts_with(b"?") {
                out.push(b'/');
            }
            out.extend_from_slice(origin);
        }
    }
    out.extend_from_slice(b" HTTP/1.1\r\n");
}

fn write_host(out: &mut Vec<u8>, head: &[u8], request: &RequestHead, via: &Via<'_>, changes: &Changes<'_>) {
    if let Some(host) = changes.last_value("host") {
        return push_line(out, b"Host", host.as_bytes());
    }
    match (request.authority.of(head), via.local) {
        ([], Some(local)) => {
            let _ = write!(out, "Host: {}\r\n", SocketAddr::new(local.ip().to_canonical(), local.port()));
        }
        (authority, _) => push_clean_line(out, b"Host", authority),
    }
}

fn write_connection_of_request(out: &mut Vec<u8>, head: &[u8], request: &RequestHead) {
    let te = request.trailers == Trailers::Accepted;
    match request.upgrade {
        Some(protocols) => {
            push_clean_line(out, b"Upgrade", protocols.of(head));
            out.extend_from_slice(if te {
                b"Connection: upgrade, te\r\n"
            } else {
                b"Connection: upgrade\r\n"
            });
        }
        None if te => out.extend_from_slice(b"Connection: te\r\n"),
        None => {}
    }
    if te {
        out.extend_from_slice(b"TE: trailers\r\n");
    }
}

fn write_connection_of_response(
    out: &mut Vec<u8>,
    head: &[u8],
    response: &ResponseHead,
    persistence: Persistence,
    client: Version,
) {
    match (response.upgrade, persistence, client) {
        (Some(protocols), persistence, _) => {
            push_clean_line(out, b"Upgrade", protocols.of(head));
            let closes = persistence == Persistence::Close && response.status != 101;
            out.extend_from_slice(if closes {
                b"Connection: upgrade, close\r\n"
            } else {
                b"Connection: upgrade\r\n"
            });
        }
        (None, Persistence::Close, _) => out.extend_from_slice(b"Connection: close\r\n"),
        (None, Persistence::KeepAlive, Version::Http10) => {
            out.extend_from_slice(b"Connection: keep-alive\r\n")
        }
        (None, Persistence::KeepAlive, Version::Http11) => {}
    }
}

/// Writes X-Forwarded-For, -Proto, -Host, and Forwarded (RFC 7239).
fn write_forwarding(
    out: &mut Vec<u8>,
    head: &[u8],
    request: &RequestHead,
    via: &Via<'_>,
    changes: &Changes<'_>,
) {
    let told = match via.trust {
        Trust::TrustedProxy => {
            Some(ClientForwarded { head, headers: &request.headers, listed: &request.listed })
        }
        Trust::Stranger => None,
    };
    let told = told.as_ref();
    if let (None, true, Some(IpAddr::V4(client)), [_, ..]) =
        (told, changes.none, via.peer.ip(), request.authority.of(head))
    {
        return write_usual_forwarding(out, client, request.authority.of(head), via.scheme);
    }
    let only = |field| told.and_then(|told| told.only(field));
    let authority = request.authority.of(head);
    let client = via.peer.ip();
    // Position of the client's address in `out`, so that it is formatted only once.
    let mut address = None;
    if !changes.touch(b"x-forwarded-for")
        && (client.is_some() || told.is_some_and(|told| told.any(Field::ForwardedFor)))
    {
        out.extend_from_slice(b"X-Forwarded-For: ");
        if let Some(told) = told {
            told.write_all(out, Field::ForwardedFor);
        }
        match client {
            Some(ip) => {
                let start = out.len();
                push_ip(out, ip);
                address = Some(start..out.len());
            }
            None => out.truncate(out.len() - SEPARATOR.len()),
        }
        out.extend_from_slice(b"\r\n");
    }
    if !changes.touch(b"x-forwarded-proto") {
        let scheme = via.scheme.as_str().as_bytes();
        push_clean_line(out, b"X-Forwarded-Proto", only(Field::ForwardedProto).unwrap_or(scheme));
    }
    let host = only(Field::ForwardedHost).unwrap_or(authority);
    if !changes.touch(b"x-forwarded-host") && !host.is_empty() {
        push_clean_line(out, b"X-Forwarded-Host", host);
    }
    if !changes.touch(b"forwarded") {
        out.extend_from_slice(b"Forwarded: ");
        if let Some(told) = told {
            told.write_all(out, Field::Forwarded);
        }
        match client {
            Some(ip @ IpAddr::V4(_)) => {
                out.extend_from_slice(b"for=");
                match address {
                    Some(written) => out.extend_from_within(written),
                    None => push_ip(out, ip),
                }
            }
            Some(IpAddr::V6(ip)) => drop(write!(out, "for=\"[{ip}]\"")),
            None => out.extend_from_slice(b"for=_unix"),
        }
        if !authority.is_empty() {
            // Always quoted: a port or an IPv6 address is not a token. A valid authority needs no escapes.
            for part in [b";host=\"", authority, b"\""] {
                out.extend_from_slice(part);
            }
        }
        for part in [b";proto=", via.scheme.as_str().as_bytes(), b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
}

/// Writes the lines of [`write_forwarding`] for a stranger with an IPv4 address, if no edit is for any line: most requests
/// are such. Fewer and longer parts cost half of the instructions.
fn write_usual_forwarding(out: &mut Vec<u8>, client: Ipv4Addr, authority: &[u8], scheme: Scheme) {
    let (proto_and_host, proto): (&[u8], &[u8]) = match scheme {
        Scheme::Http => (b"\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: ", b"\";proto=http\r\n"),
        Scheme::Https => (b"\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: ", b"\";proto=https\r\n"),
    };
    out.extend_from_slice(b"X-Forwarded-For: ");
    let start = out.len();
    push_ip(out, IpAddr::V4(client));
    let address = start..out.len();
    out.extend_from_slice(proto_and_host);
    out.extend_from_slice(authority);
    out.extend_from_slice(b"\r\nForwarded: for=");
    out.extend_from_within(address);
    out.extend_from_slice(b";host=\"");
    out.extend_from_slice(authority);
    out.extend_from_slice(proto);
}

/// Forwarding headers that a trusted proxy sent.
struct ClientForwarded<'a> {
    head: &'a [u8],
    headers: &'a [HeaderSpan],
    listed: &'a [Span],
}

impl<'a> ClientForwarded<'a> {
    fn values(&self, field: Field) -> impl DoubleEndedIterator<Item = &'a [u8]> {
        let (head, listed) = (self.head, self.listed);
        self.headers
            .iter()
            .filter(move |line| line.field == field)
            .filter(move |line| !is_listed(head, listed, line.name.of(head)))
            .map(move |line| line.value.of(head))
            .filter(|value| !value.is_empty())
    }

    fn any(&self, field: Field) -> bool {
        self.values(field).next().is_some()
    }

    /// Value of the field; `None` if there are several.
    fn only(&self, field: Field) -> Option<&'a [u8]> {
        let mut values = self.values(field);
        let value = values.next()?;
        values.next().is_none().then_some(value)
    }

    /// Writes all values, each followed by a separator.
    fn write_all(&self, out: &mut Vec<u8>, field: Field) {
        for value in self.values(field) {
            out.extend_from_slice(value);
            out.extend_from_slice(SEPARATOR);
        }
    }
}

/// Header edits of one direction. Edits of framing fields have no effect.
pub(super) struct Changes<'a> {
    edits: &'a [&'a HeaderEdits],
    side: fn(&HeaderEdits) -> &[HeaderEdit],
    /// No edits, the usual case: names need no look-up.
    none: bool,
}

impl<'a> Changes<'a> {
    pub(super) fn new(edits: &'a [&'a HeaderEdits], side: fn(&HeaderEdits) -> &[HeaderEdit]) -> Self {
        Self { edits, side, none: edits.iter().all(|edits| side(edits).is_empty()) }
    }

    fn iter(&self) -> impl DoubleEndedIterator<Item = &'a HeaderEdit> {
        self.edits.iter().copied().flat_map(self.side)
    }

    fn last(&self, name: &[u8]) -> Option<&'a HeaderEdit> {
        self.iter().rfind(|edit| edit.name().as_bytes().eq_ignore_ascii_case(name))
    }

    pub(super) fn touch(&self, name: &[u8]) -> bool {
        !self.none && self.last(name).is_some()
    }

    /// Whether an edit is for this name, or for one that a CGI or WSGI gateway would read as the same: otherwise a client
    /// could send `X_Site` beside the `X-Site` that is set.
    fn touch_alike(&self, name: &[u8]) -> bool {
        !self.none && self.iter().any(|edit| is_alike(edit.name().as_bytes(), name))
    }

    fn last_value(&self, name: &str) -> Option<&'a str> {
        if self.none {
            return None;
        }
        match self.last(name.as_bytes())? {
            HeaderEdit::Set { value, .. } => Some(value),
            HeaderEdit::Remove { .. } => None,
        }
    }

    pub(super) fn write_set(&self, out: &mut Vec<u8>) {
        if self.none {
            return;
        }
        for edit in self.iter() {
            let HeaderEdit::Set { name, value } = edit else { continue };
            let written_elsewhere = !matches!(
                Field::of(name.as_bytes()),
                Ok(Field::Other
                    | Field::ForwardedFor
                    | Field::ForwardedProto
                    | Field::ForwardedHost
                    | Field::Forwarded
                    | Field::ForwardedOther
                    | Field::Imitation)
            );
            // Only the last edit of a name applies.
            if !written_elsewhere && self.last(name.as_bytes()).is_some_and(|last| std::ptr::eq(last, edit)) {
                push_line(out, name.as_bytes(), value.as_bytes());
            }
        }
    }
}

/// Tells whether a proxy may forward this response field.
fn is_end_to_end(field: Field) -> bool {
    !matches!(
        field,
        Field::Connection
            | Field::KeepAlive
            | Field::ContentLength
            | Field::TransferEncoding
            | Field::Upgrade
            | Field::Te
            | Field::Trailer
            | Field::Dropped
            | Field::Imitation
    )
}

fn is_listed(head: &[u8], listed: &[Span], name: &[u8]) -> bool {
    listed.iter().any(|option| option.of(head).eq_ignore_ascii_case(name))
}

fn write_status_line(out: &mut Vec<u8>, head: &[u8], response: &ResponseHead) {
    // Usual case: the line is written as the backend sent it.
    if response.version == Version::Http11
        && !response.reason.is_empty()
        && let Some(line) = head.get(..response.reason.end as usize)
    {
        out.extend_from_slice(line);
        out.extend_from_slice(b"\r\n");
        return;
    }
    out.extend_from_slice(b"HTTP/1.1 ");
    push_decimal(out, response.status.into());
    out.push(b' ');
    out.extend_from_slice(response.reason.of(head));
    out.extend_from_slice(b"\r\n");
}

const CHUNKED: &[u8] = b"Transfer-Encoding: chunked\r\n";
const HSTS: &[u8] = b"strict-transport-security";
const SEPARATOR: &[u8] = b", ";

/// Bytes reserved for the lines that Penstock adds to the message.
const RESERVE: usize = 340;

#[cfg(test)]
mod tests;
