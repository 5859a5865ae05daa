//! Functions of the operating system: socket options, splice, privileges, the sandbox, descriptors, cores.
//!
//! This crate calls no other crate of penstock. Only this crate may contain `unsafe`, and it is kept small so that all
//! its unsafe code can be reviewed at once. No function waits for a peer, starts a thread or keeps state (but
//! [`privilege::reduce`]: the limit that it replaced); every function takes one step and returns its error to the caller.

#[cfg(feature = "mimalloc")]
pub mod allocator;
pub mod bpf;
pub mod cache;
pub mod child;
pub mod cpu;
pub mod datagram;
pub mod descriptors;
pub mod directories;
pub mod features;
pub mod file;
pub mod file_size;
pub mod gssapi;
pub mod immutable;
mod inherited;
pub mod interfaces;
pub mod lock;
pub mod low_water;
pub mod memory;
pub mod message_socket;
pub mod neighbour;
pub mod packet;
pub mod peer;
pub mod pid_file;
pub mod privilege;
pub mod process;
pub mod ring;
pub mod sandbox;
pub mod socket;
pub mod splice;
pub mod tcp_info;
pub mod terminal;
pub mod threads;
mod unix_listener;
