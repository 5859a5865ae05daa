//! Secrets at rest: sealed with AES-256-GCM by a key that is in a file of its own, and bound to the token they belong to.
//! The same key signs the journal, so that no program without it can add a token or change its owner.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hmac;
use base64ct::{Base64, Encoding};
use zeroize::{Zeroize, Zeroizing};

use super::hex;

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;

/// Random bytes that each sealing needs.
pub const NONCE_BYTES: usize = NONCE_LEN;

/// The key of a store.
pub struct Key {
    sealing: LessSafeKey,
    signing: hmac::Key,
    id: String,
}

/// A key file with another content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key must be 64 hexadecimal digits on one line")]
pub struct NotAKey;

/// A sealed text that does not open: it is damaged, or belongs to another token or key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a sealed secret does not open: it is damaged, or another key sealed it")]
pub struct Unsealable;

impl Key {
    /// Reads the content of a key file.
    pub fn read(text: &str) -> Result<Self, NotAKey> {
        let mut bytes =
            hex::decode(text.trim_end()).filter(|bytes| bytes.len() == KEY_BYTES).ok_or(NotAKey)?;
        let key = Self::new(&bytes);
        bytes.zeroize();
        key
    }

    /// Content of a key file with this key.
    #[must_use]
    pub fn text(bytes: &[u8; KEY_BYTES]) -> Zeroizing<String> {
        Zeroizing::new(format!("{}\n", hex::encode(bytes)))
    }

    fn new(bytes: &[u8]) -> Result<Self, NotAKey> {
        let master = hmac::Key::new(hmac::HMAC_SHA256, bytes);
        let derived = |purpose: &str| hmac::sign(&master, purpose.as_bytes());
        let sealing =
            UnboundKey::new(&AES_256_GCM, derived("penstock otp seal 1").as_ref()).map_err(|_| NotAKey)?;
        Ok(Self {
            sealing: LessSafeKey::new(sealing),
            signing: hmac::Key::new(hmac::HMAC_SHA256, derived("penstock otp journal 1").as_ref()),
            id: hex::encode(&derived("penstock otp key id 1").as_ref()[..4]),
        })
    }

    /// Tells this key from others, and says nothing about it.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Seals a secret of `owner`. Each call needs a new random `nonce`.
    #[must_use]
    pub fn seal(&self, owner: &str, secret: &[u8], nonce: [u8; NONCE_BYTES]) -> String {
        // With room for the tag: a vector that moves would leave the secret behind.
        let mut sealed = Vec::with_capacity(secret.len() + AES_256_GCM.tag_len());
        sealed.extend_from_slice(secret);
        let done = self.sealing.seal_in_place_append_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(owner.as_bytes()),
            &mut sealed,
        );
        debug_assert!(done.is_ok(), "GCM seals up to 64 GiB");
        Base64::encode_string(&[&nonce[..], &sealed].concat())
    }

    /// Opens what [`Self::seal`] made for the same owner.
    pub fn open(&self, owner: &str, sealed: &str) -> Result<Zeroizing<Vec<u8>>, Unsealable> {
        let bytes = Base64::decode_vec(sealed).map_err(|_| Unsealable)?;
        let (nonce, text) = bytes.split_at_checked(NONCE_BYTES).ok_or(Unsealable)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| Unsealable)?;
        let mut text = Zeroizing::new(text.to_vec());
        let opened = self.sealing.open_in_place(nonce, Aad::from(owner.as_bytes()), &mut text);
        let length = opened.map_err(|_| Unsealable)?.len();
        text.truncate(length);
        Ok(text)
    }

    /// Signs a line of the journal, together with the signature of the line before.
    pub(super) fn sign(&self, before: &[u8], line: &str) -> [u8; 8] {
        let mut context = hmac::Context::with_key(&self.signing);
        context.update(before);
        context.update(line.as_bytes());
        let tag = context.sign();
        let mut short = [0; 8];
        short.copy_from_slice(&tag.as_ref()[..8]);
        short
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Key({})", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key::read(&Key::text(&[7; 32])).unwrap()
    }

    #[test]
    fn a_secret_opens_for_its_owner_and_its_key_only() {
        let sealed = key().seal("cccb", b"secret", [1; NONCE_BYTES]);
        assert_eq!(&*key().open("cccb", &sealed).unwrap(), b"secret");
        assert_eq!(key().open("cccd", &sealed), Err(Unsealable));
        let other = Key::read(&Key::text(&[8; 32])).unwrap();
        assert_eq!(other.open("cccb", &sealed), Err(Unsealable));
        assert_ne!(other.id(), key().id());
        for text in ["", "AAAA", "no base64", &sealed[..sealed.len() - 4]] {
            assert_eq!(key().open("cccb", text), Err(Unsealable), "{text}");
        }
    }

    #[test]
    fn a_key_file_has_64_digits() {
        for text in ["", "00", &"0".repeat(63), &"0".repeat(66), &"g".repeat(64)] {
            assert_eq!(Key::read(text).unwrap_err(), NotAKey, "{text}");
        }
        assert!(Key::read(&format!("{}\n", "aB".repeat(32))).is_ok());
    }
}
