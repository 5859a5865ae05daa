//! Request id: generated, or received from a trusted proxy.

use std::rc::Rc;

/// A request id, cheap to clone.
#[derive(Clone, Debug, Default)]
pub enum RequestId {
    #[default]
    None,
    /// Generated: 32 hexadecimal digits.
    Own([u8; 32]),
    /// Received from a trusted proxy.
    Trusted(Rc<str>),
}

impl RequestId {
    /// Generates 128 bits with the worker's random number generator: unique, not secret.
    pub fn new() -> Self {
        let mut digits = [0; 32];
        for half in digits.chunks_exact_mut(16) {
            for (byte, pair) in fastrand::u64(..).to_be_bytes().into_iter().zip(half.chunks_exact_mut(2)) {
                pair.copy_from_slice(&HEX_PAIRS[usize::from(byte)]);
            }
        }
        Self::Own(digits)
    }

    /// The id with this text, which another process has generated or received.
    pub(crate) fn known(text: &str) -> Self {
        match text.as_bytes().try_into() {
            _ if text.is_empty() => Self::None,
            Ok(digits) => Self::Own(digits),
            Err(_) => Self::Trusted(text.into()),
        }
    }

    /// Returns the text form. Empty if there is no id.
    pub fn as_str(&self) -> &str {
        match self {
            Self::None => "",
            Self::Own(digits) => std::str::from_utf8(digits).unwrap_or_default(),
            Self::Trusted(id) => id,
        }
    }

    /// Returns the text form as bytes, without a UTF-8 check.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::None => b"",
            Self::Own(digits) => digits,
            Self::Trusted(id) => id.as_bytes(),
        }
    }

    pub fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }
}

/// Both hexadecimal digits of each byte, for speed: every request has an id.
static HEX_PAIRS: [[u8; 2]; 256] = {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < pairs.len() {
        pairs[byte] = [DIGITS[byte >> 4], DIGITS[byte & 15]];
        byte += 1;
    }
    pairs
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_32_hexadecimal_digits_and_differ() {
        let (one, other) = (RequestId::new(), RequestId::new());
        assert_eq!(one.as_str().len(), 32);
        assert!(one.as_str().bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')));
        assert_ne!(one.as_str(), other.as_str());
        for text in ["", one.as_str(), "of-a-proxy"] {
            assert_eq!(RequestId::known(text).as_str(), text);
        }
    }
}
