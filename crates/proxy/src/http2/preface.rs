//! The first bytes of an HTTP/2 connection (RFC 9113 section 3.4).

use logic::http2::flood::PREFACE;

/// Whether `bytes` may be the start of an HTTP/2 connection. True for no bytes.
pub(crate) fn may_begin(bytes: &[u8]) -> bool {
    let len = bytes.len().min(PREFACE.len());
    bytes[..len] == PREFACE[..len]
}

/// Whether `bytes` contain the complete preface.
pub(crate) fn begins(bytes: &[u8]) -> bool {
    bytes.starts_with(PREFACE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preface_is_seen_in_any_pieces_and_no_request_is_taken_for_it() {
        for len in 0..=PREFACE.len() {
            assert!(may_begin(&PREFACE[..len]));
            assert_eq!(begins(&PREFACE[..len]), len == PREFACE.len());
        }
        assert!(begins(&[&PREFACE[..], b"\0\0\0\x04"].concat()));
        for other in ["POST / HTTP/1.1\r\n", "PRI / HTTP/1.1\r\n", "GET", "PRI * HTTP/2.0\r\n\r\nXX"] {
            assert!(!may_begin(other.as_bytes()), "{other}");
        }
    }
}
