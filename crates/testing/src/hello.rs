//! ClientHello messages of a real client, changed for a test.

use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

/// A ClientHello of rustls with its header, with this server_name (none for `None`), these ALPN protocols, and these
/// additional extensions.
pub fn message(server_name: Option<&[u8]>, protocols: &[&[u8]], more: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    let name = ServerName::try_from("placeholder.example").unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut record = Vec::new();
    client.write_tls(&mut record).unwrap();
    let message = &record[5..];
    // Skips type and length, version and random; then session id, cipher suites and compression follow.
    let mut at = 4 + 2 + 32;
    at += 1 + usize::from(message[at]);
    at += 2 + number(&message[at..]);
    at += 1 + usize::from(message[at]);
    let (front, mut rest) = (&message[4..at], &message[at + 2..]);
    let mut extensions = Vec::new();
    while !rest.is_empty() {
        let (kind, end) = (number(rest), 4 + number(&rest[2..]));
        if kind == 0 {
            if let Some(name) = server_name {
                let entry = [&[0][..], &vector16(name)].concat();
                extensions.extend(extension(0, &vector16(&entry)));
            }
            for (kind, value) in more {
                extensions.extend(extension(*kind, value));
            }
        } else {
            extensions.extend_from_slice(&rest[..end]);
        }
        rest = &rest[end..];
    }
    // A length of more than 16 bits is truncated to its lower 16 bits.
    let length = [(extensions.len() >> 8) as u8, extensions.len() as u8];
    let body = [front, &length, &extensions].concat();
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[1], &length[1..], &body].concat()
}

/// Splits a message into TLS records of at most `most` bytes.
pub fn records(message: &[u8], most: usize) -> Vec<u8> {
    message.chunks(most).flat_map(|part| [&[22, 3, 1][..], &vector16(part)].concat()).collect()
}

fn extension(kind: u16, value: &[u8]) -> Vec<u8> {
    [kind.to_be_bytes().to_vec(), vector16(value)].concat()
}

fn vector16(bytes: &[u8]) -> Vec<u8> {
    [&u16::try_from(bytes.len()).unwrap().to_be_bytes()[..], bytes].concat()
}

fn number(bytes: &[u8]) -> usize {
    usize::from(u16::from_be_bytes([bytes[0], bytes[1]]))
}
