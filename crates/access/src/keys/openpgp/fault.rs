//! Why there is no OpenPGP key for the DNS.

use thiserror::Error;

/// Reason why there is no key for the DNS.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KeyFault {
    #[error("the ASCII armor is broken: {0}")]
    Armor(&'static str),
    #[error("byte {0} is not the start of an OpenPGP packet, or the file is cut off there")]
    Packet(usize),
    #[error("it is no OpenPGP public key")]
    NoKey,
    #[error("it holds a SECRET key: export the public one with gpg --export")]
    Secret,
    #[error("it has a key of version {0}; 4 and 6 are known")]
    Version(u8),
    #[error("it holds more than {MOST_PACKETS} packets")]
    TooMany,
    #[error("the key {key} has no user ID with the address {address}; it has {has}")]
    OtherAddress { key: String, address: String, has: String },
    #[error(
        "the user ID of {0} is revoked: `penstock dns push --openpgp FILE` takes its records out of the DNS"
    )]
    RevokedAddress(String),
    #[error("the user ID of {0} has no signature of its own key that holds")]
    Unsigned(String),
    #[error(
        "the key {0} is of an algorithm whose signatures are not checked here: RSA, NIST curves and Ed25519 are"
    )]
    Algorithm(String),
    #[error("the key {0} is revoked: `penstock dns push --openpgp FILE` takes its records out of the DNS")]
    Revoked(String),
    #[error("the key {0} has expired")]
    Expired(String),
}

/// A file with more is no file of keys for the DNS.
pub(super) const MOST_PACKETS: usize = 10_000;
