//! Detection of a port in the name of a host: `web1:2222`, as in other programs.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameWithPort<'t> {
    /// Login before the name: `root@`, or empty.
    pub user: &'t str,
    pub host: &'t str,
    pub port: u16,
}

impl<'t> NameWithPort<'t> {
    /// Parses a name with one colon and a port. An IPv6 address has more colons, and brackets before its port.
    #[must_use]
    pub fn of(text: &'t str) -> Option<Self> {
        let (whom, port) = text.split_once(':')?;
        let (user, host) = whom.split_at(whom.rfind('@').map_or(0, |at| at + 1));
        let digits = port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|port| *port > 0 && digits)?;
        (!host.is_empty()).then_some(Self { user, host, port })
    }
}

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
