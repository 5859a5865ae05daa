//! Who gets a session, how many descriptors it may hold, and TCP that passes through.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod balance;
mod descriptors;
mod passthrough;
mod proxy_protocol;
mod quiet_clients;
mod shares;
mod sleepers;
mod turns;
mod udp;
mod unsent;
