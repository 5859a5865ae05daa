//! Which hosts a run is for.

use std::io::Read;
use std::path::PathBuf;

use clap::Args;

use crate::output::Failure;

/// Where the names of hosts come from.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub struct Arguments {
    // Not a doc comment: rustdoc takes brackets for a link.
    #[arg(
        long = "nodes",
        short = 'w',
        value_name = "SET",
        help = "These hosts, as in 'web[1-3],db1'",
        help_heading = "Hosts"
    )]
    pub set: Vec<String>,
    /// But not these
    #[arg(long, short = 'x', value_name = "SET", help_heading = "Hosts")]
    pub exclude: Vec<String>,
    /// The hosts in this file, one or several per line, # begins a comment; - is standard input
    #[arg(long, value_name = "FILE", help_heading = "Hosts")]
    pub hosts: Vec<PathBuf>,
}

impl Arguments {
    /// Whether any were named.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.hosts.is_empty()
    }

    /// Their names, each once, in the order in which they were given.
    pub fn names(&self) -> Result<Vec<String>, Failure> {
        if self.is_empty() {
            return Err(Failure::usage("no hosts\n  hint: -w 'web[1-3]', or --hosts FILE"));
        }
        let mut names: Vec<String> = Vec::new();
        for set in &self.set {
            names.extend(set.split(',').map(str::to_owned));
        }
        for file in &self.hosts {
            names.extend(read(file)?);
        }
        let excluded: Vec<&str> = self.exclude.iter().flat_map(|set| set.split(',')).collect();
        let mut seen = std::collections::HashSet::new();
        names.retain(|name| {
            !name.is_empty() && !excluded.contains(&name.as_str()) && seen.insert(name.clone())
        });
        if names.is_empty() {
            return Err(Failure::usage("no hosts are left"));
        }
        if let Some(bad) = names.iter().find(|name| name.starts_with('-') || name.contains(char::is_control))
        {
            return Err(Failure::usage(format!("{bad:?} is no host")));
        }
        Ok(names)
    }
}

fn read(file: &PathBuf) -> Result<Vec<String>, Failure> {
    let fault = |error| Failure::usage(format!("cannot read the hosts in {}: {error}", file.display()));
    let mut text = String::new();
    if file.as_os_str() == "-" {
        std::io::stdin().read_to_string(&mut text).map_err(fault)?;
    } else {
        text = std::fs::read_to_string(file).map_err(fault)?;
    }
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    Ok(lines.flat_map(str::split_whitespace).map(str::to_owned).collect())
}
