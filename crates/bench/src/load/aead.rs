//! The cipher alone: how much of an AEAD this core does when nothing is sent, copied or waited for. It is the ceiling of
//! every program that encrypts with it.

use std::io;
use std::rc::Rc;
use std::time::Instant;

use aws_lc_rs::aead::chacha20_poly1305_openssh::{KEY_LEN, OpeningKey, SealingKey, TAG_LEN};
use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, Algorithm, LessSafeKey, Nonce, UnboundKey};
use serde::{Deserialize, Serialize};

use super::{Gauge, Phase};

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aead {
    /// With which cipher.
    pub cipher: Cipher,
    /// In which direction.
    pub work: Work,
}

/// A cipher that authenticates too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cipher {
    /// AES-128-GCM.
    Aes128Gcm,
    /// AES-256-GCM.
    Aes256Gcm,
    /// ChaCha20-Poly1305 as SSH arranges it: the two functions pass over a packet one after the other. What TLS has (RFC
    /// 8439) is one pass, a good deal faster, and of no use to SSH.
    ChaCha20Poly1305,
}

/// What a sender or a receiver does with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// Encrypt.
    Seal,
    /// Check and decrypt.
    Open,
}

impl Cipher {
    /// The AEAD behind a cipher of SSH; none for those that have a MAC beside them.
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
    /// Works until the window is over.
    ///
    /// # Errors
    /// The library refused, which it has no reason to.
    pub fn run(self, gauge: &Rc<Gauge>) -> io::Result<()> {
        match self.cipher {
            Cipher::Aes128Gcm => self.gcm(&AES_128_GCM, gauge),
            Cipher::Aes256Gcm => self.gcm(&AES_256_GCM, gauge),
            Cipher::ChaCha20Poly1305 => self.chacha(gauge),
        }
    }

    // The same nonce again and again is fatal for secrets, and nothing to a stopwatch.

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
                // What was opened cannot be opened again; the copy is a fortieth of the work.
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

/// What OpenSSH puts into a packet.
const RECORD: usize = 32 * 1024;
const BETWEEN_LOOKS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Window;
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
