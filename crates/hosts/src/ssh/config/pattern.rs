//! Patterns with `*` and `?`, and lists of patterns with `!`, for `Host`, `Match` and lists of algorithms.

/// Matches `text` with `pattern`, where `*` is any text and `?` any one character.
///
/// The time is at most proportional to the product of the lengths.
pub(super) fn matches(text: &str, pattern: &str) -> bool {
    let (text, pattern) = (text.as_bytes(), pattern.as_bytes());
    let (mut at, mut p) = (0, 0);
    // Position after the last star in the pattern, and position in the text from which to match the rest.
    let mut star: Option<(usize, usize)> = None;
    while at < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p + 1, at));
                p += 1;
            }
            Some(&c) if c == b'?' || c == text[at] => {
                at += 1;
                p += 1;
            }
            _ => match star {
                Some((after, from)) => {
                    star = Some((after, from + 1));
                    (p, at) = (after, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

/// Result of matching a text with a list of patterns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Listed {
    /// A pattern matches, and none with `!` does.
    Yes,
    No,
    /// A pattern with `!` matches.
    Excluded,
}

/// Matches a text with a list of patterns, separated by commas.
pub(super) fn listed(text: &str, list: &str) -> Listed {
    let mut found = Listed::No;
    // No pattern follows a final comma.
    let list = list.strip_suffix(',').unwrap_or(list);
    for pattern in list.split(',').filter(|_| !list.is_empty()) {
        let (negated, pattern) = match pattern.strip_prefix('!') {
            Some(pattern) => (true, pattern),
            None => (false, pattern),
        };
        if pattern.len() >= LONGEST {
            return Listed::No;
        }
        if matches(text, pattern) {
            if negated {
                return Listed::Excluded;
            }
            found = Listed::Yes;
        }
    }
    found
}

/// Like [`listed`], for host names, without regard to case.
pub(super) fn host_listed(host: &str, list: &str) -> Listed {
    listed(&host.to_ascii_lowercase(), &list.to_ascii_lowercase())
}

/// Limit of a pattern in a list in OpenSSH.
const LONGEST: usize = 1023;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks_match_as_in_a_shell() {
        for (text, pattern) in
            [("web1", "web?"), ("web1", "*"), ("", "*"), ("a.b.c", "a.*.c"), ("aXbXb", "a*b"), ("ab", "*?b")]
        {
            assert!(matches(text, pattern), "{text} {pattern}");
        }
        for (text, pattern) in
            [("web", "web?"), ("web12", "web?"), ("", "?"), ("Web1", "web1"), ("ab", "a*c")]
        {
            assert!(!matches(text, pattern), "{text} {pattern}");
        }
    }

    #[test]
    fn many_stars_take_no_exponential_time() {
        assert!(!matches(&"a".repeat(5_000), &"*a".repeat(200).replace("*a*a", "*a*b")));
    }

    #[test]
    fn a_negated_match_excludes_wherever_it_stands() {
        assert_eq!(listed("web1", "web*,!web1"), Listed::Excluded);
        assert_eq!(listed("web1", "!web2,web*"), Listed::Yes);
        assert_eq!(listed("web1", "!web2"), Listed::No);
        assert_eq!(host_listed("WEB1", "Web*"), Listed::Yes);
        assert_eq!(listed("", ""), Listed::No);
        assert_eq!(listed("", "a,,b"), Listed::Yes);
    }
}
