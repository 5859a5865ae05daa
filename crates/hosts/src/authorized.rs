//! Which keys may log in to the accounts of hosts: lines of `authorized_keys`, what was found on hosts and what is wrong with
//! it, and the scripts that look and change. `crates/penstock/src/cmd/user` carries them out.

pub mod audit;
pub mod line;
pub mod report;
pub mod script;
pub mod strength;
