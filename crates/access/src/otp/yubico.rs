//! The OTP of YubiKeys: a public name and one block of AES-128, which holds a private id, two counters, a clock and a
//! checksum. It proves something only together with the highest counters seen so far (`token.rs`).

use aws_lc_rs::cipher::{AES_128, DecryptingKey, DecryptionContext, EncryptingKey, UnboundCipherKey};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use zeroize::Zeroize;

use super::modhex::{self, NotModhex, Typed};

/// Letters of the encrypted block.
const BLOCK_LETTERS: usize = 32;

/// Longest public name, in letters: 16 bytes.
pub const LONGEST_NAME: usize = 32;

/// Remainder of the checksum over a whole block (ISO 13239).
const RESIDUE: u16 = 0xf0b8;

/// The counter has 15 bits; the highest one tells that caps lock triggered the key.
const COUNTER_BITS: u16 = 0x7fff;

/// A text that has the form of an OTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Otp {
    /// Public name of the key, in lower-case modhex. Empty for a key that sends none.
    pub name: String,
    /// How it was typed.
    pub typed: Typed,
    block: [u8; 16],
}

/// A text that does not have the form of an OTP.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAnOtp {
    /// Too short, too long, or an odd number of letters in the name.
    #[error("an OTP of a YubiKey has 32 to 64 letters, an even number; this has {0}")]
    Length(usize),
    #[error(transparent)]
    Letters(#[from] NotModhex),
}

impl Otp {
    /// Reads an OTP as it was typed.
    pub fn read(text: &str) -> Result<Self, NotAnOtp> {
        let length = text.chars().count();
        if !(BLOCK_LETTERS..=BLOCK_LETTERS + LONGEST_NAME).contains(&length) || length % 2 == 1 {
            return Err(NotAnOtp::Length(length));
        }
        let (text, typed) = modhex::read(text)?;
        let (name, block) = text.split_at(text.len() - BLOCK_LETTERS);
        let block = modhex::decode(block).and_then(|block| block.try_into().ok());
        let block = block.ok_or(NotAnOtp::Length(length))?;
        Ok(Self { name: name.to_owned(), typed, block })
    }
}

/// What a YubiKey and its verifier share.
#[derive(Clone)]
pub struct Secret {
    key: [u8; 16],
    private_id: [u8; 6],
}

/// Bytes of a stored secret: the key and the private id.
pub const SECRET_BYTES: usize = 22;

/// What one press of the key says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Press {
    /// The counters: a later press has greater ones.
    pub counter: Counter,
    /// Clock of the key, 8 ticks a second since it got power, 24 bits.
    pub timestamp: u32,
    /// Chosen at random by the key.
    pub random: u16,
}

/// The counters of a press, in the order of their weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Counter {
    /// Counts how often the key got power and was used.
    pub session: u16,
    /// Counts the presses since it got power.
    pub press: u8,
}

/// Why a block says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// Another AES key encrypted it, or it was typed wrong.
    #[error("the checksum is wrong: another key made it, or a letter is wrong")]
    Checksum,
    /// It was encrypted with the right AES key and names another private id.
    #[error("the private id is not that of this key")]
    PrivateId,
}

impl Secret {
    /// From the AES key and the private id.
    #[must_use]
    pub fn new(key: [u8; 16], private_id: [u8; 6]) -> Self {
        Self { key, private_id }
    }

