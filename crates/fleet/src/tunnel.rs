//! Tunnels: forwards over one supervised SSH connection, checks of the services behind them, and a job that runs while
//! a file system is mounted. The decisions are in `hosts/src/tunnel/`; this module has the input and output.
//!
//! # The path of a tunnel
//!
//! 1. `crates/config/src/parse/tunnel.rs` makes a `crates/hosts/src/tunnel/plan.rs`; `crates/penstock/src/cmd/tunnel.rs` calls
//!    `crates/fleet/src/tunnel.rs`.
//! 2. `crates/fleet/src/tunnel/run.rs` carries out the acts of `crates/hosts/src/tunnel/sequence.rs`, one after the
//!    other. Before an act begins, its traces (`crates/fleet/src/tunnel/left.rs`) are on the undo list on disk
//!    (`crates/fleet/src/tunnel/journal.rs`, `crates/hosts/src/tunnel/undo.rs`). `crates/fleet/src/tunnel/job.rs` runs
//!    the job. A lock (`crates/fleet/src/tunnel/lock.rs`) admits one process for each tunnel.
//! 3. `crates/fleet/src/tunnel/supervise.rs` keeps the connection of an `crates/fleet/src/tunnel/engine.rs`:
//!    `crates/fleet/src/tunnel/native.rs` (our client) or `crates/fleet/src/tunnel/openssh.rs` (the user's ssh, whose
//!    messages `crates/fleet/src/tunnel/openssh/words.rs` parses). Listeners stay open when a connection is lost;
//!    `crates/fleet/src/tunnel/relay.rs` accepts, `crates/fleet/src/tunnel/connection.rs` copies the bytes,
//!    `crates/fleet/src/tunnel/socks.rs` speaks SOCKS5.
//! 4. `crates/fleet/src/tunnel/prove.rs` checks the services; `crates/hosts/src/tunnel/answer.rs` decides what counts
//!    as an answer.
//! 5. `crates/fleet/src/tunnel/mount.rs` guards and verifies the mount point; once a file system may be mounted, it
//!    only reads the kernel's list of mounts. `crates/fleet/src/tunnel/processes.rs` finds the processes of a run by
//!    their environment, also after the run was killed.
//! 6. `crates/fleet/src/tunnel/unwind.rs` works off an undo list. `crates/fleet/src/tunnel/control.rs` answers `status`
//!    and `down`.
//! 7. In the front door `crates/serve/src/through.rs` keeps a tunnel for each backend behind SSH. The tunnel listens on
//!    a private Unix socket, to which `crates/proxy/src/connect.rs` connects.

mod awake;
mod command;
mod connection;
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
mod say;
mod socks;
pub mod status;
mod stop;
pub mod supervise;
mod unwind;

pub use control::{AskError, Asked, ask};
pub use ending::last_run;
pub use journal::UntrustedFile;
pub use native::{Asking, Native};
pub use openssh::OpenSsh;
pub use place::{PlaceError, Places};
pub use run::{RetryPolicy, Run, RunError, UP, Work};
pub use say::Say;
pub use status::Status;
pub use unwind::{UnwindError, Unwound, is_left, left_over, unwind};
