//! gRPC over HTTP/2, as far as a proxy reads it.

/// Number of statuses: 0 (OK) to 16 (UNAUTHENTICATED).
pub const STATUSES: usize = 17;

/// Whether a value of `content-type` is that of gRPC.
pub fn is_content_type(value: &[u8]) -> bool {
    value.starts_with(b"application/grpc")
}

/// Reads `grpc-status` from the fields of a response or of its trailers. `None` for a value that is no status.
pub fn status<'f>(fields: impl IntoIterator<Item = (&'f [u8], &'f [u8])>) -> Option<u8> {
    let (_, value) = fields.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(b"grpc-status"))?;
    let value =
        std::str::from_utf8(value).ok().filter(|value| value.bytes().all(|byte| byte.is_ascii_digit()))?;
    value.parse().ok().filter(|status| usize::from(*status) < STATUSES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_that_are_a_status_count() {
        for (value, expected) in [
            ("0", Some(0)),
            ("16", Some(16)),
            ("17", None),
            ("+1", None),
            ("", None),
            ("-1", None),
            ("x", None),
        ] {
            let fields = [(&b"x"[..], &b"5"[..]), (b"Grpc-Status", value.as_bytes())];
            assert_eq!(status(fields), expected, "{value}");
        }
        assert_eq!(status([]), None);
    }
}
