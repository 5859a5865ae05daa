//! Reasons for refusing a text of the file.

/// Reason for refusing a text. The words do not repeat the text, which may be a secret.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused {
    /// Continues a sentence that begins with the text: `is not a duration: the unit is missing`.
    pub(super) reason: String,
    /// Suggestion that contains the text.
    pub(super) instead: Option<String>,
    /// Suggestion without the text, for a text that must not be shown.
    pub(super) in_general: Option<&'static str>,
}

impl Refused {
    pub(super) fn new(reason: impl Into<String>) -> Self {
        Refused { reason: reason.into(), instead: None, in_general: None }
    }

    pub(super) fn instead(mut self, instead: impl Into<String>) -> Self {
        self.instead = Some(instead.into());
        self
    }

    pub(super) fn in_general(mut self, hint: &'static str) -> Self {
        self.in_general = Some(hint);
        self
    }
}
