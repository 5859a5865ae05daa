//! A port where only the name of a host goes: `web1:2222`, as other programs write it.

use std::fmt;

/// A host and the port behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameWithPort<'t> {
    /// What was typed before the name: `root@`, or nothing.
    pub user: &'t str,
    /// The host.
    pub host: &'t str,
    /// The port.
    pub port: u16,
}

impl<'t> NameWithPort<'t> {
    /// What a name with one colon and a port after it was meant to be. An address of IPv6 has more colons, and its port
    /// stands behind brackets, where it is understood.
    #[must_use]
    pub fn of(text: &'t str) -> Option<Self> {
        let (whom, port) = text.split_once(':')?;
        let (user, host) = whom.split_at(whom.rfind('@').map_or(0, |at| at + 1));
        let digits = port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|port| *port > 0 && digits)?;
        (!host.is_empty()).then_some(Self { user, host, port })
    }
}

/// What to do.
impl fmt::Display for NameWithPort<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { user, host, port } = self;
        write!(f, "write \"{user}{host}\", and in ~/.ssh/config \"Host {host}\" with \"Port {port}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_name_with_one_port_behind_it_is_meant_as_such() {
        let found = NameWithPort::of("root@web1:2222").unwrap();
        assert_eq!(found, NameWithPort { user: "root@", host: "web1", port: 2222 });
        let advice = "write \"root@web1\", and in ~/.ssh/config \"Host web1\" with \"Port 2222\"";
        assert_eq!(found.to_string(), advice);
        assert!(NameWithPort::of("10.0.0.1:22").is_some());
        for text in [
            "web1",
            "::1",
            "fe80::1",
            "2001:db8::1:22",
            "[::1]:22",
            "web1:",
            "web1:ssh",
            ":22",
            "web1:0",
            "web1:+22",
        ] {
            assert_eq!(NameWithPort::of(text), None, "{text}");
        }
    }
}
