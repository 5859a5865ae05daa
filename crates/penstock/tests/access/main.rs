//! Who may operate it: log-ins over the network, with programs of others and with an attacker of our own.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod admin;
mod broken;
mod ctl;
mod guesses;
mod kdc;
mod kerberos;
mod log_in;
mod matrix;
mod peer;
mod preparation;
mod programs;
mod site;
mod ssh_keys;
mod step_up;
mod table;
mod tokens;
mod unusable;
mod wrong;
