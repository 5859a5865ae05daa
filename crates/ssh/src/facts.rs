//! Facts about a host that were learnt during a connection.

use std::time::Duration;

use hosts::ssh::key::Fingerprint;
use russh::Names;

use crate::authenticate::{Answer, Attempt, What};
use crate::judge::{Offered, Place};

#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Address or jump host through which the host answered.
    pub address: Option<Place>,
    /// Version line of the server, safe to print on a terminal.
    pub server: String,
    /// Banner before authentication (RFC 4252 section 5.4), as received: not safe to print on a terminal.
    pub banner: String,
    /// Key or certificate that the host has proved to hold.
    pub identity: Option<Offered>,
    /// Message of the judge to the user.
    pub note: Option<String>,
    pub key: String,
    pub attempts: Vec<crate::Attempt>,
    /// Algorithms of the last key exchange.
    pub negotiated: Option<Negotiated>,
    pub timings: Timings,
}

impl Facts {
    /// Fingerprint of the key that logged in, or of the key in the certificate that did.
    #[must_use]
    pub fn log_in_key(&self) -> Option<Fingerprint> {
        let accepted =
            |attempt: &&Attempt| matches!(attempt.answer, Answer::Accepted | Answer::Partial { .. });
        self.attempts.iter().rev().filter(accepted).find_map(|attempt| match &attempt.what {
            What::Key { fingerprint, .. } | What::Certificate { fingerprint, .. } => Some(*fingerprint),
            What::Methods | What::AgentKeys | What::File | What::Interactive => None,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Negotiated {
    pub kex: String,
    pub host_key: String,
    pub cipher: String,
    /// Message authentication algorithm from the server to the client. An AEAD cipher includes it.
    pub mac: String,
    /// Protection of the message order in the key exchange (CVE-2023-48795, "Terrapin").
    pub strict: Strict,
    /// Protection of a recorded connection against a quantum computer.
    pub quantum: Quantum,
}

/// Support of the strict key exchange by both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strict {
    Yes,
    /// The server does not support the strict key exchange.
    No,
}

/// Effect of an attacker between client and server on the first messages of a connection (CVE-2023-48795).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Terrapin {
    /// No effect: both sides use the strict key exchange.
    Closed,
    /// No effect: the server is not strict, but the cipher detects missing messages.
    CipherHolds,
    /// The attacker can remove messages unnoticed, with the extensions that they announce (RFC 8308).
    Open,
}

/// Resistance of the key exchange to quantum computers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantum {
    /// A hybrid with a post-quantum method.
    Safe,
    Exposed,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timings {
    pub resolve: Duration,
    /// Time of TCP, the jump hosts or the proxy command.
    pub connect: Duration,
    /// Time of the SSH version exchange, the key exchange and the verdict.
    pub identity: Duration,
    pub authenticate: Duration,
}

impl Negotiated {
    /// Evaluates the Terrapin attack. It works without strict key exchange, with ChaCha20-Poly1305 or with CBC and
    /// encrypt-then-MAC.
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
