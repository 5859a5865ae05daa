//! Selection of the hosts of a run.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::Args;
use fleet::groups::{Directories, Found};
use hosts::fleet::hostfile;
use hosts::fleet::nodeset::{self, NoGroups, NodeSet};

use crate::output::{Failure, complain, plain};

/// Options that name hosts.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub(crate) struct Arguments {
    // Not a doc comment: rustdoc takes brackets for a link.
    #[arg(
        long = "nodes",
        short = 'w',
        value_name = "SET",
        help = "These hosts, in the syntax of clush: 'web[1-3],db1', '@web!web2', 'rack[1-2]node[01-20]'; '@*' is every host of every group in penstock's files and in ClusterShell's default source, including /etc/clustershell",
        help_heading = "Hosts"
    )]
    pub set: Vec<String>,
    /// Exclude these hosts
    #[arg(long, short = 'x', value_name = "SET", help_heading = "Hosts")]
    pub exclude: Vec<String>,
    /// The hosts of these groups, as in web,db or 'all!db', from ~/.config/penstock/groups (lines NAME: SET), groups.yaml beside it,
    /// and ClusterShell's groups.conf; @NAME or @SOURCE:NAME in a SET is the same
    #[arg(long, short = 'g', value_name = "GROUPS", help_heading = "Hosts")]
    pub group: Vec<String>,
    /// The hosts in this file, a host or a set per line, # begins a comment; - is standard input
    #[arg(long, value_name = "FILE", help_heading = "Hosts")]
    pub hosts: Vec<PathBuf>,
}

impl Arguments {
    pub(crate) fn is_empty(&self) -> bool {
        self.set.is_empty() && self.group.is_empty() && self.hosts.is_empty()
    }

    /// Returns the names of the hosts in the given order without repetitions.
    pub(crate) fn names(&self) -> Result<Vec<String>, Failure> {
        if self.is_empty() {
            return Err(Failure::usage("no hosts\n  hint: -w 'web[1-3]', -g GROUP, or --hosts FILE"));
        }
        let Found { catalog, faults, notes } = fleet::groups::catalog(&Directories::of_user());
        if !faults.is_empty() {
            return Err(Failure::usage(faults.join("\nerror: ")));
        }
        // Faults in optional group files matter only to users who name a group.
        if !self.group.is_empty() || self.set.iter().chain(&self.exclude).any(|set| set.contains('@')) {
            notes.iter().for_each(|note| complain(&format!("note: {}\n", plain(note))));
        }
        let mut run = fleet::groups::call;
        let mut groups = catalog.look_up(&mut run);
        let mut all = NodeSet::new();
        let mut add = |set: &NodeSet| all.unite(set).map_err(Failure::usage);
        for set in &self.set {
            add(&NodeSet::parse(set, &mut groups).map_err(Failure::usage)?)?;
        }
        for group in &self.group {
            add(&NodeSet::parse_groups(group, &mut groups).map_err(Failure::usage)?)?;
        }
        for file in &self.hosts {
            let content = read(file).map_err(|error| {
                Failure::usage(format!("cannot read the hosts in {}: {error}", file.display()))
            })?;
            let read = hostfile::read(&file.display().to_string(), &content, None, &mut groups);
            let read = read.map_err(|faults| {
                let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
                Failure::usage(faults.join("\nerror: "))
            })?;
            add(&read.hosts)?;
        }
        for set in &self.exclude {
            let before = all.clone();
            all.exclude(set, &mut groups).map_err(Failure::usage)?;
            if let Some(note) = absent(set, &before, all.len()) {
                complain(&format!("note: -x {}: {}\n", plain(set), plain(&note)));
            }
        }
        let names: Vec<String> = all.names().into_iter().map(|name| name.to_string()).collect();
        if names.is_empty() {
            return Err(Failure::usage("no hosts are left"));
        }
        if let Some(bad) = names.iter().find(|name| name.starts_with('-') || name.contains(char::is_control))
        {
            return Err(Failure::usage(format!("{bad:?} is not a host")));
        }
        if let Some(long) = names.iter().find(|name| name.len() > LONGEST_NAME) {
            let begins: String = long.chars().take(40).collect();
            return Err(Failure::usage(format!(
                "{begins:?}... is not a host: it has {} bytes, and {LONGEST_NAME} are the most",
                long.len()
            )));
        }
        Ok(names)
    }
}

/// Warns of an excluded host that is not in the set, because its name may be mistyped. Groups and wildcards may contain
/// more than the set, and cause no warning.
fn absent(set: &str, before: &NodeSet, left: usize) -> Option<String> {
    if left == before.len() {
        return Some("none of these hosts is in the set".to_owned());
    }
    let named = NodeSet::parse(set, &mut NoGroups).ok()?.names();
    let absent: Vec<&str> = named.iter().map(AsRef::as_ref).filter(|name| !before.contains(name)).collect();
    (!absent.is_empty()).then(|| format!("not in the set: {}", nodeset::fold(absent)))
}

fn read(file: &Path) -> io::Result<Vec<u8>> {
    match file.as_os_str() == "-" {
        true => read_list(io::stdin().lock()),
        false => read_list(std::fs::File::open(file)?),
    }
}

/// Reads a list of hosts to its end, which a pipe or a device may not have.
pub(crate) fn read_list(list: impl Read) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    list.take(LONGEST_LIST + 1).read_to_end(&mut content)?;
    if content.len() as u64 > LONGEST_LIST {
        return Err(io::Error::other(format!("it is longer than {} MiB, the most", LONGEST_LIST >> 20)));
    }
    Ok(content)
}

/// Longest name of a host with its user, in bytes: a name in the DNS has at most 253.
const LONGEST_NAME: usize = 512;
/// Longest list of hosts in bytes: more than 100 bytes for each of the hosts that a set may hold.
const LONGEST_LIST: u64 = 16 << 20;
