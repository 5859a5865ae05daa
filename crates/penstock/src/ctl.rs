//! The control protocol, as a client speaks it.

pub mod client;
