//! Who decides whether the host that answered is the one that was meant.

use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;

pub use logic::identity::Verdict;
use logic::ssh::key::PublicKey;

/// A future on the heap.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Judges the identities of hosts. Called for every connection, before anything of ours is sent.
pub trait Judge: Send + Sync {
    /// Host key algorithms to ask for, types that are pinned first. Empty: the usual order, no certificates.
    fn wanted(&self, name: &str) -> Vec<String>;

    /// Decides about what a host offered. The server has proved that it holds the key.
    fn judge<'a>(&'a self, name: &'a str, at: &'a Place, offered: &'a Offered) -> BoxFuture<'a, Verdict>;

    /// Which of the keys that an accepted host announced are worth a proof: all, or those that are not known yet.
    fn unproved(&self, name: &str, keys: Vec<PublicKey>) -> Vec<PublicKey> {
        let _ = name;
        keys
    }

    /// More keys of a host that was accepted (`hostkeys-00@openssh.com`), each proved by the server.
    fn announced(&self, name: &str, keys: Vec<PublicKey>);
}

/// Where a host answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Straight over TCP.
    Address(SocketAddr),
    /// Through a jump host, which looked the name up.
    Jumped {
        /// The name of the last jump host.
        through: String,
        /// What the jump host was asked for.
        host: String,
        /// With this port.
        port: u16,
    },
    /// Through a command; nobody knows where it leads.
    Command {
        /// The port that was meant.
        port: u16,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Jumped { through, host, port } => write!(f, "{host}:{port} through {through}"),
            Self::Command { .. } => f.write_str("the proxy command"),
        }
    }
}

/// What a host offered as the proof of its identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Offered {
    /// A bare key.
    Key(PublicKey),
    /// A certificate, whole, as the wire carries it. Nothing of it has been checked but that the server holds the key in it.
    Certificate(PublicKey),
}
