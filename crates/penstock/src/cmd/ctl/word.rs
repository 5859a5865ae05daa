//! A word of the control protocol, as an argument of a command.

/// Parses a text that is not empty and has no control characters.
pub(super) fn parse_word(text: &str) -> Result<String, String> {
    if text.is_empty() || text.chars().any(char::is_control) {
        return Err("it must not be empty or hold control characters".to_owned());
    }
    Ok(text.to_owned())
}
