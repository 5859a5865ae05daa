//! Import and export of `known_hosts` files.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::PathBuf;

use clap::Args;
use hosts::identity::{
    Called, Found, HostFile, Import, Index, KnownHosts, Name, Shared, export as lines_of, import,
};
use hosts::ssh::config::Asked;
use ssh::identity::{Store, now};
use ssh::{ConfigFiles, SshConfig};
use sys::directories;
use text::{shell, units};

use super::input::read;
use super::known::{failure, load};
use crate::output::{Failure, plain, print, print_failed};

/// Import the hosts of known_hosts files
///
/// Lines of one host become one file. A host that ~/.ssh/config gives a name (Host web1, HostName 10.0.0.1) gets this
/// name; of several names for one place the first is the identity. Hashed names are compared with the known hosts, the
/// aliases of ~/.ssh/config, and the names given here. Lines that are not imported are reported with the reason;
/// nothing that is pinned is changed.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Files to read; - is standard input [default: ~/.ssh/known_hosts]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// A name that may be one of the hashed names
    #[arg(long = "name", value_name = "NAME")]
    names: Vec<String>,
    /// A file of such names, separated by white space
    #[arg(long = "names", value_name = "FILE")]
    lists: Vec<PathBuf>,
    /// Only show what would be imported
    #[arg(long)]
    dry_run: bool,
}

const EXAMPLES: &str = "\
Examples:
  penstock host import
  penstock host import ~/.ssh/known_hosts /etc/ssh/ssh_known_hosts --names servers.txt";

/// Size limit of a known_hosts file, in bytes.
const LONGEST: u64 = 256 * 1024 * 1024;

pub(super) fn run(store: &Store, arguments: &Arguments) -> Result<(), Failure> {
    let mut files = arguments.files.clone();
    if files.is_empty() {
        let home = directories::home()
            .map_err(|error| Failure::usage(format!("{error}, or name the known_hosts file")))?;
        files.push(home.join(".ssh/known_hosts"));
    }
    let called = called();
    let (mut text, mut is_wrong) = (String::new(), false);
    for path in &files {
        let shown = plain(&path.display().to_string());
        if arguments.files.is_empty() && !path.exists() {
            return print(&format!(
                "there is no {shown}: nothing to import\n  \
                 next: penstock host add NAME --fingerprint SHA256:... (read on its console), or penstock run -w NAME true,\n  \
                 which is refused and puts the host into penstock host pending\n"
            ));
        }
        let file = KnownHosts::parse(&read(path, LONGEST)?);
        if let ([], [first, ..]) = (file.lines.as_slice(), file.faults.as_slice()) {
            let lines = units::count(file.faults.len(), "line");
            text.push_str(&format!(
                "{shown}: not known_hosts: none of its {lines} is one; {}\n",
                plain(&first.to_string())
            ));
            is_wrong = true;
            continue;
        }
        let index = load(store)?;
        let mut candidates = candidates(&index, arguments)?;
        candidates.extend(called.iter().flat_map(|one| [&one.name, &one.place]).map(ToString::to_string));
        candidates.sort();
        candidates.dedup();
        let taken = import(&file, &candidates, &called, &index, now().date());
        if !arguments.dry_run {
            write(store, &taken, &index)?;
        }
        text.push_str(&report(&shown, &taken, &index, arguments.dry_run));
        text.push_str(&aliases(&taken, &called));
        text.push_str(&shared(&taken));
    }
    if is_wrong { Err(print_failed(&text, 1)) } else { print(&text) }
}

fn write(store: &Store, taken: &Import, index: &hosts::identity::Index) -> Result<(), Failure> {
    if !taken.hosts.is_empty() {
        store.write_all(&taken.hosts, index).map_err(failure)?;
    }
    for authority in &taken.authorities {
        store.write_authority(authority).map_err(failure)?;
    }
    if !taken.revoked.is_empty() {
        store.revoke(&taken.revoked, now().date()).map_err(failure)?;
    }
    Ok(())
}

