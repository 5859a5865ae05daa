//! What [`super::judge`] judges. `crates/serve/src/self_test.rs` reads it.

use std::time::SystemTime;

use crate::rings::WantedRings;

/// What was read of this machine, of a configuration, and of the server that runs with it.
#[derive(Clone, Debug)]
pub struct Facts {
    pub binary: Binary,
    /// `None` without a configuration.
    pub configuration: Option<Configuration>,
    /// The server that answers at the control socket; `None` if there is none.
    pub server: Option<Server>,
    pub user: User,
    pub capabilities: Vec<Needed>,
    pub kernel: Kernel,
    pub limits: Limits,
    pub clock: Clock,
    pub resolver: Resolver,
    pub ipv6: Ipv6,
    pub certificates: Vec<Certificate>,
    pub ports: Vec<Port>,
    pub gssapi: Gssapi,
}

#[derive(Clone, Debug)]
pub struct Binary {
    pub path: String,
    pub version: &'static str,
    pub open_to: OpenTo,
}

/// Who may replace the contents of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenTo {
    Owner,
    Others,
}

#[derive(Clone, Debug)]
pub struct Configuration {
    pub file: String,
    /// Faults that a start would refuse, or warnings of `penstock check`; one line each.
    pub faults: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    pub process: u32,
    pub version: String,
}

/// The user that `penstock serve` runs as when root starts it.
#[derive(Clone, Debug)]
pub struct User {
    pub name: String,
    pub standing: Standing,
    pub named_by: NamedBy,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    Exists,
    Missing,
    /// A server that root starts would stay root, and why.
    StaysRoot(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedBy {
    /// `process.user`
    Configuration,
    Default,
}

/// A capability that the configuration needs.
#[derive(Clone, Debug)]
pub struct Needed {
    pub name: &'static str,
    pub why: &'static str,
    pub given: Given,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    Yes,
    /// No process of this machine or container can have it.
    Bounded,
    /// The server that runs does not have it.
    NotToServer,
    /// This check runs as an ordinary user, and no server tells.
    Unknown,
}

#[derive(Clone, Copy, Debug)]
pub struct Clock {
    pub now: SystemTime,
    /// When the binary was written: it cannot be in the future.
    pub written: Option<SystemTime>,
    /// Whether the kernel says that a program keeps the clock right; `None` if it does not tell.
    pub kept: Option<Kept>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    Yes,
    No,
}

#[derive(Clone, Debug)]
pub struct Certificate {
    /// Section of the configuration.
    pub section: String,
    pub name: String,
    pub not_before: SystemTime,
    pub not_after: SystemTime,
}

#[derive(Clone, Debug)]
pub struct Gssapi {
    /// Why the library cannot be loaded; `None` if it is there.
    pub fault: Option<String>,
    pub use_: Use,
}

/// Whether the configuration needs something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    Needed,
    NotNeeded,
}

#[derive(Clone, Debug)]
pub struct Limits {
    pub descriptors: Descriptors,
    /// `net.core.somaxconn`; `None` if the kernel does not tell.
    pub listen_queue: Option<u64>,
    /// Longest queue that the configuration asks for.
    pub backlog: u64,
    /// Connections in the table of the packet filter, and room in it; `None` without such a table.
    pub tracked: Option<(u64, u64)>,
}

/// Limit of open descriptors.
#[derive(Clone, Copy, Debug)]
pub struct Descriptors {
    pub hard: u64,
    pub measured: Measured,
    /// Client connections that the configuration asks for; `None` if it takes what there is.
    pub connections: Option<u64>,
}

/// Of which process a limit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measured {
    Server,
    /// The one that checks: a server that a shell like this one starts has the same.
    Here,
}

#[derive(Clone, Debug)]
pub struct Port {
    /// Key of the configuration.
    pub key: String,
    /// As in `bind`.
    pub address: String,
    pub protocol: &'static str,
    pub number: u16,
    /// A process that has the address, or one that overlaps it; `None` if it is free.
    pub holder: Option<Holder>,
    /// Why this machine does not let a program have the address, whether it is taken or not.
    pub refused: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    Process {
        name: String,
        process: u32,
    },
    /// The kernel does not tell this user.
    Hidden,
}

/// What the kernel offers.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// As uname(2) has it.
    pub release: String,
    /// Version of Landlock; `None` if the kernel does not have it or has it switched off.
    pub landlock: Option<u32>,
    pub seccomp: bool,
    /// TLS in the kernel.
    pub ktls: bool,
    /// Mount of /sys/fs/bpf.
    pub bpf: bool,
    /// Whether the configuration lets programs in the kernel forward packets.
    pub bpf_use: Use,
    pub io_uring: IoUring,
}

/// io_uring(7), which is for the sessions of `tcp` listeners.
#[derive(Clone, Debug)]
pub struct IoUring {
    /// Who may use it: 0 for all, 1 for privileged processes, 2 for none. `None` if the kernel does not say.
    pub disabled: Option<u64>,
    /// Why this process cannot make what a worker needs.
    pub fault: Option<String>,
    pub wanted: WantedRings,
}

impl Kernel {
    /// Major and minor version.
    pub(super) fn version(&self) -> Option<(u32, u32)> {
        let mut parts = self.release.split(|c: char| !c.is_ascii_digit());
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }
}

/// How names are looked up.
#[derive(Clone, Debug)]
pub struct Resolver {
    /// Servers in resolv.conf(5).
    pub servers: Vec<String>,
    /// Names of the configuration, each with why it does not resolve, or `None` if it does.
    pub names: Vec<(String, Option<String>)>,
}

/// IPv6 of this machine.
#[derive(Clone, Debug)]
pub struct Ipv6 {
    pub kernel: bool,
    /// An address that is neither loopback nor link-local.
    pub address: bool,
    /// Keys of the configuration that name an IPv6 address.
    pub named_by: Vec<String>,
}
