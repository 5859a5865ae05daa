//! Output as text for JSON, which cannot hold arbitrary bytes: UTF-8 characters are never split, and bytes that are not
//! UTF-8 are added in base64. `fleet/run/view/json.rs` writes the JSON.

use base64ct::{Base64, Encoding};

/// Converts one output stream of one host to text.
#[derive(Debug, Default)]
pub struct Text {
    /// Start of a UTF-8 character whose end has not arrived: at most three bytes.
    unfinished: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputText {
    /// Text with U+FFFD in place of bytes that are not UTF-8.
    pub text: String,
    /// The bytes in base64 (RFC 4648 section 4); `None` if the bytes are valid UTF-8.
    pub base64: Option<String>,
}

impl Text {
    /// Adds received bytes and returns the text up to the last complete character; `None` if the text is empty.
    pub fn push(&mut self, bytes: &[u8]) -> Option<OutputText> {
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

    /// Ends the stream and returns an incomplete character.
    pub fn finish(&mut self) -> Option<OutputText> {
        said(&std::mem::take(&mut self.unfinished))
    }

    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.unfinished.is_empty()
    }
}

fn split(bytes: &[u8]) -> (&[u8], &[u8]) {
    let may_go_on = |at: &usize| {
        std::str::from_utf8(&bytes[*at..])
            .is_err_and(|end| end.valid_up_to() == 0 && end.error_len().is_none())
    };
    let at = (bytes.len().saturating_sub(3)..bytes.len()).find(may_go_on).unwrap_or(bytes.len());
    bytes.split_at(at)
}

fn said(bytes: &[u8]) -> Option<OutputText> {
    if bytes.is_empty() {
        return None;
    }
    Some(match std::str::from_utf8(bytes) {
        Ok(text) => OutputText { text: text.to_owned(), base64: None },
        Err(_) => OutputText {
            text: String::from_utf8_lossy(bytes).into_owned(),
            base64: Some(Base64::encode_string(bytes)),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(reads: &[&[u8]]) -> Vec<OutputText> {
        let mut text = Text::default();
        let mut said: Vec<OutputText> = reads.iter().filter_map(|read| text.push(read)).collect();
        said.extend(text.finish());
        assert!(text.is_idle());
        said
    }

    #[test]
    fn bytes_that_are_no_text_come_along_as_they_are() {
        let broken = |text: &str, base64: &str| OutputText { text: text.into(), base64: Some(base64.into()) };
        let plain = |text: &str| OutputText { text: text.into(), base64: None };
        assert_eq!(all(&[b"a\xffb"]), [broken("a\u{fffd}b", "Yf9i")]);
        assert_eq!(all(&[b"a\xe2\x82", b"b"]), [plain("a"), broken("\u{fffd}b", "4oJi")]);
        assert_eq!(all(&[b"a\xe2\x82"]), [plain("a"), broken("\u{fffd}", "4oI=")], "the end flushes");
        assert_eq!(all(&[b"\xe2", b"\x82", b"\xac"]), [plain("€")]);
        // A byte that starts no character is delivered at once.
        assert_eq!(all(&[b"\xc0", b"a"]), [broken("\u{fffd}", "wA=="), plain("a")]);
    }

    proptest::proptest! {
        #[test]
        fn text_stays_text_wherever_reads_end(
            text in "[a-cä€😀\n]{0,40}",
            cuts in proptest::collection::vec(0_usize..200, 0..8),
        ) {
            let bytes = text.as_bytes();
            let mut ends: Vec<usize> = cuts.into_iter().map(|cut| cut % (bytes.len() + 1)).collect();
            ends.extend([0, bytes.len()]);
            ends.sort_unstable();
            let reads: Vec<&[u8]> = ends.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            let said = all(&reads);
            proptest::prop_assert!(said.iter().all(|said| said.base64.is_none()));
            proptest::prop_assert_eq!(said.into_iter().map(|said| said.text).collect::<String>(), text);
        }

        #[test]
        fn no_byte_is_lost_whatever_comes(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..60), size in 1_usize..9) {
            let reads: Vec<&[u8]> = bytes.chunks(size).collect();
            let back: Vec<u8> = all(&reads)
                .into_iter()
                .flat_map(|said| match said.base64 {
                    Some(base64) => Base64::decode_vec(&base64).unwrap(),
                    None => said.text.into_bytes(),
                })
                .collect();
            proptest::prop_assert_eq!(back, bytes);
        }
    }
}
