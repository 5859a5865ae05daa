//! What a check of this machine or of its network has found, in words for an operator.

text::words! {
    /// Verdict of a check.
    pub enum State: "state" {
        Ok = "ok",
        Fault = "fault",
        /// It cannot be told from here.
        Unknown = "unknown",
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at, in a word for programs.
    pub check: &'static str,
    pub state: State,
    /// One sentence: what is so, and of a fault what follows from it.
    pub text: String,
    /// Commands that mend a fault, in their order; or what to do, if no command does it.
    pub mend: Vec<String>,
}

impl Finding {
    pub fn ok(check: &'static str, text: impl Into<String>) -> Self {
        Self { check, state: State::Ok, text: text.into(), mend: Vec::new() }
    }

    pub fn unknown(check: &'static str, text: impl Into<String>) -> Self {
        Self { check, state: State::Unknown, text: text.into(), mend: Vec::new() }
    }

    pub fn fault(check: &'static str, text: impl Into<String>, mend: Vec<String>) -> Self {
        Self { check, state: State::Fault, text: text.into(), mend }
    }

    pub fn is_fault(&self) -> bool {
        self.state == State::Fault
    }
}
