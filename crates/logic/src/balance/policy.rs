//! The ways to balance, and what a key is taken from, in the words of the configuration.

use std::fmt;
use std::str::FromStr;

/// How a pool chooses among its backends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// In turn, smoothly weighted: 5:1 gives a a a b a a, not a a a a a b.
    #[default]
    RoundRobin,
    /// The backend with the fewest sessions for its weight.
    LeastConnections,
    /// The better of two random ones: nearly as even as least connections, and no herd when many workers
    /// choose.
    TwoChoices,
    /// By key, weighted rendezvous: a change of one backend moves only the keys it gains or loses.
    Hash,
    /// By key through a table: constant time, the most even spread, a few keys more move on changes.
    Maglev,
    /// A client stays where it was first sent; new clients by least connections.
    Sticky,
}

impl Policy {
    /// Every policy, in the order of the documentation.
    pub const ALL: [Policy; 6] = [
        Policy::RoundRobin,
        Policy::LeastConnections,
        Policy::TwoChoices,
        Policy::Hash,
        Policy::Maglev,
        Policy::Sticky,
    ];

    /// The word in a configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Policy::RoundRobin => "round-robin",
            Policy::LeastConnections => "least-connections",
            Policy::TwoChoices => "two-choices",
            Policy::Hash => "hash",
            Policy::Maglev => "maglev",
            Policy::Sticky => "sticky",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Policy::ALL.into_iter().find(|policy| policy.as_str() == text).ok_or_else(|| PolicyError(text.into()))
    }
}

/// A word that names no [`Policy`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{}` is no way to balance: use round-robin, least-connections, two-choices, hash, maglev or sticky",
    .0.escape_debug()
)]
pub struct PolicyError(Box<str>);

/// What `hash` and `maglev` take the key from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum HashKey {
    /// The client's IP address.
    #[default]
    Client,
    /// The host of the request.
    Host,
    /// The path of the request.
    Path,
    /// A header field of the request; its name is lower case.
    Header(Box<str>),
}

impl fmt::Display for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HashKey::Client => f.write_str("client"),
            HashKey::Host => f.write_str("host"),
            HashKey::Path => f.write_str("path"),
            HashKey::Header(name) => write!(f, "header:{name}"),
        }
    }
}

impl FromStr for HashKey {
    type Err = HashKeyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        match text {
            "client" => Ok(HashKey::Client),
            "host" => Ok(HashKey::Host),
            "path" => Ok(HashKey::Path),
            _ => match text.strip_prefix("header:") {
                Some(name) if !name.is_empty() && name.bytes().all(token) => {
                    Ok(HashKey::Header(name.to_ascii_lowercase().into()))
                }
                _ => Err(HashKeyError(text.into())),
            },
        }
    }
}

/// A text that names no [`HashKey`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is no key to hash: use client, host, path, or header:NAME", .0.escape_debug())]
pub struct HashKeyError(Box<str>);
