//! Words of a command line of the control socket.

/// A word of a command.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) text: String,
    pub(super) quotes: Quotes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quotes {
    Given,
    None,
}

/// Splits a line into words. `"..."` keeps spaces; `\` inside quotes escapes the next character.
pub(super) fn split(line: &str) -> Result<Vec<Word>, &'static str> {
    let mut words = Vec::new();
    let mut chars = line.chars().peekable();
    while let Some(first) = chars.next() {
        if first.is_ascii_whitespace() {
            continue;
        }
        let mut text = String::new();
        let quotes = if first == '"' { Quotes::Given } else { Quotes::None };
        if quotes == Quotes::Given {
            loop {
                match chars.next() {
                    Some('"') => break,
                    Some('\\') => text.extend(chars.next()),
                    Some(char) => text.push(char),
                    None => return Err("a quote is not closed"),
                }
            }
        } else {
            text.push(first);
            while let Some(char) = chars.next_if(|char| !char.is_ascii_whitespace()) {
                text.push(char);
            }
        }
        words.push(Word { text, quotes });
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    #[test]
    fn words_are_split_at_blanks_outside_quotes() {
        let split = |line| {
            super::split(line).map(|words| words.into_iter().map(|word| word.text).collect::<Vec<_>>())
        };
        assert_eq!(split("  drain\tapp \"unix:/a b\\\"\" \r").unwrap(), ["drain", "app", "unix:/a b\""]);
        assert_eq!(split("\"\"").unwrap(), [""]);
        assert!(split("").unwrap().is_empty());
        assert!(split("drain \"unix:/a").is_err());
        assert!(split("\"a\\").is_err());
    }
}
