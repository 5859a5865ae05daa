//! Protocols that a handshake agrees on (ALPN).

/// HTTP/2 over TLS (RFC 9113 section 3.2).
pub(super) const H2: &[u8] = b"h2";
