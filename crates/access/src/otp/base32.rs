//! Base32 (RFC 4648), in which authenticator apps take secrets.

const LETTERS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// Base32 without padding.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::new();
    let (mut bits, mut count) = (0_u32, 0);
    for byte in bytes {
        (bits, count) = (bits << 8 | u32::from(*byte), count + 8);
        while count >= 5 {
            count -= 5;
            text.push(char::from(LETTERS[(bits >> count & 31) as usize]));
        }
    }
    if count > 0 {
        text.push(char::from(LETTERS[(bits << (5 - count) & 31) as usize]));
    }
    text
}

/// Bytes of base32 in either case, with or without padding, spaces and hyphens; `None` for any other text.
#[must_use]
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let (mut bits, mut count, mut letters) = (0_u32, 0, 0);
    for c in text.trim_end_matches('=').bytes().filter(|byte| !matches!(byte, b' ' | b'-')) {
        let value = LETTERS.iter().position(|letter| *letter == c.to_ascii_uppercase())?;
        (bits, count, letters) = (bits << 5 | u32::try_from(value).ok()?, count + 5, letters + 1);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 255) as u8);
        }
    }
    // One, three or six letters in the last group end no byte, and bits that are left over must be zero.
    let is_whole = !matches!(letters % 8, 1 | 3 | 6) && bits & ((1 << count) - 1) == 0;
    is_whole.then_some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_vectors_of_rfc_4648_come_out() {
        for (plain, text) in [
            ("", ""),
            ("f", "MY"),
            ("fo", "MZXQ"),
            ("foo", "MZXW6"),
            ("foob", "MZXW6YQ"),
            ("fooba", "MZXW6YTB"),
            ("foobar", "MZXW6YTBOI"),
        ] {
            assert_eq!(encode(plain.as_bytes()), text);
            assert_eq!(decode(text).unwrap(), plain.as_bytes());
        }
        assert_eq!(decode("mzxw 6ytb-oi======").unwrap(), b"foobar");
        for wrong in ["M", "MZX", "MZXW6Y", "MZ1Q", "MZ", "ÄÄ"] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn bytes_come_back(bytes in proptest::collection::vec(any::<u8>(), 0..70)) {
            prop_assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }
    }
}
