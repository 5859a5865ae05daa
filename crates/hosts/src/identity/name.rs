//! Name of a host: its identity, its file name, and its name in certificates.

use std::borrow::Borrow;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use thiserror::Error;

/// Limit in bytes: the file name with `.host` and a temporary suffix must fit in 255 bytes of a directory entry.
const LONGEST: usize = 200;

/// Identity of a host, in lower case. Safe as a file name and in all formats that list hosts (no space, comma, `#`,
/// `|`, `*`, `?`, `!`, slash or control character). `[name]:port` is valid, as OpenSSH writes hosts on other ports.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Box<str>);

impl Name {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        self.0.parse().ok()
    }

    /// Builds `name`, or `[name]:port` for another port than 22, as OpenSSH looks up a host.
    ///
    /// # Errors
    /// The text is not a valid name.
    pub fn with_port(name: &str, port: u16) -> Result<Self, NameError> {
        if port == 22 { name.parse() } else { format!("[{name}]:{port}").parse() }
    }

    /// Splits `[name]:port` into name and port; other names have no port.
    #[must_use]
    pub fn split_port(&self) -> (&str, Option<u16>) {
        let split = || {
            let (name, port) = self.0.strip_prefix('[')?.rsplit_once("]:")?;
            Some((name, port.parse().ok()?))
        };
        split().map_or((&self.0, None), |(name, port)| (name, Some(port)))
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let fault = |why| NameError { name: text.escape_debug().to_string().chars().take(80).collect(), why };
        let is_allowed = |byte: u8| {
            byte.is_ascii_alphanumeric()
                || matches!(byte, b'.' | b'_' | b':' | b'-' | b'%' | b'+' | b'[' | b']')
        };
        if text.is_empty() {
            return Err(fault("it is empty"));
        }
        if text.len() > LONGEST {
            return Err(fault("it is longer than 200 bytes"));
        }
        if text.starts_with(['.', '-', '+', ']']) {
            return Err(fault("it begins with a mark"));
        }
        if !text.bytes().all(is_allowed) {
            return Err(fault("only letters, digits and . _ : - % + [ ] may stand in it"));
        }
        Ok(Self(text.to_ascii_lowercase().into_boxed_str()))
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[derive(Debug, Clone, Error, PartialEq, Eq)]
#[error("\"{name}\" is not a valid host name: {why}")]
pub struct NameError {
    name: String,
    why: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_as_file_names_and_in_lists() {
        for good in
            ["web1", "WEB1.example.com", "10.0.0.1", "2001:db8::1", "[web1]:2222", "fe80::1%eth0", "a_b"]
        {
            assert_eq!(good.parse::<Name>().unwrap().as_str(), good.to_ascii_lowercase());
        }
        for bad in
            ["", ".", "..", "a/b", "a b", "a,b", "-o", "a\nb", "|1|x", "#a", "*", "!a", "é", &"a".repeat(201)]
        {
            assert!(bad.parse::<Name>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn port_is_part_of_the_name_only_where_it_is_not_22() {
        assert_eq!(Name::with_port("web1", 22).unwrap().as_str(), "web1");
        let other = Name::with_port("web1", 2222).unwrap();
        assert_eq!(other.as_str(), "[web1]:2222");
        assert_eq!(other.split_port(), ("web1", Some(2222)));
    }
}
