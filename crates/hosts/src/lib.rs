//! Decisions about hosts, without I/O: selection of the hosts of a run, results of a run, host identities, SSH
//! configuration, steps of a tunnel. No sockets, no clock (the caller passes the time), no unsafe, no runtime.
//! `crates/fleet` and `crates/ssh` carry out the decisions.

pub mod authorized;
pub mod fleet;
pub mod identity;
pub mod ssh;
pub mod tunnel;
