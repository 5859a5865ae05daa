//! Decisions about SSH that need no connection: keys and their fingerprints.

pub mod key;
