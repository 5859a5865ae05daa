//! What packages and editors need: the JSON schema, the reference page, man pages, completions.
//! All of it is made from the types and the arguments themselves, so it cannot be out of date.

use std::fs;
use std::path::PathBuf;

use clap::{Args, Command, Subcommand};
use clap_complete::Shell;

use crate::output::{Failure, print};

/// Print what a configuration may hold: the reference page or a JSON schema
#[derive(Debug, Args)]
#[command(after_help = CONFIG_EXAMPLES)]
pub struct ConfigArguments {
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

/// Print a man page
#[derive(Debug, Args)]
pub struct ManArguments {
    /// The command that the page is about; without it the page of penstock itself
    command: Option<String>,
    /// Write the pages of all commands into this directory instead
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    directory: Option<PathBuf>,
}

/// Print completions for a shell
#[derive(Debug, Args)]
pub struct CompletionsArguments {
    /// The shell
    shell: Shell,
}

const CONFIG_EXAMPLES: &str = "\
Examples:
  penstock config reference | less
  penstock config schema > penstock.schema.json";

/// Prints a document about the configuration.
pub fn config(arguments: &ConfigArguments) -> Result<(), Failure> {
    match arguments.document {
        Document::Reference => print(&config::schema::reference()),
        Document::Schema => print(&config::schema::json()),
    }
}

/// Prints a man page, or writes all of them.
pub fn man(program: Command, arguments: &ManArguments) -> Result<(), Failure> {
    if let Some(directory) = &arguments.directory {
        fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(program, directory)).map_err(
            |error| Failure::runtime(format_args!("cannot write into {}: {error}", directory.display())),
        )?;
        return Ok(());
    }
    let command = match &arguments.command {
        None => program,
        Some(name) => named(program, name)?,
    };
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    print(&String::from_utf8_lossy(&page))
}

/// Prints completions.
pub fn completions(mut program: Command, arguments: &CompletionsArguments) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut program, "penstock", &mut script);
    print(&String::from_utf8_lossy(&script))
}

fn named(mut program: Command, name: &str) -> Result<Command, Failure> {
    program.build();
    match program.find_subcommand(name) {
        Some(command) => Ok(command.clone()),
        None => Err(Failure::usage(format_args!(
            "penstock has no command {name:?}\n  hint: `penstock --help` lists them"
        ))),
    }
}
