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

#[cfg(test)]
mod tests {
    use super::*;

    fn all(reads: &[&[u8]]) -> Vec<Said> {
        let mut text = Text::default();
        let mut said: Vec<Said> = reads.iter().filter_map(|read| text.push(read)).collect();
        said.extend(text.finish());
        assert!(text.is_idle());
        said
    }

    #[test]
    fn bytes_that_are_no_text_come_along_as_they_are() {
        let broken = |text: &str, base64: &str| Said { text: text.into(), base64: Some(base64.into()) };
        let plain = |text: &str| Said { text: text.into(), base64: None };
        assert_eq!(all(&[b"a\xffb"]), [broken("a\u{fffd}b", "Yf9i")]);
        assert_eq!(all(&[b"a\xe2\x82", b"b"]), [plain("a"), broken("\u{fffd}b", "4oJi")]);
        assert_eq!(all(&[b"a\xe2\x82"]), [plain("a"), broken("\u{fffd}", "4oI=")], "the end flushes");
        assert_eq!(all(&[b"\xe2", b"\x82", b"\xac"]), [plain("€")]);
        // A begin that no character has is not held back for more.
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
