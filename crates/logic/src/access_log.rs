//! One finished session as one line, as text or as JSON.
//!
//! Clients choose much of what stands in it. Whatever they send, it stays one line, keeps its place, and
//! cannot steer the terminal that shows it.

use std::io::Write;
use std::time::Duration;

use crate::harmless::is_harmless;
use crate::peers::Peer;

/// A finished session: a request over HTTP, or a connection over TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// When it ended, RFC 3339.
    pub at: &'a str,
    /// Name of the listener.
    pub listener: &'a str,
    /// The client, from a believed PROXY header if there was one.
    pub client: Peer,
    /// What kind of session.
    pub kind: Kind,
    /// Its id.
    pub request_id: Option<&'a str>,
    /// Method of the request.
    pub method: Option<&'a [u8]>,
    /// Host of the request.
    pub host: Option<&'a [u8]>,
    /// Target as it came.
    pub target: Option<&'a [u8]>,
    /// Version of the protocol, as `HTTP/1.1`.
    pub version: Option<&'a str>,
    /// Status of the response.
    pub status: Option<u16>,
    /// Name of the pool.
    pub pool: Option<&'a str>,
    /// Name of the last backend that was tried.
    pub backend: Option<&'a str>,
    /// How many backends were tried.
    pub attempts: u32,
    /// Bytes from the client.
    pub bytes_in: u64,
    /// Bytes to the client.
    pub bytes_out: u64,
    /// From its first byte (TCP: from accept) to its end.
    pub duration: Duration,
    /// Parts of the duration.
    pub timings: Timings,
    /// `User-Agent` of the request.
    pub user_agent: Option<&'a [u8]>,
    /// `Referer` of the request.
    pub referer: Option<&'a [u8]>,
    /// Version of TLS, as `TLSv1.3`.
    pub tls: Option<&'a str>,
    /// Server name that a client asked for whose TLS is passed through.
    pub sni: Option<&'a [u8]>,
    /// How it ended: `ok`, `client-closed`, `refused: <reason>`, and so on.
    pub outcome: &'a str,
}

/// What kind of session an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A connection that is passed on byte by byte.
    Tcp,
    /// A request.
    Http,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Kind::Tcp => "tcp",
            Kind::Http => "http",
        }
    }
}

/// Where the time of a session went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// Waiting for a backend with room.
    pub queue: Option<Duration>,
    /// Connecting to the backend; nothing if a kept connection was used.
    pub connect: Option<Duration>,
    /// From the request sent to the first byte of the response.
    pub first_byte: Option<Duration>,
}

/// Appends the entry as a line of text: time, listener, client, kind, status and outcome in this order,
/// then `key=value` for what there is. A value with anything but plain characters stands in quotes; bytes
/// that are not printable ASCII, `"` and `\` are written `\xNN`.
pub fn text(entry: &Entry<'_>, out: &mut Vec<u8>) {
    text_value(out, entry.at.as_bytes());
    out.push(b' ');
    text_value(out, entry.listener.as_bytes());
    // Writing to a Vec cannot fail, here and below.
    let _ = write!(out, " {} {} ", entry.client, entry.kind.as_str());
    match entry.status {
        Some(status) => drop(write!(out, "{status}")),
        None => out.push(b'-'),
    }
    out.push(b' ');
    text_value(out, entry.outcome.as_bytes());
    each_field(entry, |key, value| {
        out.push(b' ');
        out.extend_from_slice(key.as_bytes());
        out.push(b'=');
        match value {
            Value::Bytes(bytes) => text_value(out, bytes),
            Value::Number(number) => drop(write!(out, "{number}")),
            Value::Time(time) => milliseconds(out, time),
        }
    });
    out.push(b'\n');
}

