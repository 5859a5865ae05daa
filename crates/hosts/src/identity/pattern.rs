//! Patterns of OpenSSH: `*`, `?`, and lists with `!` (ssh_config(5), PATTERNS).

use std::fmt;

/// Matches `text` with `pattern`, where `*` is any text and `?` any one character. ASCII case is ignored, as in host
/// names.
#[must_use]
pub fn wildcard(pattern: &str, text: &str) -> bool {
    text::wildcard::matches(pattern, text, |one, other| one.eq_ignore_ascii_case(&other))
}

/// List of patterns, separated by commas. A name matches if one pattern matches and no pattern with `!` does.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Patterns(Vec<Box<str>>);

impl Patterns {
    /// Parses a list; `None` for an empty part or a character that no name has.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let parts: Vec<Box<str>> = text.split(',').map(Into::into).collect();
        let is_fine = |part: &str| {
            let name = part.strip_prefix('!').unwrap_or(part);
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && !b"!#|,".contains(&byte))
        };
        parts.iter().all(|part| is_fine(part)).then_some(Self(parts))
    }

    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let refused =
            self.0.iter().filter_map(|part| part.strip_prefix('!')).any(|part| wildcard(part, name));
        let mut wanted = self.0.iter().filter(|part| !part.starts_with('!'));
        !refused && wanted.any(|part| wildcard(part, name))
    }

    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(AsRef::as_ref)
    }

    /// True if every part is a plain name, without wildcard or `!`.
    #[must_use]
    pub fn are_names(&self) -> bool {
        self.parts().all(|part| !part.contains(['*', '?']) && !part.starts_with('!'))
    }
}

impl fmt::Display for Patterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_match_as_those_of_openssh() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("*.example.com", "web1.example.com", true),
            ("*.example.com", "example.com", false),
            ("web?", "web1", true),
            ("web?", "web", false),
            ("WEB1", "web1", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("[web1]:22*", "[web1]:2222", true),
        ] {
            assert_eq!(wildcard(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn negation_wins_wherever_it_stands() {
        let patterns = Patterns::parse("*.example.com,!db.example.com").unwrap();
        assert!(patterns.matches("web1.example.com"));
        assert!(!patterns.matches("db.example.com"));
        assert!(!Patterns::parse("!db").unwrap().matches("web1"), "a list of refusals takes nothing");
        assert_eq!(Patterns::parse("a,,b"), None);
    }
}
