//! `penstock service`: makes the front door a service of systemd where no package does. Decisions and deeds:
//! `serve::service`.

use clap::{Args, Subcommand};
use nix::unistd;
use serve::service::{self, Machine, Step};

use crate::output::{Failure, plain, print};

/// Make `penstock serve` a service of systemd, or take that back
///
/// For a program that no package has installed. The unit is that of the package; the service runs as user penstock with
/// /etc/penstock/penstock.toml, which is written if it is missing and serves this machine only. Can be repeated.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write the unit and start the service, now and at each start of the machine
    Install(Extent),
    /// End the service and remove its unit; the configuration, the state and the user stay
    Remove(Extent),
}

#[derive(Debug, Args)]
struct Extent {
    /// Print what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
}

const EXAMPLES: &str = "\
Examples:
  penstock service install --dry-run
  penstock service install
  penstock service remove

Exit codes: 0 done, or nothing to do; 1 it failed, or it is not ours to change; 2 wrong usage.";

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let machine = Machine::here().map_err(Failure::runtime)?;
    let (steps, extent, done) = match &arguments.command {
        Command::Install(extent) => {
            let binary = std::env::current_exe()?;
            let done = "penstock.service runs; `penstock doctor` says whether this machine has what it needs";
            (service::install(&machine, &binary), extent, done)
        }
        Command::Remove(extent) => {
            let done = "penstock.service is gone; /etc/penstock, /var/lib/penstock and user penstock stay";
            (service::remove(&machine), extent, done)
        }
    };
    let steps = steps.map_err(Failure::runtime)?;
    if steps.is_empty() {
        return print("nothing to do\n");
    }
    if !extent.dry_run && !unistd::geteuid().is_root() {
        return Err(Failure::runtime(
            "only root can do this\n  hint: --dry-run shows the steps without being root",
        ));
    }
    for step in &steps {
        print(&format!("{}\n", plain(&step.shown())))?;
        if extent.dry_run {
            if let Step::Write { text, .. } = step {
                print(&text.lines().map(|line| format!("    {line}\n")).collect::<String>())?;
            }
        } else {
            service::perform(step).map_err(|error| Failure::Runtime(error.into()))?;
        }
    }
    if extent.dry_run { Ok(()) } else { print(&format!("{done}\n")) }
}
