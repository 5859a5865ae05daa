//! Basic rules of RFC 9110 section 5: tokens, blanks, lists.

/// Tells whether `byte` is a tchar (RFC 9110 section 5.6.2).
pub(super) fn is_token_byte(byte: u8) -> bool {
    TOKEN_BYTES[usize::from(byte)]
}

/// Lookup table, for speed: every name in every head is checked.
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

/// Tells whether `bytes` is a token: at least one tchar (RFC 9110 section 5.6.2).
pub(crate) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|&byte| is_token_byte(byte))
}

/// Length of the token at the start of `bytes`. Looks at four bytes at a time.
pub(super) fn token_len(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some([one, two, three, four]) = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>()) {
        if !(is_token_byte(*one) & is_token_byte(*two) & is_token_byte(*three) & is_token_byte(*four)) {
            break;
        }
        at += 4;
    }
    let rest = bytes.get(at..).unwrap_or_default();
    at + rest.iter().position(|&byte| !is_token_byte(byte)).unwrap_or(rest.len())
}

/// Tells whether `byte` is a control byte other than HTAB. A head must not contain one, not even in a quoted string.
pub(super) fn is_control(byte: u8) -> bool {
    (byte < 0x20 && byte != b'\t') || byte == 0x7f
}

/// Number of bytes before the first control byte other than HTAB.
///
/// Reads eight bytes at a time: every byte of every head is checked here, and a loop over single bytes took a fifth of
/// the parser's time.
pub(super) fn clean_len(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(word) = bytes.get(at..).and_then(|rest| rest.first_chunk()) {
        let suspects = find_controls(u64::from_le_bytes(*word));
        if suspects == 0 {
            at += 8;
            continue;
        }
        // Only the first reported byte is certain. If it is HTAB, the search continues after it.
        at += suspects.trailing_zeros() as usize / 8;
        if bytes[at] != b'\t' {
            return at;
        }
        at += 1;
    }
    let rest = bytes.get(at..).unwrap_or_default();
    at + rest.iter().position(|&byte| is_control(byte)).unwrap_or(rest.len())
}

/// Sets the highest bit of each byte that is below 0x20 or equal to 0x7f. Bits above the first one set may be wrong,
/// because the subtraction borrows from higher bytes.
fn find_controls(word: u64) -> u64 {
    const EACH: u64 = u64::MAX / 255;
    let delete = word ^ (0x7f * EACH);
    let below_space = word.wrapping_sub(0x20 * EACH) & !word;
    let is_delete = delete.wrapping_sub(EACH) & !delete;
    (below_space | is_delete) & (0x80 * EACH)
}

/// Removes optional whitespace (SP and HTAB, RFC 9110 section 5.6.3) at both ends.
pub(super) fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = bytes {
        bytes = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

/// Elements of a comma-separated list (RFC 9110 section 5.6.1) without blanks; empty elements are skipped.
pub(crate) fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
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

    #[test]
    fn a_token_ends_at_the_first_byte_that_is_none_wherever_it_stands() {
        for length in 0..12 {
            for at in 0..=length {
                let mut bytes = vec![b'a'; length];
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = b':';
                }
                assert_eq!(token_len(&bytes), at, "{length}");
            }
        }
    }

    #[test]
    fn clean_bytes_end_at_the_first_control_byte_wherever_it_stands() {
        for byte in 0..=255u8 {
            for around in [b'a', b'\t', 0x80, 0xff, b' '] {
                for at in 0..20 {
                    let mut bytes = [around; 20];
                    bytes[at] = byte;
                    let expected = if is_control(byte) { at } else { 20 };
                    assert_eq!(clean_len(&bytes), expected, "{byte:#04x} among {around:#04x}");
                }
            }
        }
        assert_eq!((clean_len(b""), clean_len(b"\r")), (0, 0));
        assert_eq!(clean_len(b"\t\t\ta\x1f\x1e"), 4);
    }
}
