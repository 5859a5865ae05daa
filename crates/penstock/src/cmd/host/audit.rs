//! What is weak about the identities of the fleet.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use logic::identity::{Facts, Finding, Index, Name, Severity, audit};
use logic::ssh::config::{Asked, overruling};
use ssh::identity::{Anchor, Dns, Store, now};
use ssh::{ConfigFiles, SshConfig};

use super::{count, load, table};
use crate::output::{Failure, plain, print};

/// Find what is weak about the identities of the fleet
///
/// From their files, and from what ordinary connections saw: keys that two hosts share, keys that nobody proved, RSA only,
/// certificates about to expire, key exchanges without protection from quantum computers. With --sshfp the DNS is asked
/// too. Exit code 1 if something is bad.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  penstock host audit\n  penstock host audit --sshfp")]
pub struct Arguments {
    /// Also ask the DNS for the SSHFP records of every host
    #[arg(long)]
    sshfp: bool,
    #[command(flatten)]
    dns: DnsArguments,
}

/// Whom to ask in the DNS, and whom to trust.
#[derive(Debug, Args)]
pub struct DnsArguments {
    /// Trust these DNSKEY records instead of the keys of the root
    #[arg(long, value_name = "FILE")]
    anchor: Option<PathBuf>,
    /// Ask this DNS server instead of those of the system
    #[arg(long, value_name = "ADDRESS:PORT")]
    dns_server: Option<SocketAddr>,
}

impl DnsArguments {
    /// A resolver; needs a runtime.
    pub fn resolver(&self) -> Result<Dns, Failure> {
        let anchor = self.anchor.clone().map_or(Anchor::Root, Anchor::File);
        Dns::new(&anchor, self.dns_server).map_err(Failure::runtime)
    }
}

pub(super) fn run(store: &Store, arguments: &Arguments) -> Result<(), Failure> {
    let index = load(store)?;
    let mut facts: HashMap<Name, Facts> =
        store.seen().into_iter().map(|(name, seen)| (name, seen.facts)).collect();
    if arguments.sshfp {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let dns = arguments.dns.resolver()?;
            for host in index.hosts().iter().filter(|host| host.retired().is_none()) {
                let name = host.address().names.into_iter().next().unwrap_or_else(|| host.name().clone());
                let (name, _) = name.split_port();
                let answer = dns.sshfp(name).await;
                facts.entry(host.name().clone()).or_default().sshfp = Some(answer);
            }
            Ok::<(), Failure>(())
        })?;
    }
    let mut found = audit(&index, &facts, now());
    found.extend(overruled(&index));
    found.sort_by_key(|one| one.severity);
    let rows: Vec<Vec<String>> = found
        .iter()
        .map(|one| vec![one.severity.word().to_owned(), plain(&one.host), plain(&one.text)])
        .collect();
    let bad = found.iter().filter(|one| one.severity == Severity::Bad).count();
    let hosts = index.hosts().len() + index.damaged().len();
    let hosts = count(hosts, "host", "hosts");
    let findings = count(found.len(), "finding", "findings");
    print(&format!("{}{hosts}, {findings}, {bad} bad\n", table(&rows)))?;
    if bad == 0 { Ok(()) } else { Err(Failure::Status(1)) }
}

/// Settings of the user's `ssh_config` with which ssh believes keys that nobody here vouches for, asked to obey these
/// identities or not yet.
fn overruled(index: &Index) -> Vec<Finding> {
    let Ok(config) = SshConfig::read(&ConfigFiles::Usual) else { return Vec::new() };
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    for host in index.hosts().iter().filter(|host| host.retired().is_none()) {
        let (name, port) = host.name().split_port();
        let asked = Asked { host: name.to_owned(), port, ..Asked::default() };
        let Ok(resolved) = config.resolve(&asked) else { continue };
        for one in overruling(&resolved) {
            let place = one.place.map_or_else(String::new, |place| format!("{place} says "));
            let text = format!(
                "{place}{}: ssh {}; put the block of penstock known-hosts --stanza before it",
                one.line, one.meaning
            );
            match found.iter_mut().find(|(known, _)| *known == text) {
                Some((_, hosts)) => hosts.push(name.to_owned()),
                None => found.push((text, vec![name.to_owned()])),
            }
        }
    }
    let finding = |(text, hosts): (String, Vec<String>)| {
        let host = match hosts.as_slice() {
            [first, _, ..] => format!("{first} and {} more", hosts.len() - 1),
            _ => hosts.concat(),
        };
        Finding { severity: Severity::Weak, host, text }
    };
    found.into_iter().map(finding).collect()
}
