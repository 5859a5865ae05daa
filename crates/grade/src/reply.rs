//! Parses the server's answer to a ClientHello as it arrives. Every field is checked and limited.

use logic::tls_alert;

use crate::hello;
use crate::version::Version;

/// Answer of a server to a ClientHello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// The server continues the handshake.
    Hello(Box<ServerHello>),
    /// The server ends the handshake with this alert (RFC 8446 section 6).
    Alert(u8),
    /// The server sent bytes that are not valid TLS.
    Garbage,
}

/// First flight of the server: its messages before it needs an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerHello {
    pub(crate) version: u16,
    pub(crate) suite: u16,
    /// Chosen compression method; 0 is none.
    pub(crate) compression: u8,
    /// Group of the key exchange, if the group has a number.
    pub(crate) group: Option<u16>,
    /// Size of the Diffie-Hellman prime in bits.
    pub(crate) dh_bits: Option<u32>,
    pub(crate) extensions: Vec<u16>,
    /// Certificates and staple, for TLS 1.2 and older.
    pub(crate) shown: Shown,
}

/// Certificates and staple of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    /// Certificates, leaf first.
    pub(crate) chain: Vec<Vec<u8>>,
    pub(crate) staple: Option<Vec<u8>>,
}

impl ServerHello {
    /// Returns true if the server sent the extension.
    pub(crate) fn has(&self, extension: u16) -> bool {
        self.extensions.contains(&extension)
    }
}

/// Parser of the server's first flight. Feed it until it returns a reply.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    bytes: Vec<u8>,
    handshake: Vec<u8>,
    seen: usize,
    found: Option<ServerHello>,
}

impl Reader {
    /// Parses more bytes. `None` if the reply is not complete.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Option<Reply> {
        self.seen += bytes.len();
        if self.seen > MAX_REPLY {
            return Some(self.so_far().unwrap_or(Reply::Garbage));
        }
        self.bytes.extend_from_slice(bytes);
        let mut pending = std::mem::take(&mut self.bytes);
        let mut at = 0;
        let reply = loop {
            let Record { kind, content, length } = match record(&pending[at..]) {
                Some(Ok(record)) => record,
                Some(Err(NotTls)) => break Some(self.so_far().unwrap_or(Reply::Garbage)),
                None => break None,
            };
            at += length;
            match (kind, content) {
                (tls_alert::CONTENT_TYPE, [_, alert, ..]) => {
                    break Some(self.so_far().unwrap_or(Reply::Alert(*alert)));
                }
                (HANDSHAKE, content) => {
                    self.handshake.extend_from_slice(content);
                    if let Some(reply) = self.messages() {
                        break Some(reply);
                    }
                }
                // In TLS 1.3 all messages after the ServerHello are encrypted or meant for middleboxes.
                _ => break Some(self.so_far().unwrap_or(Reply::Garbage)),
            }
        };
        pending.drain(..at);
        self.bytes = pending;
        reply
    }

    /// Returns the reply when the server closes or stops sending. A ServerHello counts even if nothing follows it.
    pub(crate) fn so_far(&mut self) -> Option<Reply> {
        self.found.take().map(|found| Reply::Hello(Box::new(found)))
    }

    fn messages(&mut self) -> Option<Reply> {
        loop {
            let &[kind, a, b, c, ref rest @ ..] = self.handshake.as_slice() else { return None };
            let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
            if length > MAX_REPLY {
                return Some(self.so_far().unwrap_or(Reply::Garbage));
            }
            let body = rest.get(..length)?;
            let read = match (kind, &mut self.found) {
                (SERVER_HELLO, found @ None) => server_hello(body).map(|hello| *found = Some(hello)),
                (CERTIFICATE, Some(found)) => certificates(body).map(|chain| found.shown.chain = chain),
                (CERTIFICATE_STATUS, Some(found)) => {
                    // status_type ocsp(1), then the response (RFC 6066 section 8).
                    found.shown.staple = match body {
                        [1, _, _, _, response @ ..] => Some(response.to_vec()),
                        _ => None,
                    };
                    Some(())
                }
                (SERVER_KEY_EXCHANGE, Some(found)) => {
                    key_exchange(found, body);
                    Some(())
                }
                (SERVER_HELLO_DONE, Some(_)) => None,
                (_, Some(_)) => Some(()),
                (_, None) => None,
            };
            let done = read.is_none()
                || self.found.as_ref().is_some_and(|found| found.version >= Version::Tls13.number());
            if done {
                return Some(self.so_far().unwrap_or(Reply::Garbage));
            }
            self.handshake.drain(..4 + length);
        }
    }
}

