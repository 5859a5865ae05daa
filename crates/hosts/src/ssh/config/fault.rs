//! Faults of a configuration, with file and line.

use std::fmt;
use std::sync::Arc;

/// Line of a file. Line 0 means the whole file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Path as it was opened.
    pub file: Arc<str>,
    /// Line number, from 1.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.file),
            line => write!(f, "{}:{line}", self.file),
        }
    }
}

/// Fault of a configuration. Penstock does not connect before the fault is corrected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Place of the fault; `None` for the command line.
    pub place: Option<Place>,
    pub what: String,
    pub hint: Option<String>,
}

impl Fault {
    pub(super) fn new(place: &Place, what: String, hint: Option<String>) -> Self {
        Self { place: Some(place.clone()), what, hint }
    }
}

/// Writes `FILE:LINE: what`, and the hint on a second line.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "{place}: ")?;
        }
        f.write_str(&self.what)?;
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, "\n  hint: {hint}"))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults(pub Vec<Fault>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, fault) in self.0.iter().enumerate() {
            write!(f, "{}{fault}", if at == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}
