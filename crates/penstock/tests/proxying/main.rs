//! Who gets a session, how many descriptors it may hold, and TCP that passes through.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod access;
mod balance;
mod bandwidth;
mod between_networks;
mod countries;
mod descriptors;
mod discovery;
mod fallback;
mod fast_close;
mod io_uring;
mod outliers;
mod passthrough;
mod priority;
mod proxy_protocol;
mod quiet_clients;
mod shares;
mod sleepers;
mod source_address;
mod source_client;
mod source_limits;
mod tarpit;
mod turns;
mod udp;
mod unsent;
