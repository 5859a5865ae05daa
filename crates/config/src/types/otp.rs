use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

/// `[otp]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Otp {
    /// Directory of the store.
    pub store: PathBuf,
    /// File with the key that seals its secrets.
    pub key_file: PathBuf,
    /// Names of the listeners that answer as a validation server.
    pub answering: HashSet<Arc<str>>,
}
