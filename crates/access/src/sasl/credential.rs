//! What is stored of a password for SCRAM-SHA-256 (RFC 5802 section 3): nothing by which one could log in. The text is the
//! line of `gsasl --mkpasswd`: `{SCRAM-SHA-256}ITERATIONS,SALT,STORED-KEY,SERVER-KEY`.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::{digest, hmac, pbkdf2};
use base64ct::{Base64, Encoding};
use zeroize::Zeroizing;

use super::prepare::{PrepareError, prepare};

/// RFC 7677 section 4.
pub const LEAST_ITERATIONS: u32 = 4096;

/// What a client computes at most, because the server names the number: some seconds.
pub const MOST_ITERATIONS: u32 = 4_000_000;

/// Longest salt in bytes.
const LONGEST_SALT: usize = 128;

const PREFIX: &str = "{SCRAM-SHA-256}";

/// Not in a form that allows a log-in: of a stolen file each password must still be guessed.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    pub(super) iterations: NonZeroU32,
    pub(super) salt: Vec<u8>,
    pub(super) stored_key: [u8; 32],
    pub(super) server_key: [u8; 32],
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").field("iterations", &self.iterations).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialError {
    #[error("does not begin with {PREFIX}")]
    OtherMechanism,
    #[error("does not have four fields: iterations, salt, stored key, server key")]
    Fields,
    #[error("has an iteration count that is not between {LEAST_ITERATIONS} and {MOST_ITERATIONS}")]
    Iterations,
    #[error("has a salt that is not 1 to {LONGEST_SALT} bytes in Base64")]
    Salt,
    #[error("has a key that is not 32 bytes in Base64")]
    Key,
}

impl Credential {
    pub fn derive(password: &str, salt: &[u8], iterations: NonZeroU32) -> Result<Self, PrepareError> {
        let salted = salted_password(password, salt, iterations)?;
        let client_key = sign(&*salted, b"Client Key");
        Ok(Self {
            iterations,
            salt: salt.to_vec(),
            stored_key: hash(&client_key),
            server_key: sign(&*salted, b"Server Key"),
        })
    }

    /// Whether this is the credential of a password. It takes as long as a client's log-in: as the count of iterations says.
    #[must_use]
    pub fn is_of(&self, password: &str) -> bool {
        let Ok(salted) = salted_password(password, &self.salt, self.iterations) else { return false };
        let stored = hash(&sign(&*salted, b"Client Key"));
        verify_slices_are_equal(&stored, &self.stored_key).is_ok()
    }

    /// A credential that no password has, for a user that is not known: always the same for a name, so that the answer
    /// looks like that of a known user. It takes iterations and length of the salt from one of the `known`, because all
    /// users of a site often have others than our default.
    pub fn fake<'a>(secret: &[u8], name: &str, known: impl ExactSizeIterator<Item = &'a Self>) -> Self {
        let of = |what: &str| sign(secret, format!("{what}\0{name}").as_bytes());
        let [a, b, c, d, ..] = of("choice");
        let choice = u32::from_be_bytes([a, b, c, d]) as usize;
        let like = match known.len() {
            0 => None,
            count => known.into_iter().nth(choice % count),
        };
        let usual = (NonZeroU32::new(LEAST_ITERATIONS).unwrap_or(NonZeroU32::MIN), 16);
        let (iterations, length) = like.map_or(usual, |like| (like.iterations, like.salt.len()));
        let salt = (0..).flat_map(|block: u32| of(&format!("salt {block}"))).take(length).collect();
        Self { iterations, salt, stored_key: of("stored"), server_key: of("server") }
    }
}

impl FromStr for Credential {
    type Err = CredentialError;

    fn from_str(line: &str) -> Result<Self, CredentialError> {
        let fields = line.strip_prefix(PREFIX).ok_or(CredentialError::OtherMechanism)?;
        let mut fields = fields.split(',');
        let (Some(count), Some(salt), Some(stored), Some(server), None) =
            (fields.next(), fields.next(), fields.next(), fields.next(), fields.next())
        else {
            return Err(CredentialError::Fields);
        };
        let iterations = iterations(count).ok_or(CredentialError::Iterations)?;
        if iterations.get() < LEAST_ITERATIONS {
            return Err(CredentialError::Iterations);
        }
        let salt = salt_of(salt).ok_or(CredentialError::Salt)?;
        let key = |text: &str| key_of(text).ok_or(CredentialError::Key);
        Ok(Self { iterations, salt, stored_key: key(stored)?, server_key: key(server)? })
    }
}

impl fmt::Display for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [salt, stored, server] =
            [&self.salt[..], &self.stored_key, &self.server_key].map(Base64::encode_string);
        write!(f, "{PREFIX}{},{salt},{stored},{server}", self.iterations)
    }
}

/// Reads an iteration count as its one spelling.
pub(super) fn iterations(text: &str) -> Option<NonZeroU32> {
    if text.starts_with(['0', '+']) {
        return None;
    }
    text.parse().ok().filter(|count: &NonZeroU32| count.get() <= MOST_ITERATIONS)
}

pub(super) fn salt_of(text: &str) -> Option<Vec<u8>> {
    Base64::decode_vec(text).ok().filter(|salt| (1..=LONGEST_SALT).contains(&salt.len()))
}

