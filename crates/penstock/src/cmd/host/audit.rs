//! What is weak about the identities of the fleet.

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use clap::Args;
use logic::identity::{Facts, Finding, Index, Name, Severity, audit};
use logic::ssh::config::{Asked, Asking, Started, asking, overruling};
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
    found.extend(of_ssh_config(&index));
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
/// identities or not yet; and a block of ours whose program is gone.
fn of_ssh_config(index: &Index) -> Vec<Finding> {
    let Ok(config) = SshConfig::read(&ConfigFiles::Usual) else { return Vec::new() };
    let mut found: Vec<(Severity, String, Vec<String>)> = Vec::new();
    let mut note =
        |severity, text: String, name: &str| match found.iter_mut().find(|(_, known, _)| *known == text) {
            Some((.., hosts)) => hosts.push(name.to_owned()),
            None => found.push((severity, text, vec![name.to_owned()])),
        };
    let resolve =
        |name: &str, port| config.resolve(&Asked { host: name.to_owned(), port, ..Asked::default() }).ok();
    for host in index.hosts().iter().filter(|host| host.retired().is_none()) {
        let (name, port) = host.name().split_port();
        let Some(resolved) = resolve(name, port) else { continue };
        for one in overruling(&resolved) {
            let place = one.place.map_or_else(String::new, |place| format!("{place} says "));
            let text = format!(
                "{place}{}: ssh {}; put the block of penstock known-hosts --stanza before it",
                one.line, one.meaning
            );
            note(Severity::Weak, text, name);
        }
        if let Some(text) = asking(&resolved).and_then(|asking| unanswered(&asking)) {
            note(Severity::Bad, text, name);
        }
    }
    // ssh asks also where no host is enrolled, or none is left.
    if let Some(text) = resolve("localhost", None).and_then(|all| unanswered(&asking(&all)?))
        && !found.iter().any(|(_, known, _)| *known == text)
    {
        found.push((Severity::Bad, text, vec!["ssh".to_owned()]));
    }
    let finding = |(severity, text, hosts): (Severity, String, Vec<String>)| {
        let host = match hosts.as_slice() {
            [first, _, ..] => format!("{first} and {} more", hosts.len() - 1),
            _ => hosts.concat(),
        };
        Finding { severity, host, text }
    };
    found.into_iter().map(finding).collect()
}

/// What is wrong with the program that ssh is told to ask.
fn unanswered(asking: &Asking) -> Option<String> {
    let Asking { program, started, place } = asking;
    let why = match fs::metadata(program) {
        Ok(about) if about.is_file() && about.permissions().mode() & 0o111 != 0 => return None,
        Ok(_) => "is no program that can be started".to_owned(),
        Err(fault) => format!("cannot be started ({fault})"),
    };
    let then = match started {
        Started::Launched => "ssh refuses every host",
        Started::Directly => "ssh may go on without asking, and then believes what its other settings do",
    };
    let place = place.as_ref().map_or_else(String::new, |place| format!("{place}: "));
    Some(format!(
        "{place}KnownHostsCommand asks {program}, which {why}: {then}; put it back, or delete the block and paste that of \
         penstock known-hosts --stanza"
    ))
}
