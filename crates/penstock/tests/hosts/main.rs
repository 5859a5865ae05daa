//! Who a host is, and how it is reached: identities, `known_hosts`, `ssh_config`.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod enrolment;
mod files;
mod hints;
mod identity;
mod import_of_known_hosts;
mod known_hosts_command;
mod known_hosts_input;
mod known_hosts_stanza;
mod promises;
mod ssh_config;
mod ssh_explain;
mod sshfp;
mod witnesses;
