//! The console output of a machine's first start, in which cloud-init prints the host's keys or their fingerprints.

use thiserror::Error;

use crate::ssh::key::{Fingerprint, PublicKey};

/// What the console says of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConsoleKey {
    /// The whole key.
    Key(PublicKey),
    /// Its fingerprint.
    Fingerprint(Fingerprint),
}

impl ConsoleKey {
    /// Whether this is the key.
    #[must_use]
    pub fn is(&self, key: &PublicKey) -> bool {
        match self {
            Self::Key(known) => known == key,
            Self::Fingerprint(known) => *known == key.fingerprint(),
        }
    }
}

/// Why a console output proves nothing.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ConsoleError {
    /// No block.
    #[error(
        "no block between \"-----BEGIN SSH HOST KEY FINGERPRINTS-----\" (or KEYS) and its END stands in the console output: \
         is this the output of the first start?"
    )]
    NoBlock,
    /// It does not end.
    #[error("the last block of keys has no end: the console output is cut; fetch it again")]
    Cut,
    /// Keys whose fingerprints are others than those of the same boot.
    #[error(
        "the last block of keys holds none of the keys whose fingerprints stand in the block before it: give the fingerprint of \
         this installation with --fingerprint"
    )]
    Contradiction,
    /// Nothing in it.
    #[error("the block of keys holds no SHA-256 fingerprint and no key")]
    Empty,
}

/// Reads the last blocks of fingerprints and keys: a machine that was installed anew prints new ones further down. cloud-init
/// prints the fingerprints first, so keys that stand before the last fingerprints are those of an earlier installation.
///
/// # Errors
/// There is no whole block with a key in it, or the two blocks are not of the same keys.
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

/// A block, and where in the text it begins.
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

/// `256 SHA256:… root@host (ED25519)` or `ssh-ed25519 AAAA…`, behind whatever the console puts before it (`ci-info: `, a
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
