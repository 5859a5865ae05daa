//! Reasons for which a request is malformed (RFC 9113 section 8.1.1): its stream is reset and none of it is forwarded.

use std::fmt;

macro_rules! malformed {
    ($($variant:ident, $word:literal, $sentence:literal;)*) => {
        /// Why a request is malformed. The doc text of a variant is also its `Display`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Malformed { $(#[doc = $sentence] $variant,)* }

        impl Malformed {
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            pub const fn reason(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            /// All words with what they mean, for the documents.
            pub fn meanings() -> Vec<(&'static str, String)> {
                vec![$(($word, $sentence.to_owned()),)*]
            }
        }

        impl fmt::Display for Malformed {
            fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $sentence,)* })
            }
        }
    };
}

malformed! {
    PseudoUnknown, "h2-pseudo-unknown", "a pseudo-header that requests do not have";
    PseudoRepeated, "h2-pseudo-repeated", "a pseudo-header more than once";
    PseudoLate, "h2-pseudo-late", "a pseudo-header behind a field";
    PseudoMissing, "h2-pseudo-missing", "no :method, :scheme or :path";
    PseudoUnexpected, "h2-pseudo-unexpected", "a pseudo-header that this method does not have";
    MethodSyntax, "h2-method-syntax", ":method is not a token";
    SchemeUnknown, "h2-scheme-unknown", ":scheme is neither http nor https";
    PathSyntax, "h2-path-syntax", ":path is neither a path nor the '*' of OPTIONS";
    AuthoritySyntax, "h2-authority-syntax", ":authority holds a byte that no host has";
    HostRepeated, "h2-host-repeated", "more than one host field";
    HostDiffers, "h2-host-differs", "host is not what :authority says";
    NameSyntax, "h2-name-syntax", "a field name is not a token";
    NameCase, "h2-name-case", "a field name in upper case";
    ValueSyntax, "h2-value-syntax", "a control byte in a field value";
    ValueBlank, "h2-value-blank", "a blank at the start or end of a field value";
    ConnectionField, "h2-connection-field", "a field for one connection, which HTTP/2 does not have";
    StatusUnexpected, "h2-status-unexpected", "a status that this response cannot have";
    Te, "h2-te", "te holds anything but trailers";
    LengthSyntax, "h2-length-syntax", "content-length is not a plain decimal number";
    LengthRepeated, "h2-length-repeated", "more than one content-length";
    LengthMismatch, "h2-length-mismatch", "content-length is not the length of the body";
    TrailerForbidden, "h2-trailer-forbidden", "a trailer that is for framing, routing or one connection";
}

impl std::error::Error for Malformed {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_reason_is_one_word_of_its_own() {
        let words: HashSet<_> = Malformed::ALL.iter().map(|malformed| malformed.reason()).collect();
        assert_eq!(words.len(), Malformed::ALL.len());
        for malformed in Malformed::ALL {
            assert!(malformed.reason().starts_with("h2-"));
            assert!(!malformed.to_string().ends_with('.'));
        }
    }
}
