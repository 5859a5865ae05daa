//! Tunnels: forwards over an SSH connection, checks of services, the sequence of steps around a job (forwards, check,
//! mount, job, unmount, disconnect), and the undo list for the time after a crash.

pub mod answer;
pub mod backoff;
pub mod ending;
pub mod mounts;
pub mod plan;
pub mod sequence;
pub mod socks;
pub mod template;
pub mod undo;
