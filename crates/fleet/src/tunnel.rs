//! Tunnels: forwards over one supervised SSH connection, services that are asked whether they answer, and a job that is
//! wrapped in a mount. Decisions are in `logic/src/tunnel/`; here is everything that touches the machine.
//!
//! # The path of a tunnel
//!
//! 1. `crates/config/src/parse/tunnel.rs` makes a `crates/logic/src/tunnel/plan.rs`; `crates/penstock/src/cmd/tunnel.rs` calls
//!    `crates/fleet/src/tunnel.rs`.
//! 2. `crates/fleet/src/tunnel/run.rs` does what `crates/logic/src/tunnel/sequence.rs` says, one act after the other. What an act leaves
//!    behind (`crates/fleet/src/tunnel/left.rs`) is on a list on disk before it begins (`crates/fleet/src/tunnel/journal.rs`,
//!    `crates/logic/src/tunnel/undo.rs`). The command that it is brought up for is `crates/fleet/src/tunnel/job.rs`. One process at a
//!    time works on a tunnel (`crates/fleet/src/tunnel/lock.rs`).
//! 3. `crates/fleet/src/tunnel/supervise.rs` keeps the connection of an `crates/fleet/src/tunnel/engine.rs`:
//!    `crates/fleet/src/tunnel/native.rs` (our client) or `crates/fleet/src/tunnel/openssh.rs` (the user's ssh; what that
//!    says is read by `crates/fleet/src/tunnel/openssh/words.rs`). Its listeners outlive connections;
//!    `crates/fleet/src/tunnel/relay.rs` moves the bytes, `crates/fleet/src/tunnel/socks.rs` speaks SOCKS5.
//! 4. `crates/fleet/src/tunnel/prove.rs` asks the services; what counts as an answer is in `crates/logic/src/tunnel/answer.rs`.
//! 5. `crates/fleet/src/tunnel/mount.rs` guards and verifies the mount point, only through the kernel's list once something may be
//!    mounted. `crates/fleet/src/tunnel/processes.rs` finds what a run has started by its environment, also after it was killed.
//! 6. `crates/fleet/src/tunnel/unwind.rs` undoes what is on a list. `crates/fleet/src/tunnel/control.rs` answers `status` and `down`.
//! 7. In the front door `crates/serve/src/through.rs` keeps a tunnel for each backend behind SSH, ending in a private Unix socket
//!    that `crates/serve/src/connect.rs` connects to.

mod awake;
mod command;
mod control;
mod ending;
pub mod engine;
mod job;
mod journal;
mod left;
mod lock;
mod mount;
mod native;
mod openssh;
pub mod place;
mod processes;
mod prove;
mod relay;
mod run;
mod socks;
pub mod status;
mod stop;
pub mod supervise;
mod unwind;

pub use control::{AskError, Asked, ask};
pub use ending::last_run;
pub use journal::Odd;
pub use native::{Asking, Native};
pub use openssh::OpenSsh;
pub use place::{PlaceError, Places};
pub use run::{Patience, Run, RunError, Say, UP, Work};
pub use status::Status;
pub use unwind::{UnwindError, Unwound, is_left, left_over, unwind};
