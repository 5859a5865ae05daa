//! A line of `authorized_keys` (sshd(8)): options, a key, a comment.

use thiserror::Error;

use crate::ssh::key::{KeyError, PublicKey};

/// Longest line in bytes. The longest key of RSA has 2,800 characters.
pub const LONGEST: usize = 4096;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Text before the key, such as `from="10.0.0.0/8",restrict`; mostly empty.
    pub options: String,
    pub key: PublicKey,
    pub comment: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LineFault {
    #[error("it has {length} bytes, and a line of a key at most {most}")]
    TooLong { length: usize, most: usize },
    #[error(
        "it begins a private key, which no other program and no person needs: give the public key, FILE.pub"
    )]
    Private,
    #[error("it is in another form: `ssh-keygen -i -m {0} -f FILE` prints the line of OpenSSH")]
    OtherForm(&'static str),
    #[error("it has no key: {0}")]
    NoKey(KeyError),
}

impl Line {
    /// Parses a line; `None` for an empty one and a comment.
    ///
    /// # Errors
    /// There is no key in it.
    pub fn parse(text: &str) -> Result<Option<Self>, LineFault> {
        Self::parse_up_to(text, LONGEST)
    }

    /// Parses a line of at most `most` bytes.
    ///
    /// # Errors
    /// There is no key in it.
    pub fn parse_up_to(text: &str, most: usize) -> Result<Option<Self>, LineFault> {
        if text.len() > most {
            return Err(LineFault::TooLong { length: text.len(), most });
        }
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            return Ok(None);
        }
        if (text.starts_with("-----BEGIN") && text.contains("PRIVATE KEY"))
            || text.starts_with("PuTTY-User-Key-File")
        {
            return Err(LineFault::Private);
        }
        if text.starts_with("---- BEGIN SSH2 PUBLIC KEY") {
            return Err(LineFault::OtherForm("RFC4716"));
        }
        if text.starts_with("-----BEGIN") {
            return Err(LineFault::OtherForm("PKCS8"));
        }
        let (options, rest) = match begins_with_algorithm(text) {
            true => ("", text),
            false => text.split_at(end_of_options(text)),
        };
        let rest = rest.trim_start();
        let key: PublicKey = rest.parse().map_err(LineFault::NoKey)?;
        let comment = rest.splitn(3, [' ', '\t']).nth(2).unwrap_or_default();
        Ok(Some(Self { options: options.to_owned(), key, comment: comment.trim().to_owned() }))
    }
}

/// Whether the first word is the name of an algorithm: then there are no options.
fn begins_with_algorithm(text: &str) -> bool {
    let word = text.split_whitespace().next().unwrap_or_default();
    ["ssh-", "ecdsa-sha2-", "sk-ssh-", "sk-ecdsa-"].iter().any(|start| word.starts_with(start))
}

/// Options end at the first blank outside of double quotes; within them `\"` is a quote.
fn end_of_options(text: &str) -> usize {
    let (mut quoted, mut escaped) = (false, false);
    for (at, c) in text.char_indices() {
        match c {
            '"' if !escaped => quoted = !quoted,
            ' ' | '\t' if !quoted => return at,
            _ => {}
        }
        escaped = c == '\\' && !escaped;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJKRYUVfuEFUGyOJ4Ub4j8kXhVwPkN7SrvI9QeYwHyEq";

    #[test]
    fn options_key_and_comment_are_told_apart() {
        for (before, options) in [
            ("", ""),
            ("restrict ", "restrict"),
            (
                "from=\"10.0.0.0/8, 1.2.3.4\",command=\"echo \\\"ssh-rsa AAAA\\\" x\" ",
                "from=\"10.0.0.0/8, 1.2.3.4\",command=\"echo \\\"ssh-rsa AAAA\\\" x\"",
            ),
        ] {
            let line = Line::parse(&format!("  {before}{KEY} ann@desk at home\r\n")).unwrap().unwrap();
            assert_eq!((line.options.as_str(), line.comment.as_str()), (options, "ann@desk at home"));
            assert_eq!(line.key.to_string(), KEY);
        }
        assert_eq!(Line::parse(KEY).unwrap().unwrap().comment, "");
        assert_eq!((Line::parse(" # x"), Line::parse("\t")), (Ok(None), Ok(None)));
    }

    #[test]
    fn what_is_no_public_key_is_told() {
        for (text, fault) in [
            ("-----BEGIN OPENSSH PRIVATE KEY-----", LineFault::Private),
            ("-----BEGIN RSA PRIVATE KEY-----", LineFault::Private),
            ("PuTTY-User-Key-File-3: ssh-ed25519", LineFault::Private),
            ("---- BEGIN SSH2 PUBLIC KEY ----", LineFault::OtherForm("RFC4716")),
            ("-----BEGIN PUBLIC KEY-----", LineFault::OtherForm("PKCS8")),
            ("hello", LineFault::NoKey(KeyError::TwoWords)),
            ("command=\"x ssh-ed25519 AAAA", LineFault::NoKey(KeyError::TwoWords)),
            ("ssh-ed25519 !!!", LineFault::NoKey(KeyError::NotBase64)),
        ] {
            assert_eq!(Line::parse(text), Err(fault), "{text}");
        }
        assert_eq!(
            Line::parse(&"x".repeat(LONGEST + 1)),
            Err(LineFault::TooLong { length: LONGEST + 1, most: LONGEST })
        );
    }
}
