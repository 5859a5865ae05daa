//! Tunnels: forwards over one supervised SSH connection, services that are asked whether they answer, and a job that is
//! wrapped in a mount. Decisions are in `logic/src/tunnel/`; here is everything that touches the machine.
//!
//! `run.rs` carries out the steps one by one and writes each into `journal.rs` before it begins; `job.rs` is the one in the
//! middle; `unwind.rs` does what a run that was killed could not do. `supervise.rs` keeps the connection of an `engine.rs`, `relay.rs` moves the bytes,
//! `prove.rs` asks the services, `control.rs` answers `status` and `down`, and `ending.rs` once there is nobody
//! to ask.

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
