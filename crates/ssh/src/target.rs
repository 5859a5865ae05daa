//! All settings for the connection to one host, from the command line, and from `ssh_config` in
//! `ssh/src/target/configured.rs`.

use std::net::IpAddr;
use std::time::Duration;

use hosts::ssh::config::Family;

use crate::keys::KeyPlan;

mod configured;
mod hints;
mod said;
mod via;

pub use crate::keep_alive::KeepAlive;
pub use configured::Configured;
pub use said::LocationSources;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    /// Identity: `HostKeyAlias`, else the name that the user typed. Pins and certificates are looked up by it.
    pub name: String,
    /// Host to connect to: `HostName` with its tokens expanded.
    pub host: String,
    pub addresses: Addresses,
    pub port: u16,
    pub said: LocationSources,
    pub user: String,
    pub proxy: Proxy,
    pub keys: KeyPlan,
    pub algorithms: Algorithms,
    /// Timeout of each phase of a connection: TCP; version exchange and key exchange; authentication.
    pub connect_timeout: Duration,
    pub keep_alive: KeepAlive,
    pub rekey: Rekey,
    /// Purpose of the connection, which decides the window size.
    pub purpose: Purpose,
}

impl Target {
    /// Creates a target with the defaults: host `name`, port 22, user `user`, no proxy, no keys.
    #[must_use]
    pub fn new(name: &str, user: &str) -> Self {
        Self {
            name: name.to_owned(),
            host: name.to_owned(),
            addresses: Addresses::default(),
            port: 22,
            said: LocationSources::default(),
            user: user.to_owned(),
            proxy: Proxy::None,
            keys: KeyPlan::default(),
            algorithms: Algorithms::default(),
            connect_timeout: Duration::from_secs(10),
            keep_alive: KeepAlive::default(),
            rekey: Rekey::default(),
            purpose: Purpose::Commands,
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Addresses {
    /// Addresses in the order of the attempts. If empty, the host name is resolved.
    pub known: Vec<IpAddr>,
    /// Addresses to try after those of the name, or if the name has none.
    pub hints: Vec<IpAddr>,
    /// Address family to use (`AddressFamily`).
    pub family: Family,
}

/// Route of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Proxy {
    /// A direct TCP connection.
    None,
    /// Jump hosts in order; each is judged like any other host. For commands, all targets with the same route share
    /// these connections.
    Jump(Vec<Target>),
    /// Standard input and output of this shell command, with its tokens expanded.
    Command(String),
}

/// Allowed algorithms, by their names in RFC 4253 and OpenSSH. An empty list means the defaults of penstock, best
/// first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Algorithms {
    pub kex: Vec<String>,
    pub ciphers: Vec<String>,
    /// Message authentication codes, for ciphers that need one.
    pub macs: Vec<String>,
    pub host_keys: Vec<String>,
    /// Minimum length of an RSA key in bits, for host keys and user keys (`RequiredRSASize`).
    pub rsa_bits: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rekey {
    /// Number of bytes in one direction after which the keys are changed; at most 1 GiB (RFC 4253 section 9).
    pub bytes: usize,
    /// Time after which the keys are changed.
    pub time: Duration,
}

impl Default for Rekey {
    fn default() -> Self {
        Self { bytes: 1 << 30, time: Duration::from_secs(3600) }
    }
}

/// Purpose of a connection. The peer can fill the window, which takes memory here: so it is only as large as needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Commands on many hosts: windows of 256 KiB.
    Commands,
    /// Files and forwards: windows of 16 MiB, packets of 64 KiB.
    Bulk,
}

/// Source of the jump hosts before a host.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// The configuration and the hints of the host itself.
    Own,
    /// The host that named this one in a chain: the own `ProxyJump` and `via=` do not count.
    Chosen,
}

/// Maximum number of jump hosts on the way to a host.
const LONGEST_WAY: usize = 16;
