//! Who may use the control socket besides root and the user of the process, and for what.
//!
//! The kernel says who the client is (SO_PEERCRED and SO_PEERGROUPS, unix(7)); names of users and groups are those of
//! passwd(5) and group(5). `crates/serve/src/control/client.rs` reads both.

use std::fmt;
use std::str::FromStr;

/// What a client of the control socket may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rights {
    /// Read what has no texts of the configuration.
    Read,
    /// Read and change everything.
    Change,
}

/// Users and groups that may use the control socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    pub operators: Vec<Who>,
    pub readers: Vec<Who>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    User(Account),
    Group(Account),
}

/// A user or group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Account {
    Id(u32),
    Name(Box<str>),
}

/// A client, as the kernel knows it.
#[derive(Clone, Copy, Debug)]
pub struct Peer<'a> {
    pub uid: u32,
    /// Its own group and the further ones.
    pub groups: &'a [u32],
}

/// Texts in the forms of passwd(5) and group(5).
#[derive(Clone, Copy, Debug, Default)]
pub struct Accounts<'a> {
    pub users: &'a str,
    pub groups: &'a str,
}

impl Rules {
    /// Whether only root and the user of the process may come.
    pub fn is_empty(&self) -> bool {
        self.operators.is_empty() && self.readers.is_empty()
    }

    /// What a client may do; `None`: nothing.
    pub fn rights(&self, peer: Peer<'_>, accounts: Accounts<'_>) -> Option<Rights> {
        let any = |list: &[Who]| list.iter().any(|who| who.is(peer, accounts));
        if any(&self.operators) { Some(Rights::Change) } else { any(&self.readers).then_some(Rights::Read) }
    }
}

impl Who {
    fn is(&self, peer: Peer<'_>, accounts: Accounts<'_>) -> bool {
        match self {
            Self::User(account) => account.id(accounts.users) == Some(peer.uid),
            Self::Group(account) => account.id(accounts.groups).is_some_and(|id| peer.groups.contains(&id)),
        }
    }
}

impl Account {
    /// Its number, by a text of lines `NAME:PASSWORD:ID:...`.
    fn id(&self, text: &str) -> Option<u32> {
        let name = match self {
            Self::Id(id) => return Some(*id),
            Self::Name(name) => name,
        };
        text.lines().find_map(|line| {
            let mut fields = line.split(':');
            (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
        })
    }
}

/// The text is no user and no group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not the name or number of a user, or `group:` and the name or number of a group")]
pub struct NoAccount;

impl FromStr for Who {
    type Err = NoAccount;

    fn from_str(text: &str) -> Result<Self, NoAccount> {
        match text.strip_prefix("group:") {
            Some(group) => group.parse().map(Self::Group),
            None => text.parse().map(Self::User),
        }
    }
}

impl FromStr for Account {
    type Err = NoAccount;

    fn from_str(text: &str) -> Result<Self, NoAccount> {
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return text.parse().map(Self::Id).map_err(|_| NoAccount);
        }
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.$@".contains(&byte);
        let is_name = !text.is_empty() && text.len() <= 32 && text.bytes().all(fits);
        if is_name && !text.starts_with('-') { Ok(Self::Name(text.into())) } else { Err(NoAccount) }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let account = match self {
            Self::User(account) => account,
            Self::Group(account) => {
                f.write_str("group:")?;
                account
            }
        };
        match account {
            Account::Id(id) => write!(f, "{id}"),
            Account::Name(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCOUNTS: Accounts<'_> = Accounts {
        users: "root:x:0:0:root:/root:/bin/sh\nbroken\nann:x:1000:100::/:/bin/sh\nbob:x:1001:100::/:/bin/sh\nodd:x:-1:0",
        groups: "root:x:0:\nops:x:500:ann,bob\nstaff:x:600:",
    };

    fn rules(operators: &[&str], readers: &[&str]) -> Rules {
        let list = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        Rules { operators: list(operators), readers: list(readers) }
    }

    #[test]
    fn users_and_groups_have_the_rights_of_the_lists_that_name_them() {
        let rules = rules(&["ann", "group:ops"], &["1001", "group:600"]);
        let rights = |uid, groups: &[u32]| rules.rights(Peer { uid, groups }, ACCOUNTS);
        assert_eq!(rights(1000, &[100]), Some(Rights::Change));
        assert_eq!(rights(1001, &[100]), Some(Rights::Read));
        assert_eq!(rights(1001, &[100, 500]), Some(Rights::Change), "the most that a list gives");
        assert_eq!(rights(7, &[600]), Some(Rights::Read));
        assert_eq!(rights(7, &[100]), None);
        assert_eq!(rights(0, &[0]), None, "root is no matter of the lists");
        assert_eq!(Rules::default().rights(Peer { uid: 1000, groups: &[] }, ACCOUNTS), None);
    }

    #[test]
    fn a_name_that_the_system_does_not_know_is_nobody() {
        let rules = rules(&["ghost", "group:ghost", "broken", "odd"], &[]);
        for uid in [0, 1000, u32::MAX] {
            assert_eq!(rules.rights(Peer { uid, groups: &[uid] }, ACCOUNTS), None);
        }
    }

    #[test]
    fn only_accounts_are_read() {
        for text in ["ann", "1000", "group:ops", "group:500", "svc-x.y_z$", "ann@example"] {
            assert_eq!(text.parse::<Who>().unwrap().to_string(), text);
        }
        for text in ["", "group:", "-ann", "a b", "4294967296", "group:group:x", "ann:x", &"x".repeat(33)] {
            assert_eq!(text.parse::<Who>(), Err(NoAccount), "{text}");
        }
    }
}
