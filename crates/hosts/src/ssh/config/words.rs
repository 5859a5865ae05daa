//! Splits lines into words: quotes, escapes, comments, and the optional `=` after a keyword.

/// Keyword of a line, or the reason why there is none.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Head<'a> {
    /// Keyword in lower case, and the rest of the line after white space and `=`.
    Keyword(String, &'a str),
    Empty,
    /// The keyword has an opening quote without an end. OpenSSH ignores such a line silently.
    OpenQuote,
}

const WHITE: [char; 4] = [' ', '\t', '\r', '\n'];

pub(super) fn head(line: &str) -> Head<'_> {
    let line = line.trim_end_matches([' ', '\t', '\r', '\n', '\u{c}']);
    let Some((mut keyword, mut rest)) = delimited(line) else { return Head::OpenQuote };
    if keyword.is_empty() {
        match delimited(rest) {
            Some((word, after)) => (keyword, rest) = (word, after),
            None => return Head::OpenQuote,
        }
    }
    if keyword.is_empty() || keyword.starts_with('#') {
        return Head::Empty;
    }
    Head::Keyword(keyword.to_ascii_lowercase(), rest.trim_start_matches(WHITE))
}

/// Splits off the first word, up to white space, one `=`, or the end of a quoted part. `None` for an open quote.
fn delimited(text: &str) -> Option<(String, &str)> {
    let Some(at) = text.find([' ', '\t', '\r', '\n', '"', '=']) else { return Some((text.to_owned(), "")) };
    let (word, rest) = text.split_at(at);
    if let Some(quoted) = rest.strip_prefix('"') {
        let (inside, rest) = quoted.split_once('"')?;
        return Some((format!("{word}{inside}"), rest.trim_start_matches(WHITE)));
    }
    let equals = rest.starts_with('=');
    let mut rest = rest[1..].trim_start_matches(WHITE);
    if !equals && let Some(after) = rest.strip_prefix('=') {
        rest = after.trim_start_matches(WHITE);
    }
    Some((word.to_owned(), rest))
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct OpenQuote;

/// Splits an argument list into words. `"` and `'` quote; a backslash escapes quotes, itself and, outside quotes, a
/// space; `#` at the start of a word starts a comment.
pub(super) fn words(text: &str) -> Result<Vec<String>, OpenQuote> {
    let mut words = Vec::new();
    let mut chars = text.chars().peekable();
    loop {
        while chars.next_if(|c| matches!(c, ' ' | '\t')).is_some() {}
        match chars.peek() {
            None | Some('#') => return Ok(words),
            Some(_) => {}
        }
        let mut word = String::new();
        let mut quote = None;
        while let Some(c) = chars.next() {
            match (c, quote) {
                ('\\', _) => {
                    let escaped = chars.next_if(|next| {
                        matches!(next, '\'' | '"' | '\\') || (quote.is_none() && *next == ' ')
                    });
                    word.push(escaped.unwrap_or('\\'));
                }
                (' ' | '\t', None) => break,
                ('"' | '\'', None) => quote = Some(c),
                (c, Some(open)) if c == open => quote = None,
                (c, _) => word.push(c),
            }
        }
        if quote.is_some() {
            return Err(OpenQuote);
        }
        words.push(word);
    }
}

pub(super) fn command(text: &str) -> &str {
    text.trim_start_matches([' ', '\t', '\r', '\n', '='])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keyword(line: &str) -> (String, String) {
        match head(line) {
            Head::Keyword(keyword, rest) => (keyword, rest.to_owned()),
            other => panic!("{line:?}: {other:?}"),
        }
    }

    #[test]
    fn one_equals_sign_may_stand_between_keyword_and_argument() {
        for line in ["Port 22", "  Port=22", "port = 22", "PORT\t=\t22  ", "\"Port\" 22", "Port 22\r\n"] {
            assert_eq!(keyword(line), ("port".to_owned(), "22".to_owned()), "{line:?}");
        }
        assert_eq!(keyword("Port == 22").1, "= 22");
        assert_eq!(keyword("Port").1, "");
    }

    #[test]
    fn empty_lines_and_comments_are_nothing() {
        for line in ["", "   ", "\t\r\n", "# Port 22", "  #Port"] {
            assert_eq!(head(line), Head::Empty, "{line:?}");
        }
        assert_eq!(head("\"Port 22"), Head::OpenQuote);
    }

    #[test]
    fn quotes_and_escapes_make_one_word() {
        let of = |text| words(text).unwrap();
        assert_eq!(of(r#"a "b c" 'd "e' f\ g"#), ["a", "b c", "d \"e", "f g"]);
        assert_eq!(of(r#"a"b c"d \"x \\ \n"#), ["ab cd", "\"x", "\\", "\\n"]);
        assert_eq!(of(r#""a\ b" "" x#y #z"#), ["a\\ b", "", "x#y"]);
        assert_eq!(words("a \"b"), Err(OpenQuote));
        assert_eq!(words("a # \"b"), Ok(vec!["a".to_owned()]));
    }
}
