//! SSH: connections to hosts with a proved identity, authentication, commands, forwards and files. With `lab` the only
//! crate that uses the SSH library.
//!
//! # The path of an SSH connection
//!
//! 1. `crates/ssh/src/client.rs` connects to a `crates/ssh/src/target.rs`: over TCP (`crates/ssh/src/connect.rs`),
//!    through jump hosts (`crates/ssh/src/jump.rs`: each is connected and judged like a target, and shared by all
//!    targets behind it), or through a command (`crates/ssh/src/proxy_command.rs`). `crates/ssh/src/guardian.rs` makes
//!    sure that no command of the user outlives the program.
//! 2. `crates/ssh/src/wire.rs` keeps the server's text before SSH begins, and closes a connection that was given up, or
//!    whose write waits for a silent host (`crates/ssh/src/stall.rs`). For files and forwards,
//!    `crates/ssh/src/batches.rs` lets the kernel wake the reader for batches of packets.
//!    `crates/ssh/src/preferences.rs` replaces every unsafe default of the library. `crates/ssh/src/handler.rs` has the
//!    library's callbacks; the first one passes the host's key to the `crates/ssh/src/judge.rs`.
//!    `crates/ssh/src/trouble.rs` makes messages of all failures. Every signal to another process goes through
//!    `crates/sys/src/process.rs`, which first proves which process it signals.
//! 3. A `crates/ssh/src/session.rs` opens commands (`crates/ssh/src/process.rs`; `crates/ssh/src/end.rs` ends them on
//!    the host), streams (`crates/ssh/src/stream.rs`; reasons of a failure: `crates/ssh/src/refusal.rs`), remote
//!    listeners (`crates/ssh/src/listen.rs`) and files (`crates/ssh/src/sftp.rs`). `crates/ssh/src/facts.rs` has the
//!    facts that the connection learnt.

mod agent;
pub mod authenticate;
mod batches;
mod client;
mod config;
mod connect;
mod end;
mod explain;
mod facts;
pub mod guardian;
mod handler;
pub mod identity;
mod judge;
mod jump;
mod keep_alive;
pub mod keys;
pub mod lab_home;
mod listen;
mod listeners;
mod preferences;
mod process;
mod proxy_command;
mod refusal;
mod session;
mod sftp;
pub mod signal;
mod stall;
mod stream;
mod target;
mod trouble;
mod wire;

pub use agent::{AgentFault, AgentLimits};
pub use authenticate::{Attempt, AttemptObserver};
pub use client::{Client, Watcher};
pub use config::{ConfigFiles, NoUserEntry, SshConfig};
pub use end::Known;
pub use explain::{Explanation, Step, explain};
pub use facts::{Facts, Negotiated, Quantum, Strict, Terrapin, Timings};
pub use judge::{BoxFuture, HostVerifier, Offered, Place, Verdict};
pub use keys::{KeyPlan, Keys};
pub use listen::{Incoming, Listener};
pub use process::{Event, Exec, Process, Stdin, Terminal};
pub use session::Session;
pub use sftp::{
    Allowance, Change, Directory, Links, Moved, Put, Sftp, TransferError, Tree, TreeError, make_directory,
};
pub use stream::Stream;
pub use target::{
    Addresses, Algorithms, Configured, KeepAlive, LocationSources, Proxy, Purpose, Rekey, Target,
};
