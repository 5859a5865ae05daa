//! Everything needed to reach one host. Filled from the command line, and from `ssh_config` in
//! `ssh/src/target/configured.rs`.

use std::net::IpAddr;
use std::time::Duration;

use logic::ssh::config::Family;

use crate::keys::KeyPlan;

mod configured;
mod hints;
mod via;

pub use configured::Configured;
pub use hints::Said;

/// One host, and how to reach it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    /// The identity: `HostKeyAlias`, else what the user typed. Pins and certificates are looked up under it.
    pub name: String,
    /// The host to connect to: `HostName` after its tokens were replaced.
    pub host: String,
    /// Where its addresses come from.
    pub addresses: Addresses,
    /// The TCP port.
    pub port: u16,
    /// Who said where it is.
    pub said: Said,
    /// Who we log in as.
    pub user: String,
    /// What the connection goes through.
    pub proxy: Proxy,
    /// Which keys may be offered, and in what order.
    pub keys: KeyPlan,
    /// Restrictions on what is negotiated.
    pub algorithms: Algorithms,
    /// The limit of each phase of connecting: TCP, banner and key exchange, authentication.
    pub connect_timeout: Duration,
    /// When a silent connection counts as broken.
    pub keep_alive: KeepAlive,
    /// When keys are exchanged anew.
    pub rekey: Rekey,
    /// What the connection is for; sizes the windows.
    pub purpose: Purpose,
}

impl Target {
    /// `name` under its own name, port 22, as `user`, no proxy, no keys.
    #[must_use]
    pub fn new(name: &str, user: &str) -> Self {
        Self {
            name: name.to_owned(),
            host: name.to_owned(),
            addresses: Addresses::default(),
            port: 22,
            said: Said::default(),
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

/// Where a host's addresses come from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Addresses {
    /// Tried in this order. With none the host's name is looked up.
    pub known: Vec<IpAddr>,
    /// Tried after those that the name has, and where it has none.
    pub hints: Vec<IpAddr>,
    /// Only addresses of this kind are used (`AddressFamily`).
    pub family: Family,
}

/// What a connection goes through.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Proxy {
    /// TCP straight to the host.
    None,
    /// From host to host, the first one first; each is judged like any other. For commands, all who go the same way share
    /// the connections to these hosts.
    Jump(Vec<Target>),
    /// The standard input and output of this shell command (tokens already replaced).
    Command(String),
}

/// Restrictions on what is negotiated, as names of RFC 4253 and OpenSSH. An empty list means ours, best first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Algorithms {
    /// Key exchange.
    pub kex: Vec<String>,
    /// Ciphers.
    pub ciphers: Vec<String>,
    /// Message authentication, for ciphers that need it.
    pub macs: Vec<String>,
    /// Host keys.
    pub host_keys: Vec<String>,
    /// RSA keys with fewer bits are no keys, neither of the host nor of ours (`RequiredRSASize`).
    pub rsa_bits: usize,
}

/// When a silent connection counts as broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeepAlive {
    /// Ask after so much silence; `None` never asks.
    pub interval: Option<Duration>,
    /// Broken after so many questions without an answer.
    pub count: usize,
}

impl Default for KeepAlive {
    fn default() -> Self {
        Self { interval: Some(Duration::from_secs(15)), count: 3 }
    }
}

/// When keys are exchanged anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rekey {
    /// After so many bytes either way; at most 1 GiB (RFC 4253 section 9).
    pub bytes: usize,
    /// After this time.
    pub time: Duration,
}

impl Default for Rekey {
    fn default() -> Self {
        Self { bytes: 1 << 30, time: Duration::from_secs(3600) }
    }
}

/// What a connection is for. A window is memory that the other side may make us hold, so it is only as large as needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Commands on many hosts: windows of 256 KiB.
    Commands,
    /// Files, forwards: windows of 16 MiB, packets of 64 KiB.
    Bulk,
}

/// How the way up to a host is found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// By what is configured for the host itself, and known of it.
    Own,
    /// By whoever named it in a chain: its own `ProxyJump` and `via=` do not count.
    Chosen,
}

/// Hosts on one way, at most.
const LONGEST_WAY: usize = 16;
