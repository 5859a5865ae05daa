//! Quoting of words for a shell.

use std::path::Path;

/// Quotes a text as one word for any POSIX shell and for fish. Backslashes stay outside the quotes, because in fish a
/// backslash in quotes is an escape.
#[must_use]
pub fn quote(text: &str) -> String {
    let mut word = String::with_capacity(text.len() + 2);
    word.push('\'');
    for c in text.chars() {
        match c {
            '\'' | '\\' => word.extend(['\'', '\\', c, '\'']),
            c => word.push(c),
        }
    }
    word.push('\'');
    word
}

/// Quotes the text only if it has special characters.
#[must_use]
pub fn word(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+@:%=,".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) { text.to_owned() } else { quote(text) }
}

/// Formats a path as a [`word`] that no program reads as an option. Control characters are escaped, so a path with such
/// characters cannot be pasted.
#[must_use]
pub fn path(path: &Path) -> String {
    let text = crate::terminal::escaped(&path.to_string_lossy(), LONGEST_PATH);
    let word = word(&text);
    if text.starts_with('-') { format!("./{word}") } else { word }
}

const LONGEST_PATH: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_in_advice_is_one_word_of_the_shell() {
        let cases = [
            ("/home/a/.ssh/id_ed25519", "/home/a/.ssh/id_ed25519"),
            ("/tmp/penstock-demo-1/ca.pem", "/tmp/penstock-demo-1/ca.pem"),
            ("/x/my key", "'/x/my key'"),
            ("/x/it's; rm $HOME", r"'/x/it'\''s; rm $HOME'"),
            ("-i", "./-i"),
            ("", "''"),
        ];
        for (text, word) in cases {
            assert_eq!(path(Path::new(text)), word);
        }
    }
}
