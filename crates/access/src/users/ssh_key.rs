//! A public key of SSH in the line of its owner: `ssh-key=ALGORITHM:BASE64` or `ssh-key=ALGORITHM:BASE64:COMMENT`. Only its
//! frame is checked here; `hosts::ssh::key` and the SSH library check what is in it before a command writes it.

use std::fmt;
use std::str::FromStr;

use base64ct::{Base64, Encoding};

/// Longest comment that is kept, in bytes.
const LONGEST_COMMENT: usize = 64;

/// Longest key in bytes: one of RSA with 16,384 bits has 2,070.
const LONGEST_BLOB: usize = 8192;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SshKey {
    algorithm: String,
    blob: Vec<u8>,
    comment: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is no ALGORITHM:BASE64 or ALGORITHM:BASE64:COMMENT of a public key")]
pub struct NoSshKey;

impl SshKey {
    /// Makes a key of its blob in the form of the wire (RFC 4253, section 6.6). Of the comment, which other programs may have
    /// written, letters, digits and `._@+-` are kept, and others become `_`.
    ///
    /// # Errors
    /// The blob does not begin with the name of an algorithm, or is too long.
    pub fn new(blob: &[u8], comment: &str) -> Result<Self, NoSshKey> {
        let (length, rest) = blob.split_first_chunk::<4>().ok_or(NoSshKey)?;
        let name = usize::try_from(u32::from_be_bytes(*length)).ok().and_then(|length| rest.get(..length));
        let name = name.and_then(|name| std::str::from_utf8(name).ok()).ok_or(NoSshKey)?;
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"@.-".contains(&byte);
        if name.is_empty() || name.len() > 64 || !name.bytes().all(fits) || blob.len() > LONGEST_BLOB {
            return Err(NoSshKey);
        }
        let kept = |c: char| if c.is_ascii_alphanumeric() || "._@+-".contains(c) { c } else { '_' };
        let comment = comment.trim().chars().map(kept).take(LONGEST_COMMENT).collect();
        Ok(Self { algorithm: name.to_owned(), blob: blob.to_vec(), comment })
    }

    pub fn algorithm(&self) -> &str {
        &self.algorithm
    }

    pub fn blob(&self) -> &[u8] {
        &self.blob
    }

    /// What its owner calls it; it proves nothing.
    pub fn comment(&self) -> &str {
        &self.comment
    }
}

impl fmt::Display for SshKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm, Base64::encode_string(&self.blob))?;
        if self.comment.is_empty() { Ok(()) } else { write!(f, ":{}", self.comment) }
    }
}

impl FromStr for SshKey {
    type Err = NoSshKey;

    fn from_str(text: &str) -> Result<Self, NoSshKey> {
        let mut parts = text.splitn(3, ':');
        let (algorithm, base64) = parts.next().zip(parts.next()).ok_or(NoSshKey)?;
        let key =
            Self::new(&Base64::decode_vec(base64).map_err(|_| NoSshKey)?, parts.next().unwrap_or_default())?;
        // What is written back is what was read.
        (key.algorithm == algorithm && key.to_string() == text).then_some(key).ok_or(NoSshKey)
    }
}
