//! HMAC-SHA1 challenge-response of a key at this machine, as slot 2 of a YubiKey has it. The secret of the key is not known here:
//! what is kept is the next challenge with a salted hash of the response to it, and the challenge after that one. A log-in gives
//! the responses to both: the first one proves the key, the second one is expected at the next log-in.
//!
//! The hash is that of ykpamcfg and pam_yubico (PBKDF2 with HMAC-SHA1 over the response in lower-case hexadecimal digits), whose
//! state files are read.

use std::num::NonZeroU32;

use aws_lc_rs::pbkdf2;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::hex;

/// Bytes of a new challenge: the most of a key whose challenges may have any length.
pub const CHALLENGE_BYTES: usize = 63;

/// Bytes of a new salt, and the most of one that is read.
pub const SALT_BYTES: usize = 32;

/// Bytes of a response and of its hash.
const RESPONSE_BYTES: usize = 20;

/// Rounds of the hash, as ykpamcfg has them, and the most that are read.
const ROUNDS: u32 = 10_000;
const MOST_ROUNDS: u32 = 1_000_000;

/// Longest state file of pam_yubico, in bytes: its longest line has fewer.
pub const LONGEST_FILE: u64 = 1024;

/// A slot of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub enum Slot {
    /// Slot 1.
    One,
    /// Slot 2.
    Two,
}

impl TryFrom<u8> for Slot {
    type Error = &'static str;

    fn try_from(number: u8) -> Result<Self, Self::Error> {
        match number {
            1 => Ok(Self::One),
            2 => Ok(Self::Two),
            _ => Err("a key has slot 1 and slot 2"),
        }
    }
}

impl From<Slot> for u8 {
    fn from(slot: Slot) -> Self {
        match slot {
            Slot::One => 1,
            Slot::Two => 2,
        }
    }
}

/// Bytes in a record: hexadecimal text.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct Bytes<const MOST: usize>(Vec<u8>);

impl<const MOST: usize> TryFrom<String> for Bytes<MOST> {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let bytes = hex::decode(&text).filter(|bytes| (1..=MOST).contains(&bytes.len()));
        bytes.map(Self).ok_or_else(|| format!("it has not from 1 to {MOST} bytes in hexadecimal digits"))
    }
}

impl<const MOST: usize> From<Bytes<MOST>> for String {
    fn from(bytes: Bytes<MOST>) -> Self {
        hex::encode(&bytes.0)
    }
}

/// What a key is sent.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Challenge(Bytes<CHALLENGE_BYTES>);

impl Challenge {
    /// Makes a challenge of random bytes.
    #[must_use]
    pub fn new(random: [u8; CHALLENGE_BYTES]) -> Self {
        Self(Bytes(random.to_vec()))
    }

    /// Reads hexadecimal digits.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        Bytes::try_from(text.to_owned()).ok().map(Self)
    }

    /// Its hexadecimal digits.
    #[must_use]
    pub fn text(&self) -> String {
        hex::encode(&self.0.0)
    }
}

impl std::fmt::Debug for Challenge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text())
    }
}

/// What a key answered: lower-case hexadecimal digits.
pub struct Response(Zeroizing<String>);

impl Response {
    /// Reads hexadecimal digits, of which a response has 40.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let is_whole = text.len() == 2 * RESPONSE_BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_whole.then(|| Self(Zeroizing::new(text.to_ascii_lowercase())))
    }
}

impl std::fmt::Debug for Response {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Response(..)")
    }
}

/// The response that is expected, as a salted hash.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expected {
    salt: Bytes<SALT_BYTES>,
    rounds: Rounds,
    hash: Bytes<RESPONSE_BYTES>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
struct Rounds(NonZeroU32);

impl TryFrom<u32> for Rounds {
    type Error = String;

    fn try_from(number: u32) -> Result<Self, Self::Error> {
        let rounds = NonZeroU32::new(number).filter(|rounds| rounds.get() <= MOST_ROUNDS);
        rounds.map(Self).ok_or_else(|| format!("the rounds of a hash are from 1 to {MOST_ROUNDS}"))
    }
}

impl From<Rounds> for u32 {
    fn from(rounds: Rounds) -> Self {
        rounds.0.get()
    }
}

