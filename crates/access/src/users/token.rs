//! Bearer tokens: what a program sends instead of a password, and what is stored of it.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::digest;
use base64ct::{Base64, Base64UrlUnpadded, Encoding};
use zeroize::Zeroizing;

use super::{Fault, User};
use crate::policy::Role;

/// Begins every token, so that scanners for secrets in sources know one.
const PREFIX: &str = "pst_";

/// Random bytes of a token: nothing slower than one hash is needed to keep it.
const BYTES: usize = 32;

/// A token as the client sends it: `pst_` and 43 characters. Nothing shows it but [`Secret::text`].
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<[u8; BYTES]>);

/// A line `@token NAME owner= role= expires= sha256=`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub name: String,
    /// `owner=`: the user whose program has it. It is good only as long as that user is.
    pub owner: Option<String>,
    pub role: Role,
    /// Seconds since 1970; `None`: it has no end.
    pub expires: Option<u64>,
    /// SHA-256 of the secret.
    pub hash: [u8; 32],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is no token of penstock: pst_ and 43 characters")]
pub struct NoSecret;

impl Secret {
    /// `bytes` must be random.
    pub fn new(bytes: [u8; BYTES]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    pub fn text(&self) -> Zeroizing<String> {
        Zeroizing::new(format!("{PREFIX}{}", Base64UrlUnpadded::encode_string(&*self.0)))
    }

    pub fn hash(&self) -> [u8; 32] {
        let mut out = [0; 32];
        out.copy_from_slice(digest::digest(&digest::SHA256, self.text().as_bytes()).as_ref());
        out
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl FromStr for Secret {
    type Err = NoSecret;

    fn from_str(text: &str) -> Result<Self, NoSecret> {
        let coded = text.strip_prefix(PREFIX).ok_or(NoSecret)?;
        let bytes = Zeroizing::new(Base64UrlUnpadded::decode_vec(coded).map_err(|_| NoSecret)?);
        bytes.as_slice().try_into().map(Self::new).map_err(|_| NoSecret)
    }
}

impl Token {
    /// Whether it has ended at this time, in seconds since 1970.
    pub fn has_ended(&self, now: u64) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }

    pub(super) fn parse(line: &str) -> Result<Self, Fault> {
        let mut words = line.split_ascii_whitespace();
        let name = User::new(words.next().unwrap_or_default())?.name;
        let (mut owner, mut role, mut expires, mut hash) = (None, None, None, None);
        for word in words {
            let shown = || word.escape_debug().take(40).collect::<String>();
            match word.split_once('=').ok_or_else(|| Fault::NoValue(shown()))? {
                ("owner", _) if owner.is_some() => return Err(Fault::KeyTwice("owner")),
                ("owner", value) => owner = Some(User::new(value)?.name),
                ("role", value) => role = Some(value.parse().map_err(|_| Fault::Role(shown()))?),
                ("expires", "never") => expires = Some(None),
                ("expires", value) => {
                    expires = Some(Some(value.parse().map_err(|_| Fault::Expires(shown()))?));
                }
                ("sha256", value) => {
                    let bytes = Base64::decode_vec(value).ok().and_then(|bytes| bytes.try_into().ok());
                    hash = Some(bytes.ok_or(Fault::Hash)?);
                }
                _ => return Err(Fault::UnknownKey(shown())),
            }
        }
        match (role, expires, hash) {
            (Some(role), Some(expires), Some(hash)) => Ok(Self { name, owner, role, expires, hash }),
            _ => Err(Fault::TokenLacks(name)),
        }
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let expires = self.expires.map_or("never".to_owned(), |at| at.to_string());
        let hash = Base64::encode_string(&self.hash);
        f.write_str(&self.name)?;
        if let Some(owner) = &self.owner {
            write!(f, " owner={owner}")?;
        }
        write!(f, " role={} expires={expires} sha256={hash}", self.role)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_as_it_is_written_and_is_in_no_log() {
        let secret = Secret::new([0xfb; 32]);
        let text = secret.text();
        assert_eq!((text.len(), &text[..4]), (47, "pst_"));
        assert_eq!(text.parse(), Ok(secret.clone()));
        assert_eq!(format!("{secret:?}"), "Secret(..)");
        for bad in ["", "pst_", &text[..46], &text[4..], &format!("{}a", *text), &text.to_uppercase()] {
            assert_eq!(bad.parse::<Secret>(), Err(NoSecret), "{bad}");
        }
    }

    #[test]
    fn a_token_ends_at_its_time() {
        let token =
            |expires| Token { name: "ci".to_owned(), owner: None, role: Role::View, expires, hash: [0; 32] };
        assert!(!token(Some(100)).has_ended(99));
        assert!(token(Some(100)).has_ended(100));
        assert!(!token(None).has_ended(u64::MAX));
    }
}
