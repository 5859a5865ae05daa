//! Client side of the control protocol.

pub(crate) mod client;
mod link;
pub(crate) mod remote;
