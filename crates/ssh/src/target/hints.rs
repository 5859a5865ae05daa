//! Where a host is when `ssh_config` does not say it: the hints in its identity file. And who said where it is, for advice.

use logic::fleet::ending::{Failure, Reason};
use logic::identity::{Found, Index, Name};
use logic::ssh::config::{Keyword, Resolved};

use super::via;
use super::{Before, Target};
use crate::config::SshConfig;

/// Who said where a host is. What is `None` nobody said.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Said {
    /// `HostName`, as in `~/.ssh/config:12 says HostName 10.0.0.1`.
    pub host: Option<String>,
    /// `Port`, or what was typed; a whole clause, as that of `host`.
    pub port: Option<String>,
    /// `ProxyJump` or `ProxyCommand`, also `none`.
    pub proxy: Option<String>,
    /// The hint `via=` of its identity, if `proxy` overrules it and leads elsewhere.
    pub unused_via: Option<Name>,
    /// The hint `port=` of its identity, if somebody else says another port.
    pub unused_port: Option<u16>,
    /// `HostKeyAlias`, if it is another name than the one that was typed.
    pub alias: Option<String>,
}

impl Said {
    /// What the configuration says. `home` is written `~`.
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

impl Target {
    /// The same, found by the hints of its identity where nobody else says where it is; the hosts on the way too.
    ///
    /// A name that the DNS knows is where the DNS says: `ssh` goes there as well, and a hint may be from before a move. The
    /// hint `via=` leads through its host unless `ssh_config` says ProxyJump or ProxyCommand, be it `none`.
    ///
    /// # Errors
    /// What is wrong with the configuration of a host that `via=` names; hosts that are reached through themselves.
    pub fn hinted(self, config: &SshConfig, index: &Index) -> Result<Self, Failure> {
        via::placed(self, Before::Own, config, index, &mut Vec::new())
    }

    /// That the hint `via=` of its identity is not followed, and who overrules it; nothing if it is, or if there is none.
    #[must_use]
    pub fn overruled(&self) -> Option<String> {
        let via = self.said.unused_via.as_ref()?;
        let who = self.said.proxy.as_deref().unwrap_or("the SSH configuration says another way");
        Some(format!("via={via} in the file of {} is not used: {who}", self.name))
    }

    /// Where it is by the hints of its identity.
    pub(super) fn found_by(&mut self, index: &Index) {
        // Several hosts may have one HostKeyAlias: its hints are not theirs. An address is its own place.
        let is_itself = self.host.eq_ignore_ascii_case(&self.name);
        if self.said.host.is_some() || !is_itself || self.host.parse::<std::net::IpAddr>().is_ok() {
            return;
        }
        let Found::Host(host) = index.find(&self.name, self.port) else { return };
        let hints = host.address();
        if self.said.port.is_none()
            && let Some(port) = host.port()
        {
            self.port = port;
        }
        // Whoever typed one of its names in the DNS means that one.
        let is_in_dns = hints.names.iter().any(|name| name.as_str().eq_ignore_ascii_case(&self.host));
        if let Some(name) = hints.names.first().filter(|_| !is_in_dns) {
            self.host = name.to_string();
        }
        self.addresses.hints = hints.addresses.into_iter().rev().collect();
    }

    /// A failure with advice that helps: see [`Self::advice`].
    pub(crate) fn advised(&self, failure: Failure) -> Failure {
        let advice = failure.advice.map(|advice| self.advice(failure.reason, advice));
        Failure { advice, ..failure }
    }

    /// What to do about a refusal, made of `advice`, which knows only identities: where somebody else says where the host
    /// is, a hint changes nothing.
    #[must_use]
    pub fn advice(&self, reason: Reason, advice: String) -> String {
        match reason {
            Reason::Impostor if self.addresses.known.is_empty() => self.led_astray(advice),
            Reason::UnknownHost => self.at_another_port(advice),
            _ => advice,
        }
    }

    /// Another known host answered.
    fn led_astray(&self, advice: String) -> String {
        let name = &self.name;
        let is_looked_up = self.addresses.hints.is_empty() && self.host.parse::<std::net::IpAddr>().is_err();
        match (&self.said.host, &self.said.port) {
            // Servers may share an address: which of the lines is wrong is not for us to say.
            (Some(line), Some(port)) => {
                format!("{line}, and {port}: change what is wrong there when you know where {name} is")
            }
            (Some(line), None) => format!("{line}: change it there when you know where {name} is"),
            (None, Some(port)) if is_looked_up => format!(
                "the DNS (or /etc/hosts) says where {} is, and {port}: change what is wrong there when you know where {name} is",
                self.host
            ),
            (None, None) if is_looked_up => format!(
                "the DNS (or /etc/hosts) says where {} is: change it there, or say HostName for {name} in ~/.ssh/config",
                self.host
            ),
            (None, Some(port)) => format!("{port}: change it there if that is wrong; else {advice}"),
            (None, None) => advice,
        }
    }

    /// Nobody knows the key, and the identity is at another port by its hints.
    fn at_another_port(&self, advice: String) -> String {
        let Some(own) = self.said.unused_port else { return advice };
        let who = match (&self.said.port, &self.said.host) {
            (Some(port), _) => port.clone(),
            (None, Some(line)) => format!("{line} and no Port"),
            (None, None) => return advice,
        };
        format!("{who}: change it there if {} is still at port {own}; else {advice}", self.name)
    }
}

fn short(path: &str, home: &str) -> String {
    match path.strip_prefix(home) {
        Some(rest) if rest.starts_with('/') && home.len() > 1 => format!("~{rest}"),
        _ => path.to_owned(),
    }
}
