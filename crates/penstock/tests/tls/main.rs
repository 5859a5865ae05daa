//! TLS on listeners and to backends, and where certificates come from.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod acme;
mod acme_command;
mod acme_dns;
mod backends;
mod certificates;
mod client_certificates;
mod faults;
mod grade;
mod listeners;
mod sessions;
mod staples;
