//! `penstock host audit`: weaknesses of the fleet's identities.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use text::{table, units};

use clap::Args;
use hosts::identity::{Facts, Finding, Index, Name, Severity, audit};
use hosts::ssh::config::{Asked, Asking, Started, asking, overruling};
use ssh::identity::{Store, now};
use ssh::{ConfigFiles, SshConfig};

use super::dns::DnsArguments;
use super::known::load;
use crate::output::{Failure, plain, print, print_failed};
use crate::threads;

/// Find weaknesses in the identities of the fleet
///
/// Uses the files of the identities, and what ordinary connections saw: keys that two hosts share, keys that are not
/// proved, RSA only, certificates about to expire, key exchanges without protection from quantum computers. With
/// --sshfp the DNS is asked too. Exit code 1 if something is bad.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  penstock host audit\n  penstock host audit --sshfp")]
pub(super) struct Arguments {
    /// Also ask the DNS for the SSHFP records of every host
    #[arg(long)]
    sshfp: bool,
    #[command(flatten)]
    dns: DnsArguments,
}

pub(super) fn run(store: &Store, arguments: &Arguments) -> Result<(), Failure> {
    let index = load(store)?;
    let mut facts: HashMap<Name, Facts> =
        store.seen().into_iter().map(|(name, seen)| (name, seen.facts)).collect();
    if arguments.sshfp {
        let runtime = threads::single()?;
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
    let hosts = units::count(hosts, "host");
    let findings = units::count(found.len(), "finding");
    let text = format!("{}{hosts}, {findings}, {bad} bad\n", table::of(&rows));
    if bad == 0 { print(&text) } else { Err(print_failed(&text, 1)) }
}

/// Reports settings in the user's `ssh_config` with which ssh accepts keys that are not enrolled here, whether or not
/// our block is in the file; and our block if its program is missing.
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
    // ssh runs the KnownHostsCommand even if no host is enrolled.
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

/// Explains why ssh cannot start the program of its KnownHostsCommand. `None` if it can.
fn unanswered(asking: &Asking) -> Option<String> {
    let Asking { program, started, place } = asking;
    let why = match fs::metadata(program) {
        Ok(about) if about.is_file() && about.permissions().mode() & 0o111 != 0 => return None,
        Ok(_) => "is not a program that can be started".to_owned(),
        Err(fault) => format!("cannot be started ({fault})"),
    };
    let then = match started {
        Started::Launched => "ssh refuses every host",
        Started::Directly => "ssh may go on without asking, and then accepts what its other settings allow",
    };
    let place = place.as_ref().map_or_else(String::new, |place| format!("{place}: "));
    Some(format!(
        "{place}KnownHostsCommand asks {program}, which {why}: {then}; restore it, or replace the block with that of penstock known-hosts --stanza"
    ))
}
