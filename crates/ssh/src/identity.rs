//! The identities of hosts on disk, and the judge that uses them. `crates/hosts/src/identity.rs` makes the decisions;
//! this module reads and writes files, verifies signatures and asks the DNS.
//!
//! # The path of a host's identity
//!
//! 1. `crates/ssh/src/identity/load.rs` reads one small file per host (`crates/hosts/src/identity/host.rs` is its
//!    content, `crates/hosts/src/identity/host/read.rs` its parser) into one `crates/hosts/src/identity/index.rs`.
//! 2. A server shows its key at each key exchange (`crates/ssh/src/handler.rs`; the SSH library is changed for this,
//!    see `vendor/russh/README.md`). The connection asks `crates/ssh/src/identity/judge.rs`, which verifies the
//!    signature of a certificate, asks `crates/ssh/src/identity/dns.rs` if the host allows it, and calls
//!    `crates/hosts/src/identity/decide.rs`. `crates/hosts/src/identity/decide/table.golden` is the whole table of
//!    decisions with every message. Certificates are in `crates/hosts/src/identity/certificate.rs`, keys that a host
//!    announces in `crates/hosts/src/identity/rotation.rs`.
//! 3. The results are written once, after the connections are made. `crates/ssh/src/identity/noticed.rs` collects them
//!    for each host. `crates/ssh/src/identity/store.rs` writes moves, new pins and rotations,
//!    `crates/ssh/src/identity/pending.rs` hosts that are not enrolled, `crates/ssh/src/identity/facts.rs` the last
//!    good connection. `crates/ssh/src/identity/files.rs` replaces each file in one step, under a lock.
//! 4. `crates/penstock/src/cmd/host.rs` shows and changes the identities. A key becomes a pin only with a claim that
//!    vouches for the key: `crates/ssh/src/identity/enrol.rs`. `crates/hosts/src/identity/import.rs` reads
//!    `known_hosts`, `crates/hosts/src/identity/export.rs` writes it. OpenSSH calls
//!    `crates/penstock/src/cmd/known_hosts.rs` with the name that the user typed;
//!    `crates/ssh/src/identity/known_hosts.rs` answers with the same judge, and reads only a few files where they are
//!    enough. `crates/ssh/tests/ssh/doors.rs` tests that all commands come to the same verdict,
//!    `crates/penstock/tests/hosts/promises.rs` each promise. `crates/ssh/src/target/hints.rs` finds hosts by their
//!    hints, and gives advice. The list of all hosts alone is not read from all files each time:
//!    `crates/ssh/src/identity/listing.rs`.

mod dns;
pub mod enrol;
mod facts;
mod fetch;
mod files;
mod flush;
mod judge;
mod known_hosts;
mod listing;
mod load;
mod noticed;
mod pending;
mod store;

pub use dns::{Anchor, Dns, DnsError};
pub use facts::Seen;
pub use fetch::{Shown, TYPES, fetch, has_no_such_key};
pub use files::{Places, tell_waits};
pub use flush::Flushed;
pub use judge::{Identities, certificate, now, shown};
pub use known_hosts::{Answer, Asked};
pub use listing::Listing;
pub use pending::Pending;
pub use store::{Change, Store, check_free};

use std::io;
use std::path::PathBuf;

use hosts::identity::{Fault, Name};
use thiserror::Error;

#[derive(Debug, Error)]
pub enum IdentityError {
    #[error("where the identities of hosts are is not known: {0}")]
    NoDirectory(#[from] sys::directories::NoDirectory),
    /// A system call failed.
    #[error("{doing} {}", .path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    /// Other users can write to the file or directory, so they could change the trusted keys.
    #[error("{} can be written by others: chmod go-w {}", .0.display(), .0.display())]
    Open(PathBuf),
    /// The file or directory belongs to another user, who could change the trusted keys.
    #[error("{} belongs to user {owner}, who could change whom we trust: chown it to yourself", .path.display())]
    Foreign {
        path: PathBuf,
        /// User id of the owner.
        owner: u32,
    },
    /// Another process holds the lock for too long.
    #[error(
        "{} has been locked by {holder} for {seconds} s, so nothing was changed: if that process is stopped, resume or end it, and try again",
        .path.display()
    )]
    Locked {
        path: PathBuf,
        /// The process that holds the lock, according to the kernel.
        holder: String,
        /// Seconds that penstock waited for the lock.
        seconds: u64,
    },
    #[error("{} is damaged: {fault}", .path.display())]
    Damaged { path: PathBuf, fault: Fault },
    #[error("no host is called {0}: penstock host list shows all")]
    Unknown(String),
    #[error("{0} exists already")]
    Exists(Name),
    /// The request is not valid for this host.
    #[error("{0}")]
    Refused(String),
}

impl IdentityError {
    fn io(doing: &'static str, path: &std::path::Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source }
    }
}
