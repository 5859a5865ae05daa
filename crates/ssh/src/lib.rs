//! SSH: connections to hosts whose identity is proved, authentication, commands, forwards, files; and a fleet of
//! in-process hosts to try them on. The only crate that names the SSH library.
//!
//! # The path of an SSH connection
//!
//! 1. `crates/ssh/src/client.rs` takes a `crates/ssh/src/target.rs` and finds a way: TCP (`crates/ssh/src/connect.rs`), jump hosts, each
//!    connected and judged the same way and shared by all who go through it (`crates/ssh/src/jump.rs`), or a command
//!    (`crates/ssh/src/proxy_command.rs`). No command of the user's outlives the program: `crates/ssh/src/guardian.rs`.
//! 2. `crates/ssh/src/wire.rs` listens to what is said before SSH begins and lets the connection go if it is given up, or if a
//!    write waits for a host that says nothing (`crates/ssh/src/stall.rs`). For files and forwards `crates/ssh/src/batches.rs`
//!    lets the kernel wake us for batches of packets.
//!    `crates/ssh/src/preferences.rs` replaces every unsafe default of the library; `crates/ssh/src/handler.rs` is what the library calls,
//!    first of all with the host's key for the `crates/ssh/src/judge.rs`. Every failure becomes words in `crates/ssh/src/trouble.rs`.
//!    Every signal to another process goes through `crates/sys/src/process.rs`, which proves what it signals.
//! 3. A `crates/ssh/src/session.rs` opens commands (`crates/ssh/src/process.rs`, ended on the host by `crates/ssh/src/end.rs`), streams
//!    (`crates/ssh/src/stream.rs`; why one fails: `crates/ssh/src/refusal.rs`), listeners there (`crates/ssh/src/listen.rs`) and files (`crates/ssh/src/sftp.rs`). What was learnt on the
//!    way is in `crates/ssh/src/facts.rs`.

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
mod harmless;
pub mod identity;
mod judge;
mod jump;
pub mod keys;
pub mod lab;
mod listen;
mod preferences;
mod process;
mod proxy_command;
mod refusal;
mod session;
mod sftp;
mod signal;
mod stall;
mod stream;
mod target;
mod trouble;
mod wire;

pub use agent::{AgentFault, AgentLimits};
pub use authenticate::{Attempt, Narrator};
pub use client::{Client, Watcher};
pub use config::{ConfigFiles, SshConfig, WhoAmI};
pub use end::Known;
pub use explain::{Explanation, Step, explain};
pub use facts::{Facts, Negotiated, Quantum, Strict, Terrapin, Timings};
pub use judge::{BoxFuture, Judge, Offered, Place, Verdict};
pub use keys::{KeyPlan, Keys};
pub use listen::{Incoming, Listener};
pub use process::{Event, Exec, Process, Stdin, Terminal};
pub use session::Session;
pub use sftp::{
    Allowance, Change, Directory, Links, Moved, Put, Sftp, TransferError, Tree, TreeError, make_directory,
};
pub use stream::Stream;
pub use target::{Addresses, Algorithms, Configured, KeepAlive, Proxy, Purpose, Rekey, Said, Target};
