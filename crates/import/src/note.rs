//! What is said of an option, command or line that is not simply the same in our configuration.

use std::fmt;

use text::terminal::plain;

text::words! {
    /// What a note is about.
    pub enum Effect: "effect of a translation" {
        /// It has another form here, or does more than before.
        Changed = "changed",
        /// Left out; clients get the same.
        Dropped = "dropped",
        /// As before, and worth knowing.
        Same = "same",
        /// Not translated, and clients may get something else.
        Missing = "missing",
    }
}

/// What changed or was left out, where, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub effect: Effect,
    /// The option, or file and line.
    pub place: String,
    pub text: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.effect, plain(&self.place), plain(&self.text))
    }
}

/// A configuration, and what is to be said about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The configuration, with the notes as comments.
    pub toml: String,
    /// In the order of the configuration.
    pub notes: Vec<Note>,
}

impl Translation {
    /// Notes about what could not be translated.
    pub fn missing(&self) -> impl Iterator<Item = &Note> {
        self.notes.iter().filter(|note| note.effect == Effect::Missing)
    }
}
