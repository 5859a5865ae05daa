//! Decisions about SSH that need no connection: keys and their fingerprints, and what `ssh_config` says of a host.

pub mod config;
pub mod key;
pub mod place;
pub mod unconnected;
