//! Names of the protocols that client and server agree on in a TLS handshake (ALPN, RFC 7301).

/// HTTP/2 over TLS (RFC 9113 section 3.2).
pub(super) const H2: &[u8] = b"h2";
