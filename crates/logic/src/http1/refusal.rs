//! Reasons for which a message is not forwarded: each has a status, a word for metrics and logs, and a sentence.

use std::fmt;

macro_rules! refusals {
    ($($variant:ident, $status:literal, $word:literal, $sentence:literal;)*) => {
        /// Why a message is not forwarded. The doc text of a variant is also its `Display`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Refusal { $(#[doc = $sentence] $variant,)* }

        impl Refusal {
            /// All variants, so that metrics can show every label from the start.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Status of the response to the client.
            pub fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)* }
            }

            pub const fn reason(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            /// All words with what they mean, for the documents.
            pub fn meanings() -> Vec<(&'static str, String)> {
                vec![$(($word, format!("{} ({})", $sentence, $status)),)*]
            }
        }

        impl fmt::Display for Refusal {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $sentence,)* })
            }
        }
    };
}

refusals! {
    TlsOnPlainPort, 400, "tls-on-plain-port", "client spoke TLS to a plain port";
    Http2Preface, 505, "http2-preface", "client spoke HTTP/2 without negotiating it";
    EmptyLines, 400, "empty-lines", "more than one empty line before the request line";
    RequestLine, 400, "request-line", "request line is not method, target and version with one space between them";
    NoVersion, 400, "no-version", "request line has no version (HTTP/0.9)";
    MethodSyntax, 400, "method-syntax", "method is not a token";
    MethodCase, 400, "method-case", "a standard method in the wrong case";
    MethodTooLong, 501, "method-too-long", "method is longer than 32 bytes";
    MethodConnect, 501, "method-connect", "CONNECT is not offered here";
    TargetSyntax, 400, "target-syntax", "request target is neither a path nor an http URI nor '*' of OPTIONS";
    TargetTooLong, 414, "target-too-long", "request target is longer than allowed";
    VersionSyntax, 400, "version-syntax", "version is not HTTP/digit.digit";
    VersionUnknown, 505, "version-unknown", "only HTTP/1.0 and HTTP/1.1 are spoken here";
    BareLf, 400, "bare-lf", "a line ends with LF alone";
    BareCr, 400, "bare-cr", "CR that is not followed by LF";
    ControlByte, 400, "control-byte", "control byte in the head";
    Folded, 400, "obs-fold", "a header line starts with a blank (obsolete folding)";
    NoColon, 400, "no-colon", "header line without a colon";
    EmptyName, 400, "empty-name", "header line with an empty name";
    BlankBeforeColon, 400, "blank-before-colon", "blank between a header name and its colon";
    NameSyntax, 400, "name-syntax", "header name is not a token";
    HeadTooLarge, 431, "head-too-large", "head is larger than allowed";
    TooManyHeaders, 431, "too-many-headers", "more header lines than allowed";
    HostMissing, 400, "host-missing", "no Host header in an HTTP/1.1 request";
    HostRepeated, 400, "host-repeated", "more than one Host header";
    HostSyntax, 400, "host-syntax", "host is not a name or address with an optional port";
    UserInfo, 400, "userinfo", "user information in the host";
    LengthSyntax, 400, "length-syntax", "Content-Length is not a plain decimal number";
    LengthOverflow, 400, "length-overflow", "Content-Length is too large to be counted";
    LengthRepeated, 400, "length-repeated", "more than one Content-Length header";
    LengthAndCoding, 400, "length-and-coding", "both Content-Length and Transfer-Encoding";
    CodingRepeated, 400, "coding-repeated", "more than one Transfer-Encoding header";
    CodingSyntax, 400, "coding-syntax", "Transfer-Encoding is not exactly one coding";
    CodingUnknown, 501, "coding-unknown", "unknown transfer coding";
    CodingInOldVersion, 400, "coding-in-old-version", "Transfer-Encoding in an HTTP/1.0 message";
    FramingImitation, 400, "framing-lookalike", "header name that some servers take for a framing header";
    ConnectionSyntax, 400, "connection-syntax", "Connection is not a list of tokens";
    ConnectionTooLong, 400, "connection-too-long", "Connection lists more than 32 options";
    ConnectionNamesFraming, 400, "connection-names-framing", "Connection lists a header that decides framing or routing";
    ExpectationUnknown, 417, "expectation-unknown", "only the expectation 100-continue can be met";
    BodyInTrace, 400, "body-in-trace", "TRACE with a body";
    WebSocketKey, 400, "websocket-key", "not exactly one Sec-WebSocket-Key of 16 bytes in base64";
    BodyTooLarge, 413, "body-too-large", "body is larger than allowed";
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_reason_is_one_word_of_its_own_and_has_an_error_status() {
        let words: HashSet<_> = Refusal::ALL.iter().map(|refusal| refusal.reason()).collect();
        assert_eq!(words.len(), Refusal::ALL.len());
        for refusal in Refusal::ALL {
            assert!(
                refusal.reason().bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            );
            assert!((400..600).contains(&refusal.status()));
            assert!(!refusal.to_string().ends_with('.'));
        }
    }
}