fn report(file: &str, taken: &Import, index: &Index, dry: bool) -> String {
    let verb = if dry { "would take" } else { "took" };
    // A host without new keys only got another name or address, and does not count as taken.
    let has_new_keys = |host: &&HostFile| match index.find(host.name().as_str(), 22) {
        Found::Host(known) if known.name() == host.name() => {
            host.pins().any(|pin| known.pin(&pin.key).is_none())
        }
        _ => true,
    };
    let hosts = taken.hosts.iter().filter(has_new_keys).count();
    let mut text = format!(
        "{file}: {verb} {}, {}, {}; {} known already; {} not taken\n",
        units::count(hosts, "host"),
        units::count_of(taken.authorities.len(), "authority", "authorities"),
        units::count(taken.revoked.len(), "revoked key"),
        units::count(taken.known, "line"),
        units::count(taken.left.len(), "line"),
    );
    for host in taken.hosts.iter().filter(|host| !has_new_keys(host)) {
        text.push_str(&format!(
            "  {}: its keys were known; another name or address of it was added\n",
            host.name()
        ));
    }
    for left in &taken.left {
        text.push_str(&format!("  line {}: {}\n", left.line, plain(&left.why)));
    }
    text
}

/// Returns the `ssh_config` names of hosts whose keys ssh stores under address and port. With `HostKeyAlias`, ssh
/// stores them under the alias instead.
fn called() -> Vec<Called> {
    // Ignore faults of the file, which every other command reports: the import then uses only the names in the lines.
    let Ok(config) = SshConfig::read(&ConfigFiles::Usual) else { return Vec::new() };
    let one = |host: &str| {
        let name: Name = host.parse().ok()?;
        let asked = Asked { host: host.to_owned(), ..Asked::default() };
        let resolved = config.resolve(&asked).ok().filter(|resolved| resolved.key_alias.is_none())?;
        Some(Called { name, place: Name::with_port(&resolved.host, resolved.port).ok()? })
    };
    config.hosts().into_iter().filter_map(one).collect()
}

/// Lists hosts with several names, so that the user sees which names were combined.
fn aliases(taken: &Import, called: &[Called]) -> String {
    let mut text = String::new();
    // Index by name: both files may contain as many hosts as the fleet.
    let places: HashMap<&Name, usize> =
        called.iter().enumerate().rev().map(|(at, one)| (&one.name, at)).collect();
    for host in &taken.hosts {
        let others = host.names().filter(|name| *name != host.name());
        let mut others: Vec<usize> = others.filter_map(|name| places.get(name).copied()).collect();
        others.sort_unstable();
        others.dedup();
        let others: Vec<&str> = others.into_iter().map(|at| called[at].name.as_str()).collect();
        if !others.is_empty() {
            text.push_str(&format!(
                "  {} is also {}: the same address in ssh_config, so the same host\n",
                host.name(),
                others.join(", ")
            ));
        }
    }
    text
}

/// Lists hosts that share a key with another host: each could impersonate the other.
fn shared(taken: &Import) -> String {
    let line = |one: &Shared| {
        format!(
            "  {host} has the key of {other}: if they are the same machine, penstock host remove {host_quoted}, then \
             penstock host alias {other_quoted} {host_quoted}; otherwise one is a clone of the other and needs new keys\n",
            host = one.host,
            other = one.other,
            host_quoted = shell::word(one.host.as_str()),
            other_quoted = shell::word(one.other.as_str()),
        )
    };
    taken.shared.iter().map(line).collect()
}

/// Collects names for comparison with hashes. An address or a name is tried only without a port.
fn candidates(index: &hosts::identity::Index, arguments: &Arguments) -> Result<Vec<String>, Failure> {
    let mut names: BTreeSet<String> = BTreeSet::new();
    for host in index.hosts() {
        names.extend(host.names().map(ToString::to_string));
        names.extend(host.known_addresses().map(|address| address.to_string()));
    }
    names.extend(arguments.names.iter().cloned());
    for list in &arguments.lists {
        names.extend(read(list, LONGEST)?.split_whitespace().map(str::to_owned));
    }
    if let Ok(home) = directories::home() {
        // A missing file only means that there are no aliases.
        let config = fs::read_to_string(home.join(".ssh/config")).unwrap_or_default();
        for line in config.lines() {
            let mut words =
                line.split(|c: char| c.is_whitespace() || c == '=').filter(|word| !word.is_empty());
            let keyword = words.next().unwrap_or_default().to_ascii_lowercase();
            if matches!(keyword.as_str(), "host" | "hostname" | "hostkeyalias") {
                let plain = words.filter(|word| !word.contains(['*', '?', '!', '%', '"', '#']));
                names.extend(plain.map(str::to_owned));
            }
        }
    }
    Ok(names.into_iter().map(|name| name.to_ascii_lowercase()).collect())
}

pub(super) fn export(store: &Store) -> Result<(), Failure> {
    print(&lines_of(&load(store)?, &called()))
}
