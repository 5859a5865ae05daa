//! OpenSSH `known_hosts` files (sshd(8), SSH_KNOWN_HOSTS FILE FORMAT): plain and hashed names, patterns, markers.

use base64ct::{Base64, Encoding};
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;

use super::line::Fault;
use super::pattern::Patterns;
use super::proof::Root;
use crate::ssh::key::PublicKey;

/// Limit of a line in bytes: a key of 16,384 bits has 2,800 characters.
const LONGEST_LINE: usize = 128 * 1024;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KnownHosts {
    pub lines: Vec<KnownLine>,
    pub faults: Vec<Fault>,
}

/// Comment of a line whose key was only trusted on first use, from `penstock host export`.
pub(super) const FIRST_USE: &str = "from=first-use";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownLine {
    /// Line number, from 1.
    pub number: usize,
    pub marker: Marker,
    pub names: Names,
    pub key: PublicKey,
    /// Root of the proof, by the comment `FIRST_USE`.
    pub root: Root,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marker {
    None,
    /// The key signs host certificates.
    Authority,
    /// The key is refused from every host.
    Revoked,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Names {
    Plain(Patterns),
    /// HMAC-SHA1 of one name, with the salt as key.
    Hashed {
        salt: [u8; 20],
        hash: [u8; 20],
    },
}

impl KnownHosts {
    /// Parses a file. A wrong line does not affect the others.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut read = Self::default();
        for (at, line) in text.lines().enumerate() {
            let trimmed = line.trim_matches([' ', '\t', '\r']);
            if trimmed.is_empty() || trimmed.starts_with('#') {
                continue;
            }
            match read_line(trimmed) {
                Ok(line) => read.lines.push(KnownLine { number: at + 1, ..line }),
                Err(message) => read.faults.push(Fault { line: at + 1, message }),
            }
        }
        read
    }

    /// Line that gives `name` the key, without a marker.
    #[must_use]
    pub fn with_key(&self, name: &str, key: &PublicKey) -> Option<&KnownLine> {
        let has_key = |line: &&KnownLine| line.marker == Marker::None && line.key == *key;
        self.lines.iter().filter(has_key).find(|line| line.names.matches(name))
    }

    /// Lines about `name` (`name`, or `[name]:port` for another port than 22).
    pub fn about<'k>(&'k self, name: &'k str) -> impl Iterator<Item = &'k KnownLine> {
        self.lines.iter().filter(move |line| line.names.matches(name))
    }
}

impl Names {
    /// True if the line is about the host `name`.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Self::Plain(patterns) => patterns.matches(name),
            Self::Hashed { salt, hash } => {
                let hashed = Hmac::<Sha1>::new_from_slice(salt).map(|mac| {
                    let name = name.to_ascii_lowercase();
                    mac.chain_update(name.as_bytes()).finalize().into_bytes()
                });
                hashed.is_ok_and(|hashed| hashed[..] == hash[..])
            }
        }
    }
}

/// Parses a line; the caller sets its number.
fn read_line(line: &str) -> Result<KnownLine, String> {
    if line.len() > LONGEST_LINE {
        return Err(format!("longer than {LONGEST_LINE} characters: no such key exists"));
    }
    let (marker, line) = match line.strip_prefix('@') {
        None => (Marker::None, line),
        Some(rest) => match rest.split_once([' ', '\t']) {
            Some(("cert-authority", rest)) => (Marker::Authority, rest),
            Some(("revoked", rest)) => (Marker::Revoked, rest),
            _ => return Err("a marker is @cert-authority or @revoked".into()),
        },
    };
    let line = line.trim_start_matches([' ', '\t']);
    let (names, key) = line.split_once([' ', '\t']).ok_or("names, an algorithm and a key stand on a line")?;
    let mut words = key.split_ascii_whitespace();
    if words.next().is_some_and(|word| word.bytes().all(|byte| byte.is_ascii_digit())) {
        return Err("a key of SSH version 1: version 1 is obsolete".into());
    }
    // The base64 of a key starts with AAAA: its first 4 bytes are a length that starts with two zero bytes.
    if words.clone().next().is_some_and(|word| !word.starts_with("AAAA")) {
        return Err("not a line of known_hosts: write names, an algorithm and a key, such as web1 ssh-ed25519 AAAA...".into());
    }
    // A comment follows the algorithm and the key.
    let is_marked = words.skip(1).any(|word| word == FIRST_USE);
    let root = if is_marked { Root::FirstUse } else { Root::Proved };
    let key = key.parse().map_err(|error| format!("{error}"))?;
    Ok(KnownLine { number: 0, marker, names: read_names(names)?, key, root })
}

fn read_names(text: &str) -> Result<Names, String> {
    let Some(hashed) = text.strip_prefix("|1|") else {
        return Patterns::parse(text)
            .map(Names::Plain)
            .ok_or_else(|| "the list of names has an empty part or a mark".into());
    };
    let field = |text: &str| -> Option<[u8; 20]> { Base64::decode_vec(text).ok()?.try_into().ok() };
    let parts = hashed.split_once('|').and_then(|(salt, hash)| field(salt).zip(field(hash)));
    let (salt, hash) =
        parts.ok_or("a hashed name is |1|salt|hash, each 20 bytes in base64: was the line cut?")?;
    Ok(Names::Hashed { salt, hash })
}

#[cfg(test)]
mod tests;
