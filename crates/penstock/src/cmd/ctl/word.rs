//! A word of the control protocol, as an argument of a command.

use std::borrow::Cow;

/// Parses a text that is not empty and has no control characters.
pub(super) fn parse_word(text: &str) -> Result<String, String> {
    if text.is_empty() || text.chars().any(char::is_control) {
        return Err("it must not be empty or hold control characters".to_owned());
    }
    Ok(text.to_owned())
}

/// Parses a time; a number alone is seconds, as in the other options of `penstock`.
pub(super) fn parse_time(text: &str) -> Result<String, String> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    parse_word(text).map(|word| if is_number { format!("{word}s") } else { word })
}

/// Quotes a word for the protocol if it contains spaces, or would ask for JSON.
pub(super) fn quoted(word: &str) -> Cow<'_, str> {
    if !word.starts_with('"') && !word.contains(char::is_whitespace) && word != "json" {
        return Cow::Borrowed(word);
    }
    Cow::Owned(format!("\"{}\"", word.replace('\\', r"\\").replace('"', "\\\"")))
}
