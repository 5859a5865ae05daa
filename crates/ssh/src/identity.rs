//! The identities of hosts on disk, and the judge that asks them.
//! `crates/logic/src/identity.rs` decides; here files are read and written, signatures checked and the DNS asked.
//!
//! # The path of a host's identity
//!
//! 1. `crates/ssh/src/identity/load.rs` reads one small file per host (`crates/logic/src/identity/host.rs` is what is in it,
//!    `crates/logic/src/identity/host/read.rs` how strictly it is read) into one `crates/logic/src/identity/index.rs`.
//! 2. A server shows its key, at each key exchange (`crates/ssh/src/handler.rs`; the SSH library is changed for that, as
//!    `vendor/russh/README.md` says): `crates/ssh/src/identity/judge.rs` is asked by the connection, checks the signature of a
//!    certificate, asks `crates/ssh/src/identity/dns.rs` where the host allows that, and calls `crates/logic/src/identity/decide.rs`:
//!    the whole table with every message (`crates/logic/src/identity/decide/table.golden`). Certificates are in
//!    `crates/logic/src/identity/certificate.rs`, keys that a host announces in `crates/logic/src/identity/rotation.rs`.
//! 3. What follows is written when the connections are made, once: `crates/ssh/src/identity/noticed.rs` gathers it for each host
//!    and has moves, new pins and rotations written by `crates/ssh/src/identity/store.rs`, hosts that are not enrolled by
//!    `crates/ssh/src/identity/pending.rs`, what was last good by `crates/ssh/src/identity/facts.rs`.
//!    `crates/ssh/src/identity/files.rs` replaces files whole, under a lock.
//! 4. `crates/penstock/src/cmd/host.rs` shows and changes all of that. A key becomes a pin only by a claim that speaks for it:
//!    `crates/ssh/src/identity/enrol.rs`. `known_hosts` comes in by `crates/logic/src/identity/import.rs` and goes out by
//!    `crates/logic/src/identity/export.rs`; `crates/penstock/src/cmd/known_hosts.rs` is what OpenSSH asks, by the name that was typed;
//!    `crates/ssh/src/identity/known_hosts.rs` answers by the same judge, and reads few files where these say as much as all.
//!    `crates/ssh/tests/doors.rs` shows that all doors come to one verdict, `crates/penstock/tests/host_promises.rs` each promise.
//!    Where a host is that only its hints tell, and whose advice to change what, is in `crates/ssh/src/target/hints.rs`.

mod dns;
pub mod enrol;
mod facts;
mod fetch;
mod files;
mod judge;
mod known_hosts;
mod load;
mod noticed;
mod pending;
mod store;

pub use dns::{Anchor, Dns, DnsError};
pub use facts::Seen;
pub use fetch::{Shown, TYPES, fetch};
pub use files::{Places, tell_waits};
pub use judge::{Identities, certificate, now, shown};
pub use known_hosts::{Answer, Asked};
pub use noticed::Flushed;
pub use pending::Pending;
pub use store::{Change, Store, check_free};

use std::io;
use std::path::PathBuf;

use logic::identity::{Fault, Name};
use thiserror::Error;

/// Why identities could not be read or written.
#[derive(Debug, Error)]
pub enum IdentityError {
    /// No place for them.
    #[error("neither XDG_{0}_HOME nor HOME is set: where the identities of hosts are is not known")]
    NoHome(&'static str),
    /// Something of the operating system.
    #[error("{doing} {}", .path.display())]
    Io {
        /// What we were doing.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// What was said.
        source: io::Error,
    },
    /// Others could change who is trusted.
    #[error("{} can be written by others: chmod go-w {}", .0.display(), .0.display())]
    Open(PathBuf),
    /// A file or directory of somebody else, who could say there whom we trust.
    #[error("{} belongs to user {owner}, who could change whom we trust: chown it to yourself", .path.display())]
    Foreign {
        /// What it is.
        path: PathBuf,
        /// The owner's number.
        owner: u32,
    },
    /// Another process holds the lock and does not let go.
    #[error(
        "{} has been locked by {holder} for {seconds} s, so nothing was changed: is that stopped? let it go on, or end it, and try again",
        .path.display()
    )]
    Locked {
        /// The file that is locked.
        path: PathBuf,
        /// Who holds it, as far as the kernel tells.
        holder: String,
        /// How long we waited.
        seconds: u64,
    },
    /// A file that must be repaired first.
    #[error("{} is damaged: {fault}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The first fault.
        fault: Fault,
    },
    /// No such host.
    #[error("no host is called {0}: penstock host list shows all")]
    Unknown(String),
    /// The name is in use.
    #[error("{0} exists already")]
    Exists(Name),
    /// What was asked for makes no sense for this host.
    #[error("{0}")]
    Refused(String),
}

impl IdentityError {
    fn io(doing: &'static str, path: &std::path::Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source }
    }
}
