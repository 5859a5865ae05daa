//! The query of a request: names and values, decoded.

/// Longest query that is read, in bytes.
pub const LONGEST: usize = 4096;

/// Largest number of parameters.
const MOST: usize = 32;

/// Parameters of a query in their order, without duplicates.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Reads a query. `None` if it is too long, has a name twice, or has bytes that are no UTF-8.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let mut parameters: Vec<(String, String)> = Vec::new();
        if text.len() > LONGEST {
            return None;
        }
        for part in text.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let (name, value) = (decode(name)?, decode(value)?);
            if parameters.len() == MOST || parameters.iter().any(|(known, _)| *known == name) {
                return None;
            }
            parameters.push((name, value));
        }
        Some(Self(parameters))
    }

    /// Value of a parameter; `None` if it is absent or empty.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    /// What a signature covers: all parameters but `h`, in the order of their names.
    #[must_use]
    pub fn signed(&self) -> String {
        let all = self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        signed(all.collect())
    }
}

/// Parameters as they are signed.
pub(super) fn signed(mut parameters: Vec<(&str, &str)>) -> String {
    parameters.retain(|(name, _)| *name != "h");
    parameters.sort_unstable();
    let pairs: Vec<String> = parameters.iter().map(|(name, value)| format!("{name}={value}")).collect();
    pairs.join("&")
}

/// A value as it stands in a query.
pub(super) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte))
            }
            other => encoded.push_str(&format!("%{other:02X}")),
        }
    }
    encoded
}

fn decode(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'%' => {
                decoded.push(u8::try_from(digit(at + 1)? << 4 | digit(at + 2)?).ok()?);
                at += 2;
            }
            b'+' => decoded.push(b' '),
            other => decoded.push(*other),
        }
        at += 1;
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_are_decoded_and_signed_in_the_order_of_their_names() {
        let query = Query::read("otp=cc%2Bd&id=1&h=xyz%3D&nonce=&b=1+2").unwrap();
        assert_eq!((query.get("otp"), query.get("nonce"), query.get("none")), (Some("cc+d"), None, None));
        assert_eq!(query.signed(), "b=1 2&id=1&nonce=&otp=cc+d");
    }

    #[test]
    fn what_is_ambiguous_or_too_much_is_refused() {
        let many: Vec<String> = (0..33).map(|number| format!("p{number}=1")).collect();
        for text in ["a=1&a=2", "a=%", "a=%4", "a=%zz", "a=%ff", &many.join("&"), &"x".repeat(4097)] {
            assert_eq!(Query::read(text), None, "{text}");
        }
        assert_eq!(Query::read(""), Some(Query::default()));
    }

    proptest! {
        #[test]
        fn any_text_is_answered(text in "\\PC{0,200}") {
            let _ = Query::read(&text);
        }

        #[test]
        fn any_value_comes_back(value in "\\PC{1,100}") {
            let query = Query::read(&format!("a={}", encode(&value))).unwrap();
            assert_eq!(query.get("a"), Some(&*value));
        }
    }
}
