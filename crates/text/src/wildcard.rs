//! Patterns with `*` for any text and `?` for any one character, as a shell and OpenSSH have them.

/// Matches `text` with `pattern`; `is_same` compares two characters. The time is at most proportional to the product of
/// the lengths.
#[must_use]
pub fn matches(pattern: &str, text: &str, is_same: impl Fn(char, char) -> bool) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p + 1, t));
                p += 1;
            }
            Some(one) if *one == '?' || is_same(*one, text[t]) => (p, t) = (p + 1, t + 1),
            // Backtrack: the last star matches one more character.
            _ => match star {
                Some((after, taken)) => {
                    star = Some((after, taken + 1));
                    (p, t) = (after, taken + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|one| *one == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_match_as_in_a_shell() {
        for (pattern, text, fits) in [
            ("*", "", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("web?", "web", false),
            ("*a*b*", "xxaybz", true),
            ("*a*b*", "xxby", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("?", "\u{e4}", true),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern, text, |one, other| one == other), fits, "{pattern} {text}");
        }
    }

    #[test]
    fn patterns_made_to_be_slow_are_not() {
        assert!(!matches(&"*a".repeat(2_000), &"a".repeat(1_999), |one, other| one == other));
    }
}
