//! Writes a finished session as one line of text or JSON.
//!
//! Clients control much of the content. Their data is always escaped: it stays on one line and in its field, and
//! contains no control sequences for the operator's terminal.

use std::io::Write;
use std::time::Duration;

use crate::peers::Peer;
use crate::tls_alert;
use text::terminal::is_printable;

/// Finished session: an HTTP request, a TCP connection or a UDP flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Start of the session, RFC 3339.
    pub at: &'a str,
    pub listener: &'a str,
    /// Client address, from the PROXY header if the sender is trusted.
    pub client: Peer,
    pub kind: Kind,
    pub request_id: Option<&'a str>,
    pub method: Option<&'a [u8]>,
    pub host: Option<&'a [u8]>,
    pub target: Option<&'a [u8]>,
    /// Protocol version, such as `HTTP/1.1`.
    pub version: Option<&'a str>,
    pub status: Option<u16>,
    /// `grpc-status` of the response.
    pub grpc_status: Option<u8>,
    pub pool: Option<&'a str>,
    /// Last backend that was tried.
    pub backend: Option<&'a str>,
    /// Attempts at backends; one on a kept connection that the backend had closed counts too.
    pub attempts: u32,
    /// Why attempts failed, in their order.
    pub failed: Option<&'a str>,
    /// How often the request left a backend that was judged down.
    pub moved: u32,
    /// Copies of the request that were sent to another backend because the first was slow.
    pub hedged: u32,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// From the start of the session to its end.
    pub duration: Duration,
    pub timings: Timings,
    pub user_agent: Option<&'a [u8]>,
    pub referer: Option<&'a [u8]>,
    /// TLS version, such as `TLSv1.3`.
    pub tls: Option<&'a str>,
    /// Server name of a TLS connection that is passed through without termination, or that has no certificate here.
    pub sni: Option<&'a [u8]>,
    /// Subject of a client certificate that was refused.
    pub refused_certificate: Option<&'a str>,
    /// Alert with which the client ended its handshake.
    pub tls_alert: Option<u8>,
    /// `ok`, `client-closed`, `refused: <reason>`, and so on.
    pub outcome: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A TCP session, or a client of any listener that was refused or failed before its first request.
    Tcp,
    Http,
    /// A flow of datagrams.
    Udp,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Kind::Tcp => "tcp",
            Kind::Http => "http",
            Kind::Udp => "udp",
        }
    }
}

/// Parts of the duration of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// Wait in the queue for a backend below its session limit.
    pub queue: Option<Duration>,
    /// Time to connect to the backend; `None` if an idle connection was reused.
    pub connect: Option<Duration>,
    /// Time from the start of the session to the first byte of the response.
    pub first_byte: Option<Duration>,
}

/// Fields of a line with what they mean, in their order, for the documents.
pub const FIELDS: [(&str, &str); 30] = [
    ("at", "when the session started (RFC 3339, UTC)"),
    ("listener", "name of the listener"),
    (
        "client",
        "address of the client: from the PROXY header, if the sender is trusted, or of the connection",
    ),
    (
        "kind",
        "`http`, `tcp` or `udp`; `tcp` also for a client of an HTTP listener that was refused, or failed, before its first \
         request",
    ),
    ("status", "status of the response that the client received"),
    ("outcome", "how the session ended: see [Outcomes](#outcomes)"),
    ("id", "request id, which the header `request-id-header` has as well"),
    ("method", "method of the request"),
    ("host", "host that the request names"),
    ("target", "target of the request: path and query"),
    ("version", "version of the protocol, such as `HTTP/1.1`"),
    ("tls", "version of TLS, such as `TLSv1.3`; absent without TLS"),
    (
        "sni",
        "server name that the client sent, of TLS that is passed through, or if no certificate is for it",
    ),
    ("refused_certificate", "subject of a client certificate that was refused; not verified"),
    (
        "tls_alert",
        "alert with which the client ended the handshake, such as `unknown_ca` if it does not trust our certificate",
    ),
    ("pool", "pool that the route selected"),
    ("backend", "last backend that was tried; of a hedged request the one that responded"),
    ("grpc_status", "status of a gRPC response, 0 (OK) to 16, from its trailers or head"),
    ("attempts", "attempts at backends; one on a kept connection that the backend had closed counts as well"),
    (
        "failed",
        "why attempts failed, in their order: see [Failed attempts](#failed-attempts); absent if none did",
    ),
    (
        "moved",
        "how often the request left a backend that was judged down or ejected, for another one; absent for 0",
    ),
    (
        "hedged",
        "copies of the request that were sent to another backend because the first was slow; absent for 0",
    ),
    ("bytes_in", "bytes from the client, after TLS"),
    ("bytes_out", "bytes to the client, before TLS"),
    ("duration_ms", "from the start of the session to its end; of a failed TLS handshake 0"),
    ("queue_ms", "wait for a backend with room"),
    ("connect_ms", "time to open the connection to the backend; absent if an idle connection was used again"),
    ("first_byte_ms", "from the start of the session to the first byte of the response"),
    ("user_agent", "`User-Agent` of the request"),
    ("referer", "`Referer` of the request"),
];

/// Appends the entry as text: time, listener, client, kind, status and outcome, then `key=value` for each known value.
/// A value with special characters is quoted; bytes that are not printable ASCII, `"` and `\` are written as `\xNN`.
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

/// Appends the entry as a JSON object on one line, without unknown values. Bytes that are not UTF-8 are written as
/// Latin-1 characters, and unprintable characters as `\uNNNN`.
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

/// Calls `put` with each known field that follows the outcome in a line, in order. Text and JSON lines both use this, so
/// they have the same keys.
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
        ("refused_certificate", bytes(entry.refused_certificate)),
        ("tls_alert", bytes(entry.tls_alert.map(tls_alert::name))),
        ("pool", bytes(entry.pool)),
        ("backend", bytes(entry.backend)),
    ];
    for (key, value) in named {
        if let Some(value) = value {
            put(key, Value::Bytes(value));
        }
    }
    if let Some(status) = entry.grpc_status {
        put("grpc_status", Value::Number(status.into()));
    }
    put("attempts", Value::Number(entry.attempts.into()));
    if let Some(failed) = entry.failed {
        put("failed", Value::Bytes(failed.as_bytes()));
    }
    if entry.moved > 0 {
        put("moved", Value::Number(entry.moved.into()));
    }
    if entry.hedged > 0 {
        put("hedged", Value::Number(entry.hedged.into()));
    }
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

/// Writes a duration in milliseconds with three decimals: `1.234`.
fn milliseconds(out: &mut Vec<u8>, time: Duration) {
    let micros = time.as_micros();
    let _ = write!(out, "{}.{:03}", micros / 1000, micros % 1000);
}

fn text_value(out: &mut Vec<u8>, value: &[u8]) {
    // A lone `-` means that there is no value.
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
        c if !is_printable(c) => {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
        c => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
    }
}

#[cfg(test)]
mod tests;
