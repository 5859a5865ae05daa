//! Codes of digits: by a counter (HOTP, RFC 4226) and by the time (TOTP, RFC 6238).

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac;
use zeroize::Zeroize;

/// Shortest secret that is taken: RFC 4226, section 4, requires 128 bits.
pub const SHORTEST_SECRET: usize = 16;

/// Longest secret that is taken.
pub const LONGEST_SECRET: usize = 128;

/// Counters ahead of the expected one at which a HOTP code is accepted: presses that no server saw.
pub const LOOK_AHEAD: u64 = 10;

/// Counters before the expected one whose HOTP codes are known as used, instead of wrong.
pub const LOOK_BACK: u64 = 10;

/// Counters ahead at which two codes in a row bring a HOTP token back in step.
pub const RESYNC_AHEAD: u64 = 1000;

/// Steps before and after the present one at which a TOTP code is accepted (RFC 6238, section 5.2).
pub const STEPS_AROUND: u64 = 1;

/// Steps around the present one among which two codes in a row tell how wrong the clock of a TOTP token is.
pub const RESYNC_STEPS: u64 = 120;

/// What a token and its verifier share.
#[derive(Clone, PartialEq, Eq)]
pub struct Shared(Vec<u8>);

impl Shared {
    /// `None` unless it has from [`SHORTEST_SECRET`] to [`LONGEST_SECRET`] bytes.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Option<Self> {
        let shared = Self(bytes);
        (SHORTEST_SECRET..=LONGEST_SECRET).contains(&shared.0.len()).then_some(shared)
    }

    /// The secret itself.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared(..)")
    }
}

text::words! {
    /// Hash function of a token.
    #[derive(Default)]
    pub enum Algorithm: "algorithm" {
        /// The one of RFC 4226, and the only one of many apps.
        #[default]
        Sha1 = "SHA1",
        /// RFC 6238.
        Sha256 = "SHA256",
        /// RFC 6238.
        Sha512 = "SHA512",
    }
}

/// Digits of a code: 6, 7 or 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digits(u8);

impl Digits {
    /// What every app shows.
    pub const SIX: Self = Self(6);

    /// `None` unless it is 6, 7 or 8.
    #[must_use]
    pub fn new(count: u8) -> Option<Self> {
        (6..=8).contains(&count).then_some(Self(count))
    }

    /// Number of digits.
    #[must_use]
    pub fn count(self) -> u8 {
        self.0
    }
}

/// How a token makes codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// Hash function.
    pub algorithm: Algorithm,
    /// Length of a code.
    pub digits: Digits,
}

/// A code as a person typed it: 6 to 8 digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code(String);

impl Code {
    /// Reads a code; spaces between digits are left out. `None` for any other text.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let code: String = text.chars().filter(|c| *c != ' ').collect();
        ((6..=8).contains(&code.len()) && code.bytes().all(|byte| byte.is_ascii_digit()))
            .then_some(Self(code))
    }
}

impl Form {
    /// The code for a counter or a step of time (RFC 4226, section 5.3).
    #[must_use]
    pub fn code(self, secret: &Shared, moving: u64) -> String {
        let algorithm = match self.algorithm {
            Algorithm::Sha1 => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
            Algorithm::Sha256 => hmac::HMAC_SHA256,
            Algorithm::Sha512 => hmac::HMAC_SHA512,
        };
        let tag = hmac::sign(&hmac::Key::new(algorithm, &secret.0), &moving.to_be_bytes());
        let tag = tag.as_ref();
        let offset = usize::from(tag[tag.len() - 1] & 15);
        let part = tag[offset..offset + 4].iter().fold(0_u32, |number, byte| number << 8 | u32::from(*byte));
        let number = (part & 0x7fff_ffff) % 10_u32.pow(u32::from(self.digits.0));
        format!("{number:0width$}", width = usize::from(self.digits.0))
    }

    /// The first of `count` counters from `from` on whose code this is. It takes as long whether there is one or not.
    #[must_use]
    pub fn find(self, secret: &Shared, code: &Code, from: u64, count: u64) -> Option<u64> {
        let candidates = (0..count).filter_map(|ahead| from.checked_add(ahead));
        candidates.fold(None, |found, moving| {
            let same =
                verify_slices_are_equal(self.code(secret, moving).as_bytes(), code.0.as_bytes()).is_ok();
            found.or(same.then_some(moving))
        })
    }

