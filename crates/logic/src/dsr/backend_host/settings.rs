//! Settings of the kernel for IPv4 (Documentation/networking/ip-sysctl.rst) that a server behind a `dsr` listener needs.

use super::{ALL, Facts, Key};

/// A change of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Interface, or `all`.
    pub conf: String,
    pub key: Key,
    pub to: u32,
}

impl Set {
    /// File of the setting, below `/proc/sys`.
    pub fn path(&self) -> String {
        format!("net/ipv4/conf/{}/{}", self.conf, self.key)
    }

    /// Its name for sysctl(8).
    pub fn name(&self) -> String {
        // Of a name with a dot (`eth0.100`) sysctl(8) would make two parts.
        match self.conf.contains('.') {
            true => self.path(),
            false => self.path().replace('/', "."),
        }
    }

    /// `NAME=VALUE`, as a word for a shell.
    pub fn assignment(&self) -> String {
        text::shell::word(&format!("{}={}", self.name(), self.to))
    }

    pub fn command(&self) -> String {
        format!("sysctl -w {}", self.assignment())
    }
}

/// Whether a value of `arp_ignore` lets a machine answer for the addresses of the interface that was asked, and no others.
/// 3 leaves out addresses with the scope of the host, which that of a service has not; 8 all addresses.
pub fn ignores_others(arp_ignore: u32) -> bool {
    matches!(arp_ignore, 1 | 2)
}

/// Whether a value of `arp_announce` keeps the addresses of other interfaces out of ARP requests.
pub fn announces_own(arp_announce: u32) -> bool {
    arp_announce == 2
}

/// Whether packets of clients on this interface are dropped because the way back to them leads elsewhere.
pub fn drops_clients(facts: &Facts, interface: &str) -> bool {
    let elsewhere =
        !facts.default_routes.is_empty() && !facts.default_routes.iter().any(|through| through == interface);
    elsewhere && facts.effective(interface, Key::RpFilter) == STRICT
}

const STRICT: u32 = 1;
const LOOSE: u32 = 2;

/// What every server needs, on one interface or on `all`.
pub fn usual(conf: &str) -> [Set; 2] {
    let set = |key, to| Set { conf: conf.to_owned(), key, to };
    [set(Key::ArpIgnore, 1), set(Key::ArpAnnounce, 2)]
}

/// The changes that make the settings of this machine good. `conf` is where they are made if there is a choice.
pub fn changes(facts: &Facts, conf: &str) -> Vec<Set> {
    let mut changes = Vec::new();
    for wanted in usual(conf) {
        let is_good: fn(u32) -> bool = match wanted.key {
            Key::ArpIgnore => ignores_others,
            _ => announces_own,
        };
        let mut now = facts.clone();
        let mut change = |now: &mut Facts, conf: &str| {
            now.settings.insert((conf.to_owned(), wanted.key), wanted.to);
            changes.push(Set { conf: conf.to_owned(), ..wanted.clone() });
        };
        for interface in &facts.interfaces {
            // The larger value counts: a smaller one elsewhere does not help.
            for conf in [ALL, interface] {
                let value = now.value(conf, wanted.key);
                if value > wanted.to && !is_good(value) {
                    change(&mut now, conf);
                }
            }
            if !is_good(now.effective(interface, wanted.key)) {
                change(&mut now, conf);
            }
        }
    }
    for interface in facts.interfaces.iter().filter(|interface| drops_clients(facts, interface)) {
        changes.push(Set { conf: interface.clone(), key: Key::RpFilter, to: LOOSE });
    }
    changes
}
