//! ClientHello messages, built by hand, because a TLS library would not offer insecure versions and ciphers.
//!
//! The messages carry no secret: each is answered once, and the connection is closed.

use crate::group::Group;
use crate::version::Version;

#[derive(Clone, Debug)]
pub(crate) struct Hello<'a> {
    /// The only version offered (TLS 1.3), or the newest one.
    pub(crate) version: Version,
    /// Cipher suites, the preferred one first.
    pub(crate) suites: &'a [u16],
    /// Groups for the key exchange, the preferred one first.
    pub(crate) groups: &'a [u16],
    /// Server name (SNI).
    pub(crate) name: Option<&'a str>,
    pub(crate) compression: Compression,
}

/// Tells whether DEFLATE is offered beside "none".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    /// DEFLATE is offered (RFC 3749).
    Offered,
    Not,
}

impl Hello<'_> {
    pub(crate) fn record(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(512);
        put16(&mut body, self.version.number().min(Version::Tls12.number()));
        (0..32).for_each(|_| body.push(fastrand::u8(..)));
        // A session id in TLS 1.3 is for middleboxes that know only TLS 1.2 (RFC 8446 appendix D.4).
        let id = if self.version == Version::Tls13 { 32 } else { 0 };
        body.push(id);
        (0..id).for_each(|_| body.push(fastrand::u8(..)));
        list16(&mut body, self.suites);
        match self.compression {
            Compression::Offered => body.extend([2, 1, 0]),
            Compression::Not => body.extend([1, 0]),
        }
        if self.version != Version::Ssl3 {
            let extensions = self.extensions();
            put16(&mut body, extensions.len() as u16);
            body.extend(extensions);
        }
        let mut record = vec![HANDSHAKE];
        // Servers before TLS 1.3 may refuse a newer version in the record header (RFC 8446 section 5.1).
        put16(&mut record, self.version.number().min(Version::Tls10.number()));
        put16(&mut record, body.len() as u16 + 4);
        record.push(CLIENT_HELLO);
        put24(&mut record, body.len());
        record.extend(body);
        record
    }

    fn extensions(&self) -> Vec<u8> {
        let tls13 = self.version == Version::Tls13;
        let mut all = Vec::with_capacity(256);
        if let Some(name) = self.name {
            extension(&mut all, SERVER_NAME, |out| {
                put16(out, name.len() as u16 + 3);
                out.push(0);
                put16(out, name.len() as u16);
                out.extend(name.as_bytes());
            });
        }
        let groups: Vec<u16> =
            self.groups.iter().copied().filter(|group| tls13 || !Group(*group).is_tls13_only()).collect();
        if !groups.is_empty() {
            extension(&mut all, SUPPORTED_GROUPS, |out| list16(out, &groups));
            extension(&mut all, EC_POINT_FORMATS, |out| out.extend([1, 0]));
        }
        if self.version >= Version::Tls12 {
            extension(&mut all, SIGNATURE_ALGORITHMS, |out| list16(out, SCHEMES));
        }
        extension(&mut all, STATUS_REQUEST, |out| out.extend([1, 0, 0, 0, 0]));
        if tls13 {
            extension(&mut all, SUPPORTED_VERSIONS, |out| {
                out.push(2);
                put16(out, Version::Tls13.number());
            });
            extension(&mut all, PSK_MODES, |out| out.extend([1, 1]));
            // No key share: the server answers with the group it wants (RFC 8446 section 4.2.8).
            extension(&mut all, KEY_SHARE, |out| put16(out, 0));
        } else {
            extension(&mut all, RENEGOTIATION_INFO, |out| out.push(0));
            extension(&mut all, EXTENDED_MASTER_SECRET, |_| ());
            extension(&mut all, SESSION_TICKET, |_| ());
            // peer_allowed_to_send (RFC 6520 section 2).
            extension(&mut all, HEARTBEAT, |out| out.push(1));
        }
        all
    }
}

/// Builds a ClientHello of SSL 2.0 with all of its ciphers.
pub(crate) fn ssl2() -> Vec<u8> {
    let ciphers: [u8; 21] =
        [1, 0, 0x80, 2, 0, 0x80, 3, 0, 0x80, 4, 0, 0x80, 5, 0, 0x80, 6, 0, 0x40, 7, 0, 0xc0];
    let mut body = vec![CLIENT_HELLO];
    put16(&mut body, Version::Ssl2.number());
    put16(&mut body, ciphers.len() as u16);
    put16(&mut body, 0);
    put16(&mut body, 16);
    body.extend(ciphers);
    (0..16).for_each(|_| body.push(fastrand::u8(..)));
    let mut record = Vec::new();
    put16(&mut record, 0x8000 | body.len() as u16);
    record.extend(body);
    record
}

fn extension(out: &mut Vec<u8>, kind: u16, content: impl FnOnce(&mut Vec<u8>)) {
    let mut inner = Vec::new();
    content(&mut inner);
    put16(out, kind);
    put16(out, inner.len() as u16);
    out.extend(inner);
}

fn list16(out: &mut Vec<u8>, list: &[u16]) {
    put16(out, list.len() as u16 * 2);
    list.iter().for_each(|item| put16(out, *item));
}

fn put16(out: &mut Vec<u8>, number: u16) {
    out.extend(number.to_be_bytes());
}

fn put24(out: &mut Vec<u8>, number: usize) {
    out.extend(&(number as u32).to_be_bytes()[1..]);
}

/// Content type of a record.
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;

/// Signals a second attempt with a lower version (RFC 7507).
pub(crate) const FALLBACK_SCSV: u16 = 0x5600;

/// Replaces the extension renegotiation_info in SSL 3.0, which has no extensions (RFC 5746 section 3.3).
pub(crate) const RENEGOTIATION_SCSV: u16 = 0x00ff;

pub(crate) const SERVER_NAME: u16 = 0;
pub(crate) const STATUS_REQUEST: u16 = 5;
pub(crate) const SUPPORTED_GROUPS: u16 = 10;
pub(crate) const EC_POINT_FORMATS: u16 = 11;
pub(crate) const SIGNATURE_ALGORITHMS: u16 = 13;
pub(crate) const HEARTBEAT: u16 = 15;
pub(crate) const EXTENDED_MASTER_SECRET: u16 = 23;
pub(crate) const SESSION_TICKET: u16 = 35;
pub(crate) const SUPPORTED_VERSIONS: u16 = 43;
pub(crate) const PSK_MODES: u16 = 45;
pub(crate) const KEY_SHARE: u16 = 51;
pub(crate) const RENEGOTIATION_INFO: u16 = 0xff01;

/// Signature schemes for every key type of a server: ECDSA, EdDSA, RSA-PSS, RSA, DSA, and those with SHA-1.
const SCHEMES: &[u16] = &[
    0x0403, 0x0503, 0x0603, 0x0807, 0x0808, 0x0804, 0x0805, 0x0806, 0x0809, 0x080a, 0x080b, 0x0401, 0x0501,
    0x0601, 0x0303, 0x0301, 0x0203, 0x0201, 0x0402, 0x0302, 0x0202, 0x0101,
];
