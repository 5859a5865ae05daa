//! Text of peers and files on its way to a person: banners, comments of keys, names in certificates, messages of agents.

/// `text` without control characters, which a terminal may obey, and not longer than `longest` characters.
#[must_use]
pub fn harmless(text: &str, longest: usize) -> String {
    let mut out = String::with_capacity(text.len().min(longest));
    for (at, char) in text.chars().enumerate() {
        if at == longest {
            out.push('…');
            break;
        }
        match char {
            // Directions and invisible characters can make a line read as something else (CVE-2021-42574)
            '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}' => {
                out.push('\u{fffd}');
            }
            char if char.is_control() => out.extend(char.escape_default()),
            char => out.push(char),
        }
    }
    out
}

/// A path as a shell takes it, for advice that people paste.
#[must_use]
pub fn shell_word(path: &std::path::Path) -> String {
    let text = harmless(&path.to_string_lossy(), 4096);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+@:%=,".contains(&byte);
    if !text.is_empty() && !text.starts_with('-') && text.bytes().all(plain) {
        return text;
    }
    let quoted = format!("'{}'", text.replace('\'', r"'\''"));
    if text.starts_with('-') { format!("./{quoted}") } else { quoted }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn nothing_that_a_terminal_obeys_is_left() {
        assert_eq!(harmless("a\x1b[2J\u{9b}b\u{202e}c\n", 80), "a\\u{1b}[2J\\u{9b}b\u{fffd}c\\n");
        assert_eq!(harmless("abcdef", 3), "abc…");
    }

    #[test]
    fn a_path_in_advice_is_one_word_of_the_shell() {
        assert_eq!(shell_word(Path::new("/home/a/.ssh/id_ed25519")), "/home/a/.ssh/id_ed25519");
        assert_eq!(shell_word(Path::new("/x/my key")), "'/x/my key'");
        assert_eq!(shell_word(Path::new("/x/it's; rm")), r"'/x/it'\''s; rm'");
    }
}
