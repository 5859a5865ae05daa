//! Key of the cookies by which clients keep their backends (`sticky.cookie` of a pool), and the values that it gives to
//! backends. A value says nothing about its backend without the key, and is the same after a restart and on every node.

use std::fmt;
use std::path::Path;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac;
use base64ct::{Base64UrlUnpadded, Encoding};
use sys::file;

use crate::fault::CertificateFault;
use crate::key::expect_private;

/// Allowed length of a key file in bytes.
const LENGTH: std::ops::RangeInclusive<usize> = 32..=4096;

/// Bytes of a value, before its encoding. The rest of the hash is left out.
const VALUE: usize = 16;

#[derive(Clone)]
pub struct StickyKey(hmac::Key);

impl fmt::Debug for StickyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StickyKey")
    }
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum StickyKeyError {
    #[error("{0}")]
    File(Box<CertificateFault>),
    #[error(
        "{path}: has {length} bytes, and a key has from 32 to 4096: `head -c 32 /dev/urandom | base64` writes one"
    )]
    Length { path: String, length: usize },
}

impl From<CertificateFault> for StickyKeyError {
    fn from(fault: CertificateFault) -> Self {
        Self::File(Box::new(fault))
    }
}

impl StickyKey {
    /// Reads a key file, which other users must not be able to read. Blanks and line ends around the key do not count.
    pub fn read(path: &Path) -> Result<Self, StickyKeyError> {
        expect_private(path)?;
        let limit = *LENGTH.end() as u64 + 16;
        let bytes = file::read(path, limit).map_err(|error| CertificateFault::unreadable(path, &error))?;
        let key = bytes.trim_ascii();
        if !LENGTH.contains(&key.len()) {
            return Err(StickyKeyError::Length { path: path.display().to_string(), length: key.len() });
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, key)))
    }

    /// Key of a hash that spreads packets.
    pub fn of_hash(&self) -> [u64; 2] {
        let signed = hmac::sign(&self.0, b"penstock packet hash 1\0");
        let (parts, _) = signed.as_ref().as_chunks::<8>();
        [0, 1].map(|at| parts.get(at).map_or(0, |part| u64::from_le_bytes(*part)))
    }

    fn value(&self, backend: &str) -> Box<str> {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(b"penstock sticky cookie 1\0");
        context.update(backend.as_bytes());
        Base64UrlUnpadded::encode_string(&context.sign().as_ref()[..VALUE]).into_boxed_str()
    }
}

/// Values of the backends of a pool, in their order.
#[derive(Clone, Debug, Default)]
pub struct StickyValues(Box<[Box<str>]>);

impl StickyValues {
    pub fn new<'a>(key: &StickyKey, backends: impl Iterator<Item = &'a str>) -> Self {
        Self(backends.map(|backend| key.value(backend)).collect())
    }

    pub fn of(&self, backend: usize) -> Option<&str> {
        self.0.get(backend).map(|value| &**value)
    }

    /// Index of the backend that a client's value names. Takes the same time for every wrong value of the right length.
    pub fn find(&self, value: &[u8]) -> Option<usize> {
        let is_same = |one: &str| verify_slices_are_equal(one.as_bytes(), value).is_ok();
        self.0.iter().position(|one| is_same(one))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn key(directory: &Path, bytes: &[u8], mode: u32) -> Result<StickyKey, StickyKeyError> {
        let path = directory.join("key");
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        StickyKey::read(&path)
    }

    #[test]
    fn a_value_depends_on_the_key_and_the_backend_alone() {
        let directory = tempfile::tempdir().unwrap();
        let one = key(directory.path(), &[b'a'; 32], 0o600).unwrap();
        let again = key(directory.path(), b"  aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n", 0o600).unwrap();
        let other = key(directory.path(), &[b'b'; 32], 0o600).unwrap();
        let values = |key: &StickyKey| StickyValues::new(key, ["10.0.0.1:80", "10.0.0.2:80"].into_iter());
        let of_one = values(&one);
        for at in 0..2 {
            let value = of_one.of(at).unwrap();
            assert_eq!(value.len(), 22);
            assert_eq!(Some(value), values(&again).of(at));
            assert_ne!(Some(value), values(&other).of(at));
            assert_eq!(of_one.find(value.as_bytes()), Some(at));
            assert_eq!(values(&other).find(value.as_bytes()), None);
        }
        assert_eq!(of_one.find(b""), None);
        assert_eq!(StickyValues::default().find(b""), None);
    }

    #[test]
    fn a_key_that_others_can_read_or_that_is_too_short_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        assert!(key(directory.path(), &[b'a'; 32], 0o644).is_err());
        let short = key(directory.path(), b"short\n", 0o600).unwrap_err().to_string();
        assert!(short.contains("has 5 bytes"), "{short}");
        assert!(key(directory.path(), &[b'a'; 5000], 0o600).is_err());
        assert!(StickyKey::read(&directory.path().join("none")).is_err());
    }
}
