//! Command-line arguments for DNS queries.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use ssh::identity::{Anchor, Dns};

use crate::output::Failure;

/// DNS servers to ask, and trust anchors.
#[derive(Debug, Args)]
pub(super) struct DnsArguments {
    /// Trust these DNSKEY records instead of the keys of the root
    #[arg(long, value_name = "FILE")]
    anchor: Option<PathBuf>,
    /// Ask this DNS server instead of those of the system
    #[arg(long, value_name = "ADDRESS:PORT")]
    dns_server: Option<SocketAddr>,
}

impl DnsArguments {
    /// Makes a resolver. Must be called on a runtime.
    pub(super) fn resolver(&self) -> Result<Dns, Failure> {
        let anchor = self.anchor.clone().map_or(Anchor::Root, Anchor::File);
        Dns::new(&anchor, self.dns_server).map_err(Failure::runtime)
    }
}