    /// The first of `count` counters from `from` on whose code is the first one, and whose next counter has the second one.
    #[must_use]
    pub fn find_pair(self, secret: &Shared, codes: &[Code; 2], from: u64, count: u64) -> Option<u64> {
        let mut from = from;
        let end = from.saturating_add(count);
        while let Some(at) = self.find(secret, &codes[0], from, end.saturating_sub(from)) {
            let next = at.checked_add(1)?;
            if self.find(secret, &codes[1], next, 1).is_some() {
                return Some(at);
            }
            from = next;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TWENTY: &[u8] = b"12345678901234567890";

    fn form(algorithm: Algorithm, digits: u8) -> Form {
        Form { algorithm, digits: Digits::new(digits).unwrap() }
    }

    fn shared(length: usize) -> Shared {
        Shared::new(TWENTY.iter().copied().cycle().take(length).collect()).unwrap()
    }

    #[test]
    fn the_vectors_of_rfc_4226_come_out() {
        let codes = [
            "755224", "287082", "359152", "969429", "338314", "254676", "287922", "162583", "399871",
            "520489",
        ];
        for (counter, code) in (0..).zip(codes) {
            assert_eq!(form(Algorithm::Sha1, 6).code(&shared(20), counter), code);
        }
    }

    #[test]
    fn the_vectors_of_rfc_6238_come_out() {
        let rows = [
            (59, "94287082", "46119246", "90693936"),
            (1_111_111_109, "07081804", "68084774", "25091201"),
            (1_111_111_111, "14050471", "67062674", "99943326"),
            (1_234_567_890, "89005924", "91819424", "93441116"),
            (2_000_000_000, "69279037", "90698825", "38618901"),
            (20_000_000_000, "65353130", "77737706", "47863826"),
        ];
        for (time, sha1, sha256, sha512) in rows {
            let step = time / 30;
            assert_eq!(form(Algorithm::Sha1, 8).code(&shared(20), step), sha1);
            assert_eq!(form(Algorithm::Sha256, 8).code(&shared(32), step), sha256);
            assert_eq!(form(Algorithm::Sha512, 8).code(&shared(64), step), sha512);
        }
    }

    #[test]
    fn a_code_is_found_within_its_window_only() {
        let (form, secret) = (form(Algorithm::Sha1, 6), shared(20));
        let code = Code::read("399 871").unwrap(); // counter 8
        assert_eq!(form.find(&secret, &code, 0, 9), Some(8));
        assert_eq!(form.find(&secret, &code, 0, 8), None);
        assert_eq!(form.find(&secret, &code, 9, 100), None);
        assert_eq!(form.find(&secret, &code, u64::MAX - 2, 100), None);
    }

    #[test]
    fn two_codes_in_a_row_are_found_far_away_and_others_are_not() {
        let (form, secret) = (form(Algorithm::Sha1, 6), shared(20));
        let code = |counter| Code::read(&form.code(&secret, counter)).unwrap();
        assert_eq!(form.find_pair(&secret, &[code(700), code(701)], 3, RESYNC_AHEAD), Some(700));
        assert_eq!(form.find_pair(&secret, &[code(700), code(702)], 3, RESYNC_AHEAD), None);
    }

    #[test]
    fn short_secrets_and_other_texts_are_refused() {
        assert_eq!(Shared::new(vec![1; 15]), None);
        assert_eq!(Shared::new(vec![1; 129]), None);
        for text in ["", "12345", "123456789", "12345a", "１２３４５６"] {
            assert_eq!(Code::read(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_code_has_its_digits_and_is_found(secret in proptest::collection::vec(any::<u8>(), 16..70), counter: u64, digits in 6_u8..9) {
            let form = form(Algorithm::Sha256, digits);
            let secret = Shared::new(secret).unwrap();
            let code = form.code(&secret, counter);
            prop_assert_eq!(code.len(), usize::from(digits));
            prop_assert_eq!(form.find(&secret, &Code::read(&code).unwrap(), counter, 1), Some(counter));
        }
    }
}
