//! What was learnt of a host while connecting to it.

use std::time::Duration;

use russh::Names;

use crate::judge::{Offered, Place};

/// What was learnt while connecting.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Where the host answered.
    pub address: Option<Place>,
    /// Its version line, harmless on a terminal.
    pub server: String,
    /// What it wants users to read before they log in. As it came: not harmless on a terminal.
    pub banner: String,
    /// The key or certificate that it proved.
    pub identity: Option<Offered>,
    /// What the judge wants the user to know.
    pub note: Option<String>,
    /// Our key that it accepted.
    pub key: String,
    /// Every step of the log-in.
    pub attempts: Vec<crate::Attempt>,
    /// What was negotiated, the last time.
    pub negotiated: Option<Negotiated>,
    /// How long each phase took.
    pub timings: Timings,
}

/// Algorithms in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Negotiated {
    /// Key exchange.
    pub kex: String,
    /// Signature of the host key.
    pub host_key: String,
    /// Cipher, both ways.
    pub cipher: String,
    /// Message authentication towards us; with an AEAD cipher it is part of that.
    pub mac: String,
    /// Whether the order of messages in the key exchange is protected (CVE-2023-48795, "Terrapin").
    pub strict: Strict,
    /// Whether a recording of the connection stays secret from a quantum computer.
    pub quantum: Quantum,
}

/// Whether both ends keep to the strict key exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strict {
    /// Both do.
    Yes,
    /// The server does not know it.
    No,
}

/// What an attacker between client and server can do to the first messages of a connection (CVE-2023-48795).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Terrapin {
    /// Nothing: both ends keep to the strict key exchange.
    Closed,
    /// Nothing, because the cipher notices messages that are missing, though the server is not strict.
    CipherHolds,
    /// Remove some of them unnoticed, and with them the extensions that they announce (RFC 8308).
    Open,
}

/// Whether the key exchange resists quantum computers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantum {
    /// A hybrid with a post-quantum method.
    Safe,
    /// A classical method only.
    Exposed,
}

/// How long each phase of connecting took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timings {
    /// Names to addresses.
    pub resolve: Duration,
    /// TCP, jump hosts or the proxy command.
    pub connect: Duration,
    /// Banner, key exchange and verdict.
    pub identity: Duration,
    /// Authentication.
    pub authenticate: Duration,
}

impl Negotiated {
    /// Whether Terrapin works here: without strict key exchange, with ChaCha20-Poly1305, or CBC and a MAC over the ciphertext.
    #[must_use]
    pub fn terrapin(&self) -> Terrapin {
        let is_taken = self.cipher.contains("chacha20-poly1305")
            || (self.cipher.ends_with("-cbc") && self.mac.contains("-etm@"));
        match (self.strict, is_taken) {
            (Strict::Yes, _) => Terrapin::Closed,
            (Strict::No, false) => Terrapin::CipherHolds,
            (Strict::No, true) => Terrapin::Open,
        }
    }

    pub(crate) fn new(names: &Names) -> Self {
        let kex = names.kex.as_ref().to_owned();
        let quantum = if kex.starts_with("mlkem") || kex.starts_with("sntrup") {
            Quantum::Safe
        } else {
            Quantum::Exposed
        };
        let cipher = names.cipher.as_ref().to_owned();
        let aead = cipher.contains("gcm") || cipher.contains("poly1305");
        let mac = if aead { cipher.clone() } else { names.server_mac.as_ref().to_owned() };
        let host_key = names.key.as_str().to_owned();
        let strict = if names.strict_kex() { Strict::Yes } else { Strict::No };
        Self { kex, host_key, cipher, mac, strict, quantum }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terrapin_takes_two_kinds_of_ciphers_of_a_server_that_is_not_strict() {
        let terrapin = |strict, cipher: &str, mac: &str| {
            let (cipher, mac) = (cipher.to_owned(), mac.to_owned());
            let (kex, host_key) = (String::new(), String::new());
            Negotiated { kex, host_key, cipher, mac, strict, quantum: Quantum::Safe }.terrapin()
        };
        for (cipher, mac, expected) in [
            ("chacha20-poly1305@openssh.com", "", Terrapin::Open),
            ("aes256-cbc", "hmac-sha2-256-etm@openssh.com", Terrapin::Open),
            ("aes256-cbc", "hmac-sha2-256", Terrapin::CipherHolds),
            ("aes256-ctr", "hmac-sha2-256-etm@openssh.com", Terrapin::CipherHolds),
            ("aes128-gcm@openssh.com", "", Terrapin::CipherHolds),
        ] {
            assert_eq!(terrapin(Strict::No, cipher, mac), expected, "{cipher} {mac}");
            assert_eq!(terrapin(Strict::Yes, cipher, mac), Terrapin::Closed, "{cipher} {mac}");
        }
    }
}
