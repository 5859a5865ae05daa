//! `penstock import`: translates the command line or file of another load balancer; and this program under the name
//! `pen`, which serves what it translates.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::{ArgAction, Args, Subcommand};
use config::Source;
use import::{Effect, Outside, Translation};

use super::serve;
use crate::load;
use crate::output::{Failure, complain, plain, print, print_failed};

/// Translate the command line or file of another load balancer into a configuration
///
/// The configuration goes to standard output, with comments where something changed; the same notes go to standard error.
/// Nothing is started, and nothing is written.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    program: Program,
}

#[derive(Debug, Subcommand)]
enum Program {
    Pen(PenArguments),
    PenConfig(PenConfigArguments),
    Haproxy(HaproxyArguments),
}

/// Translate a command line of Pen
///
/// The arguments are those of Pen, also -h: docs/pen.md has what becomes of each.
#[derive(Debug, Args)]
#[command(disable_help_flag = true, after_help = PEN_EXAMPLES)]
struct PenArguments {
    /// Succeed although something that clients notice could not be translated
    #[arg(long)]
    allow_partial: bool,
    /// Print this help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
    /// The arguments of Pen
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<String>,
}

/// Translate a file of Pen's commands
///
/// As -F of Pen reads it, or `penctl write` made it; - reads standard input.
#[derive(Debug, Args)]
#[command(after_help = PEN_CONFIG_EXAMPLES)]
struct PenConfigArguments {
    /// The file
    file: PathBuf,
    /// Succeed although something that clients notice could not be translated
    #[arg(long)]
    allow_partial: bool,
}

/// Translate a configuration of HAProxy, as far as it is common
///
/// Frontends, backends, TLS, checks, timeouts, and routes by host and path. Every other line is named with the reason why it
/// is not translated; - reads standard input.
#[derive(Debug, Args)]
#[command(after_help = HAPROXY_EXAMPLES)]
struct HaproxyArguments {
    /// The file
    file: PathBuf,
    /// Succeed although something that clients notice could not be translated
    #[arg(long)]
    allow_partial: bool,
}

const EXAMPLES: &str = "\
Examples:
  penstock import pen -r -b 10 80 www1:8000:10 www2:8000 > penstock.toml
  penstock import pen-config /etc/pen.cfg > penstock.toml
  penstock import haproxy /etc/haproxy/haproxy.cfg > penstock.toml
  ln -s \"$(command -v penstock)\" /usr/local/bin/pen       then pen takes the arguments of Pen, and serves

Exit codes: 0 ok; 1 something that clients notice could not be translated, and --allow-partial was not given, or the result
needs changes before it can be served; 2 wrong usage.";

const PEN_EXAMPLES: &str = "\
Examples:
  penstock import pen -r -b 10 80 www1:8000:10 www2:8000 > penstock.toml
  penstock import pen --allow-partial -R -E /etc/pen/site.pem 443 www1 www2";

const PEN_CONFIG_EXAMPLES: &str = "\
Examples:
  penctl localhost:8888 write /tmp/pen.cfg; penstock import pen-config /tmp/pen.cfg > penstock.toml
  penstock import pen -F /etc/pen.cfg 80 > penstock.toml        a file without `listen`";

const HAPROXY_EXAMPLES: &str = "\
Examples:
  penstock import haproxy /etc/haproxy/haproxy.cfg > penstock.toml
  penstock import haproxy --allow-partial - < haproxy.cfg";

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let (translation, partial) = match &arguments.program {
        Program::Pen(pen) => (of_pen(&pen.arguments)?, pen.allow_partial),
        Program::PenConfig(PenConfigArguments { file, allow_partial }) => {
            let Source { name, text } = load::source(file)?;
            (outside(|outside| import::pen::file(&name, &text, outside))?, *allow_partial)
        }
        Program::Haproxy(HaproxyArguments { file, allow_partial }) => {
            let Source { name, text } = load::source(file)?;
            (outside(|_| import::haproxy::file(&name, &text))?, *allow_partial)
        }
    };
    for note in &translation.notes {
        complain(&format!("{note}\n"));
    }
    if let Err(faults) = config::load(
        &Source { name: "the result".to_owned(), text: translation.toml.clone() },
        &config::Environment::default(),
    ) {
        complain(&faults.render());
        complain(
            "error: `penstock check` refuses the result for these reasons: it is not served as it is\n  \
             hint: change these lines of what is translated, or of the result; it is on standard output\n",
        );
        return Err(print_failed(&translation.toml, 1));
    }
    match translation.missing().count() {
        0 => print(&translation.toml),
        _ if partial => print(&translation.toml),
        missing => {
            complain(&format!(
                "error: {missing} of these could not be translated, and clients may notice\n  \
                 hint: --allow-partial accepts that; docs/pen.md says what to do instead\n"
            ));
            Err(print_failed(&translation.toml, 1))
        }
    }
}

