//! TLVs of a PROXY header of version 2 (proxy-protocol.txt section 2.2).

/// Encoded TLVs: type, length and value. A value longer than 255 bytes is left out, so that the header stays within the
/// size that receivers accept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Additions(Vec<u8>);

/// TLS of the client's connection, if Penstock terminates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tls<'a> {
    /// OpenSSL's name: `TLSv1.3`.
    pub version: &'a str,
    /// OpenSSL's name: `ECDHE-RSA-AES128-GCM-SHA256`.
    pub cipher: &'a str,
    pub client: ClientProof,
    pub common_name: Option<&'a str>,
}

/// Whether a client has sent a certificate that was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientProof {
    None,
    OnConnection,
    /// The client has sent its certificate on an earlier connection, whose session this connection resumed.
    InSession,
}

/// Types of TLVs, and of the TLVs inside the TLS one (sections 2.2.1 to 2.2.6).
const ALPN: u8 = 0x01;
const AUTHORITY: u8 = 0x02;
const SSL: u8 = 0x20;
const SSL_VERSION: u8 = 0x21;
const SSL_CN: u8 = 0x22;
const SSL_CIPHER: u8 = 0x23;

/// Bits of the client field.
const CLIENT_SSL: u8 = 0x01;
const CLIENT_CERT_CONN: u8 = 0x02;
const CLIENT_CERT_SESS: u8 = 0x04;

/// Longest text in bytes: a DNS name and a protocol have at most 255 bytes, a common name 64 characters.
const LONGEST: usize = 255;

impl Additions {
    /// Protocol that the TLS handshake selected.
    pub fn alpn(&mut self, protocol: &[u8]) {
        push(&mut self.0, ALPN, protocol);
    }

    /// Server name that the client sent.
    pub fn authority(&mut self, name: &str) {
        push(&mut self.0, AUTHORITY, name.as_bytes());
    }

    pub fn tls(&mut self, tls: &Tls<'_>) {
        let (client, verify) = match tls.client {
            ClientProof::None => (CLIENT_SSL, 1u32),
            ClientProof::OnConnection => (CLIENT_SSL | CLIENT_CERT_CONN | CLIENT_CERT_SESS, 0),
            ClientProof::InSession => (CLIENT_SSL | CLIENT_CERT_SESS, 0),
        };
        let mut value = vec![client];
        value.extend_from_slice(&verify.to_be_bytes());
        push(&mut value, SSL_VERSION, tls.version.as_bytes());
        push(&mut value, SSL_CIPHER, tls.cipher.as_bytes());
        if let Some(name) = tls.common_name {
            push(&mut value, SSL_CN, name.as_bytes());
        }
        push_value(&mut self.0, SSL, &value);
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

fn push(out: &mut Vec<u8>, kind: u8, value: &[u8]) {
    if !value.is_empty() && value.len() <= LONGEST {
        push_value(out, kind, value);
    }
}

/// `value` is at most four bounded texts.
fn push_value(out: &mut Vec<u8>, kind: u8, value: &[u8]) {
    let Ok(length) = u16::try_from(value.len()) else { return };
    out.push(kind);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::Peer;
    use crate::proxy_header::{Header, Parsed, Version, parse, write};

    #[test]
    fn additions_are_written_as_the_protocol_says_and_read_back_as_whole() {
        let mut additions = Additions::default();
        additions.alpn(b"h2");
        additions.authority("a.example");
        additions.tls(&Tls {
            version: "TLSv1.3",
            cipher: "X",
            client: ClientProof::InSession,
            common_name: Some("me"),
        });
        let wanted =
            b"\x01\0\x02h2\x02\0\x09a.example\x20\0\x18\x05\0\0\0\0\x21\0\x07TLSv1.3\x23\0\x01X\x22\0\x02me";
        assert_eq!(additions.as_bytes(), wanted, "{}", additions.as_bytes().escape_ascii());
        let (source, destination) = ("192.0.2.1:1".parse().unwrap(), "192.0.2.2:2".parse().unwrap());
        let mut out = Vec::new();
        write(Version::V2, &mut out, &Peer::Ip(source), &Peer::Ip(destination), &additions);
        let header = Header::Client { source, destination };
        assert_eq!(parse(&out), Ok(Parsed::Complete { header, len: out.len() }));
    }

    #[test]
    fn a_client_without_a_certificate_is_not_said_to_be_verified_and_long_names_are_left_out() {
        let mut additions = Additions::default();
        let name = "n".repeat(LONGEST + 1);
        additions.authority(&name);
        let tls = Tls { version: "V", cipher: "C", client: ClientProof::None, common_name: Some(&name) };
        additions.tls(&tls);
        assert_eq!(additions.as_bytes(), b"\x20\0\x0d\x01\0\0\0\x01\x21\0\x01V\x23\0\x01C");
    }
}