/// Appends the entry as a JSON object on one line. What is not known is left out. Bytes that are no UTF-8
/// are written as the characters they are in Latin-1, and every character that could steer a terminal as
/// `\uNNNN`.
pub fn json(entry: &Entry<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"at\":");
    json_string(out, entry.at.as_bytes());
    out.extend_from_slice(b",\"listener\":");
    json_string(out, entry.listener.as_bytes());
    let _ = write!(out, ",\"client\":\"{}\",\"kind\":\"{}\"", entry.client, entry.kind.as_str());
    if let Some(status) = entry.status {
        let _ = write!(out, ",\"status\":{status}");
    }
    out.extend_from_slice(b",\"outcome\":");
    json_string(out, entry.outcome.as_bytes());
    each_field(entry, |key, value| {
        let _ = write!(out, ",\"{key}\":");
        match value {
            Value::Bytes(bytes) => json_string(out, bytes),
            Value::Number(number) => drop(write!(out, "{number}")),
            Value::Time(time) => milliseconds(out, time),
        }
    });
    out.extend_from_slice(b"}\n");
}

enum Value<'a> {
    Bytes(&'a [u8]),
    Number(u64),
    Time(Duration),
}

/// What stands behind the head, in its order, for both forms: their keys cannot drift apart.
fn each_field<'a>(entry: &Entry<'a>, mut put: impl FnMut(&'static str, Value<'a>)) {
    let bytes = |text: Option<&'a str>| text.map(str::as_bytes);
    let named = [
        ("id", bytes(entry.request_id)),
        ("method", entry.method),
        ("host", entry.host),
        ("target", entry.target),
        ("version", bytes(entry.version)),
        ("tls", bytes(entry.tls)),
        ("sni", entry.sni),
        ("pool", bytes(entry.pool)),
        ("backend", bytes(entry.backend)),
    ];
    for (key, value) in named {
        if let Some(value) = value {
            put(key, Value::Bytes(value));
        }
    }
    put("attempts", Value::Number(entry.attempts.into()));
    put("bytes_in", Value::Number(entry.bytes_in));
    put("bytes_out", Value::Number(entry.bytes_out));
    put("duration_ms", Value::Time(entry.duration));
    let timings = [
        ("queue_ms", entry.timings.queue),
        ("connect_ms", entry.timings.connect),
        ("first_byte_ms", entry.timings.first_byte),
    ];
    for (key, time) in timings {
        if let Some(time) = time {
            put(key, Value::Time(time));
        }
    }
    for (key, value) in [("user_agent", entry.user_agent), ("referer", entry.referer)] {
        if let Some(value) = value {
            put(key, Value::Bytes(value));
        }
    }
}

/// Milliseconds with three decimals.
fn milliseconds(out: &mut Vec<u8>, time: Duration) {
    let micros = time.as_micros();
    let _ = write!(out, "{}.{:03}", micros / 1000, micros % 1000);
}

fn text_value(out: &mut Vec<u8>, value: &[u8]) {
    // A lone `-` means "nothing" in the head.
    let plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b'=');
    let target_like = |byte: &u8| plain(byte) || (*byte == b'=' && value[0] == b'/');
    if !value.is_empty() && value != b"-" && value.iter().all(target_like) {
        out.extend_from_slice(value);
        return;
    }
    out.push(b'"');
    for byte in value {
        if matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\') {
            out.push(*byte);
        } else {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out.push(b'"');
}

fn json_string(out: &mut Vec<u8>, value: &[u8]) {
    out.push(b'"');
    for chunk in value.utf8_chunks() {
        for c in chunk.valid().chars() {
            json_char(out, c);
        }
        for byte in chunk.invalid() {
            let _ = write!(out, "\\u00{byte:02x}");
        }
    }
    out.push(b'"');
}

fn json_char(out: &mut Vec<u8>, c: char) {
    match c {
        '"' => out.extend_from_slice(b"\\\""),
        '\\' => out.extend_from_slice(b"\\\\"),
        ' '..='~' => out.push(c as u8),
        c if !is_harmless(c) => {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
        c => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
    }
}

#[cfg(test)]
mod tests;
