//! Quoted texts of a configuration in faults.

/// Quotes a text and limits its length to a line.
pub(crate) fn quote(text: &str) -> String {
    text::terminal::quoted(text, LONGEST)
}

const LONGEST: usize = 80;