/// Returns the arguments of this program if it is called `pen`.
pub(crate) fn called(words: impl IntoIterator<Item = OsString>) -> Option<Vec<OsString>> {
    let mut words = words.into_iter();
    let name = words.next()?;
    (Path::new(&name).file_name()? == "pen").then(|| words.collect())
}

/// Serves as `pen` with these arguments.
pub(crate) fn serve(words: &[OsString]) -> Result<(), Failure> {
    let words = words.iter().map(|word| word.clone().into_string());
    let words: Vec<_> = words
        .collect::<Result<_, _>>()
        .map_err(|word| Failure::usage(format_args!("{} is not UTF-8", plain(&word.to_string_lossy()))))?;
    let translation = of_pen(&words)?;
    if translation.missing().next().is_some() {
        for note in translation.missing() {
            complain(&format!("error: {}: {}\n", plain(&note.place), plain(&note.text)));
        }
        return Err(Failure::Usage(
            "error: penstock does not start as pen without these, because clients may notice\n  \
             hint: `penstock import pen --allow-partial ARGUMENTS` prints a configuration without them\n"
                .to_owned(),
        ));
    }
    for note in translation.notes.iter().filter(|note| note.effect == Effect::Dropped) {
        complain(&format!("note: {}: {}\n", plain(&note.place), plain(&note.text)));
    }
    complain(
        "note: penstock serves as pen, and stays in the foreground; `penstock import pen` prints its configuration\n",
    );
    serve::run_text(Source { name: "pen".to_owned(), text: translation.toml })
}

fn of_pen(words: &[String]) -> Result<Translation, Failure> {
    outside(|outside| import::pen::command_line(words, outside))
}

/// Translates with what this machine says.
fn outside(
    translate: impl FnOnce(&Outside<'_>) -> Result<Translation, import::Faults>,
) -> Result<Translation, Failure> {
    // A machine without the file has no names for ports.
    let services = std::fs::read_to_string("/etc/services").unwrap_or_default();
    let directory = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    let exists = |path: &Path| match path.metadata() {
        Ok(_) => true,
        Err(error) => error.kind() != ErrorKind::NotFound,
    };
    let outside = Outside { services: &services, directory: &directory, read: &read, exists: &exists };
    translate(&outside).map_err(|faults| Failure::Usage(faults.to_string()))
}

fn read(path: &Path) -> Result<String, String> {
    let bytes = sys::file::read(path, config::MAX_TEXT as u64).map_err(|error| error.to_string())?;
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use clap::error::ErrorKind;

    use crate::Cli;

    /// Texts in backquotes.
    fn code(text: &str) -> impl Iterator<Item = &str> {
        text.split('`').skip(1).step_by(2)
    }

    /// A text names a command, not all of its arguments.
    fn can_be_typed(command: &str) -> Result<(), String> {
        let words = command.split_whitespace().map(|word| if word == "ID" { "7" } else { word });
        match Cli::try_parse_from(words) {
            Ok(_) => Ok(()),
            Err(error) => match error.kind() {
                ErrorKind::MissingRequiredArgument
                | ErrorKind::MissingSubcommand
                | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Ok(()),
                kind => Err(format!("{command}: {kind}")),
            },
        }
    }

    #[test]
    fn every_command_that_the_tables_of_pen_name_can_be_typed() {
        let tables = import::pen::inventory::options() + &import::pen::inventory::commands();
        let commands: Vec<_> = code(&tables).filter(|text| text.starts_with("penstock ")).collect();
        assert!(commands.len() > 15, "{commands:?}");
        let wrong: Vec<_> = commands.iter().filter_map(|command| can_be_typed(command).err()).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        for wrong in ["penstock ctl client", "penstock ctl clients --within", "penstock ctl drain a --in 3s"]
        {
            assert!(can_be_typed(wrong).is_err(), "{wrong}");
        }
    }
}