/// Tests whether an answer to an SSL 2.0 ClientHello is a ServerHello with a cipher. `None` if more bytes are needed.
pub(crate) fn is_ssl2_hello(bytes: &[u8]) -> Option<bool> {
    // Length of two bytes with the top bit set, then: message 4, session id hit, certificate type, version, length of
    // the certificate, length of the ciphers.
    let &[first, _, message, _, _, major, minor, _, _, high, low, ..] = bytes else {
        let possible = bytes.first().is_none_or(|first| first & 0x80 != 0)
            && bytes.get(2).is_none_or(|message| *message == SSL2_SERVER_HELLO);
        return (!possible).then_some(false);
    };
    Some(
        first & 0x80 != 0
            && message == SSL2_SERVER_HELLO
            && (major, minor) == (0, 2)
            && (high, low) != (0, 0),
    )
}

/// A record: its type, its content, its total length.
struct Record<'a> {
    kind: u8,
    content: &'a [u8],
    length: usize,
}

struct NotTls;

/// Returns the first record. `None` if it is incomplete.
fn record(bytes: &[u8]) -> Option<Result<Record<'_>, NotTls>> {
    let kind = *bytes.first()?;
    if !(20..=24).contains(&kind) || bytes.get(1).is_some_and(|major| *major != 3) {
        return Some(Err(NotTls));
    }
    let &[_, _, _, high, low, ref rest @ ..] = bytes else { return None };
    let length = usize::from(high) << 8 | usize::from(low);
    if length > MAX_RECORD {
        return Some(Err(NotTls));
    }
    Some(Ok(Record { kind, content: rest.get(..length)?, length: 5 + length }))
}

/// Parses ServerHello and HelloRetryRequest (RFC 8446 section 4.1.3), or the ServerHello of an older version.
fn server_hello(body: &[u8]) -> Option<ServerHello> {
    let mut rest = Bytes(body);
    let legacy = rest.number(2)?;
    rest.take(32)?;
    let id = rest.number(1)?;
    rest.take(id)?;
    let mut hello =
        ServerHello { version: legacy as u16, suite: rest.number(2)? as u16, ..Default::default() };
    hello.compression = rest.number(1)? as u8;
    if rest.0.is_empty() {
        return Some(hello);
    }
    let length = rest.number(2)?;
    let mut extensions = Bytes(rest.take(length)?);
    while !extensions.0.is_empty() {
        let kind = extensions.number(2)? as u16;
        let length = extensions.number(2)?;
        let content = extensions.take(length)?;
        match (kind, content) {
            (hello::SUPPORTED_VERSIONS, [high, low]) => {
                hello.version = u16::from_be_bytes([*high, *low]);
            }
            (hello::KEY_SHARE, [high, low, ..]) => hello.group = Some(u16::from_be_bytes([*high, *low])),
            _ => {}
        }
        hello.extensions.push(kind);
    }
    Some(hello)
}

fn certificates(body: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut rest = Bytes(body);
    let length = rest.number(3)?;
    let mut list = Bytes(rest.take(length)?);
    let mut chain = Vec::new();
    while !list.0.is_empty() && chain.len() < MAX_CHAIN {
        let length = list.number(3)?;
        chain.push(list.take(length)?.to_vec());
    }
    Some(chain)
}

/// Parses ServerKeyExchange, which starts with a named curve (RFC 8422 section 5.4) or a prime (RFC 5246 section
/// 7.4.3), depending on the cipher suite.
fn key_exchange(hello: &mut ServerHello, body: &[u8]) {
    use crate::suite::{Exchange, Suite};
    let suite = Suite(hello.suite);
    let on_curve = suite.exchange() == Exchange::Ecdhe || suite.name().starts_with("TLS_ECDH_anon_");
    match body {
        [NAMED_CURVE, high, low, ..] if on_curve => hello.group = Some(u16::from_be_bytes([*high, *low])),
        _ if on_curve => {}
        [high, low, rest @ ..] => {
            let length = usize::from(*high) << 8 | usize::from(*low);
            hello.dh_bits = rest.get(..length).map(bits_of);
        }
        _ => {}
    }
}

/// Size in bits of a big-endian number.
pub(crate) fn bits_of(number: &[u8]) -> u32 {
    let mut significant = number.iter().skip_while(|byte| **byte == 0);
    let Some(first) = significant.next() else { return 0 };
    8 - first.leading_zeros() + 8 * significant.count() as u32
}

struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self, length: usize) -> Option<usize> {
        Some(self.take(length)?.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }
}

/// Content type of a handshake record.
const HANDSHAKE: u8 = 22;

/// Types of handshake messages.
const SERVER_HELLO: u8 = 2;
const CERTIFICATE: u8 = 11;
const SERVER_KEY_EXCHANGE: u8 = 12;
const SERVER_HELLO_DONE: u8 = 14;
const CERTIFICATE_STATUS: u8 = 22;
const NAMED_CURVE: u8 = 3;
const SSL2_SERVER_HELLO: u8 = 4;

/// Upper bound of a record's length (RFC 5246 section 6.2.3).
const MAX_RECORD: usize = (1 << 14) + 2048;
/// Upper bound of a server's first flight in bytes.
const MAX_REPLY: usize = 256 * 1024;
/// Largest number of certificates examined.
const MAX_CHAIN: usize = 16;

#[cfg(test)]
mod tests;