    /// From the bytes of [`Self::bytes`].
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (key, private_id) = bytes.split_at_checked(16)?;
        Some(Self { key: key.try_into().ok()?, private_id: private_id.try_into().ok()? })
    }

    /// The key, then the private id.
    #[must_use]
    pub fn bytes(&self) -> [u8; SECRET_BYTES] {
        let mut bytes = [0; SECRET_BYTES];
        bytes[..16].copy_from_slice(&self.key);
        bytes[16..].copy_from_slice(&self.private_id);
        bytes
    }

    /// Opens the block of an OTP.
    pub fn open(&self, otp: &Otp) -> Result<Press, Unreadable> {
        let mut block = otp.block;
        let key = UnboundCipherKey::new(&AES_128, &self.key).and_then(DecryptingKey::ecb);
        let opened = key.and_then(|key| key.decrypt(&mut block, DecryptionContext::None).map(|_| ()));
        let good = opened.is_ok() && crc(&block) == RESIDUE;
        let mine = verify_slices_are_equal(&block[..6], &self.private_id).is_ok();
        let number = |low: usize| u16::from_le_bytes([block[low], block[low + 1]]);
        let press = Press {
            counter: Counter { session: number(6) & COUNTER_BITS, press: block[11] },
            timestamp: u32::from(number(8)) | u32::from(block[10]) << 16,
            random: number(12),
        };
        block.zeroize();
        match (good, mine) {
            (false, _) => Err(Unreadable::Checksum),
            (true, false) => Err(Unreadable::PrivateId),
            (true, true) => Ok(press),
        }
    }

    /// The OTP that the key with this secret and this name types at a press: for tests, which have no key.
    #[must_use]
    pub fn typed_by(&self, name: &str, press: Press) -> String {
        let mut block = [0; 16];
        block[..6].copy_from_slice(&self.private_id);
        block[6..8].copy_from_slice(&press.counter.session.to_le_bytes());
        block[8..11].copy_from_slice(&press.timestamp.to_le_bytes()[..3]);
        block[11] = press.counter.press;
        block[12..14].copy_from_slice(&press.random.to_le_bytes());
        let checksum = !crc(&block[..14]);
        block[14..].copy_from_slice(&checksum.to_le_bytes());
        let key = UnboundCipherKey::new(&AES_128, &self.key).and_then(EncryptingKey::ecb);
        let sealed = key.and_then(|key| key.encrypt(&mut block).map(|_| ()));
        debug_assert!(sealed.is_ok(), "one block of AES needs no more than its key");
        format!("{name}{}", modhex::encode(&block))
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.key.zeroize();
        self.private_id.zeroize();
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Whether a text may be the public name of a key in a store: lower-case modhex, at least one byte.
#[must_use]
pub fn is_name(text: &str) -> bool {
    (2..=LONGEST_NAME).contains(&text.len()) && modhex::decode(text).is_some()
}

/// CRC-16 of ISO 13239 (X.25), without the final inversion.
fn crc(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0xffff, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0x8408 } else { 0 })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::hex;
    use super::*;

    fn secret() -> Secret {
        let key = hex::decode("87fe7c2b3d4f5a6b8c9d0e1f2a3b4c5d").unwrap().try_into().unwrap();
        Secret::new(key, [0x01, 0x23, 0x45, 0x67, 0x89, 0xab])
    }

    const TYPED: &str = "ittrchbburhufhnddvbgrvjglcijfriu";

    fn press() -> Press {
        Press { counter: Counter { session: 1, press: 5 }, timestamp: 0x04_02_03, random: 0xec0b }
    }

    #[test]
    fn the_vector_of_libyubikey_opens() {
        assert_eq!(secret().open(&Otp::read(TYPED).unwrap()), Ok(press()));
        assert_eq!(secret().typed_by("", press()), TYPED);
        let otp = Otp::read(&format!("cccccccccccb{TYPED}")).unwrap();
        assert_eq!((otp.name.as_str(), secret().open(&otp)), ("cccccccccccb", Ok(press())));
    }

    #[test]
    fn caps_lock_at_the_trigger_is_no_part_of_the_counter() {
        let counter = Counter { session: 0x8001, press: 5 };
        let otp = Otp::read(&secret().typed_by("cb", Press { counter, ..press() })).unwrap();
        assert_eq!(secret().open(&otp).unwrap().counter, Counter { session: 1, press: 5 });
    }

    #[test]
    fn any_letter_changed_is_noticed() {
        for at in 0..TYPED.len() {
            let mut other = TYPED.as_bytes().to_vec();
            other[at] = if other[at] == b'c' { b'b' } else { b'c' };
            let otp = Otp::read(std::str::from_utf8(&other).unwrap()).unwrap();
            assert_eq!(secret().open(&otp), Err(Unreadable::Checksum), "{at}");
        }
    }

    #[test]
    fn a_key_with_the_same_aes_key_and_another_private_id_is_refused() {
        let other = Secret::new(secret().key, [9; 6]);
        let otp = Otp::read(&other.typed_by("cb", press())).unwrap();
        assert_eq!(secret().open(&otp), Err(Unreadable::PrivateId));
    }

    #[test]
    fn what_is_no_otp_is_refused_with_its_reason() {
        for (text, why) in [("", 0), ("cc", 2), (&"c".repeat(33), 33), (&"c".repeat(66), 66)] {
            assert_eq!(Otp::read(text), Err(NotAnOtp::Length(why)));
        }
        assert_eq!(
            Otp::read(&"a".repeat(32)).unwrap_err().to_string(),
            "character 1 ('a') is not one of cbdefghijklnrtuv"
        );
    }

    proptest! {
        #[test]
        fn what_a_key_types_opens(key: [u8; 16], id: [u8; 6], session in 0_u16..0x8000, count: u8, time in 0_u32..0x100_0000, random: u16) {
            let secret = Secret::new(key, id);
            let press = Press { counter: Counter { session, press: count }, timestamp: time, random };
            let otp = Otp::read(&secret.typed_by("vvcb", press)).unwrap();
            prop_assert_eq!(secret.open(&otp), Ok(press));
            prop_assert_eq!(Secret::from_bytes(&secret.bytes()).unwrap().open(&otp), Ok(press));
        }

        #[test]
        fn any_text_is_answered(text in "\\PC{0,80}") {
            if let Ok(otp) = Otp::read(&text) {
                let _ = secret().open(&otp);
            }
        }
    }
}
