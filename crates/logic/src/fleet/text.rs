//! Output as text for JSON, which has no bytes: characters stay whole wherever reads end, and bytes that are no text come
//! along as they are. `fleet/run/view/json.rs` writes it.

use base64ct::{Base64, Encoding};

/// One stream of one host.
#[derive(Debug, Default)]
pub struct Text {
    /// The begin of a character whose end has not come: at most three bytes.
    unfinished: Vec<u8>,
}

/// Some output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// With U+FFFD in place of what is not UTF-8.
    pub text: String,
    /// The bytes themselves, in base64 (RFC 4648 section 4), if `text` is not all of them.
    pub base64: Option<String>,
}

impl Text {
    /// Takes what was read, and gives it up to the last whole character; `None` if there is none.
    pub fn push(&mut self, bytes: &[u8]) -> Option<Said> {
        if self.unfinished.is_empty() {
            let (whole, rest) = split(bytes);
            self.unfinished.extend_from_slice(rest);
            return said(whole);
        }
        let mut all = std::mem::take(&mut self.unfinished);
        all.extend_from_slice(bytes);
        let (whole, rest) = split(&all);
        self.unfinished.extend_from_slice(rest);
        said(whole)
    }

    /// Takes the end of the stream, and gives a character that was never finished.
    pub fn finish(&mut self) -> Option<Said> {
        said(&std::mem::take(&mut self.unfinished))
    }

    /// Whether nothing is held back.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.unfinished.is_empty()
    }
}

/// Where a character begins that the next bytes may finish.
fn split(bytes: &[u8]) -> (&[u8], &[u8]) {
    let may_go_on = |at: &usize| {
        std::str::from_utf8(&bytes[*at..])
            .is_err_and(|end| end.valid_up_to() == 0 && end.error_len().is_none())
    };
    let at = (bytes.len().saturating_sub(3)..bytes.len()).find(may_go_on).unwrap_or(bytes.len());
    bytes.split_at(at)
}

fn said(bytes: &[u8]) -> Option<Said> {
    if bytes.is_empty() {
        return None;
    }
    Some(match std::str::from_utf8(bytes) {
        Ok(text) => Said { text: text.to_owned(), base64: None },
        Err(_) => Said {
            text: String::from_utf8_lossy(bytes).into_owned(),
            base64: Some(Base64::encode_string(bytes)),
        },
    })
}
