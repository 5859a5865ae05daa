//! Names of records: absolute, in lower case, within the limits of RFC 1035 section 2.3.4.

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use thiserror::Error;

/// Name of a record. Its labels may have any visible ASCII character: mail addresses are names too.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    /// The labels, the one nearest to the root first: names of one zone sort together.
    labels: Vec<String>,
}

/// Reason why a text is not a name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OwnerFault {
    /// There is nothing between two dots.
    #[error("\"{0}\" has an empty part between its dots")]
    EmptyLabel(String),
    /// RFC 1035 section 2.3.4.
    #[error("\"{0}\" has a part of more than 63 characters")]
    LongLabel(String),
    /// RFC 1035 section 2.3.4.
    #[error("\"{0}\" is longer than the 253 characters of a name in the DNS")]
    Long(String),
    /// A space, a control character, or one outside of ASCII.
    #[error(
        "\"{0}\" has a character that names in the DNS cannot have here: write names of other scripts as xn--..."
    )]
    Character(String),
    /// It is not of the form `local-part@domain`.
    #[error("\"{0}\" is not a mail address")]
    Address(String),
}

impl Owner {
    /// Reads `www.example.org` or `www.example.org.`.
    pub fn parse(text: &str) -> Result<Self, OwnerFault> {
        let shown = || text.chars().filter(|c| !c.is_control()).take(80).collect::<String>();
        let name = text.strip_suffix('.').unwrap_or(text);
        let mut labels = Vec::new();
        for label in name.split('.') {
            if label.is_empty() {
                return Err(OwnerFault::EmptyLabel(shown()));
            }
            if label.len() > 63 {
                return Err(OwnerFault::LongLabel(shown()));
            }
            if !label.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\') {
                return Err(OwnerFault::Character(shown()));
            }
            labels.push(label.to_ascii_lowercase());
        }
        if name.len() > 253 {
            return Err(OwnerFault::Long(shown()));
        }
        labels.reverse();
        Ok(Self { labels })
    }

    /// Reads a name that may be relative: one without a dot is below `zone`.
    pub fn within(text: &str, zone: Option<&Self>) -> Result<Self, OwnerFault> {
        match zone {
            Some(zone) if !text.contains('.') => Self::parse(&format!("{text}.{zone}")),
            _ => Self::parse(text),
        }
    }

    /// The name of TLSA records of a TCP service (RFC 6698 section 3).
    pub fn of_service(port: u16, host: &Self) -> Result<Self, OwnerFault> {
        Self::parse(&format!("_{port}._tcp.{host}"))
    }

    /// The name of the OPENPGPKEY record of a mail address (RFC 7929 section 3).
    pub fn of_mailbox(local_part: &str, domain: &Self) -> Result<Self, OwnerFault> {
        let hash = digest(&SHA256, local_part.as_bytes());
        let hash: String = hash.as_ref().iter().take(28).map(|byte| format!("{byte:02x}")).collect();
        Self::parse(&format!("{hash}._openpgpkey.{domain}"))
    }

    /// Labels, the one farthest from the root first.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        self.labels.iter().rev().map(String::as_str)
    }

    /// Whether it is `zone` or below it.
    pub fn is_in(&self, zone: &Self) -> bool {
        self.labels.starts_with(&zone.labels)
    }

    /// The name without its first label. `None` at the top.
    pub fn parent(&self) -> Option<Self> {
        let (_, rest) = self.labels.split_last()?;
        (!rest.is_empty()).then(|| Self { labels: rest.to_vec() })
    }

    /// The name in zone files: absolute, and with the characters escaped that mean something there.
    pub fn in_zone_file(&self) -> String {
        let mut text = String::new();
        for label in self.labels() {
            for c in label.chars() {
                if matches!(c, '"' | '$' | '(' | ')' | ';' | '@') {
                    text.push('\\');
                }
                text.push(c);
            }
            text.push('.');
        }
        text
    }

    /// Port and host, if this is the name of TLSA records of a TCP service.
    pub fn service(&self) -> Option<(u16, Self)> {
        let mut labels = self.labels();
        let port = labels.next()?.strip_prefix('_')?.parse().ok()?;
        (labels.next()? == "_tcp").then_some(())?;
        let host = self.parent()?.parent()?;
        Some((port, host))
    }
}

/// Without the final dot.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, label) in self.labels().enumerate() {
            if at > 0 {
                f.write_str(".")?;
            }
            f.write_str(label)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_absolute_lower_case_and_within_limits() {
        let name = Owner::parse("WWW.Example.org.").unwrap();
        assert_eq!(
            (name.to_string(), name.in_zone_file()),
            ("www.example.org".into(), "www.example.org.".into())
        );
        let zone = Owner::parse("example.org").unwrap();
        assert!(name.is_in(&zone) && zone.is_in(&zone) && !zone.is_in(&name));
        assert!(!Owner::parse("notexample.org").unwrap().is_in(&zone));
        assert_eq!(Owner::within("web1", Some(&zone)).unwrap().to_string(), "web1.example.org");
        assert_eq!(name.parent(), Some(zone));
        let long = "a".repeat(64);
        for wrong in ["", ".", "a..b", "a b", "a\\b", "\u{e4}.org", "a\n", &long, &["abc"; 80].join(".")] {
            assert!(Owner::parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Owner::parse("a;b@c.org").unwrap().in_zone_file(), "a\\;b\\@c.org.");
    }

    #[test]
    fn mailbox_has_the_name_of_rfc_7929() {
        let domain = Owner::parse("example.test").unwrap();
        let owner = Owner::of_mailbox("alice", &domain).unwrap().to_string();
        assert_eq!(
            owner,
            "2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db._openpgpkey.example.test"
        );
    }

    #[test]
    fn service_names_are_read_back() {
        let host = Owner::parse("www.example.org").unwrap();
        let owner = Owner::of_service(443, &host).unwrap();
        assert_eq!(owner.service(), Some((443, host)));
        assert_eq!(Owner::parse("www.example.org").unwrap().service(), None);
    }
}
