//! The command language of the hosts: simple commands joined by `;`, `&&`, `||` and line ends, quotes, `$NAME`, and
//! redirections between the two output streams. Other syntax is an error.

use thiserror::Error;

/// A simple command, and the condition under which it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    pub join: Join,
    pub words: Vec<Word>,
    pub stdout: Sink,
    pub stderr: Sink,
}

/// Condition on the result of the previous command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Join {
    Always,
    AfterSuccess,
    AfterFailure,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sink {
    Stdout,
    Stderr,
    Nowhere,
}

/// Parts of a word, which are joined when the command runs.
pub(crate) type Word = Vec<Piece>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    Text(Vec<u8>),
    /// Name of `$NAME` or `${NAME}`, or `?`.
    Variable(String),
}

/// Error in a command of the lab.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum ScriptError {
    #[error("a quote is not closed")]
    Quote,
    #[error("nothing stands before {0}")]
    Empty(&'static str),
    #[error("only >&2, 2>&1, >/dev/null, 2>/dev/null, &>/dev/null and </dev/null are understood, not {0}")]
    Redirection(String),
    #[error("the built-in shell of the lab does not know {0}")]
    Unknown(&'static str),
}

/// Parses a command line, or a script of several lines.
pub(crate) fn parse(text: &[u8]) -> Result<Vec<Step>, ScriptError> {
    let mut reader = Reader { text, at: 0 };
    let mut steps = Vec::new();
    let mut join = Join::Always;
    let mut before = None;
    loop {
        let (step, end) = reader.simple(join)?;
        let is_empty = step.words.is_empty();
        match (end, before) {
            (Mark::And, _) if is_empty => return Err(ScriptError::Empty("&&")),
            (Mark::Or, _) if is_empty => return Err(ScriptError::Empty("||")),
            (Mark::Semicolon, _) if is_empty => return Err(ScriptError::Empty(";")),
            // A line may end after `&&` or `||`.
            (Mark::Line, Some(Mark::And | Mark::Or)) if is_empty => continue,
            (Mark::End, Some(Mark::And | Mark::Or)) if is_empty => {
                return Err(ScriptError::Empty("the end of the line"));
            }
            _ => {}
        }
        if !is_empty {
            steps.push(step);
        }
        join = match end {
            Mark::End => return Ok(steps),
            Mark::Line | Mark::Semicolon => Join::Always,
            Mark::And => Join::AfterSuccess,
            Mark::Or => Join::AfterFailure,
        };
        before = Some(end);
    }
}

/// The end of a simple command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    End,
    Line,
    Semicolon,
    And,
    Or,
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn simple(&mut self, join: Join) -> Result<(Step, Mark), ScriptError> {
        let mut step = Step { join, words: Vec::new(), stdout: Sink::Stdout, stderr: Sink::Stderr };
        loop {
            let Some(byte) = self.peek() else { return Ok((step, Mark::End)) };
            match byte {
                b' ' | b'\t' | b'\r' => self.at += 1,
                b'\n' => return Ok((step, self.take(1, Mark::Line))),
                b'#' => self.skip_comment(),
                b';' if self.next_is(b';') => return Err(ScriptError::Unknown("case")),
                b';' => return Ok((step, self.take(1, Mark::Semicolon))),
                b'&' if self.next_is(b'&') => return Ok((step, self.take(2, Mark::And))),
                b'&' if self.next_is(b'>') => self.redirect(&mut step)?,
                b'&' => return Err(ScriptError::Unknown("processes in the background")),
                b'|' if self.next_is(b'|') => return Ok((step, self.take(2, Mark::Or))),
                b'|' => return Err(ScriptError::Unknown("pipes")),
                b'(' | b')' => return Err(ScriptError::Unknown("parentheses")),
                b'>' | b'<' => self.redirect(&mut step)?,
                b'1' | b'2' if self.next_is(b'>') => self.redirect(&mut step)?,
                _ => {
                    let word = self.word()?;
                    if let [Piece::Text(text)] = &word[..]
                        && let Some(keyword) = KEYWORDS.iter().find(|keyword| keyword.as_bytes() == text)
                        && step.words.is_empty()
                    {
                        return Err(ScriptError::Unknown(keyword));
                    }
                    step.words.push(word);
                }
            }
        }
    }

    fn redirect(&mut self, step: &mut Step) -> Result<(), ScriptError> {
        let start = self.at;
        while self.peek().is_some_and(|byte| !matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | b';' | b'|')) {
            self.at += 1;
        }
        // `> /dev/null` contains a blank.
        let mut text = String::from_utf8_lossy(&self.text[start..self.at]).into_owned();
        if text.ends_with(['>', '<']) {
            while matches!(self.peek(), Some(b' ' | b'\t')) {
                self.at += 1;
            }
            let start = self.at;
            while self.peek().is_some_and(|byte| !byte.is_ascii_whitespace() && !b";|&".contains(&byte)) {
                self.at += 1;
            }
            text += &String::from_utf8_lossy(&self.text[start..self.at]);
        }
        match text.as_str() {
            ">&2" | "1>&2" => step.stdout = step.stderr,
            "2>&1" => step.stderr = step.stdout,
            ">/dev/null" | "1>/dev/null" => step.stdout = Sink::Nowhere,
            "2>/dev/null" => step.stderr = Sink::Nowhere,
            "&>/dev/null" => (step.stdout, step.stderr) = (Sink::Nowhere, Sink::Nowhere),
            "</dev/null" => {}
            _ => return Err(ScriptError::Redirection(text.escape_default().to_string())),
        }
        Ok(())
    }

    fn word(&mut self) -> Result<Word, ScriptError> {
        let mut word = Word::new();
        // A pair of quotes without content is a word.
        let mut text = Vec::new();
        let mut quoted = false;
        while let Some(byte) = self.peek() {
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' | b';' | b'&' | b'|' | b'<' | b'>' | b'(' | b')' => break,
                b'\'' => {
                    quoted = true;
                    self.at += 1;
                    let rest = &self.text[self.at..];
                    let end = rest.iter().position(|byte| *byte == b'\'').ok_or(ScriptError::Quote)?;
                    text.extend_from_slice(&rest[..end]);
                    self.at += end + 1;
                }
                b'"' => {
                    quoted = true;
                    self.at += 1;
                    self.double_quoted(&mut word, &mut text)?;
                }
                b'\\' => {
                    self.at += 1;
                    match self.peek() {
                        Some(b'\n') => {}
                        Some(byte) => text.push(byte),
                        None => text.push(b'\\'),
                    }
                    self.at += 1;
                }
                b'`' => return Err(ScriptError::Unknown("the output of commands in a command line")),
                b'$' => self.variable(&mut word, &mut text)?,
                byte => {
                    text.push(byte);
                    self.at += 1;
                }
            }
        }
        if !text.is_empty() || (word.is_empty() && quoted) {
            word.push(Piece::Text(text));
        }
        Ok(word)
    }

    fn double_quoted(&mut self, word: &mut Word, text: &mut Vec<u8>) -> Result<(), ScriptError> {
        loop {
            match self.peek().ok_or(ScriptError::Quote)? {
                b'"' => {
                    self.at += 1;
                    return Ok(());
                }
                b'\\' if self.text.get(self.at + 1).is_some_and(|next| b"\"\\$`".contains(next)) => {
                    text.push(self.text[self.at + 1]);
                    self.at += 2;
                }
                b'`' => return Err(ScriptError::Unknown("the output of commands in a command line")),
                b'$' => self.variable(word, text)?,
                byte => {
                    text.push(byte);
                    self.at += 1;
                }
            }
        }
    }

    fn variable(&mut self, word: &mut Word, text: &mut Vec<u8>) -> Result<(), ScriptError> {
        self.at += 1;
        let rest = &self.text[self.at..];
        let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        let (name, length) = match rest.first() {
            Some(b'(') => return Err(ScriptError::Unknown("the output of commands in a command line")),
            Some(b'?') => ("?".to_owned(), 1),
            Some(b'{') => {
                let end = rest.iter().position(|byte| *byte == b'}').ok_or(ScriptError::Quote)?;
                let name = &rest[1..end];
                if name.is_empty() || !name.iter().all(is_name) {
                    return Err(ScriptError::Unknown("what stands in these braces"));
                }
                (String::from_utf8_lossy(name).into_owned(), end + 1)
            }
            _ => {
                let length = rest.iter().take_while(|byte| is_name(byte)).count();
                (String::from_utf8_lossy(&rest[..length]).into_owned(), length)
            }
        };
        if length == 0 {
            text.push(b'$');
            return Ok(());
        }
        if !text.is_empty() {
            word.push(Piece::Text(std::mem::take(text)));
        }
        word.push(Piece::Variable(name));
        self.at += length;
        Ok(())
    }

    fn skip_comment(&mut self) {
        while self.peek().is_some_and(|byte| byte != b'\n') {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn next_is(&self, byte: u8) -> bool {
        self.text.get(self.at + 1) == Some(&byte)
    }

    fn take(&mut self, length: usize, mark: Mark) -> Mark {
        self.at += length;
        mark
    }
}

const KEYWORDS: [&str; 8] = ["if", "for", "while", "until", "case", "{", "function", "!"];

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<Vec<String>> {
        let show = |word: &Word| {
            word.iter()
                .map(|piece| match piece {
                    Piece::Text(text) => String::from_utf8_lossy(text).into_owned(),
                    Piece::Variable(name) => format!("<{name}>"),
                })
                .collect()
        };
        parse(text.as_bytes()).unwrap().iter().map(|step| step.words.iter().map(show).collect()).collect()
    }

    #[test]
    fn words_are_split_and_quotes_taken_away_as_a_shell_does_it() {
        assert_eq!(words("echo a  'b c' \"d $E\" f\\ g ''"), [["echo", "a", "b c", "d <E>", "f g", ""]]);
        assert_eq!(words("echo ${A}b$? $"), [["echo", "<A>b<?>", "$"]]);
        assert_eq!(words("# nothing\n\n true # yes\n"), [["true"]]);
        assert_eq!(words(""), Vec::<Vec<String>>::new());
    }

    #[test]
    fn commands_are_joined_as_they_say() {
        let steps = parse(b"a; b && c ||\nd\ne").unwrap();
        let joins: Vec<_> = steps.iter().map(|step| step.join).collect();
        use Join::{AfterFailure, AfterSuccess, Always};
        assert_eq!(joins, [Always, Always, AfterSuccess, AfterFailure, Always]);
    }

    #[test]
    fn output_goes_where_it_is_sent() {
        let sinks = |text: &str| {
            let steps = parse(text.as_bytes()).unwrap();
            (steps[0].stdout, steps[0].stderr)
        };
        assert_eq!(sinks("echo a >&2"), (Sink::Stderr, Sink::Stderr));
        assert_eq!(sinks("echo a > /dev/null 2>&1"), (Sink::Nowhere, Sink::Nowhere));
        assert_eq!(sinks("echo a 2>&1 >/dev/null"), (Sink::Nowhere, Sink::Stdout));
        assert_eq!(sinks("cat </dev/null"), (Sink::Stdout, Sink::Stderr));
    }

    #[test]
    fn what_is_not_understood_is_refused_and_not_guessed() {
        let error = |text: &str| parse(text.as_bytes()).unwrap_err();
        assert_eq!(error("a | b"), ScriptError::Unknown("pipes"));
        assert_eq!(error("echo $(date)"), error("echo `date`"));
        assert_eq!(error("if true"), ScriptError::Unknown("if"));
        assert_eq!(error("sleep 1 &"), ScriptError::Unknown("processes in the background"));
        assert_eq!(error("echo 'a"), ScriptError::Quote);
        assert_eq!(error("&& a"), ScriptError::Empty("&&"));
        assert!(matches!(error("echo a > file"), ScriptError::Redirection(_)));
    }
}
