//! Tunnels: what is forwarded over an SSH connection, when a service counts as answering, the order in which a job is
//! wrapped (forwards, proof, mount, job, unmount, down), and what a crash leaves to be undone.

pub mod answer;
pub mod backoff;
pub mod ending;
pub mod mounts;
pub mod plan;
pub mod sequence;
pub mod socks;
pub mod template;
pub mod undo;
