//! How strong a key is for a log-in.

use std::fmt;

use crate::ssh::key::PublicKey;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strength {
    Good,
    /// RSA of fewer bits than [`ADVISED_BITS`].
    Small(usize),
    /// RSA of fewer bits than [`LEAST_BITS`].
    TooSmall(usize),
    /// DSA, which servers do not accept any more.
    Dsa,
}

/// Least length of RSA keys.
pub const LEAST_BITS: usize = 2048;
/// Advised least length of RSA keys (NIST SP 800-57: 128 bits of strength).
pub const ADVISED_BITS: usize = 3072;

impl Strength {
    #[must_use]
    pub fn of(key: &PublicKey) -> Self {
        match (key.algorithm(), key.rsa_bits()) {
            ("ssh-dss" | "ssh-dss-cert-v01@openssh.com", _) => Self::Dsa,
            (_, Some(bits)) if bits < LEAST_BITS => Self::TooSmall(bits),
            (_, Some(bits)) if bits < ADVISED_BITS => Self::Small(bits),
            _ => Self::Good,
        }
    }
}

impl fmt::Display for Strength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Good => f.write_str("strong"),
            Self::Small(bits) => write!(f, "RSA of {bits} bits, {ADVISED_BITS} are advised"),
            Self::TooSmall(bits) => write!(f, "RSA of {bits} bits, {LEAST_BITS} are the least"),
            Self::Dsa => f.write_str("DSA, which is broken and which servers refuse"),
        }
    }
}
