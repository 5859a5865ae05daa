//! Balancing policies and hash keys, in the words of the configuration.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use super::{client_key, hash_bytes};

text::words! {
    /// How a pool chooses a backend.
    #[derive(Default)]
    pub enum Policy: "way to balance" {
        /// Smooth weighted round robin: 5:1 gives a a a b a a, not a a a a a b.
        #[default]
        RoundRobin = "round-robin",
        /// The backend with the fewest sessions for its weight.
        LeastConnections = "least-connections",
        /// The better of two random backends: nearly as even as least connections, but workers that choose at the same
        /// time do not all choose the same backend.
        TwoChoices = "two-choices",
        /// The one of two random backends with the lower product of response time and sessions.
        PeakEwma = "peak-ewma",
        /// Weighted rendezvous hashing: a change of one backend moves only the keys it gains or loses.
        Hash = "hash",
        /// Hashing through a table: constant time and the most even distribution; a change moves a few more keys.
        Maglev = "maglev",
        /// A client stays with its first backend; new clients by least connections.
        Sticky = "sticky",
    }
}

/// Input of a policy besides the weights. Each kind has its own settings in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChoosesBy {
    /// Current load of the backends, and chance.
    Backends,
    /// The key that `hash-key` selects from a request.
    Key,
    /// The client's previous backend, stored for the time that `sticky` sets.
    Client,
}

impl Policy {
    #[must_use]
    pub fn chooses_by(self) -> ChoosesBy {
        match self {
            Policy::RoundRobin | Policy::LeastConnections | Policy::TwoChoices | Policy::PeakEwma => {
                ChoosesBy::Backends
            }
            Policy::Hash | Policy::Maglev => ChoosesBy::Key,
            Policy::Sticky => ChoosesBy::Client,
        }
    }

    /// All policies with a summary, for the reference and the help.
    #[must_use]
    pub fn choices() -> String {
        let all = Self::ALL.iter().map(|policy| format!("{policy} ({})", policy.summary()));
        all.collect::<Vec<_>>().join(", ")
    }

    fn summary(self) -> &'static str {
        match self {
            Policy::RoundRobin => "in turn, by weight",
            Policy::LeastConnections => "the one with the fewest sessions for its weight",
            Policy::TwoChoices => "the better of two random ones",
            Policy::PeakEwma => "the one of two random ones that responds faster, for its sessions",
            Policy::Hash => "by hash-key; a change of one backend moves few keys",
            Policy::Maglev => "by hash-key, with the most even spread, equal on every node",
            Policy::Sticky => "the one that the client had before",
        }
    }

    /// Words of all policies of this kind.
    pub fn words_by(by: ChoosesBy) -> Vec<&'static str> {
        Self::ALL
            .iter()
            .filter(move |policy| policy.chooses_by() == by)
            .map(|policy| policy.as_str())
            .collect()
    }
}

/// Source of the key for `hash` and `maglev`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum HashKey {
    /// IP address of the client.
    #[default]
    Client,
    Host,
    Path,
    /// A request header field; its name is in lower case.
    Header(Box<str>),
}

impl HashKey {
    /// Hash of the value that this key names in a request: the same number on every node. 0 without a value.
    pub fn hash<'a>(
        &self,
        client: Option<IpAddr>,
        host: impl FnOnce() -> Cow<'a, str>,
        path: impl FnOnce() -> &'a str,
        header: impl FnOnce(&str) -> Option<&'a [u8]>,
    ) -> u64 {
        match self {
            HashKey::Client => client.map_or(0, client_key),
            HashKey::Host => hash_bytes(0, host().as_bytes()),
            HashKey::Path => hash_bytes(0, path().as_bytes()),
            HashKey::Header(name) => header(name).map_or(0, |value| hash_bytes(0, value)),
        }
    }
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

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a key to hash: use client, host, path, or header:NAME", .0.escape_debug())]
pub struct HashKeyError(Box<str>);
