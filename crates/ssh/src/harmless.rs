//! Text of peers and files on its way to a person: banners, comments of keys, names in certificates, messages of agents.

pub use logic::harmless::escaped as harmless;

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
    fn a_path_in_advice_is_one_word_of_the_shell() {
        assert_eq!(shell_word(Path::new("/home/a/.ssh/id_ed25519")), "/home/a/.ssh/id_ed25519");
        assert_eq!(shell_word(Path::new("/x/my key")), "'/x/my key'");
        assert_eq!(shell_word(Path::new("/x/it's; rm")), r"'/x/it'\''s; rm'");
    }
}
