//! SSH: connections to hosts whose identity is proved, authentication, commands, forwards, files; and a fleet of
//! in-process hosts to try them on. The only crate that names the SSH library.

mod agent;
pub mod authenticate;
mod client;
mod connect;
mod handler;
mod harmless;
pub mod identity;
mod judge;
pub mod keys;
pub mod lab;
mod preferences;
mod process;
mod session;
mod target;
mod trouble;

pub use agent::{AgentFault, AgentLimits};
pub use authenticate::{Attempt, Listener};
pub use client::Client;
pub use judge::{BoxFuture, Judge, Offered, Place, Verdict};
pub use keys::{KeyPlan, Keys};
pub use process::{Event, Exec, Process};
pub use session::{Facts, Session};
pub use target::{Addresses, Algorithms, KeepAlive, Proxy, Purpose, Rekey, Target};
