//! Reasons why an SSH server could not open a connection for us. The protocol has the code 2 (RFC 4254 section 5.1);
//! OpenSSH and others add an error text of their system. An unknown text makes the result less precise, not wrong.

use crate::fleet::ending::Reason;

/// Meaning of the error text of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unconnected {
    /// The name has no address on the server.
    NoAddress,
    Refused,
    /// The server has no route to the host or its network.
    Unreachable,
    /// The connection from the server timed out.
    TimedOut,
    Unknown,
}

impl Unconnected {
    /// Parses the text: messages of `strerror` and `gai_strerror` in glibc, musl, the BSDs and macOS.
    #[must_use]
    pub fn of(words: &str) -> Self {
        let words = words.to_ascii_lowercase();
        let has = |parts: &[&str]| parts.iter().any(|part| words.contains(part));
        if has(&[
            "not known",
            "name resolution",
            "no address associated",
            "does not resolve",
            "name has no usable address",
            "no such host",
            "unknown host",
        ]) {
            Self::NoAddress
        } else if has(&["refused"]) {
            Self::Refused
        } else if has(&["no route to host", "unreachable", "host is down", "network is down"]) {
            Self::Unreachable
        } else if has(&["timed out"]) {
            Self::TimedOut
        } else {
            Self::Unknown
        }
    }

    #[must_use]
    pub fn reason(self) -> Reason {
        match self {
            Self::NoAddress => Reason::NoAddress,
            Self::Refused => Reason::ConnectionRefused,
            Self::Unreachable | Self::Unknown => Reason::Unreachable,
            Self::TimedOut => Reason::TimedOut,
        }
    }

    /// Returns the text, unless it says only that the connection failed.
    #[must_use]
    pub fn words(self, words: &str) -> Option<&str> {
        let words = words.trim();
        let says_nothing = words.is_empty() || ["open failed", "connect failed"].contains(&words);
        (self != Self::Unknown || !says_nothing).then_some(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_different_systems_are_understood() {
        for (words, wanted) in [
            ("Connection refused", Unconnected::Refused),
            ("Name or service not known", Unconnected::NoAddress),
            ("nodename nor servname provided, or not known", Unconnected::NoAddress),
            ("Temporary failure in name resolution", Unconnected::NoAddress),
            ("No address associated with hostname", Unconnected::NoAddress),
            ("Name does not resolve", Unconnected::NoAddress),
            ("No route to host", Unconnected::Unreachable),
            ("Network is unreachable", Unconnected::Unreachable),
            ("Connection timed out", Unconnected::TimedOut),
            ("Operation timed out", Unconnected::TimedOut),
            ("open failed", Unconnected::Unknown),
            ("", Unconnected::Unknown),
        ] {
            assert_eq!(Unconnected::of(words), wanted, "{words}");
            assert_eq!(wanted.words(words).is_some(), wanted != Unconnected::Unknown, "{words}");
        }
        assert_eq!(Unconnected::Unknown.words("Permission denied"), Some("Permission denied"));
    }
}
