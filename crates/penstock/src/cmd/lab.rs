//! `penstock lab`: SSH hosts in this process, to try things on. All of them are in `crates/ssh`.

use std::env;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use clap::Args;
use ssh::lab::fault::{self, Assignment};
use ssh::lab::{Lab, LabError, Plan};

use crate::directory::Directory;
use crate::output::{Failure, print};
use crate::paste::{program, quote};
use crate::signals::Signals;

/// Start a fleet of SSH hosts on loopback addresses, to try things on
///
/// All hosts run in this process. Each has an address in 127.0.0.0/8 and a host key of its own. They interpret a few
/// commands themselves (echo, printf, cat, hostname, uptime, env, sleep, flood, exit, kill-self ...) and start no
/// processes. Files for clients are in one directory: hosts, ssh_config, known_hosts, client_key; journal says what each
/// host received. Ctrl-C ends it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// How many hosts
    #[arg(value_name = "N", value_parser = clap::value_parser!(u16).range(1..=10_000), default_value_t = 10)]
    hosts: u16,
    /// What is wrong with which hosts: `--list` names all faults. @N: only the first N connections have it
    #[arg(long = "fault", value_name = "NAME[:PARAMETER][@N][=HOSTS|PERCENT%]")]
    faults: Vec<Assignment>,
    /// Name all faults: where a client meets them, how a good client ends, what the host does
    #[arg(long)]
    list: bool,
    /// Where the files go; the same directory gives the same identities again
    /// [default: a temporary one, removed at the end]
    #[arg(long, value_name = "DIRECTORY")]
    dir: Option<PathBuf>,
    /// Address of the first host, in 127.0.0.0/8; the others follow
    #[arg(long, value_name = "ADDRESS", default_value = "127.66.0.1")]
    first: Ipv4Addr,
    /// Port of all hosts [default: a free one]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
}

const EXAMPLES: &str = "\
Examples:
  penstock lab 20
  penstock lab 1000 --dir ./lab               the same identities each time
  penstock lab 200 --fault hang-auth=5% --fault reset:4096=lab[010-014] --fault refuse@2=lab020

It says `ready:` on standard output when all hosts listen, and how to reach them.";

/// Runs the lab until Ctrl-C or SIGTERM.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.list {
        return print(&fault::list());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    // From here on Ctrl-C waits for its turn, and no way out leaves anything behind.
    let mut signals = {
        let _context = runtime.enter();
        Signals::install()?
    };
    // A socket for each host and one for each connection; less than that is said by whoever needs more.
    let _ = ssh::lab::raise_descriptors();
    let place = Place::of(arguments)?;
    let mut plan = Plan::new(usize::from(arguments.hosts), place.path());
    plan.first = arguments.first;
    plan.port = arguments.port;
    plan.faults.clone_from(&arguments.faults);
    let lab = runtime.block_on(Lab::start(plan)).map_err(failure)?;
    print(&introduction(&lab))?;
    runtime.block_on(signals.any());
    drop(lab);
    // Connections notice that they were cut; whoever hangs on purpose is not waited for.
    runtime.shutdown_timeout(std::time::Duration::from_millis(200));
    drop(place);
    Ok(())
}

/// Where the files of a lab go.
enum Place {
    /// It stays.
    Chosen(PathBuf),
    /// It goes with the lab.
    Temporary(Directory),
}

impl Place {
    fn of(arguments: &Arguments) -> Result<Self, Failure> {
        if let Some(directory) = &arguments.dir {
            return Ok(Self::Chosen(directory.clone()));
        }
        Directory::create("lab").map(Self::Temporary).map_err(|error| {
            Failure::runtime(format_args!(
                "cannot make a directory in {}: {error}",
                env::temp_dir().display()
            ))
        })
    }

    fn path(&self) -> &Path {
        match self {
            Self::Chosen(path) => path,
            Self::Temporary(directory) => directory.path(),
        }
    }
}

fn introduction(lab: &Lab) -> String {
    let names: Vec<_> = lab.names().collect();
    let (Some(first), Some(last)) = (names.first(), names.last()) else { return String::new() };
    let at = |name: &str| lab.address(name).map_or_else(String::new, |address| address.ip().to_string());
    let port = lab.address(first).map_or(0, |address| address.port());
    let directory = lab.directory();
    let file = |name: &str| quote(&directory.join(name));
    let (config, hosts) = (file("ssh_config"), file("hosts"));
    format!(
        "\
ready: {count} hosts, {first} at {from} to {last} at {to}, port {port}, files in {directory}

  ssh -F {config} {first} uptime
  parallel-ssh -h {hosts} -x '-F {config}' -i hostname
  clush -b -o '-F {config}' --hostfile {hosts} uname
  PDSH_SSH_ARGS_APPEND='-F {config}' pdsh -R ssh -w ^{hosts} uptime

{program} lab --help says more. What each host receives is in {journal}. Ctrl-C ends the lab.
",
        count = names.len(),
        from = at(first),
        to = at(last),
        directory = quote(directory),
        program = program(),
        journal = file("journal"),
    )
}

/// What was asked for cannot be: wrong usage. The rest is a failure.
fn failure(error: LabError) -> Failure {
    match error {
        LabError::Addresses { .. } | LabError::Fault(_) => Failure::usage(error),
        error => Failure::Runtime(error.into()),
    }
}
