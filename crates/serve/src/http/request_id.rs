//! The id of a request: ours, or that of a trusted proxy in front of us.

use std::rc::Rc;

/// An id, cheap to hand around.
#[derive(Clone, Debug, Default)]
pub enum RequestId {
    /// None yet.
    #[default]
    None,
    /// Ours: 32 hexadecimal digits.
    Own([u8; 32]),
    /// A trusted proxy's.
    Trusted(Rc<str>),
}

impl RequestId {
    /// 128 bits of the worker's random numbers: unique, not secret.
    pub fn new() -> Self {
        let mut digits = [0; 32];
        for half in digits.chunks_exact_mut(16) {
            for (byte, pair) in fastrand::u64(..).to_be_bytes().into_iter().zip(half.chunks_exact_mut(2)) {
                pair.copy_from_slice(&HEX_PAIRS[usize::from(byte)]);
            }
        }
        Self::Own(digits)
    }

    /// As it is written; empty if there is none.
    pub fn as_str(&self) -> &str {
        match self {
            Self::None => "",
            Self::Own(digits) => std::str::from_utf8(digits).unwrap_or_default(),
            Self::Trusted(id) => id,
        }
    }

    /// The same as bytes, which need no look at each of them.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::None => b"",
            Self::Own(digits) => digits,
            Self::Trusted(id) => id.as_bytes(),
        }
    }

    /// There is none.
    pub fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }
}

/// Both digits of a byte at once: every request has an id.
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
    }
}
