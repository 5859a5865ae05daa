//! Decisions about many hosts at once: what happened on each.

pub mod ending;
