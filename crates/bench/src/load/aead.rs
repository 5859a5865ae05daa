//! Throughput of an AEAD on one core without sending, copying or waiting: the upper limit for every program.

use std::io;
use std::rc::Rc;
use std::time::Instant;

use aws_lc_rs::aead::chacha20_poly1305_openssh::{KEY_LEN, OpeningKey, SealingKey, TAG_LEN};
use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, Algorithm, LessSafeKey, Nonce, UnboundKey};
use serde::{Deserialize, Serialize};

use super::gauge::{Gauge, Phase};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aead {
    pub cipher: Cipher,
    pub work: Work,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cipher {
    Aes128Gcm,
    Aes256Gcm,
    /// ChaCha20-Poly1305 in the construction of SSH: two passes over a packet, one per function. The construction of
    /// TLS (RFC 8439) needs one pass and is faster, but SSH cannot use it.
    ChaCha20Poly1305,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    Seal,
    Open,
}

impl Cipher {
    /// Returns the AEAD of an SSH cipher name. `None` for ciphers with a separate MAC.
    #[must_use]
    pub fn of_ssh(name: &str) -> Option<Self> {
        match name {
            "aes128-gcm@openssh.com" => Some(Cipher::Aes128Gcm),
            "aes256-gcm@openssh.com" => Some(Cipher::Aes256Gcm),
            "chacha20-poly1305@openssh.com" => Some(Cipher::ChaCha20Poly1305),
            _ => None,
        }
    }
}

impl Aead {
    /// Encrypts or decrypts until the window is over.
    ///
    /// # Errors
    /// The cryptographic library refused an operation; not expected.
    pub fn run(self, gauge: &Rc<Gauge>) -> io::Result<()> {
        match self.cipher {
            Cipher::Aes128Gcm => self.gcm(&AES_128_GCM, gauge),
            Cipher::Aes256Gcm => self.gcm(&AES_256_GCM, gauge),
            Cipher::ChaCha20Poly1305 => self.chacha(gauge),
        }
    }

    // Reusing one nonce is unsafe for secrets, but does not affect the time.

    fn gcm(self, algorithm: &'static Algorithm, gauge: &Rc<Gauge>) -> io::Result<()> {
        let refused = |_| refusal();
        let key =
            LessSafeKey::new(UnboundKey::new(algorithm, &[7; 32][..algorithm.key_len()]).map_err(refused)?);
        let nonce = || Nonce::assume_unique_for_key([0; 12]);
        let mut plain = vec![0x5a_u8; RECORD];
        let mut sealed = plain.clone();
        key.seal_in_place_append_tag(nonce(), Aad::empty(), &mut sealed).map_err(refused)?;
        let mut scratch = sealed.clone();
        self.again_and_again(gauge, |work| match work {
            Work::Seal => {
                key.seal_in_place_separate_tag(nonce(), Aad::empty(), &mut plain).map(drop).map_err(refused)
            }
            Work::Open => {
                // Decryption overwrites its input; this copy takes 1/40 of the time.
                scratch.copy_from_slice(&sealed);
                key.open_in_place(nonce(), Aad::empty(), &mut scratch).map(drop).map_err(refused)
            }
        })
    }

    fn chacha(self, gauge: &Rc<Gauge>) -> io::Result<()> {
        let material = [7; KEY_LEN];
        let (sealing, opening) = (SealingKey::new(&material), OpeningKey::new(&material));
        let mut plain = vec![0x5a_u8; RECORD];
        let (mut sealed, mut tag) = (plain.clone(), [0; TAG_LEN]);
        sealing.seal_in_place(0, &mut sealed, &mut tag);
        let mut scratch = sealed.clone();
        self.again_and_again(gauge, |work| match work {
            Work::Seal => {
                sealing.seal_in_place(0, &mut plain, &mut [0; TAG_LEN]);
                Ok(())
            }
            Work::Open => {
                scratch.copy_from_slice(&sealed);
                opening.open_in_place(0, &mut scratch, &tag).map(drop).map_err(|_| refusal())
            }
        })
    }

    fn again_and_again(
        self,
        gauge: &Rc<Gauge>,
        mut once: impl FnMut(Work) -> io::Result<()>,
    ) -> io::Result<()> {
        while gauge.advance(Instant::now()) != Phase::Over {
            for _ in 0..BETWEEN_LOOKS {
                once(self.work)?;
                gauge.bytes(RECORD);
            }
        }
        Ok(())
    }
}

fn refusal() -> io::Error {
    io::Error::other("the AEAD refused a record")
}

/// Payload of one OpenSSH packet.
const RECORD: usize = 32 * 1024;
const BETWEEN_LOOKS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::gauge::Window;
    use std::time::Duration;

    #[test]
    fn every_cipher_works_in_both_directions() {
        for cipher in [Cipher::Aes128Gcm, Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305] {
            for work in [Work::Seal, Work::Open] {
                let window = Window { warm_up: Duration::ZERO, duration: Duration::from_millis(2) };
                let gauge = Gauge::new(window, Vec::new());
                Aead { cipher, work }.run(&gauge).unwrap();
                assert!(gauge.tally().bytes > 0, "{cipher:?} {work:?}");
            }
        }
        assert_eq!(Cipher::of_ssh("aes256-ctr"), None);
    }
}
