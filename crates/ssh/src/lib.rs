//! SSH: connections to hosts whose identity is proved, authentication, commands, forwards, files; and a fleet of
//! in-process hosts to try them on. The only crate that names the SSH library.

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
pub use sftp::{Allowance, Change, Links, Moved, Put, Sftp, TransferError, Tree, TreeError, make_directory};
pub use stream::Stream;
pub use target::{Addresses, Algorithms, Configured, KeepAlive, Proxy, Purpose, Rekey, Said, Target};
