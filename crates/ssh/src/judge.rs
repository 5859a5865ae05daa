//! The interface that decides if the host that answered is the intended host.

use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;

pub use hosts::identity::Verdict;
use hosts::ssh::key::PublicKey;

pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Judges the identities of hosts. The client calls it for every connection, before it sends anything secret.
pub trait HostVerifier: Send + Sync {
    /// Returns the host key algorithms to ask for, types of pinned keys first. Empty: the usual order, without
    /// certificates.
    fn wanted(&self, name: &str) -> Vec<String>;

    /// Decides about the key or certificate of a host. The server has proved that it holds the key.
    fn judge<'a>(&'a self, name: &'a str, at: &'a Place, offered: &'a Offered) -> BoxFuture<'a, Verdict>;

    /// Returns the keys, among those that an accepted host announced, that the server must prove: all of them, or the
    /// new ones.
    fn unproved(&self, name: &str, keys: Vec<PublicKey>) -> Vec<PublicKey> {
        let _ = name;
        keys
    }

    /// Receives further keys of an accepted host (`hostkeys-00@openssh.com`). The server has proved each of them.
    fn announced(&self, name: &str, keys: Vec<PublicKey>);
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Directly over TCP.
    Address(SocketAddr),
    /// Through a jump host, which resolved the name.
    Jumped {
        through: String,
        /// Host name that the jump host was asked to connect to.
        host: String,
        port: u16,
    },
    /// Through a proxy command, whose destination is unknown.
    Command { port: u16 },
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

/// The key or certificate with which a host proves its identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Offered {
    Key(PublicKey),
    /// A whole certificate as received. Only one thing is checked: the server holds the certified key.
    Certificate(PublicKey),
}
