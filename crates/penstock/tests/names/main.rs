//! Keys in the DNS: what is printed, pushed and checked, against real name servers and real programs that use the records.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod acme;
mod bind;
mod check;
mod clients;
mod domain;
mod gone;
mod host_key;
mod liar;
mod push;
mod records;
mod revoked;
mod roll;
