//! Client side of the control protocol.

pub(crate) mod client;
