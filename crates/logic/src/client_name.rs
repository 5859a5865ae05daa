//! Decides by the names in a client certificate whether the client is accepted.
//!
//! The names must be from one verified certificate; a pattern uses nothing else.

use std::fmt;
use std::str::FromStr;

use crate::route::{HostPattern, HostPatternError};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientNames {
    /// DNS names of subjectAltName.
    pub dns: Vec<Box<str>>,
    /// URIs of subjectAltName.
    pub uris: Vec<Box<str>>,
    /// E-mail addresses of subjectAltName.
    pub emails: Vec<Box<str>>,
    /// IP addresses of subjectAltName.
    pub addresses: Vec<std::net::IpAddr>,
    /// Common name of the subject; `None` unless there is exactly one.
    pub common_name: Option<Box<str>>,
}

/// Name or set of names; a certificate must have one of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NamePattern {
    /// `dns:host.example`, `dns:*.example.com`: same form as the host of a route.
    Dns(HostPattern),
    /// `uri:spiffe://example.com/web`: exact, byte for byte.
    Uri(Box<str>),
    /// `uri:spiffe://example.com/web/*`: every URI below; stored with its slash, without the star.
    UriBelow(Box<str>),
    /// `email:me@example.com`: the part before the `@` is compared byte for byte, the domain without regard to
    /// upper and lower case.
    Email(Box<str>),
    /// `email:*@example.com`: every address of the domain; stored without the star, in lower case.
    EmailDomain(Box<str>),
    /// `cn:NAME`: exact, byte for byte.
    CommonName(Box<str>),
}

impl NamePattern {
    pub fn matches(&self, names: &ClientNames) -> bool {
        match self {
            Self::Dns(pattern) => names.dns.iter().any(|name| pattern.matches(&name.to_ascii_lowercase())),
            Self::Uri(wanted) => names.uris.contains(wanted),
            Self::UriBelow(prefix) => names.uris.iter().any(|uri| is_below(uri, prefix)),
            Self::Email(wanted) => names.emails.iter().any(|email| is_same_address(email, wanted)),
            Self::EmailDomain(at) => names.emails.iter().any(|email| {
                email.rfind('@').is_some_and(|found| found > 0 && email[found..].eq_ignore_ascii_case(at))
            }),
            Self::CommonName(wanted) => names.common_name.as_ref() == Some(wanted),
        }
    }
}

/// Refuses dot segments: a server that resolves one could leave the prefix (RFC 3986 section 5.2.4).
fn is_below(uri: &str, prefix: &str) -> bool {
    uri.strip_prefix(prefix).is_some_and(|rest| {
        !rest.is_empty() && rest.split(['/', '?', '#']).all(|segment| segment != "." && segment != "..")
    })
}

fn is_same_address(email: &str, wanted: &str) -> bool {
    match (email.rsplit_once('@'), wanted.rsplit_once('@')) {
        (Some((local, domain)), Some((wanted_local, wanted_domain))) => {
            local == wanted_local && domain.eq_ignore_ascii_case(wanted_domain)
        }
        _ => false,
    }
}

