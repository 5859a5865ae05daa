//! Small rules of RFC 9110 section 5: tokens, blanks, lists.

/// tchar of RFC 9110 section 5.6.2.
pub(super) fn is_token_byte(byte: u8) -> bool {
    TOKEN_BYTES[usize::from(byte)]
}

/// One look per byte: every name of every head is checked.
const TOKEN_BYTES: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0u8;
    loop {
        table[byte as usize] = byte.is_ascii_alphanumeric()
            || matches!(byte, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~');
        if byte == u8::MAX {
            break table;
        }
        byte += 1;
    }
};

/// A token of RFC 9110 section 5.6.2: at least one tchar.
pub(crate) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|&byte| is_token_byte(byte))
}

/// Cuts optional whitespace (SP and HTAB, RFC 9110 section 5.6.3) off both ends.
pub(super) fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = bytes {
        bytes = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

/// The elements of a comma-separated list (RFC 9110 section 5.6.1) without blanks; empty elements are left
/// out.
pub(super) fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(trim).filter(|element| !element.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_bytes_are_exactly_those_of_the_rfc() {
        let tchar = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
        for byte in 0..=255u8 {
            assert_eq!(is_token_byte(byte), tchar.contains(&byte), "byte {byte:#04x}");
        }
    }
}
