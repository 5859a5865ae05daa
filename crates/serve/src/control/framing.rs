//! Wire format of an answer: `ok` or `error MESSAGE`, text lines, then a line with a single dot. A text line that
//! starts with a dot gets a second dot (as in SMTP, RFC 5321 section 4.5.2).

use text::terminal::line;

pub(super) fn answer(text: &str) -> Vec<u8> {
    let mut out = ok();
    push_text(&mut out, text);
    out.extend_from_slice(END);
    out
}

/// A complete refusal: message, then details.
pub(super) fn refusal(message: &str, details: &str) -> Vec<u8> {
    let mut out = format!("error {}\n", line(message)).into_bytes();
    push_text(&mut out, details);
    out.extend_from_slice(END);
    out
}

/// The first line of an answer.
pub(super) fn ok() -> Vec<u8> {
    b"ok\n".to_vec()
}

/// Appends text lines of an answer to `out`.
pub(super) fn push_text(out: &mut Vec<u8>, text: &str) {
    for line in text.lines() {
        if line.starts_with('.') {
            out.push(b'.');
        }
        out.extend_from_slice(line.as_bytes());
        out.push(b'\n');
    }
}

pub(super) const END: &[u8] = b".\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_can_end_an_answer_early() {
        let wire = String::from_utf8(answer("a\n.\n..b\r\n\n.c")).unwrap();
        assert_eq!(wire, "ok\na\n..\n...b\n\n..c\n.\n");
        assert_eq!(wire.lines().filter(|line| *line == ".").count(), 1);
    }

    #[test]
    fn a_message_stays_on_its_line() {
        assert_eq!(refusal("bad\n.\nok", "x"), b"error bad\\n.\\nok\nx\n.\n");
    }
}
