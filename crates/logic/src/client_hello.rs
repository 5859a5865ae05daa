//! Parses the first TLS message of a client to learn the server name (RFC 8446 sections 4.1.2 and 5.1, RFC 6066 section
//! 3, RFC 7301), and facts that rustls does not give. The parser sends nothing and changes nothing: TLS passthrough
//! forwards the bytes unchanged.

use crate::tls_alert;

/// Maximum size of a ClientHello in bytes, with its record headers: forty times the size that browsers send. The limit
/// also bounds the number of records, because an empty record is an error.
pub const LIMIT: usize = 64 * 1024;

/// Collects bytes until the ClientHello is complete. Memory is bounded by [`LIMIT`] for the bytes, and by [`LIMIT`] for
/// a message joined from several records. Each byte is parsed once, however the stream is split into reads.
#[derive(Debug, Default)]
pub struct Reader {
    bytes: Vec<u8>,
    /// Offset of the next record header; all records before it are complete.
    next: usize,
    /// Bytes of the message in complete records.
    whole: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    Incomplete,
    Complete(ClientHello),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientHello {
    /// Host name of the server_name extension, unchanged.
    server_name: Option<Box<[u8]>>,
    /// Content of the application_layer_protocol_negotiation extension, unchanged.
    protocols: Box<[u8]>,
    legacy_version: u16,
    /// Newest version that the client offers, TLS 1.3 at most.
    newest: u16,
    has_renegotiation_data: bool,
}

impl ClientHello {
    /// Server name that the client sent, unchanged.
    pub fn server_name(&self) -> Option<&[u8]> {
        self.server_name.as_deref()
    }

    /// Returns the server name in lower case. `None` if it is not a valid DNS host name, for example an address or a
    /// path.
    pub fn host(&self) -> Option<String> {
        let name = std::str::from_utf8(self.server_name()?).ok()?;
        // RFC 6066 forbids the trailing dot, but some clients send it.
        let name = name.strip_suffix('.').unwrap_or(name);
        let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let is_label = |label: &str| (1..=63).contains(&label.len()) && label.bytes().all(known);
        let is_address = name.parse::<std::net::Ipv4Addr>().is_ok();
        (name.len() <= 253 && name.split('.').all(is_label) && !is_address).then(|| name.to_ascii_lowercase())
    }

    /// ALPN protocols that the client offers, most preferred first.
    pub fn protocols(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = Cursor(&self.protocols);
        std::iter::from_fn(move || rest.vector8())
    }

    /// Whether supported_versions has TLS 1.3 (RFC 8446 section 4.2.1).
    pub fn offers_tls13(&self) -> bool {
        self.newest == TLS_1_3
    }