impl Expected {
    /// Hashes a response with a random salt, which costs milliseconds.
    #[must_use]
    pub fn of(response: &Response, salt: [u8; SALT_BYTES]) -> Self {
        let rounds = NonZeroU32::new(ROUNDS).unwrap_or(NonZeroU32::MIN);
        let mut hash = [0; RESPONSE_BYTES];
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA1, rounds, &salt, response.0.as_bytes(), &mut hash);
        Self { salt: Bytes(salt.to_vec()), rounds: Rounds(rounds), hash: Bytes(hash.to_vec()) }
    }

    /// Whether this is the response: one PBKDF2 of as many rounds.
    #[must_use]
    pub fn is(&self, response: &Response) -> bool {
        let (rounds, text) = (self.rounds.0, response.0.as_bytes());
        // A shorter hash in a record would be easier to meet.
        self.hash.0.len() == RESPONSE_BYTES
            && pbkdf2::verify(pbkdf2::PBKDF2_HMAC_SHA1, rounds, &self.salt.0, text, &self.hash.0).is_ok()
    }
}

impl std::fmt::Debug for Expected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Expected(..)")
    }
}

/// What a key is asked at the next log-in, and what proves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    /// The slot that responds.
    pub slot: Slot,
    /// Serial number of the key, where a user has several.
    pub serial: Option<u32>,
    /// The challenge.
    pub challenge: Challenge,
    /// What proves the response to it.
    pub expected: Expected,
    /// The challenge of the log-in after the next one.
    pub next: Challenge,
}

/// What a log-in makes of an [`Exchange`]: the challenge after the next one is the next one now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// What proves the response at the next log-in.
    pub expected: Expected,
    /// Challenge of the log-in after the next one. The next log-in asks the key for its response too, and the store keeps the hash.
    pub next: Challenge,
}

impl Exchange {
    /// Makes the next challenge the current one, and takes what proves its response, and a new next challenge, from `turn`.
    pub(super) fn take(&mut self, turn: &Turn) {
        self.challenge = std::mem::replace(&mut self.next, turn.next.clone());
        self.expected = turn.expected.clone();
    }
}

/// Why a state file is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAState {
    #[error("it does not end with a whole line: it was cut off")]
    Torn,
    #[error(
        "it is no state file of pam_yubico, which has one line: v2:CHALLENGE:HASH:SALT:ITERATIONS:SLOT, or v1:CHALLENGE:RESPONSE:SLOT"
    )]
    Foreign,
    #[error("its {part} is wrong: {why}")]
    Part {
        /// Which part of the line.
        part: &'static str,
        /// What is wrong with it.
        why: String,
    },
}

