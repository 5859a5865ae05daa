//! Finds a host by the hints in its identity file, where `ssh_config` gives no address. Also advice: which setting
//! decided the address.

use hosts::fleet::ending::{Failure, Reason};
use hosts::identity::{Found, Index};

use super::via;
use super::{Before, Target};
use crate::config::SshConfig;

impl Target {
    /// Applies the hints of the host's identity, and those of its jump hosts, where nothing else gives the address.
    ///
    /// A name in the DNS has priority over a hint: `ssh` uses the DNS too, and the host may have moved after the hint
    /// was written. The hint `via=` names a jump host; ProxyJump or ProxyCommand in `ssh_config` overrides it, even
    /// with the value `none`.
    ///
    /// # Errors
    /// A fault in the configuration of a host that `via=` names, or a host that is reached through itself.
    pub fn hinted(self, config: &SshConfig, index: &Index) -> Result<Self, Failure> {
        via::placed(self, Before::Own, config, index, &mut Vec::new())
    }

    /// Returns a message if the hint `via=` is not used, with the setting that overrides it.
    #[must_use]
    pub fn overruled(&self) -> Option<String> {
        let via = self.said.unused_via.as_ref()?;
        let who = self.said.proxy.as_deref().unwrap_or("the SSH configuration says another way");
        Some(format!("via={via} in the file of {} is not used: {who}", self.name))
    }

    /// Sets address and port from the hints of the host's identity.
    pub(super) fn found_by(&mut self, index: &Index) {
        // Several hosts may share one HostKeyAlias, so its hints do not apply to them.
        let is_itself = self.host.eq_ignore_ascii_case(&self.name);
        if self.said.host.is_some() || !is_itself {
            return;
        }
        let Found::Host(host) = index.find(&self.name, self.port) else { return };
        let hints = host.address();
        if self.said.port.is_none()
            && let Some(port) = host.port()
        {
            self.port = port;
        }
        // For an IP address only the port is unknown.
        if self.host.parse::<std::net::IpAddr>().is_ok() {
            return;
        }
        // If the user typed one of the host's DNS names, this name is used.
        let is_in_dns = hints.names.iter().any(|name| name.as_str().eq_ignore_ascii_case(&self.host));
        if let Some(name) = hints.names.first().filter(|_| !is_in_dns) {
            self.host = name.to_string();
        }
        self.addresses.hints = hints.addresses.into_iter().rev().collect();
    }

    /// Replaces the advice of a failure by [`Self::advice`].
    pub(crate) fn advised(&self, failure: Failure) -> Failure {
        let advice = failure.advice.map(|advice| self.advice(failure.reason, advice));
        Failure { advice, ..failure }
    }

    /// Improves `advice`, which considers only identities: if the configuration or the user gives the address, a change
    /// of a hint would have no effect.
    #[must_use]
    pub fn advice(&self, reason: Reason, advice: String) -> String {
        match reason {
            Reason::WrongHost if self.addresses.known.is_empty() => self.led_astray(advice),
            Reason::UnknownHost => self.at_another_port(advice),
            _ => advice,
        }
    }

    /// Advice if another known host answered.
    fn led_astray(&self, advice: String) -> String {
        let name = &self.name;
        let is_looked_up = self.addresses.hints.is_empty() && self.host.parse::<std::net::IpAddr>().is_err();
        match (&self.said.host, &self.said.port) {
            // Servers may share an address, so penstock cannot tell which of the two lines is wrong.
            (Some(line), Some(port)) => {
                format!("{line}, and {port}: find the address of {name}, and correct the wrong one there")
            }
            (Some(line), None) => format!("{line}: find the address of {name}, and correct that line"),
            (None, Some(port)) if is_looked_up => format!(
                "the address of {} comes from the DNS (or /etc/hosts), and {port}: find the address of {name}, and correct the wrong one there",
                self.host
            ),
            (None, None) if is_looked_up => format!(
                "the address of {} comes from the DNS (or /etc/hosts): correct it there, or set HostName for {name} in ~/.ssh/config",
                self.host
            ),
            (None, Some(port)) => format!("{port}: change it there if that is wrong; else {advice}"),
            (None, None) => advice,
        }
    }

    /// Advice if the key is unknown, and the hints give another port for this identity.
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
