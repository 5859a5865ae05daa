//! Public key of SSH: algorithm and blob (RFC 4253 section 6.6), and its fingerprint.

use std::fmt;
use std::str::FromStr;

use base64ct::{Base64, Base64Unpadded, Encoding};
use sha2::{Digest, Sha256};
use thiserror::Error;

use fields::MalformedKey;

mod fields;

/// Limit of a blob in bytes: an RSA key of 16,384 bits has 2,070 bytes, a certificate a few thousand.
const LONGEST_BLOB: usize = 64 * 1024;

/// A public key or certificate, compared byte by byte.
///
/// Only the structure of the blob is checked: a truncated key cannot be pinned. `crates/ssh` verifies signatures.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey {
    algorithm: Box<str>,
    blob: Box<[u8]>,
}

impl PublicKey {
    /// Parses a blob in the wire format; its first string is the algorithm.
    ///
    /// # Errors
    /// The algorithm is no valid name, the rest is no key of the algorithm, or the blob is too long.
    pub fn from_blob(blob: &[u8]) -> Result<Self, KeyError> {
        if blob.len() > LONGEST_BLOB {
            return Err(KeyError::TooLong);
        }
        let (length, rest) = blob.split_first_chunk::<4>().ok_or(KeyError::NoName)?;
        let length = usize::try_from(u32::from_be_bytes(*length)).map_err(|_| KeyError::NoName)?;
        let name = rest.get(..length).ok_or(KeyError::NoName)?;
        let is_name = |byte: &u8| byte.is_ascii_graphic() && *byte != b',';
        if name.is_empty() || name.len() > 64 || !name.iter().all(is_name) || rest.len() == length {
            return Err(KeyError::NoName);
        }
        let algorithm = String::from_utf8_lossy(name).into_owned().into_boxed_str();
        fields::check(&algorithm, &rest[length..]).map_err(|why| match why {
            MalformedKey::Cut => KeyError::Cut,
            MalformedKey::Longer => KeyError::Longer,
            MalformedKey::Wrong(why) => KeyError::Wrong(why),
        })?;
        Ok(Self { algorithm, blob: blob.into() })
    }

    /// Algorithm, such as `ssh-ed25519`.
    #[must_use]
    pub fn algorithm(&self) -> &str {
        &self.algorithm
    }

    #[must_use]
    pub fn blob(&self) -> &[u8] {
        &self.blob
    }

    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint(Sha256::digest(&self.blob).into())
    }

    /// Length in bits of an RSA key or of the RSA key in a certificate; `None` for other keys and for a truncated blob.
    #[must_use]
    pub fn rsa_bits(&self) -> Option<usize> {
        // RFC 4253 section 6.6: algorithm, exponent, modulus. In PROTOCOL.certkeys a nonce follows the algorithm.
        let fields = match self.algorithm() {
            "ssh-rsa" => 3,
            "ssh-rsa-cert-v01@openssh.com" => 4,
            _ => return None,
        };
        let mut rest = self.blob();
        let mut modulus: &[u8] = &[];
        for _ in 0..fields {
            let (length, after) = rest.split_first_chunk::<4>()?;
            (modulus, rest) = after.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        }
        let zeros = modulus.iter().take_while(|byte| **byte == 0).count();
        let first = modulus.get(zeros)?;
        Some((modulus.len() - zeros) * 8 - first.leading_zeros() as usize)
    }
}

/// Writes `ssh-ed25519 AAAA…`, as in `known_hosts` and `authorized_keys`.
impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.algorithm, Base64::encode_string(&self.blob))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.algorithm, self.fingerprint())
    }
}

/// Parses `ssh-ed25519 AAAA…`; text after the second word (a comment) is ignored.
impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let mut words = text.split_ascii_whitespace();
        let (algorithm, base64) = words.next().zip(words.next()).ok_or(KeyError::TwoWords)?;
        let blob = Base64::decode_vec(base64).map_err(|_| KeyError::NotBase64)?;
        let key = Self::from_blob(&blob)?;
        if key.algorithm() != algorithm {
            return Err(KeyError::OtherName { said: algorithm.to_owned(), found: key.algorithm.into() });
        }
        Ok(key)
    }
}

