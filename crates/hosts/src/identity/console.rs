//! Parser of the console output of the first boot of a machine, where cloud-init prints host keys or fingerprints.

use thiserror::Error;

use crate::ssh::key::{Fingerprint, PublicKey};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConsoleKey {
    Key(PublicKey),
    Fingerprint(Fingerprint),
}

impl ConsoleKey {
    #[must_use]
    pub fn is(&self, key: &PublicKey) -> bool {
        match self {
            Self::Key(known) => known == key,
            Self::Fingerprint(known) => *known == key.fingerprint(),
        }
    }
}

/// Reason why a console output proves no key.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ConsoleError {
    #[error(
        "no block between \"-----BEGIN SSH HOST KEY FINGERPRINTS-----\" (or KEYS) and its END stands in the console output: \
         is this the output of the first start?"
    )]
    NoBlock,
    /// The last block has no end.
    #[error("the last block of keys has no end: the console output is truncated; fetch it again")]
    Cut,
    /// The keys do not match the fingerprints of the same boot.
    #[error(
        "the last block of keys holds none of the keys whose fingerprints are in the block before it: give the fingerprint of \
         this installation with --fingerprint"
    )]
    Contradiction,
    #[error("the block of keys holds no SHA-256 fingerprint and no key")]
    Empty,
}

/// Parses the last blocks of fingerprints and keys: a reinstalled machine prints new blocks further down. cloud-init
/// prints the fingerprints first, so keys before the last fingerprints belong to an earlier installation.
///
/// # Errors
/// No complete block with a key exists, or the two blocks are about different keys.
pub fn read_console(text: &str) -> Result<Vec<ConsoleKey>, ConsoleError> {
    let fingerprints = last_block(text, "FINGERPRINTS")?;
    let keys = last_block(text, "KEYS")?;
    let keys = keys.filter(|keys| fingerprints.as_ref().is_none_or(|before| before.at < keys.at));
    if fingerprints.is_none() && keys.is_none() {
        return Err(ConsoleError::NoBlock);
    }
    let fingerprints = fingerprints.map(|block| block.found).unwrap_or_default();
    let keys = keys.map(|block| block.found).unwrap_or_default();
    let is_told = |one: &ConsoleKey| match one {
        ConsoleKey::Key(key) => fingerprints.iter().any(|told| told.is(key)),
        ConsoleKey::Fingerprint(_) => fingerprints.contains(one),
    };
    if !fingerprints.is_empty() && !keys.is_empty() && !keys.iter().any(is_told) {
        return Err(ConsoleError::Contradiction);
    }
    let found = [fingerprints, keys].concat();
    if found.is_empty() { Err(ConsoleError::Empty) } else { Ok(found) }
}

struct Block {
    at: usize,
    found: Vec<ConsoleKey>,
}

fn last_block(text: &str, kind: &str) -> Result<Option<Block>, ConsoleError> {
    let (begin, end) =
        (format!("-----BEGIN SSH HOST KEY {kind}-----"), format!("-----END SSH HOST KEY {kind}-----"));
    let Some(at) = text.rfind(&begin) else { return Ok(None) };
    let inside = &text[at + begin.len()..];
    let inside = &inside[..inside.find(&end).ok_or(ConsoleError::Cut)?];
    Ok(Some(Block { at, found: inside.lines().filter_map(read_line).collect() }))
}

/// Parses `256 SHA256:… root@host (ED25519)` or `ssh-ed25519 AAAA…` after any prefix of the console (`ci-info: `, a
/// time, the name of a unit).
fn read_line(line: &str) -> Option<ConsoleKey> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let fingerprint = words.iter().find_map(|word| word.parse().ok().map(ConsoleKey::Fingerprint));
    fingerprint.or_else(|| {
        let pairs = words.windows(2).filter(|pair| pair[1].starts_with("AAAA"));
        pairs.filter_map(|pair| pair.join(" ").parse().ok()).map(ConsoleKey::Key).next()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJKRYUVfuEFUGyOJ4Ub4j8kXhVwPkN7SrvI9QeYwHyEq";

    fn block(kind: &str, inside: &str) -> String {
        format!(
            "[   12.3] boot\r\n-----BEGIN SSH HOST KEY {kind}-----\r\n{inside}\r\n-----END SSH HOST KEY {kind}-----\r\nlogin:"
        )
    }

    #[test]
    fn both_blocks_of_cloud_init_are_read_behind_what_a_console_puts_before_lines() {
        let key: PublicKey = KEY.parse().unwrap();
        let line = format!("<14>Nov 20 12:00:00 cloud-init: 256 {} root@web1 (ED25519)", key.fingerprint());
        let text = format!(
            "{}{}",
            block("FINGERPRINTS", &line),
            block("KEYS", &format!("ci-info: {KEY} root@web1"))
        );
        let found = read_console(&text).unwrap();
        assert_eq!(found, [ConsoleKey::Fingerprint(key.fingerprint()), ConsoleKey::Key(key.clone())]);
        assert!(found.iter().all(|one| one.is(&key)));
    }

    #[test]
    fn keys_of_the_last_installation_count() {
        let old = format!("256 SHA256:{} x (ED25519)", "A".repeat(43));
        let key: PublicKey = KEY.parse().unwrap();
        let new = format!("256 {} x (ED25519)", key.fingerprint());
        let text = block("FINGERPRINTS", &old) + &block("FINGERPRINTS", &new);
        assert_eq!(read_console(&text), Ok(vec![ConsoleKey::Fingerprint(key.fingerprint())]));
        let old_key = format!("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{}", "B".repeat(43));
        let text = block("FINGERPRINTS", &old) + &block("KEYS", &old_key) + &block("FINGERPRINTS", &new);
        let found = read_console(&text);
        assert_eq!(found, Ok(vec![ConsoleKey::Fingerprint(key.fingerprint())]), "keys of before");
        let text = block("FINGERPRINTS", &new) + &block("KEYS", &old_key);
        assert_eq!(read_console(&text), Err(ConsoleError::Contradiction));
    }

    #[test]
    fn output_without_a_whole_block_proves_nothing() {
        assert_eq!(read_console("login:"), Err(ConsoleError::NoBlock));
        assert_eq!(read_console("-----BEGIN SSH HOST KEY KEYS-----\nssh-ed"), Err(ConsoleError::Cut));
        assert_eq!(read_console(&block("FINGERPRINTS", "2048 aa:bb:cc md5")), Err(ConsoleError::Empty));
    }
}
