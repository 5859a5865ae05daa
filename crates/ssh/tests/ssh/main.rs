//! The client against real servers, and what it knows of hosts before it connects.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod authentication;
mod commands;
mod doors;
mod files;
mod gates;
mod odd_servers;
mod packets;
mod proof;
mod refusals;
mod rekey;
mod ssh_config;
mod streams;
mod support;
mod target;
mod ways;
