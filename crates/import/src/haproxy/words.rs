//! Splits a line into words, as HAProxy does: blanks separate, quotes and backslashes protect, `#` begins a comment.

/// The words of a line; `Err` says what is wrong with it.
pub(super) fn words(line: &str) -> Result<Vec<String>, &'static str> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (None, '#') => break,
            (None, ' ' | '\t' | '\r') => words.extend(word.take()),
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (Some(open), c) if c == open => quote = None,
            (None | Some('"'), '\\') => {
                let next = chars.next().ok_or("it ends with a backslash")?;
                word.get_or_insert_default().push(next);
            }
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err("a quote is not closed");
    }
    words.extend(word);
    Ok(words)
}

/// A time: a number, in milliseconds without a unit. The result is in milliseconds.
pub(super) fn milliseconds(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    match unit {
        "us" => Some(number / 1000),
        "" | "ms" => Some(number),
        "s" => number.checked_mul(1000),
        "m" => number.checked_mul(60_000),
        "h" => number.checked_mul(3_600_000),
        "d" => number.checked_mul(86_400_000),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_split_as_haproxy_splits_them() {
        for (line, expected) in [
            ("  bind :80 # all", &["bind", ":80"][..]),
            ("a \"b c\" 'd \\e' f\\ g \"\"", &["a", "b c", "d \\e", "f g", ""]),
            ("", &[]),
            ("a\\#b \"x\\\"y\"", &["a#b", "x\"y"]),
        ] {
            assert_eq!(words(line).unwrap(), expected, "{line}");
        }
        assert!(words("a 'b").is_err());
        assert!(words("a\\").is_err());
    }

    #[test]
    fn times_are_milliseconds_without_a_unit() {
        for (text, expected) in
            [("5000", Some(5000)), ("5s", Some(5000)), ("1m", Some(60_000)), ("2us", Some(0))]
        {
            assert_eq!(milliseconds(text), expected, "{text}");
        }
        for text in ["", "s", "5x", "99999999999999999999"] {
            assert_eq!(milliseconds(text), None, "{text}");
        }
    }
}
