//! Faults of what is to be translated: text that the other program does not accept either, or that has no meaning here.

use std::fmt;

use text::terminal::plain;

/// One fault, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The option, or file and line.
    pub place: String,
    pub message: String,
    pub hint: Option<String>,
}

/// All faults of a command line or file; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults(pub Vec<Fault>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for fault in &self.0 {
            writeln!(f, "error: {}: {}", plain(&fault.place), plain(&fault.message))?;
            if let Some(hint) = &fault.hint {
                writeln!(f, "  hint: {}", plain(hint))?;
            }
        }
        Ok(())
    }
}