    /// Alert that ends every handshake with this ClientHello as its first message: protocol_version if all its versions
    /// are older than TLS 1.2 (RFC 5246 section E.1) or its legacy_version is SSL 3.0 or older (RFC 8446 section D.5),
    /// handshake_failure for a renegotiation_info that is not empty (RFC 5746 section 3.6). rustls checks alone the second
    /// ClientHello after a HelloRetryRequest.
    pub fn refusal(&self) -> Option<u8> {
        match self {
            Self { legacy_version: ..=SSL_3_0, .. } | Self { newest: ..TLS_1_2, .. } => {
                Some(tls_alert::PROTOCOL_VERSION)
            }
            Self { has_renegotiation_data: true, .. } => Some(tls_alert::HANDSHAKE_FAILURE),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloFault {
    /// The first bytes are not a TLS handshake record.
    #[error("the client does not speak TLS")]
    NotTls,
    /// The first TLS message is not a ClientHello.
    #[error("the client does not begin with a ClientHello")]
    OtherMessage,
    /// A record is longer than 2^14 bytes.
    #[error("a TLS record is longer than 16 KiB")]
    LongRecord,
    /// A record is empty.
    #[error("a TLS record is empty")]
    EmptyRecord,
    /// The ClientHello is longer than [`LIMIT`].
    #[error("the ClientHello is longer than 64 KiB")]
    TooLong,
    /// A length inside the ClientHello does not match the data.
    #[error("the ClientHello is malformed")]
    Malformed,
}

impl HelloFault {
    /// Alert for this fault (RFC 8446 section 6.2): decode_error, unexpected_message or record_overflow.
    pub fn alert(self) -> u8 {
        match self {
            Self::NotTls | Self::EmptyRecord | Self::Malformed | Self::TooLong => tls_alert::DECODE_ERROR,
            Self::OtherMessage => tls_alert::UNEXPECTED_MESSAGE,
            Self::LongRecord => tls_alert::RECORD_OVERFLOW,
        }
    }
}

impl Reader {
    /// Adds bytes from the client. Must not be called again after [`Progress::Complete`] or an error.
    pub fn read(&mut self, more: &[u8]) -> Result<Progress, HelloFault> {
        let room = LIMIT.saturating_sub(self.bytes.len());
        // Bytes beyond the limit are used only to detect that the limit is exceeded.
        let fits = &more[..more.len().min(room)];
        self.bytes.extend_from_slice(fits);
        let progress = self.advance()?;
        let left = &more[fits.len()..];
        match progress {
            Progress::Incomplete if self.bytes.len() >= LIMIT => Err(HelloFault::TooLong),
            Progress::Incomplete => Ok(progress),
            Progress::Complete(_) => {
                self.bytes.extend_from_slice(left);
                Ok(progress)
            }
        }
    }

    /// All bytes received so far, to be forwarded.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn advance(&mut self) -> Result<Progress, HelloFault> {
        loop {
            let Some(header) = self.bytes.get(self.next..self.next + RECORD_HEADER) else {
                self.check_beginning()?;
                return Ok(Progress::Incomplete);
            };
            if header[0] != HANDSHAKE || header[1] != 3 {
                return Err(HelloFault::NotTls);
            }
            let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
            match length {
                0 => return Err(HelloFault::EmptyRecord),
                1..=LONGEST_RECORD => {}
                _ => return Err(HelloFault::LongRecord),
            }
            let start = self.next + RECORD_HEADER;
            let Some(payload) = self.bytes.get(start..start + length) else {
                // An incomplete record may already show that the message is not a valid ClientHello.
                self.check_message(self.bytes.len().min(start + length) - start, start)?;
                return Ok(Progress::Incomplete);
            };
            let count = payload.len();
            self.check_message(count, start)?;
            self.whole += count;
            self.next = start + count;
            if let Some(wanted) = self.message_length()
                && self.whole >= wanted
            {
                return self.parse(wanted).map(Progress::Complete);
            }
        }
    }

    /// Checks the first bytes of an incomplete record header.
    fn check_beginning(&self) -> Result<(), HelloFault> {
        match &self.bytes[self.next..] {
            [] | [HANDSHAKE] | [HANDSHAKE, 3, ..] => Ok(()),
            _ => Err(HelloFault::NotTls),
        }
    }

    /// Checks the type and the length of the message, with `count` more of its bytes at `start`.
    fn check_message(&self, count: usize, start: usize) -> Result<(), HelloFault> {
        if self.whole >= MESSAGE_HEADER {
            return Ok(());
        }
        let more = &self.bytes[start..start + count];
        let mut header = self.message().chain(more.iter().copied());
        if header.next().is_some_and(|kind| kind != CLIENT_HELLO) {
            return Err(HelloFault::OtherMessage);
        }
        match header.next() {
            Some(high) if high != 0 => Err(HelloFault::TooLong),
            _ => Ok(()),
        }
    }

    /// Bytes of the message in complete records.
    fn message(&self) -> impl Iterator<Item = u8> {
        self.fragments().flatten().copied()
    }

    /// Payloads of the complete records.
    fn fragments(&self) -> impl Iterator<Item = &[u8]> {
        let mut records = Cursor(&self.bytes[..self.next]);
        std::iter::from_fn(move || {
            records.take(RECORD_HEADER - 2)?; // content type, version
            records.vector16()
        })
    }

    /// Length of the message with its header, once the header is complete.
    fn message_length(&self) -> Option<usize> {
        if self.whole < MESSAGE_HEADER {
            return None;
        }
        let mut header = self.message().skip(1);
        let mut byte = || header.next().map(usize::from);
        Some(MESSAGE_HEADER + ((byte()? << 16) | (byte()? << 8) | byte()?))
    }

    fn parse(&self, length: usize) -> Result<ClientHello, HelloFault> {
        let parsed = match self.fragments().next() {
            Some(first) if first.len() >= length => parse(&first[MESSAGE_HEADER..length]),
            _ => {
                let mut message = Vec::with_capacity(self.whole);
                self.fragments().for_each(|fragment| message.extend_from_slice(fragment));
                parse(&message[MESSAGE_HEADER..length])
            }
        };
        parsed.ok_or(HelloFault::Malformed)
    }
}

/// Parses a ClientHello without its message header. `None` if a length does not match the data.
fn parse(body: &[u8]) -> Option<ClientHello> {
    let mut body = Cursor(body);
    let legacy_version = body.number16()?;
    // A client without supported_versions offers no TLS 1.3 (RFC 8446 section 4.2.1).
    let newest = legacy_version.min(TLS_1_2);
    let mut hello = ClientHello { legacy_version, newest, ..ClientHello::default() };
    body.take(32)?; // random
    (body.vector8()?.len() <= 32).then_some(())?; // legacy_session_id
    let suites = body.vector16()?;
    (suites.len() >= 2 && suites.len() % 2 == 0).then_some(())?;
    (!body.vector8()?.is_empty()).then_some(())?; // legacy_compression_methods
    if body.0.is_empty() {
        // A ClientHello may end without extensions (RFC 5246 section 7.4.1.2).
        return Some(hello);
    }
    let mut extensions = Cursor(body.vector16()?);
    body.0.is_empty().then_some(())?;
    let mut protocols = None;
    while !extensions.0.is_empty() {
        let kind = extensions.number16()?;
        let value = extensions.vector16()?;
        match kind {
            SERVER_NAME => {
                let name = server_name(value)?;
                hello.server_name.replace(name.into()).is_none().then_some(())?;
            }
            ALPN => {
                let list = protocol_list(value)?;
                protocols.replace(list).is_none().then_some(())?;
            }
            SUPPORTED_VERSIONS => {
                // A malformed list is for the server to refuse.
                if let Some(versions) = whole_vector8(value)
                    && !versions.is_empty()
                    && versions.len() % 2 == 0
                {
                    hello.newest = numbers(versions).filter(|version| *version <= TLS_1_3).max().unwrap_or(0);
                }
            }
            RENEGOTIATION_INFO => {
                hello.has_renegotiation_data = whole_vector8(value).is_some_and(|data| !data.is_empty());
            }
            _ => {}
        }
    }
    hello.protocols = protocols.unwrap_or_default().into();
    Some(hello)
}

/// Returns the content of an extension that is one vector.
fn whole_vector8(value: &[u8]) -> Option<&[u8]> {
    let mut value = Cursor(value);
    let content = value.vector8()?;
    value.0.is_empty().then_some(content)
}

fn numbers(list: &[u8]) -> impl Iterator<Item = u16> {
    list.chunks_exact(2).map(|number| u16::from_be_bytes([number[0], number[1]]))
}

/// Returns the only host_name of a ServerNameList. No other name type is defined.
fn server_name(value: &[u8]) -> Option<&[u8]> {
    let mut value = Cursor(value);
    let mut list = Cursor(value.vector16()?);
    let kind = list.take(1)?;
    let name = list.vector16()?;
    (kind == [HOST_NAME] && !name.is_empty() && list.0.is_empty() && value.0.is_empty()).then_some(name)
}

/// Checks a ProtocolNameList and returns it.
fn protocol_list(value: &[u8]) -> Option<&[u8]> {
    let mut value = Cursor(value);
    let list = value.vector16()?;
    let mut names = Cursor(list);
    while !names.0.is_empty() {
        (!names.vector8()?.is_empty()).then_some(())?;
    }
    (!list.is_empty() && value.0.is_empty()).then_some(list)
}

/// Remaining bytes of the input.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn number16(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// Reads a vector with a length of one byte.
    fn vector8(&mut self) -> Option<&'a [u8]> {
        let length = self.take(1)?[0];
        self.take(length.into())
    }

