//! `known_hosts` in and out.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::Args;
use logic::identity::{Import, KnownHosts, export as lines_of, import};
use ssh::identity::{Store, now};

use super::{failure, load};
use crate::output::{Failure, plain, print};

/// Take the hosts of known_hosts files over
///
/// Lines of one host become one file. Hashed names are found among the hosts that are known, the aliases of
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
    let mut text = String::new();
    for path in &files {
        let shown = plain(&path.display().to_string());
        let file = KnownHosts::parse(&read(path)?);
        let index = load(store)?;
        let candidates = candidates(&index, arguments)?;
        let taken = import(&file, &candidates, &index, now().date());
        if !arguments.dry_run {
            write(store, &taken, &index)?;
        }
        text.push_str(&report(&shown, &taken, arguments.dry_run));
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

fn report(file: &str, taken: &Import, dry: bool) -> String {
    let count =
        |number: usize, one: &str, many: &str| format!("{number} {}", if number == 1 { one } else { many });
    let verb = if dry { "would take" } else { "took" };
    let mut text = format!(
        "{file}: {verb} {}, {}, {}; {} known already; {} not taken\n",
        count(taken.hosts.len(), "host", "hosts"),
        count(taken.authorities.len(), "authority", "authorities"),
        count(taken.revoked.len(), "revoked key", "revoked keys"),
        count(taken.known, "line", "lines"),
        count(taken.left.len(), "line", "lines"),
    );
    for left in &taken.left {
        text.push_str(&format!("  line {}: {}\n", left.line, plain(&left.why)));
    }
    text
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
        names.extend(read(list)?.split_whitespace().map(str::to_owned));
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

fn read(path: &Path) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let result = if path == Path::new("-") {
        std::io::stdin().lock().take(LONGEST).read_to_end(&mut bytes)
    } else {
        fs::File::open(path).and_then(|file| file.take(LONGEST).read_to_end(&mut bytes))
    };
    result.map_err(|fault| {
        Failure::runtime(format!("cannot read {}: {fault}", plain(&path.display().to_string())))
    })?;
    // A damaged line is told as such; it hides no others.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

pub(super) fn export(store: &Store) -> Result<(), Failure> {
    print(&lines_of(&load(store)?))
}
