//! SSH without a connection: public keys, fingerprints, and the `ssh_config` settings of a host.

pub mod config;
pub mod key;
pub mod place;
pub mod unconnected;