/// SHA-256 of the blob of a key, written as OpenSSH does: `SHA256:` and unpadded base64.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub [u8; 32]);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SHA256:{}", Base64Unpadded::encode_string(&self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let base64 = text.strip_prefix("SHA256:").ok_or(KeyError::NoFingerprint)?;
        let bytes =
            Base64Unpadded::decode_vec(base64.trim_end_matches('=')).map_err(|_| KeyError::NoFingerprint)?;
        bytes.try_into().map(Self).map_err(|_| KeyError::NoFingerprint)
    }
}

/// Error: a text or blob is no public key.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum KeyError {
    #[error("a public key has two words: its algorithm, and base64 that begins with AAAA")]
    TwoWords,
    /// The second word is no base64.
    #[error("the second word of the key is not base64: was the line truncated or wrapped?")]
    NotBase64,
    /// The blob does not start with an algorithm.
    #[error("the key's data does not begin with the name of an algorithm: is it truncated?")]
    NoName,
    /// The fields after the algorithm are truncated.
    #[error("the key's data is truncated: fetch or paste it again")]
    Cut,
    /// Bytes follow the last field.
    #[error("there is extra data after the key: fetch or paste it again")]
    Longer,
    #[error("the key's data is not a key: {0}")]
    Wrong(&'static str),
    #[error("the key's data is longer than {LONGEST_BLOB} bytes")]
    TooLong,
    /// The text and the blob name different algorithms.
    #[error("the line says {said}, but its data is a key of {found}")]
    OtherName {
        /// First word of the line.
        said: String,
        /// Algorithm in the blob.
        found: String,
    },
    #[error("a fingerprint is SHA256: and 43 characters of base64")]
    NoFingerprint,
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJKRYUVfuEFUGyOJ4Ub4j8kXhVwPkN7SrvI9QeYwHyEq";

    #[test]
    fn a_key_reads_back_as_it_was_written() {
        let key: PublicKey = format!("{KEY} user@somewhere").parse().unwrap();
        assert_eq!(key.algorithm(), "ssh-ed25519");
        assert_eq!(key.to_string(), KEY);
        assert_eq!(key.fingerprint().to_string().parse(), Ok(key.fingerprint()));
    }

    #[test]
    fn length_of_an_rsa_key_is_that_of_its_modulus() {
        let key = |fields: &[&[u8]]| {
            let blob: Vec<u8> = fields
                .iter()
                .flat_map(|field| {
                    [u32::try_from(field.len()).unwrap().to_be_bytes().as_slice(), *field].concat()
                })
                .collect();
            PublicKey::from_blob(&blob).unwrap()
        };
        let modulus = [&[0, 0x80][..], &[7; 255]].concat();
        let (plain, certificate) = (&b"ssh-rsa"[..], &b"ssh-rsa-cert-v01@openssh.com"[..]);
        assert_eq!(key(&[plain, &[1, 0, 1], &modulus]).rsa_bits(), Some(2048));
        assert_eq!(key(&[plain, &[1, 0, 1], &[0x3f, 0xff]]).rsa_bits(), Some(14));
        assert_eq!(key(&[certificate, &[9; 32], &[1, 0, 1], &modulus, &[0; 8]]).rsa_bits(), Some(2048));
        assert_eq!(KEY.parse::<PublicKey>().unwrap().rsa_bits(), None);
    }

    #[test]
    fn what_is_no_key_is_refused_with_its_reason() {
        let of = |text: &str| text.parse::<PublicKey>().unwrap_err();
        assert_eq!(of("ssh-ed25519"), KeyError::TwoWords);
        assert_eq!(of("ssh-ed25519 AAAA!"), KeyError::NotBase64);
        assert_eq!(of("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5"), KeyError::NoName);
        assert_eq!(of("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDG8g0uR"), KeyError::Cut);
        assert!(matches!(of(&KEY.replace("ssh-ed25519 ", "ssh-rsa ")), KeyError::OtherName { .. }));
    }
}
