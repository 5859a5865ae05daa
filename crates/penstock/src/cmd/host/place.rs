//! Command-line arguments for the location of a host.

use clap::Args;
use hosts::fleet::ending::Failure as Failed;
use hosts::identity::{AddressOrName, HostFile, Index, Location, Name};
use hosts::ssh::config::Asked;
use ssh::identity::enrol::Hints;
use ssh::{ConfigFiles, Proxy, SshConfig, Target};

use crate::output::{Failure, plain};

/// Location of a host.
#[derive(Debug, Default, Args)]
pub(super) struct Place {
    /// Address of the host, or a name in the DNS; ADDRESS:PORT also sets the port
    #[arg(long = "address", value_name = "ADDRESS")]
    addresses: Vec<Location>,
    /// Port of the host [default: 22]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Jump host to go through
    #[arg(long, value_name = "HOST")]
    via: Option<Name>,
}

impl Place {
    /// Returns the hints to record.
    pub(super) fn hints(&self) -> Result<Hints, Failure> {
        let mut hints = Hints { port: self.port, via: self.via.clone(), ..Hints::default() };
        for location in &self.addresses {
            hints.port = one_port(location, hints.port)?;
            match &location.place {
                AddressOrName::Address(address) => hints.addresses.push(*address),
                AddressOrName::Dns(name) => hints.names.push(name.clone()),
            }
        }
        Ok(hints)
    }

    /// Determines how to connect: by these arguments, else by the host's hints, else by its name.
    pub(super) fn target(
        &self,
        name: &Name,
        host: Option<&HostFile>,
        index: &Index,
    ) -> Result<Target, Failure> {
        let said = self.hints()?;
        let known = host.map(HostFile::address).unwrap_or_default();
        let (plain_name, own_port) = name.split_port();
        let config = SshConfig::read(&ConfigFiles::Usual).map_err(Failure::runtime)?;
        let asked = Asked { host: plain_name.to_owned(), port: said.port.or(own_port), ..Asked::default() };
        let failed = |failure: Failed| Failure::runtime(plain(&failure.detail));
        let mut target = Target::from_config(&config, &asked).map_err(failed)?.target;
        // An enrolled host is identified by the given name, not by HostKeyAlias.
        target.name = plain_name.to_owned();
        // ssh_config has priority over hints, as in all commands that connect.
        let is_hinted = target.said.host.is_none() || !self.addresses.is_empty();
        if let Some(port) = known.port.filter(|_| target.said.port.is_none() && is_hinted) {
            target.port = port;
        }
        let given = said.addresses.first().copied();
        // A DNS name has priority over the last address; an address on the command line has priority over both.
        if target.host == plain_name || !said.addresses.is_empty() || !said.names.is_empty() {
            if let Some(dns) = said.names.first().or(known.names.first()) {
                target.host = dns.to_string();
            } else if said.addresses.is_empty() {
                target.addresses.known = known.addresses;
            }
            if !said.addresses.is_empty() {
                target.addresses.known = said.addresses;
            }
        }
        // The command line has priority over ssh_config, and ssh_config over a hint.
        let hint = known.via.filter(|_| target.said.proxy.is_none());
        if let Some(via) = said.via.or(hint) {
            target = target.via(&via, &config, index).map_err(failed)?;
        } else {
            target = target.hinted(&config, index).map_err(failed)?;
        }
        // The last jump host connects to a single address: the one on the command line.
        if let (Proxy::Jump(_), Some(address)) = (&target.proxy, given) {
            target.host = address.to_string();
        }
        Ok(target)
    }
}

/// Returns the port, which may be given twice if both values are equal.
pub(super) fn one_port(location: &Location, flag: Option<u16>) -> Result<Option<u16>, Failure> {
    match (location.port, flag) {
        (Some(behind), Some(flag)) if behind != flag => {
            Err(Failure::usage(format!("{location} names another port than --port {flag}: give one")))
        }
        (behind, flag) => Ok(behind.or(flag)),
    }
}