/// Reads a state file of pam_yubico. `salt` hashes the response that a file of version 1 has as it is, and `next` is the challenge
/// that follows the one of the file.
pub fn read_file(
    text: &str,
    serial: Option<u32>,
    salt: [u8; SALT_BYTES],
    next: Challenge,
) -> Result<Exchange, NotAState> {
    let line = text.strip_suffix('\n').ok_or(NotAState::Torn)?;
    let part = |part, why: String| NotAState::Part { part, why };
    let words: Vec<&str> = line.split(':').collect();
    let (challenge, expected, slot) = match words[..] {
        ["v2", challenge, hash, salt, rounds, slot] => {
            let number: Result<u32, _> = rounds.parse();
            let rounds = number.map_err(|_| "it is no number".to_owned()).and_then(Rounds::try_from);
            let expected = Expected {
                salt: Bytes::try_from(salt.to_owned()).map_err(|why| part("salt", why))?,
                rounds: rounds.map_err(|why| part("number of iterations", why))?,
                hash: Bytes::try_from(hash.to_owned()).map_err(|why| part("hash", why))?,
            };
            if expected.hash.0.len() != RESPONSE_BYTES {
                return Err(part("hash", format!("it has not {RESPONSE_BYTES} bytes")));
            }
            (challenge, expected, slot)
        }
        ["v1", challenge, response, slot] => {
            let wrong =
                || part("response", format!("it has not {RESPONSE_BYTES} bytes in hexadecimal digits"));
            (challenge, Expected::of(&Response::read(response).ok_or_else(wrong)?, salt), slot)
        }
        _ => return Err(NotAState::Foreign),
    };
    let number = slot.parse::<u8>().map_err(|_| "it is no number".to_owned());
    let slot = number.and_then(|number| Slot::try_from(number).map_err(str::to_owned));
    Ok(Exchange {
        slot: slot.map_err(|why| part("slot", why))?,
        serial,
        challenge: Challenge(Bytes::try_from(challenge.to_owned()).map_err(|why| part("challenge", why))?),
        expected,
        next,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written by ykpamcfg 2.26 for a key with the secret 000102030405060708090a0b0c0d0e0f10111213.
    const FILE: &str = "v2:69bb7014ebf3d133aff7f2dd9333470226274d7f1b7a6fb0709ef6d7a2268f45775075007ae792d7116f304ed3a10b35fbf7cafac9aff9deb2ecebe2a72cca:338d7568ef5adf225d938f9e990ce6c52e5fcdb8:0828c366ae05cae7ad23d7917e3ba1df6c443fb4dbdc512f0bcb2200eda5b4aa:10000:2\n";

    fn respond(challenge: &Challenge) -> Response {
        let secret: Vec<u8> = (0..20).collect();
        let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &secret);
        let tag = aws_lc_rs::hmac::sign(&key, &hex::decode(&challenge.text()).unwrap());
        Response::read(&hex::encode(tag.as_ref())).unwrap()
    }

    fn read(text: &str) -> Result<Exchange, NotAState> {
        read_file(text, None, [7; SALT_BYTES], Challenge::new([9; CHALLENGE_BYTES]))
    }

    #[test]
    fn a_file_of_ykpamcfg_is_proven_by_its_key_and_by_no_other() {
        let exchange = read(FILE).unwrap();
        assert_eq!(exchange.slot, Slot::Two);
        let response = respond(&exchange.challenge);
        assert!(exchange.expected.is(&response));
        assert!(!exchange.expected.is(&respond(&exchange.next)));
        let before =
            FILE.replace("v2", "v1").replacen("338d7568ef5adf225d938f9e990ce6c52e5fcdb8", &response.0, 1);
        let before =
            before.replace(":0828c366ae05cae7ad23d7917e3ba1df6c443fb4dbdc512f0bcb2200eda5b4aa:10000", "");
        assert!(read(&before).unwrap().expected.is(&response), "version 1 has the response as it is");
    }

    #[test]
    fn a_file_that_is_torn_anywhere_or_has_another_form_is_refused() {
        for cut in 0..FILE.len() {
            assert!(read(&FILE[..cut]).is_err(), "{cut}");
            assert!(read(&format!("{}\n", &FILE[..cut])).is_err() || cut == FILE.len() - 1, "{cut}");
        }
        for (from, to) in [
            ("v2", "v3"),
            (":10000:", ":0:"),
            (":10000:", ":1000001:"),
            (":2\n", ":3\n"),
            ("69bb", "69bg"),
            (":2\n", ":2\n\n"),
        ] {
            assert!(read(&FILE.replacen(from, to, 1)).is_err(), "{from} {to}");
        }
        assert!(read(&FILE.replace("69bb", "69bb69bb")).unwrap_err().to_string().contains("challenge"));
        assert!(read(&FILE.replace("338d7568", "338d")).unwrap_err().to_string().contains("hash"));
    }

    #[test]
    fn a_turn_makes_the_next_challenge_the_present_one() {
        let mut exchange = read(FILE).unwrap();
        let (first, second) = (exchange.challenge.clone(), exchange.next.clone());
        let expected = Expected::of(&respond(&second), [3; SALT_BYTES]);
        exchange.take(&Turn { expected, next: Challenge::new([4; CHALLENGE_BYTES]) });
        assert_eq!((&exchange.challenge, exchange.next.text()), (&second, "04".repeat(63)));
        assert!(exchange.expected.is(&respond(&second)) && !exchange.expected.is(&respond(&first)));
        let text = serde_json::to_string(&exchange).unwrap();
        assert_eq!(serde_json::from_str::<Exchange>(&text).unwrap(), exchange);
    }
}
