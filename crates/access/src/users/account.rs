//! The accounts of hosts in which the keys of a user may stand.

use std::fmt;
use std::str::FromStr;

/// Accounts on hosts: `NAME`, or `NAME@HOSTS`, where `*` stands for any text and `?` for one character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    name: String,
    hosts: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no NAME or NAME@HOSTS")]
pub struct NoAccount(pub(super) String);

impl Account {
    /// Whether the account `name` of `host` is one of these.
    pub fn is(&self, name: &str, host: &str) -> bool {
        let same = |one: char, other: char| one == other;
        text::wildcard::matches(&self.name, name, same)
            && self.hosts.as_ref().is_none_or(|hosts| text::wildcard::matches(hosts, host, same))
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.hosts.as_ref().map_or(Ok(()), |hosts| write!(f, "@{hosts}"))
    }
}

impl FromStr for Account {
    type Err = NoAccount;

    fn from_str(text: &str) -> Result<Self, NoAccount> {
        let (name, hosts) = match text.split_once('@') {
            Some((name, hosts)) => (name, Some(hosts)),
            None => (text, None),
        };
        let fits = |byte: u8| byte.is_ascii_graphic() && !b",=@".contains(&byte);
        let is_one = |part: &str| (1..=255).contains(&part.len()) && part.bytes().all(fits);
        if !is_one(name) || !hosts.is_none_or(is_one) {
            return Err(NoAccount(text.escape_debug().take(80).collect()));
        }
        Ok(Self { name: name.to_owned(), hosts: hosts.map(str::to_owned) })
    }
}
