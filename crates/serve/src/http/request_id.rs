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
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let random = (u128::from(fastrand::u64(..)) << 64) | u128::from(fastrand::u64(..));
        let mut digits = [0; 32];
        for (byte, pair) in random.to_be_bytes().into_iter().zip(digits.chunks_exact_mut(2)) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
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

    /// There is none.
    pub fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }
}

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
