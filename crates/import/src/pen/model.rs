//! The state of a Pen that a command line and commands describe, each value with the place that says it.

use std::collections::BTreeMap;

use super::place::{Listen, Place};

/// A value, and the option or line that gives it.
#[derive(Clone, Debug)]
pub(crate) struct Said<T> {
    pub(crate) value: T,
    pub(crate) place: String,
}

/// A setting that Pen turns on, or off with `no`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Switch {
    On,
    Off,
}

pub(crate) type Given<T> = Option<Said<T>>;

#[derive(Debug, Default)]
pub(crate) struct Pen {
    pub(crate) listen: Given<Listen>,
    pub(crate) servers: BTreeMap<usize, Server>,
    pub(crate) emergency: Given<Server>,
    pub(crate) abuse: Given<Server>,
    pub(crate) udp: Given<Switch>,
    pub(crate) http: Given<Switch>,
    pub(crate) choice: Choice,
    pub(crate) transparent: Given<Switch>,
    pub(crate) keepalive: Given<Switch>,
    /// Interface of direct server return.
    pub(crate) dsr: Given<String>,
    /// List of the addresses that are held; without one none are.
    pub(crate) tarpit: Given<usize>,
    /// `-b`, in seconds; the default is 30.
    pub(crate) blacklist: Given<u64>,
    /// `-T`, in seconds; 0 is for ever.
    pub(crate) tracking: Given<u64>,
    /// `-t`, in seconds; the default is 3.
    pub(crate) timeout: Given<u64>,
    /// In seconds; 0 is never.
    pub(crate) idle_timeout: Given<u64>,
    /// `up`, `down` or `both`; without it a side that ends does not end the other one.
    pub(crate) fast_close: Given<String>,
    pub(crate) clients_max: Given<u64>,
    pub(crate) conn_max: Given<u64>,
    pub(crate) backlog: Given<u64>,
    pub(crate) source: Given<String>,
    pub(crate) acls: BTreeMap<usize, Acl>,
    pub(crate) client_acl: Given<usize>,
    pub(crate) control: Given<String>,
    pub(crate) log: Given<String>,
    pub(crate) user: Given<String>,
    pub(crate) pid_file: Given<String>,
    pub(crate) tls: Tls,
}

/// How Pen chooses a server. Of several, the first of `prio`, `weight`, `hash` counts.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    /// Clients are not tracked.
    pub(crate) roundrobin: Given<Switch>,
    pub(crate) hash: Given<Switch>,
    pub(crate) weight: Given<Switch>,
    pub(crate) prio: Given<Switch>,
    /// No failover.
    pub(crate) stubborn: Given<Switch>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Server {
    /// The option, argument or line that gave the address.
    pub(crate) said_at: String,
    pub(crate) place: Option<Place>,
    /// 0 is no limit.
    pub(crate) soft: u64,
    /// 0 is the soft limit.
    pub(crate) hard: u64,
    /// 0 is never, where weights are used.
    pub(crate) weight: u64,
    pub(crate) prio: u64,
    pub(crate) acl: usize,
    /// Seconds for which it gets no clients at the start.
    pub(crate) blacklist: Given<u64>,
}

impl Server {
    /// Whether something is said of it beside its access list.
    pub(crate) fn says_more_than_its_list(&self) -> bool {
        let Self { said_at: _, place, soft, hard, weight, prio, acl: _, blacklist } = self;
        place.is_some()
            || [soft, hard, weight, prio].into_iter().any(|number| *number > 0)
            || blacklist.is_some()
    }
}

/// An access list; its entries count in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Acl(pub(crate) Vec<Said<Entry>>);

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) verdict: Verdict,
    pub(crate) clients: Clients,
}

text::words! {
    pub(crate) enum Verdict: "verdict of an access list" {
        Permit = "permit",
        Deny = "deny",
    }
}

impl Verdict {
    pub(crate) fn opposite(self) -> Self {
        match self {
            Self::Permit => Self::Deny,
            Self::Deny => Self::Permit,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Clients {
    /// Pen compares `client & mask` with the address as it is written.
    Ipv4 {
        address: u32,
        mask: u32,
    },
    Ipv6 {
        address: u128,
        length: u32,
    },
    Country(String),
}

#[derive(Debug, Default)]
pub(crate) struct Tls {
    pub(crate) certificate: Given<String>,
    pub(crate) key: Given<String>,
    /// Files of the two that are not there.
    pub(crate) absent: Vec<Said<String>>,
    pub(crate) ca_file: Given<String>,
    pub(crate) ca_directory: Given<String>,
    pub(crate) require: Given<Switch>,
    pub(crate) ciphers: Given<String>,
    pub(crate) names: Given<String>,
    pub(crate) no_tls12: Given<Switch>,
    pub(crate) server_order: Given<Switch>,
}

/// Whether a setting is on; without a word it is off.
pub(crate) fn is_on(setting: &Given<Switch>) -> bool {
    setting.as_ref().is_some_and(|said| said.value == Switch::On)
}

/// The place of a value, or else the name of Pen's default.
pub(crate) fn place_of<T>(given: &Given<T>, option: &str) -> String {
    given.as_ref().map_or_else(|| format!("without {option}"), |said| said.place.clone())
}

/// Sets a size of a table, which never shrinks in Pen.
pub(crate) fn grow(size: &mut Given<u64>, new: Given<u64>) {
    let before = size.as_ref().map_or(0, |said| said.value);
    if let Some(new) = new.filter(|new| new.value > before) {
        *size = Some(new);
    }
}
