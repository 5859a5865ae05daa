//! Identities of hosts: the name of a host is its identity, the address is only a hint.
//!
//! One text file per host ([`HostFile`]) lists the keys of the host and how each key was proved. An [`Index`] of all
//! files finds a host in constant time. [`decide`] holds all decisions and messages, without I/O.
//! `crates/ssh/src/identity.rs` reads and writes files, asks the DNS and verifies signatures.

mod audit;
mod authority;
mod certificate;
mod console;
mod date;
mod decide;
mod export;
mod host;
mod import;
mod index;
mod known_hosts;
mod line;
mod location;
mod name;
mod pattern;
mod proof;
mod rotation;
mod sshfp;
mod summary;
mod witness;

pub use audit::{Facts, Finding, RefusedKey, Severity, Strict, audit};
pub use authority::{Authority, AuthorityFile};
pub use certificate::{CertificateError, HostCertificate, Signature, Use};
pub use console::{ConsoleError, ConsoleKey, read_console};
pub use date::{Date, Moment};
pub use decide::{
    Decision, Effect, Offered, Question, Run, Verdict, changed_anew, decide, known_to_ssh, refuse_damaged,
    same_machine, swapped, unqueued,
};
pub use export::{export, line_of, lines_about};
pub use host::{Address, Binding, Entry, HostFile, MOVES_KEPT, Move, PINS_KEPT, Pin, Signer, Sshfp};
pub use import::{Called, Import, Left, Shared, import};
pub use index::{Damage, Found, Index};
pub use known_hosts::{KnownHosts, KnownLine, Marker, Names};
pub use line::Fault;
pub use location::{AddressOrName, Location, LocationError, dns_name};
pub use name::{Name, NameError};
pub use pattern::{Patterns, wildcard};
pub use proof::{Proof, Root};
pub use rotation::{RETIRE_AFTER_DAYS, Rotation, rotate};
pub use sshfp::{FingerprintRecord, SshfpAnswer, SshfpRecords};
pub use summary::Summary;
pub use witness::{FEWEST_WITNESSES, WitnessError, agree};

use crate::ssh::key::PublicKey;

/// Parses a key and an optional fingerprint at the start of `words`.
fn host_key(words: &[&str]) -> Result<PublicKey, String> {
    host::read_key(words).map(|(key, _)| key)
}

/// Rank of a key type, to detect a key that is weaker than the pinned one. A larger rank is stronger.
#[must_use]
pub fn strength(algorithm: &str) -> u8 {
    match plain_algorithm(algorithm) {
        "ssh-ed25519" | "sk-ssh-ed25519@openssh.com" | "ssh-ed448" => 3,
        "ecdsa-sha2-nistp256"
        | "ecdsa-sha2-nistp384"
        | "ecdsa-sha2-nistp521"
        | "sk-ecdsa-sha2-nistp256@openssh.com" => 2,
        "ssh-rsa" => 1,
        _ => 0,
    }
}

/// True if `algorithm` names a certificate type, known or unknown to Penstock.
#[must_use]
pub fn is_certificate(algorithm: &str) -> bool {
    plain_algorithm(algorithm) != algorithm || algorithm.contains("-cert-v")
}

/// Returns the key type of a certificate type; other algorithms unchanged.
#[must_use]
pub fn plain_algorithm(algorithm: &str) -> &str {
    match algorithm {
        "ssh-ed25519-cert-v01@openssh.com" => "ssh-ed25519",
        "ssh-rsa-cert-v01@openssh.com" => "ssh-rsa",
        "ecdsa-sha2-nistp256-cert-v01@openssh.com" => "ecdsa-sha2-nistp256",
        "ecdsa-sha2-nistp384-cert-v01@openssh.com" => "ecdsa-sha2-nistp384",
        "ecdsa-sha2-nistp521-cert-v01@openssh.com" => "ecdsa-sha2-nistp521",
        "ssh-dss-cert-v01@openssh.com" => "ssh-dss",
        "sk-ssh-ed25519-cert-v01@openssh.com" => "sk-ssh-ed25519@openssh.com",
        "sk-ecdsa-sha2-nistp256-cert-v01@openssh.com" => "sk-ecdsa-sha2-nistp256@openssh.com",
        other => other,
    }
}