pub(super) fn key_of(text: &str) -> Option<[u8; 32]> {
    Base64::decode_vec(text).ok()?.try_into().ok()
}

pub(super) fn salted_password(
    password: &str,
    salt: &[u8],
    iterations: NonZeroU32,
) -> Result<Zeroizing<[u8; 32]>, PrepareError> {
    let password = prepare(password)?;
    let mut out = Zeroizing::new([0; 32]);
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, iterations, salt, password.as_bytes(), &mut *out);
    Ok(out)
}

pub(super) fn sign(key: &[u8], message: &[u8]) -> [u8; 32] {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), message);
    let mut out = [0; 32];
    out.copy_from_slice(tag.as_ref());
    out
}

/// A digest of texts that only the owner of the key can make; texts are kept apart.
pub fn keyed_digest(key: &[u8; 32], texts: &[&str]) -> [u8; 32] {
    let lengths = texts.iter().flat_map(|text| (text.len() as u64).to_be_bytes());
    let message =
        Zeroizing::new(lengths.chain(texts.iter().flat_map(|text| text.bytes())).collect::<Vec<_>>());
    sign(key, &message)
}

pub(super) fn hash(message: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest::digest(&digest::SHA256, message).as_ref());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 7677 section 3.
    pub(crate) fn pencil() -> Credential {
        let salt = Base64::decode_vec("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        Credential::derive("pencil", &salt, NonZeroU32::new(4096).unwrap()).unwrap()
    }

    #[test]
    fn a_line_is_read_as_it_is_written() {
        let line = "{SCRAM-SHA-256}4096,W22ZaJ0SNY7soEsUEjb6gQ==,\
                    WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=,wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";
        assert_eq!(pencil().to_string(), line);
        assert_eq!(line.parse::<Credential>().unwrap(), pencil());
        assert!(!format!("{:?}", pencil()).contains("stored"), "keys are in no log");
    }

    #[test]
    fn other_lines_are_refused_with_their_fault() {
        let good = pencil().to_string();
        for (from, to, error) in [
            ("{SCRAM-SHA-256}", "{SCRAM-SHA-1}", CredentialError::OtherMechanism),
            ("{SCRAM-SHA-256}", "", CredentialError::OtherMechanism),
            ("4096", "4095", CredentialError::Iterations),
            ("4096", "04096", CredentialError::Iterations),
            ("4096", "+4096", CredentialError::Iterations),
            ("4096", "4000001", CredentialError::Iterations),
            ("4096", "99999999999", CredentialError::Iterations),
            ("4096", "", CredentialError::Iterations),
            ("W22ZaJ0SNY7soEsUEjb6gQ==", "", CredentialError::Salt),
            ("W22ZaJ0SNY7soEsUEjb6gQ==", "W22ZaJ0SNY7soEsUEjb6gQ", CredentialError::Salt),
            ("T4qY=", "T4q", CredentialError::Key),
            ("T4qY=,", "T4qY=", CredentialError::Fields),
            ("T4qY=,", "T4qY=,,", CredentialError::Fields),
        ] {
            assert_eq!(good.replace(from, to).parse::<Credential>(), Err(error), "{from} -> {to}");
        }
    }

    #[test]
    fn an_unknown_user_has_the_same_credential_each_time_and_it_looks_like_that_of_another_user() {
        let (secret, known) = ([7; 32], [pencil()]);
        let fake = |name| Credential::fake(&secret, name, known.iter());
        assert_eq!(fake("ghost"), fake("ghost"));
        assert_ne!(fake("ghost").salt, fake("other").salt);
        assert_ne!(fake("ghost").salt, Credential::fake(&[8; 32], "ghost", known.iter()).salt);
        assert_eq!((fake("ghost").iterations, fake("ghost").salt.len()), (known[0].iterations, 16));
        let long = Credential { salt: vec![1; 100], ..pencil() };
        assert_eq!(Credential::fake(&secret, "ghost", [long].iter()).salt.len(), 100);
        assert_eq!(Credential::fake(&secret, "ghost", [].iter()).salt.len(), 16);
    }

    #[test]
    fn a_credential_is_that_of_one_password() {
        assert!(pencil().is_of("pencil"));
        for other in ["Pencil", "pencil ", "pencils", "", "stra\u{df}e", "\u{7f}", &"x".repeat(2000)] {
            assert!(!pencil().is_of(other), "{other}");
        }
        assert!(!Credential::fake(&[7; 32], "ghost", [pencil()].iter()).is_of("pencil"));
    }

    #[test]
    fn a_password_counts_in_its_prepared_form() {
        let of = |password: &str| Credential::derive(password, b"salt", NonZeroU32::new(4096).unwrap());
        assert_eq!(of("caf\u{e9} \u{2168}"), of("cafe\u{301}\u{a0}IX"));
        assert_ne!(of("caf\u{e9}"), of("cafe"));
        assert_eq!(of("a\u{7f}"), Err(PrepareError::Control));
        let digest = |texts: &[&str]| keyed_digest(&[7; 32], texts);
        assert_ne!(digest(&["ab", "c"]), digest(&["a", "bc"]));
        assert_ne!(digest(&["ab"]), keyed_digest(&[8; 32], &["ab"]));
    }
}
