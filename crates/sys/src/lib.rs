//! What only the operating system can do: socket options, splice, privileges, descriptors, cores.
//!
//! Stands beside `logic`: `serve` and the binary call it, it calls neither. It is the only crate that may say
//! `unsafe`, and it is small so that this can be read in one sitting. Nothing here blocks on a peer, starts a
//! thread or keeps state; every function is one step whose failure the caller sees.

pub mod child;
pub mod cpu;
pub mod descriptors;
pub mod file_size;
pub mod immutable;
mod inherited;
pub mod lock;
pub mod low_water;
pub mod memory;
pub mod peer;
pub mod privilege;
pub mod process;
pub mod socket;
pub mod splice;
pub mod terminal;
mod threads;
mod unix_listener;
