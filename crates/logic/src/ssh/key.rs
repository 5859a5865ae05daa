//! A public key as SSH writes it: an algorithm and a blob (RFC 4253 section 6.6), and the fingerprint people compare.

use std::fmt;
use std::str::FromStr;

use base64ct::{Base64, Base64Unpadded, Encoding};
use sha2::{Digest, Sha256};
use thiserror::Error;

use fields::Misshapen;

mod fields;

/// A blob longer than this is no key of anybody: an RSA key of 16,384 bits has 2,070 bytes, a certificate a few thousand.
const LONGEST_BLOB: usize = 64 * 1024;

/// A public key or certificate, compared byte by byte.
///
/// Of what is inside the blob only the shape is known here: a key that was cut must not be pinned as one. Checking signatures is
/// the work of `crates/ssh`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey {
    algorithm: Box<str>,
    blob: Box<[u8]>,
}

impl PublicKey {
    /// Takes a blob as the wire carries it; its algorithm is the string at its head.
    ///
    /// # Errors
    /// The head is no name, what follows is no key of that algorithm, or the blob is longer than any key.
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
            Misshapen::Cut => KeyError::Cut,
            Misshapen::Longer => KeyError::Longer,
            Misshapen::Wrong(why) => KeyError::Wrong(why),
        })?;
        Ok(Self { algorithm, blob: blob.into() })
    }

    /// The name at the head of the blob, such as `ssh-ed25519`.
    #[must_use]
    pub fn algorithm(&self) -> &str {
        &self.algorithm
    }

    /// The key as the wire carries it.
    #[must_use]
    pub fn blob(&self) -> &[u8] {
        &self.blob
    }

    /// The SHA-256 fingerprint.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint(Sha256::digest(&self.blob).into())
    }

    /// The length of an RSA key in bits, also of one in a certificate; `None` for other keys, and for a blob that is cut.
    #[must_use]
    pub fn rsa_bits(&self) -> Option<usize> {
        // RFC 4253 section 6.6: algorithm, exponent, modulus. OpenSSH's PROTOCOL.certkeys puts a nonce behind the algorithm.
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

/// `ssh-ed25519 AAAA…`, as in `known_hosts` and `authorized_keys`.
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

/// Reads `ssh-ed25519 AAAA…`; what follows the second word (a comment) is not looked at.
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

/// The SHA-256 of a key's blob, written as OpenSSH does: `SHA256:` and unpadded base64.
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

/// Why a text or blob is no public key.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum KeyError {
    /// Too few words.
    #[error("a public key has two words: its algorithm, and base64 that begins with AAAA")]
    TwoWords,
    /// The second word cannot be decoded.
    #[error("the second word of the key is not base64: was the line cut or wrapped?")]
    NotBase64,
    /// No algorithm at the head of the blob.
    #[error("the key's data does not begin with the name of an algorithm: was it cut?")]
    NoName,
    /// The fields behind the name end too early.
    #[error("the key's data ends before the key does: it was cut; fetch or paste it again")]
    Cut,
    /// Something stands behind the last field.
    #[error("something stands behind the key in its data: it is no key; fetch or paste it again")]
    Longer,
    /// A field cannot be what it has to be.
    #[error("the key's data is no key: {0}")]
    Wrong(&'static str),
    /// A blob longer than any key.
    #[error("the key's data is longer than {LONGEST_BLOB} bytes")]
    TooLong,
    /// The word before the base64 and the name inside differ.
    #[error("the line says {said}, but its data is a key of {found}")]
    OtherName {
        /// The first word of the line.
        said: String,
        /// The name in the data.
        found: String,
    },
    /// No fingerprint.
    #[error("a fingerprint is SHA256: and 43 characters of base64")]
    NoFingerprint,
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJKRYUVfuEFUGyOJ4Ub4j8kXhVwPkN7SrvI9QeYwHyEq";

    #[test]
    fn a_key_reads_back_as_it_was_written() {
        let key: PublicKey = format!("{KEY} somebody@somewhere").parse().unwrap();
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
