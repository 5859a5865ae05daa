//! The upgrade of a running server by the real binary: what goes on, and what does not happen.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod changes;
mod front;
mod io_uring;
mod kinds;
mod many;
mod points;
mod refused;
mod sessions;
mod takes_over;
mod websockets;
