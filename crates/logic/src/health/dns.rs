//! The question of a DNS check, and which answers are answers to it (RFC 1035 section 4).

/// A domain name in the form of a message: each label after its length, then a zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(Box<[u8]>);

/// Longest name in that form (RFC 1035 section 2.3.4).
const LONGEST: usize = 255;

/// Length of the head of a message.
const HEAD: usize = 12;

const TYPE_A: u16 = 1;
const CLASS_IN: u16 = 1;

impl Name {
    /// `None` if `text` is no name: letters, digits, `-` and `_`, in labels of 1 to 63. `.` is the root.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.strip_suffix('.').unwrap_or(text);
        let mut encoded = Vec::new();
        for label in text.split('.').filter(|_| !text.is_empty()) {
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            let length = u8::try_from(label.len()).ok().filter(|length| (1..=63).contains(length))?;
            if !label.bytes().all(fits) {
                return None;
            }
            encoded.push(length);
            encoded.extend_from_slice(label.as_bytes());
        }
        encoded.push(0);
        (encoded.len() <= LONGEST).then(|| Self(encoded.into()))
    }

    /// Question for the IPv4 addresses of the name, with recursion desired.
    pub fn question(&self, id: u16) -> Vec<u8> {
        let mut message = Vec::with_capacity(HEAD + self.0.len() + 4);
        for word in [id, 0x0100, 1, 0, 0, 0] {
            message.extend_from_slice(&word.to_be_bytes());
        }
        message.extend_from_slice(&self.0);
        message.extend_from_slice(&TYPE_A.to_be_bytes());
        message.extend_from_slice(&CLASS_IN.to_be_bytes());
        message
    }

    /// Tells whether `message` is a response to [`Self::question`]: with any code, also to "no such name". A response
    /// that refuses to read the question (FORMERR, NOTIMP, REFUSED) may come without it.
    pub fn is_answered_by(&self, id: u16, message: &[u8]) -> bool {
        const RESPONSE: u8 = 0x80;
        let (Some(head), question) = (message.get(..HEAD), self.question(id)) else { return false };
        if head[..2] != id.to_be_bytes() || head[2] & RESPONSE == 0 {
            return false;
        }
        let questions = u16::from_be_bytes([head[4], head[5]]);
        let asked = &question[HEAD..];
        questions == 0
            || questions == 1
                && message[HEAD..].get(..asked.len()).is_some_and(|same| same.eq_ignore_ascii_case(asked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_refused() {
        assert_eq!(&*Name::new("a.example").unwrap().0, b"\x01a\x07example\0");
        assert_eq!(Name::new("a.example."), Name::new("a.example"));
        assert_eq!(&*Name::new(".").unwrap().0, b"\0");
        let long = "a".repeat(63);
        let (label, whole) = (format!("{long}a.example"), [&*long; 4].join("."));
        for text in ["a..b", ".a", "a b", "ex\u{e4}mple", &label, &whole] {
            assert_eq!(Name::new(text), None, "{text}");
        }
    }

    #[test]
    fn an_answer_has_the_id_and_the_question_and_any_code() {
        let name = Name::new("a.example").unwrap();
        let question = name.question(0x1234);
        assert_eq!(question.len(), 12 + 11 + 4);
        assert!(!name.is_answered_by(0x1234, &question), "it is no response");
        let mut answer = question.clone();
        answer[2] |= 0x80;
        for code in 0..16 {
            answer[3] = code;
            assert!(name.is_answered_by(0x1234, &answer));
        }
        let mut upper = answer.clone();
        upper[13] = b'A';
        assert!(name.is_answered_by(0x1234, &upper), "RFC 1035: names have no case");
        assert!(!name.is_answered_by(0x1235, &answer));
        let mut other = answer.clone();
        other[13] = b'b';
        assert!(!name.is_answered_by(0x1234, &other));
        for length in 0..answer.len() {
            assert!(!name.is_answered_by(0x1234, &answer[..length]), "{length} bytes");
        }
        answer[5] = 0;
        assert!(name.is_answered_by(0x1234, &answer[..12]), "a server that did not read the question");
    }
}