    /// Reads a vector with a length of two bytes.
    fn vector16(&mut self) -> Option<&'a [u8]> {
        let length = self.number16()?;
        self.take(length.into())
    }
}

/// A content type and a message type (RFC 8446 sections 4 and 5.1).
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;

/// Extension types (RFC 8446 section 4.2), and the only type of server name.
const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;
const SUPPORTED_VERSIONS: u16 = 43;
const RENEGOTIATION_INFO: u16 = 0xff01;
const HOST_NAME: u8 = 0;

const SSL_3_0: u16 = 0x0300;
const TLS_1_2: u16 = 0x0303;
const TLS_1_3: u16 = 0x0304;

/// Size of content type, version and length in bytes.
const RECORD_HEADER: usize = 5;

const MESSAGE_HEADER: usize = 4;

/// Maximum length of a TLS record in bytes (RFC 8446 section 5.1).
const LONGEST_RECORD: usize = 1 << 14;

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &[u8]) -> ClientHello {
        ClientHello { server_name: Some(name.into()), ..ClientHello::default() }
    }

    #[test]
    fn only_what_dns_can_hold_is_a_host() {
        let long = [b"a".repeat(63), b"b".repeat(63), b"c".repeat(63), b"d".repeat(61)].join(&b'.');
        for (name, host) in [
            (&b"WWW.Example.com"[..], "www.example.com"),
            (b"a.example.", "a.example"),
            (b"xn--bcher-kva.example", "xn--bcher-kva.example"),
            (b"_x.a", "_x.a"),
            (&long, std::str::from_utf8(&long).unwrap()),
        ] {
            assert_eq!(named(name).host().as_deref(), Some(host));
        }
        let too_long = [&long[..], b"d"].concat();
        let label = [&b"a".repeat(64)[..], b".b"].concat();
        for name in [
            &b"192.0.2.1"[..],
            b"2001:db8::1",
            b"[::1]",
            b"/etc/passwd",
            b"a/b",
            b"../a",
            b"a\0b",
            b"\0",
            b".",
            b"a..b",
            b".a",
            b"a..",
            b"b\xc3\xbccher.example",
            b"a b",
            b"a:443",
            b"*.a",
            b"\xff",
            &too_long,
            &label,
        ] {
            assert_eq!(named(name).host(), None, "{}", name.escape_ascii());
        }
        assert_eq!(ClientHello::default().host(), None);
    }
}
