//! SSHFP fingerprints of host keys in the DNS (RFC 4255, 6594, 7479). Only DNSSEC that Penstock validated counts.

use sha1::{Digest, Sha1};

use crate::ssh::key::PublicKey;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FingerprintRecord {
    /// 1 RSA, 2 DSA, 3 ECDSA, 4 Ed25519.
    pub algorithm: u8,
    /// 1 SHA-1, 2 SHA-256.
    pub hash: u8,
    pub fingerprint: Vec<u8>,
}

pub type SshfpRecords = Vec<FingerprintRecord>;

/// Answer of the DNS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SshfpAnswer {
    NotAsked,
    /// DNSSEC is valid up to the trust anchor.
    Secure(SshfpRecords),
    /// The name or its zone is not signed.
    Insecure(SshfpRecords),
    /// The zone should be signed, but the signatures are not valid.
    Bogus(String),
    None,
    Failed(String),
}

impl SshfpAnswer {
    /// True if a validated record has the fingerprint of the key. SHA-1 fingerprints are ignored.
    #[must_use]
    pub fn vouches_for(&self, key: &PublicKey) -> bool {
        matches!(self, Self::Secure(records) if matches(records, key))
    }
}

impl FingerprintRecord {
    /// The SHA-256 record of a key; `None` for key types without a number in the registry of IANA.
    #[must_use]
    pub fn of(key: &PublicKey) -> Option<Self> {
        let algorithm = number(key.algorithm())?;
        Some(Self { algorithm, hash: 2, fingerprint: key.fingerprint().0.to_vec() })
    }

    /// All records that `ssh` believes of a key: those with SHA-1 too, which other programs publish.
    #[must_use]
    pub fn believed(key: &PublicKey) -> Vec<Self> {
        let weak = |own: &Self| Self {
            algorithm: own.algorithm,
            hash: 1,
            fingerprint: Sha1::digest(key.blob()).to_vec(),
        };
        Self::of(key).map_or_else(Vec::new, |own| vec![weak(&own), own])
    }
}

/// True if a record has the SHA-256 fingerprint of the key.
pub(super) fn matches(records: &[FingerprintRecord], key: &PublicKey) -> bool {
    FingerprintRecord::of(key).is_some_and(|own| records.contains(&own))
}

fn number(algorithm: &str) -> Option<u8> {
    match algorithm {
        "ssh-rsa" => Some(1),
        "ssh-dss" => Some(2),
        "ssh-ed25519" => Some(4),
        other if other.starts_with("ecdsa-sha2-") => Some(3),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_secure_sha256_of_the_same_type_vouches() {
        let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJKRYUVfuEFUGyOJ4Ub4j8kXhVwPkN7SrvI9QeYwHyEq";
        let key: PublicKey = key.parse().unwrap();
        let record = |algorithm, hash| FingerprintRecord {
            algorithm,
            hash,
            fingerprint: key.fingerprint().0.to_vec(),
        };
        assert!(SshfpAnswer::Secure(vec![record(1, 2), record(4, 2)]).vouches_for(&key));
        for answer in [
            SshfpAnswer::Insecure(vec![record(4, 2)]),
            SshfpAnswer::Secure(vec![record(4, 1), record(1, 2)]),
            SshfpAnswer::Secure(Vec::new()),
            SshfpAnswer::Bogus(String::new()),
            SshfpAnswer::None,
        ] {
            assert!(!answer.vouches_for(&key), "{answer:?}");
        }
    }
}
