//! Sources of a host's address and route, for advice.

use hosts::identity::Name;
use hosts::ssh::config::{Keyword, Resolved};

/// The settings that decide where a host is found; `None` where there is no setting.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct LocationSources {
    /// `HostName`, as in `~/.ssh/config:12 says HostName 10.0.0.1`.
    pub host: Option<String>,
    /// `Port` or the port that the user typed, as a whole clause like `host`.
    pub port: Option<String>,
    /// `ProxyJump` or `ProxyCommand`, even with the value `none`.
    pub proxy: Option<String>,
    /// Hint `via=` of the identity, if `proxy` overrides it with another host.
    pub unused_via: Option<Name>,
    /// Hint `port=` of the identity, if the configuration or the user gives another port.
    pub unused_port: Option<u16>,
    /// `HostKeyAlias`, if it differs from the name that the user typed.
    pub alias: Option<String>,
}

impl LocationSources {
    /// Collects the settings of the configuration. `home` is abbreviated to `~`.
    #[must_use]
    pub fn of(resolved: &Resolved, home: &str) -> Self {
        let line = |keyword: Keyword, written: &str| {
            let value = resolved.setting(keyword)?;
            let who = match resolved.place(keyword) {
                Some(place) => short(&place.to_string(), home),
                None => "the command line".to_owned(),
            };
            Some(format!("{who} says {written} {value}"))
        };
        let is_alias = !resolved.identity().eq_ignore_ascii_case(&resolved.typed);
        let jump = || line(Keyword::ProxyJump, "ProxyJump");
        Self {
            host: line(Keyword::HostName, "HostName"),
            port: line(Keyword::Port, "Port"),
            proxy: line(Keyword::ProxyCommand, "ProxyCommand").or_else(jump),
            unused_via: None,
            unused_port: None,
            alias: line(Keyword::HostKeyAlias, "HostKeyAlias").filter(|_| is_alias),
        }
    }
}

fn short(path: &str, home: &str) -> String {
    match path.strip_prefix(home) {
        Some(rest) if rest.starts_with('/') && home.len() > 1 => format!("~{rest}"),
        _ => path.to_owned(),
    }
}
