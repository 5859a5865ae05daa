//! The keys we may log in with.

use std::path::PathBuf;

/// Which keys may be offered to a host, and in what order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyPlan {
    /// Private key files.
    pub files: Vec<PathBuf>,
}

/// The keys of this process, shared by all its connections.
#[derive(Debug, Default)]
pub struct Keys {}

impl Keys {
    /// No keys loaded yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}
