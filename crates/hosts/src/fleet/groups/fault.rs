//! Faults in group files.

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}:{line}: {what}; {advice}")]
pub struct FileFault {
    pub place: String,
    /// Line number, from 1.
    pub line: usize,
    pub what: String,
    pub advice: String,
}
