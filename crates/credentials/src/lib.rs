//! The store of tokens on a disk. `crates/access/src/otp/ledger.rs` decides; here is what makes a decision durable before
//! a client is told of it, and what lets two processes (the daemon and a command) use one store.
//!
//! - `crates/credentials/src/store.rs`: batches of changes under a lock, and the journal that has them
//! - `crates/credentials/src/file.rs`: the journal on the disk: appended, or replaced as a whole
//! - `crates/credentials/src/key_file.rs`: the key that seals secrets
//! - `crates/credentials/src/group_commit.rs`: a thread that serves many callers with one write
//!
//! A store is a directory with the files `journal` and `lock`. Every change is a line of the journal. An answer "good" goes out
//! only after fsync(2) of its line: a crash at any moment accepts no OTP twice. If the disk is full or fails, nothing is good
//! until a whole new journal could be written.

mod error;
mod file;
mod group_commit;
mod key_file;
mod store;

pub use error::StoreError;
pub use group_commit::{Busy, GroupCommit};
pub use key_file::{random, read_key, write_key};
pub use store::{Job, Place, Store, client_keys, job, peek};

/// Where a store usually is.
pub const USUAL_DIRECTORY: &str = "/var/lib/penstock/otp";

/// Where its key file usually is.
pub const USUAL_KEY_FILE: &str = "/etc/penstock/otp.key";
