//! The upgrade of a running front door: a new process takes over what the old one has, and no connection ends.
//!
//! The old process may start no program once it serves (`crates/serve/src/confinement.rs`). So it starts a guardian before,
//! which waits with the same user and without a sandbox of files, and runs the program at a path that was fixed then
//! (`crates/serve/src/upgrade/guardian.rs`; the check of the path: `crates/serve/src/upgrade/program.rs`). Old and new process
//! then speak `crates/serve/src/upgrade/protocol.rs` over a pair of sockets that only they have:
//!
//! 1. The new process reads its configuration and says hello; the old one gives it its listening sockets
//!    (`crates/serve/src/upgrade/hand_over.rs`, `crates/serve/src/upgrade/take_over.rs`).
//! 2. The new process gives its rights up, makes its snapshot, starts its workers without sockets, and says that it is ready.
//! 3. The old one gives it its counters, the health of backends, marks and clients, and says go.
//! 4. The new one accepts clients, and says that it serves. From here on there is no way back: the old one accepts no more, and ends
//!    with its last session (`crates/serve/src/start/upgrade.rs`).
//! 5. The old one offers its TCP sessions and WebSockets without TLS, one by one with their connections, and the new one takes them
//!    (`crates/serve/src/upgrade/sessions.rs`, `crates/serve/src/upgrade/older.rs`, `crates/proxy/src/given.rs`).
//!
//! Until the fourth step the old process has given nothing away: after every failure it serves on.

pub mod guardian;
pub(crate) mod hand_over;
pub(crate) mod offer;
pub(crate) mod older;
mod program;
pub(crate) mod protocol;
pub(crate) mod sessions;
pub mod take_over;

pub use program::Launch;
