//! Documents for packages and editors: the JSON schema, the reference page, man pages, completions. All are generated
//! from the types and the arguments, so they cannot be out of date.

use std::fs;
use std::path::PathBuf;

use clap::{Args, Command, Subcommand};
use clap_complete::Shell;

use crate::output::{Failure, print};

/// Print what a configuration may hold: the reference page or a JSON schema
#[derive(Debug, Args)]
#[command(after_help = CONFIG_EXAMPLES)]
pub(crate) struct ConfigArguments {
    #[command(subcommand)]
    document: Document,
}

#[derive(Debug, Subcommand)]
enum Document {
    /// Every key with its meaning, default and an example, as Markdown
    Reference,
    /// A JSON schema, for editors that complete and check TOML
    Schema,
}

/// Print a man page, of penstock or of one of its commands
#[derive(Debug, Args)]
#[command(after_help = MAN_EXAMPLES)]
pub(crate) struct ManArguments {
    /// The command that the page is about, as in `host add` or `host-add`; without it the page of penstock itself
    command: Vec<String>,
    /// Write the pages of all commands into this directory instead
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    directory: Option<PathBuf>,
}

/// Print completions for a shell
#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub(crate) struct CompletionsArguments {
    /// The shell
    shell: Shell,
}

const CONFIG_EXAMPLES: &str = "\
Examples:
  penstock config reference | less
  penstock config schema > penstock.schema.json";

const MAN_EXAMPLES: &str = "\
Examples:
  penstock man run | man -l -
  penstock man host add | man -l -
  penstock man --directory ~/.local/share/man/man1    then: man penstock-host-add";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  penstock completions bash > /usr/share/bash-completion/completions/penstock
  penstock completions zsh > /usr/share/zsh/site-functions/_penstock
  penstock completions fish > ~/.config/fish/completions/penstock.fish";

pub(crate) fn config(arguments: &ConfigArguments) -> Result<(), Failure> {
    match arguments.document {
        Document::Reference => print(&config::schema::reference()),
        Document::Schema => print(&config::schema::json()),
    }
}

pub(crate) fn man(program: Command, arguments: &ManArguments) -> Result<(), Failure> {
    if let Some(directory) = &arguments.directory {
        fs::create_dir_all(directory)
            .and_then(|()| clap_mangen::generate_to(with_version(program), directory))
            .map_err(|error| {
                Failure::runtime(format_args!("cannot write into {}: {error}", directory.display()))
            })?;
        return Ok(());
    }
    let command = named(program, &arguments.command)?;
    let mut page = Vec::new();
    clap_mangen::Man::new(with_version(command)).render(&mut page)?;
    print(&String::from_utf8_lossy(&page))
}

/// Gives each subcommand the version for the head of its page, but no `--version`, which only `penstock` has.
fn with_version(command: Command) -> Command {
    let command = command.mut_subcommands(with_version);
    match command.get_version() {
        Some(_) => command,
        None => command.version(env!("CARGO_PKG_VERSION")).disable_version_flag(true),
    }
}

pub(crate) fn completions(mut program: Command, arguments: &CompletionsArguments) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut program, "penstock", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Finds the command named by `words`; a word may be a joined name such as that of a man page.
fn named(mut program: Command, words: &[String]) -> Result<Command, Failure> {
    if words.is_empty() {
        return Ok(program);
    }
    program.build();
    let joined = words.join("-");
    let wanted = joined.strip_prefix("penstock-").unwrap_or(&joined);
    find(&program, wanted).cloned().ok_or_else(|| {
        let asked = words.join(" ");
        Failure::usage(format_args!(
            "penstock has no command {asked:?}\n  hint: `penstock --help` lists them"
        ))
    })
}

/// Finds a subcommand by its joined name. Names of commands may contain dashes: `known-hosts`, `tls-grade`.
fn find<'c>(command: &'c Command, wanted: &str) -> Option<&'c Command> {
    command.get_subcommands().find_map(|inner| {
        std::iter::once(inner.get_name()).chain(inner.get_all_aliases()).find_map(|name| {
            let rest = wanted.strip_prefix(name)?;
            match rest.strip_prefix('-') {
                Some(rest) => find(inner, rest),
                None => rest.is_empty().then_some(inner),
            }
        })
    })
}
