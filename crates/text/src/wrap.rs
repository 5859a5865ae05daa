//! Wraps text at spaces.

/// Writes `start` and then the words of `text`, in lines of at most `width` characters; lines after the first begin with
/// `indent`. A longer word has a line of its own.
#[must_use]
pub fn wrapped(start: &str, indent: &str, text: &str, width: usize) -> String {
    let mut out = start.to_owned();
    let mut length = start.chars().count();
    let mut is_first = true;
    for word in text.split_whitespace() {
        let count = word.chars().count();
        if !is_first && length + 1 + count > width {
            out.push('\n');
            out.push_str(indent);
            length = indent.chars().count();
            is_first = true;
        }
        if !is_first {
            out.push(' ');
            length += 1;
        }
        out.push_str(word);
        length += count;
        is_first = false;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::wrapped;

    #[test]
    fn lines_are_filled_and_long_words_stay_whole() {
        assert_eq!(wrapped("- ", "  ", "one two  three\nfour", 9), "- one two\n  three\n  four");
        assert_eq!(wrapped("", "", "extraordinarily long", 6), "extraordinarily\nlong");
        assert_eq!(wrapped("start ", "  ", "", 3), "start ");
    }
}
