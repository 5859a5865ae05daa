//! `penstock doctor`: finds out whether this machine has what Penstock needs, and what mends it. Decisions:
//! `logic::self_test`; what is read: `serve::self_test`. The doctor of `dsr` listeners is in `doctor/dsr.rs`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use logic::finding::Finding;
use logic::self_test;
use logic::self_test::facts::{Facts, Server};
use serde_json::{Value, json};
use serve::self_test::Checked;

use super::{check, findings};
use crate::ctl::client::Client;
use crate::load;
use crate::output::{Failure, plain_lines, print, print_failed, print_json};

mod dsr;

/// Find out what is wrong with this machine, and what mends it
///
/// Looks at the program, its user, capabilities and sandbox, at limits of the kernel, the clock, names, IPv6, certificates that
/// expire, and ports that another process has. With a configuration also at what that needs. Opens no port, changes nothing:
/// safe beside a running server. As root it sees more.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// The configuration; without it the one that PENSTOCK_CONFIG names, or /etc/penstock/penstock.toml
    #[arg(value_name = "FILE", conflicts_with = "config")]
    file: Option<PathBuf>,
    /// The same as FILE
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
    /// Print only what is wrong, and nothing if all is well
    #[arg(long, short, conflicts_with = "json")]
    quiet: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    Dsr(dsr::Arguments),
}

const EXAMPLES: &str = "\
Examples:
  penstock doctor
  penstock doctor --quiet && echo all is well
  penstock doctor penstock.toml
  penstock doctor --json --config /etc/penstock/penstock.toml
  penstock doctor dsr --config /etc/penstock/penstock.toml

Exit codes: 0 all is well; 1 something is not; 2 wrong usage.";

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.command {
        Some(Command::Dsr(arguments)) => dsr::run(arguments),
        None => {
            let named = arguments.file.as_deref().or(arguments.config.as_deref());
            report(arguments, &self_test::judge(&facts(load::usual(named).as_deref())))
        }
    }
}

fn facts(file: Option<&Path>) -> Facts {
    let version = env!("CARGO_PKG_VERSION");
    let Some(file) = file else {
        return serve::self_test::facts(version, None, Err(Vec::new()), None);
    };
    match load::file(file, &load::environment()) {
        Err(Failure::Usage(text)) => {
            let faults =
                text.lines().filter_map(|line| line.strip_prefix("error: ")).map(str::to_owned).collect();
            serve::self_test::facts(version, Some(file), Err(faults), None)
        }
        Err(other) => serve::self_test::facts(version, Some(file), Err(vec![format!("{other:?}")]), None),
        Ok(loaded) => {
            let config = &loaded.config;
            let lacking = check::lacking(config, Some(file));
            // When certificates end is told for each of them.
            let faults = lacking.into_iter().filter(|fault| !fault.message.contains("expired"));
            let checked =
                Checked { config, faults: faults.map(|it| format!("{}: {}", it.key, it.message)).collect() };
            let server = config.control.as_ref().and_then(|control| running(&control.socket));
            serve::self_test::facts(version, Some(file), Ok(checked), server)
        }
    }
}

/// Time limit of the process that serves.
const PATIENCE: Duration = Duration::from_secs(2);

/// The server that answers at a control socket.
fn running(socket: &Path) -> Option<Server> {
    let answer = Client::connect(socket, PATIENCE).ok()?.ask("status json").ok()?;
    let status: Value = serde_json::from_str(&answer.lines.join("\n")).ok()?;
    let process = u32::try_from(status["pid"].as_u64()?).ok()?;
    Some(Server { process, version: status["version"].as_str()?.to_owned() })
}

fn report(arguments: &Arguments, all: &[Finding]) -> Result<(), Failure> {
    let faults: Vec<_> = all.iter().filter(|finding| finding.is_fault()).cloned().collect();
    if arguments.json {
        let report = json!({
            "ok": faults.is_empty(),
            "version": env!("CARGO_PKG_VERSION"),
            "findings": findings::json(all),
        });
        print_json(&format!("{report:#}\n"))?;
        return if faults.is_empty() { Ok(()) } else { Err(Failure::Status(1)) };
    }
    let shown = if arguments.quiet { &faults } else { all };
    let text = plain_lines(&findings::text(shown));
    if faults.is_empty() { print(&text) } else { Err(print_failed(&text, 1)) }
}