impl FromStr for NamePattern {
    type Err = NamePatternError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (kind, name) = text.split_once(':').ok_or(NamePatternError::Kind)?;
        if name.is_empty() {
            return Err(NamePatternError::Empty);
        }
        match kind {
            "dns" => Ok(Self::Dns(name.parse()?)),
            "uri" => match name.strip_suffix('*') {
                Some(prefix) if prefix.contains('*') || !prefix.ends_with('/') || prefix.ends_with("//") => {
                    Err(NamePatternError::UriStar)
                }
                Some(prefix) => Ok(Self::UriBelow(prefix.into())),
                None if name.contains('*') => Err(NamePatternError::UriStar),
                None if !name.contains(':') => Err(NamePatternError::Uri),
                None => Ok(Self::Uri(name.into())),
            },
            "email" => match name.rsplit_once('@') {
                Some(("*", domain)) if !domain.is_empty() && !domain.contains('*') => {
                    Ok(Self::EmailDomain(format!("@{}", domain.to_ascii_lowercase()).into()))
                }
                Some((local, domain)) if !local.is_empty() && !domain.is_empty() && !name.contains('*') => {
                    Ok(Self::Email(name.into()))
                }
                _ => Err(NamePatternError::Email),
            },
            "cn" if name.contains('*') => Err(NamePatternError::CommonNameStar),
            "cn" => Ok(Self::CommonName(name.into())),
            _ => Err(NamePatternError::Kind),
        }
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dns(pattern) => write!(f, "dns:{pattern}"),
            Self::Uri(uri) => write!(f, "uri:{uri}"),
            Self::UriBelow(prefix) => write!(f, "uri:{prefix}*"),
            Self::Email(email) => write!(f, "email:{email}"),
            Self::EmailDomain(at) => write!(f, "email:*{at}"),
            Self::CommonName(name) => write!(f, "cn:{name}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NamePatternError {
    /// The prefix for the kind of name is missing or unknown.
    #[error("a name begins with its kind: `dns:`, `uri:`, `email:` or `cn:`")]
    Kind,
    /// No name follows the kind.
    #[error("there is no name behind its kind")]
    Empty,
    #[error(transparent)]
    Dns(#[from] HostPatternError),
    #[error("a URI has a scheme, as in `uri:spiffe://example.com/web`")]
    Uri,
    /// A star that would match too many URIs.
    #[error("`*` may only be the whole rest of a URI behind a `/`, as in `uri:spiffe://example.com/web/*`")]
    UriStar,
    #[error("an address of e-mail is `email:me@example.com`, or `email:*@example.com` for everybody there")]
    Email,
    #[error("a common name is compared as a whole: `*` has no meaning there")]
    CommonNameStar,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> ClientNames {
        ClientNames {
            dns: vec!["Web1.Example.com".into()],
            uris: vec!["spiffe://example.com/ns/web/1".into()],
            emails: vec!["Me@Example.com".into()],
            addresses: Vec::new(),
            common_name: Some("alice".into()),
        }
    }

    fn matches(pattern: &str) -> bool {
        pattern.parse::<NamePattern>().unwrap().matches(&names())
    }

    #[test]
    fn a_pattern_matches_names_of_its_own_kind_only() {
        for yes in [
            "dns:web1.example.com",
            "dns:*.example.com",
            "uri:spiffe://example.com/ns/web/1",
            "uri:spiffe://example.com/ns/*",
            "email:Me@example.com",
            "email:*@EXAMPLE.com",
            "cn:alice",
        ] {
            assert!(matches(yes), "{yes}");
        }
        for no in [
            "dns:example.com",
            "dns:alice",
            "dns:*.web1.example.com",
            "uri:spiffe://example.com/ns/web",
            "uri:spiffe://example.com/ns/web/1/*",
            "uri:SPIFFE://example.com/ns/*",
            "email:me@example.com",
            "email:*@mail.example.com",
            "email:*@xample.com",
            "cn:Alice",
            "cn:web1.example.com",
        ] {
            assert!(!matches(no), "{no}");
        }
    }

    #[test]
    fn a_dot_segment_leads_out_of_no_prefix() {
        let pattern: NamePattern = "uri:spiffe://a/ns/*".parse().unwrap();
        for uri in ["spiffe://a/ns/../admin", "spiffe://a/ns/x/./y", "spiffe://a/ns/..", "spiffe://a/ns/"] {
            let names = ClientNames { uris: vec![uri.into()], ..ClientNames::default() };
            assert!(!pattern.matches(&names), "{uri}");
        }
    }

    #[test]
    fn every_pattern_is_written_as_it_is_read_and_unclear_ones_are_refused() {
        for text in ["dns:*.a.example", "uri:x:y", "uri:a://b/*", "email:a@b", "email:*@b", "cn:A B"] {
            assert_eq!(text.parse::<NamePattern>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "alice",
            "dns:",
            "DNS:a",
            "dns:a*.b",
            "uri:*",
            "uri:a://*",
            "uri:a://b*",
            "uri:a://*/b",
            "uri:abc",
            "email:me",
            "email:*",
            "email:m*@a",
            "email:@a",
            "cn:*",
            "cn:",
            "ip:1.2.3.4",
        ] {
            assert!(text.parse::<NamePattern>().is_err(), "{text}");
        }
    }
}
