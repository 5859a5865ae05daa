//! One-time passwords: the command, the validation server, and the programs of others that use it.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod catching_up;
mod challenge;
mod check;
mod codes;
mod command;
mod factors;
mod faulty_daemon;
mod home_keys;
mod pam;
mod reasons;
mod several;
mod token;
mod unavailable;
mod validation;
mod yubico_clients;
