//! Faults of a change.

use std::fmt;

/// Reason why a change cannot be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EditError {
    pub message: String,
    pub hint: Option<String>,
}

impl EditError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None }
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

impl fmt::Display for EditError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.hint.iter().try_for_each(|hint| write!(f, "\n  hint: {hint}"))
    }
}

impl std::error::Error for EditError {}
