//! `penstock host`: shows and changes identities of hosts. Decisions: `hosts::identity`; files: `ssh::identity`.

use clap::{Args, Subcommand};
use ssh::identity::{Places, Store};

use crate::output::Failure;

mod add;
mod audit;
mod change;
mod dns;
mod import;
mod input;
mod known;
mod list;
mod place;
mod why;
mod witness;

/// Know hosts by name: enrol, list, import, audit
///
/// A host is known by its name. One small text file for each says which keys it may show and how each was proved; its
/// address is only a hint. The files are in $XDG_CONFIG_HOME/penstock/hosts (~/.config/penstock/hosts), fit for version
/// control. Nothing here ever asks a yes/no question.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Arguments {
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
    /// List unknown hosts that runs met, with the keys they showed
    Pending,
    Import(import::Arguments),
    /// Print all identities as a known_hosts file
    Export,
    /// Forget a host: its file is removed, and its keys are unknown again
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
  penstock host pending                                 unknown hosts that runs met
  penstock host why web1                                accepted or refused, and why
  penstock host audit";

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
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
