//! `known_hosts` in and out.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use logic::identity::{
    Called, Found, HostFile, Import, Index, KnownHosts, Name, Shared, export as lines_of, import,
};
use logic::ssh::config::Asked;
use ssh::identity::{Store, now};
use ssh::{ConfigFiles, SshConfig};

use super::{count, failure, load, read};
use crate::output::{Failure, plain, print};

/// Take the hosts of known_hosts files over
///
/// Lines of one host become one file. A host that ~/.ssh/config gives a name (Host web1, HostName 10.0.0.1) is called by it;
/// of several names for one place the first is the identity. Hashed names are found among the hosts that are known, the aliases of
/// ~/.ssh/config, and the names given here. What is not taken is told with its line and the reason; nothing that is
/// pinned is changed.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Files to read; - is standard input [default: ~/.ssh/known_hosts]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// A name that may stand behind a hash
    #[arg(long = "name", value_name = "NAME")]
    names: Vec<String>,
    /// A file of such names, separated by white space
    #[arg(long = "names", value_name = "FILE")]
    lists: Vec<PathBuf>,
    /// Only say what would be taken
    #[arg(long)]
    dry_run: bool,
}

const EXAMPLES: &str = "\
Examples:
  penstock host import
  penstock host import ~/.ssh/known_hosts /etc/ssh/ssh_known_hosts --names servers.txt";

/// A longer file is no known_hosts file.
const LONGEST: u64 = 256 * 1024 * 1024;

pub(super) fn run(store: &Store, arguments: &Arguments) -> Result<(), Failure> {
    let mut files = arguments.files.clone();
    if files.is_empty() {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        files.push(
            home.ok_or_else(|| Failure::usage("HOME is not set: name the file"))?.join(".ssh/known_hosts"),
        );
    }
    let called = called();
    let mut text = String::new();
    for path in &files {
        let shown = plain(&path.display().to_string());
        if arguments.files.is_empty() && !path.exists() {
            return print(&format!(
                "there is no {shown}: nothing to take over\n  \
                 next: penstock host add NAME --fingerprint SHA256:... (read on its console), or penstock run -w NAME true,\n  \
                 which is refused and puts the host into penstock host pending\n"
            ));
        }
        let file = KnownHosts::parse(&read(path, LONGEST)?);
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
    print(&text)
}

fn write(store: &Store, taken: &Import, index: &logic::identity::Index) -> Result<(), Failure> {
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
    // Another name or address of a host whose keys were known is no host that was taken.
    let has_new_keys = |host: &&HostFile| match index.find(host.name().as_str(), 22) {
        Found::Host(known) if known.name() == host.name() => {
            host.pins().any(|pin| known.pin(&pin.key).is_none())
        }
        _ => true,
    };
    let hosts = taken.hosts.iter().filter(has_new_keys).count();
    let mut text = format!(
        "{file}: {verb} {}, {}, {}; {} known already; {} not taken\n",
        count(hosts, "host", "hosts"),
        count(taken.authorities.len(), "authority", "authorities"),
        count(taken.revoked.len(), "revoked key", "revoked keys"),
        count(taken.known, "line", "lines"),
        count(taken.left.len(), "line", "lines"),
    );
    for host in taken.hosts.iter().filter(|host| !has_new_keys(host)) {
        text.push_str(&format!(
            "  {}: its keys were known; another name or place of it is noted\n",
            host.name()
        ));
    }
    for left in &taken.left {
        text.push_str(&format!("  line {}: {}\n", left.line, plain(&left.why)));
    }
    text
}

/// What `ssh_config` calls hosts whose keys ssh files under their place. With `HostKeyAlias` ssh files them under that.
fn called() -> Vec<Called> {
    // Whoever has faults in there is told by everything else; names of lines are then all that is known.
    let Ok(config) = SshConfig::read(&ConfigFiles::Usual) else { return Vec::new() };
    let one = |host: &str| {
        let name: Name = host.parse().ok()?;
        let asked = Asked { host: host.to_owned(), ..Asked::default() };
        let resolved = config.resolve(&asked).ok().filter(|resolved| resolved.key_alias.is_none())?;
        Some(Called { name, place: Name::with_port(&resolved.host, resolved.port).ok()? })
    };
    config.hosts().into_iter().filter_map(one).collect()
}

/// Hosts that have several names, so that nobody wonders where one of them went.
fn aliases(taken: &Import, called: &[Called]) -> String {
    let mut text = String::new();
    // By name: a fleet has as many hosts in the one file as in the other.
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
                "  {} is also {}: one place in ssh_config, so one host\n",
                host.name(),
                others.join(", ")
            ));
        }
    }
    text
}

/// Hosts that came by the key of another one: each can pose as the other.
fn shared(taken: &Import) -> String {
    let quoted =
        |name: &Name| if name.as_str().contains('[') { format!("'{name}'") } else { name.to_string() };
    let line = |one: &Shared| {
        format!(
            "  {host} has the key of {other}: if they are one machine, penstock host remove {host_quoted}, then \
             penstock host alias {other_quoted} {host_quoted}; else one was cloned from the other and needs new keys\n",
            host = one.host,
            other = one.other,
            host_quoted = quoted(&one.host),
            other_quoted = quoted(&one.other),
        )
    };
    taken.shared.iter().map(line).collect()
}

/// Names that may stand behind a hash, each alone and, where it is an address or a name, on no other port.
fn candidates(index: &logic::identity::Index, arguments: &Arguments) -> Result<Vec<String>, Failure> {
    let mut names: BTreeSet<String> = BTreeSet::new();
    for host in index.hosts() {
        names.extend(host.names().map(ToString::to_string));
        names.extend(host.known_addresses().map(|address| address.to_string()));
    }
    names.extend(arguments.names.iter().cloned());
    for list in &arguments.lists {
        names.extend(read(list, LONGEST)?.split_whitespace().map(str::to_owned));
    }
    if let Some(home) = std::env::var_os("HOME") {
        // Convenience only: whoever has no such file has no aliases.
        let config = fs::read_to_string(Path::new(&home).join(".ssh/config")).unwrap_or_default();
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
