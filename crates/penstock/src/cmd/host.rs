//! `penstock host`: shows and changes who is known. Decisions are in `logic::identity`, files in `ssh::identity`.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use clap::{Args, Subcommand};
use logic::identity::{HostFile, Index, Name};
use ssh::identity::{Change, IdentityError, Places, Store};

use crate::output::{Failure, plain};

mod add;
mod audit;
mod change;
mod import;
mod list;
mod why;
mod witness;

/// Know hosts by name: enrol, list, import, audit
///
/// A host is known by its name. One small text file for each says which keys it may show and how each was proved; its
/// address is only a hint. The files are in $XDG_CONFIG_HOME/penstock/hosts (~/.config/penstock/hosts), fit for version
/// control. Nothing here ever asks a yes/no question.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List all hosts: keys, how they were proved, where and when they were last good
    List,
    /// Show the file of a host, and what is wrong with it
    Show(change::Named),
    #[command(visible_alias = "enrol")]
    Add(Box<add::Arguments>),
    /// List hosts that runs met and nobody knows, with the keys they showed
    Pending,
    Import(import::Arguments),
    /// Print all identities as a known_hosts file
    Export,
    /// Forget a host: its file is removed, and its keys are nobody's
    Remove(change::Named),
    Retire(change::Retire),
    Revoke(change::Revoke),
    Move(change::Move),
    /// Give a host one more name
    Alias(change::Pair),
    /// Give a host another name; the old one stays as an alias
    Rename(change::Pair),
    Why(why::Arguments),
    Audit(audit::Arguments),
}

const EXAMPLES: &str = "\
Examples:
  penstock host import ~/.ssh/known_hosts
  penstock host add web1 --fingerprint SHA256:...       read on its console
  penstock host add web1 --console console.log          what cloud-init printed
  penstock host pending                                 who was met and is not known
  penstock host why web1                                what would be decided, and on what grounds
  penstock host audit";

/// Does it.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let store = Store::new(Places::of_user().map_err(Failure::runtime)?);
    match &arguments.command {
        Command::List => list::list(&store),
        Command::Show(named) => list::show(&store, &named.name),
        Command::Add(arguments) => add::run(&store, arguments),
        Command::Pending => list::pending(&store),
        Command::Import(arguments) => import::run(&store, arguments),
        Command::Export => import::export(&store),
        Command::Remove(named) => change::remove(&store, &named.name),
        Command::Retire(arguments) => change::retire(&store, arguments),
        Command::Revoke(arguments) => change::revoke(&store, arguments),
        Command::Move(arguments) => change::relocate(&store, arguments),
        Command::Alias(pair) => change::alias(&store, pair),
        Command::Rename(pair) => change::rename(&store, pair),
        Command::Why(arguments) => why::run(&store, arguments),
        Command::Audit(arguments) => audit::run(&store, arguments),
    }
}

/// The identity that a name stands for.
fn known<'i>(index: &'i Index, name: &Name) -> Result<&'i HostFile, Failure> {
    use logic::identity::Found;
    match index.find(name.as_str(), 22) {
        Found::Host(host) => Ok(host),
        Found::Nobody => Err(failure(IdentityError::Unknown(name.to_string()))),
        Found::Damaged(damage) => {
            let faults: Vec<String> = damage.faults.iter().map(|fault| plain(&fault.to_string())).collect();
            Err(Failure::runtime(format!("{} is damaged: {}", plain(&damage.path), faults.join("; "))))
        }
        Found::Ambiguous(names) => {
            let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
            Err(Failure::runtime(format!("{name} is a hint of {}: say which", names.join(" and "))))
        }
    }
}

/// The whole of a file, or of standard input for `-`; at most `longest` bytes. Bytes that are no text show as such: a damaged
/// line is told, and hides no others.
fn read(path: &Path, longest: u64) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let result = if path == Path::new("-") {
        std::io::stdin().lock().take(longest).read_to_end(&mut bytes)
    } else {
        fs::File::open(path).and_then(|file| file.take(longest).read_to_end(&mut bytes))
    };
    result.map_err(|fault| {
        Failure::runtime(format!("cannot read {}: {fault}", plain(&path.display().to_string())))
    })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn load(store: &Store) -> Result<Index, Failure> {
    store.load().map_err(failure)
}

fn failure(error: IdentityError) -> Failure {
    Failure::Runtime(error.into())
}

fn said(change: Change, done: &str) -> String {
    match change {
        Change::Written => format!("{done}\n"),
        Change::Nothing => "nothing to change\n".to_owned(),
    }
}

/// `1 host`, `2 hosts`.
fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// A table: columns as wide as their widest cell, two spaces between them.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}
