//! `penstock lab`: SSH hosts in this process for trials. All of them are in `crates/lab`.

use std::env;
use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use text::{shell, units};

use clap::Args;
use lab::fault::{self, Assignment};
use lab::{Lab, LabError, Plan};
use sys::privilege::Programs;

use crate::directory::Directory;
use crate::output::{Failure, complain, print};
use crate::paste::program;
use crate::signals::Signals;
use crate::threads;
use inside::Inside;

mod inside;
mod programs;

/// Start a fleet of SSH hosts on loopback addresses, to try things on
///
/// All hosts run in this process. Each has an address in 127.0.0.0/8 and a host key of its own. They interpret a few
/// commands themselves (echo, printf, cat, hostname, uptime, env, sleep, flood, exit, kill-self ...) and start no
/// processes. Files for clients are in one directory: hosts, ssh_config, known_hosts, client_key; journal records what
/// each host received; bin has a penstock, mpssh, ssh, scp and sftp that use only the lab and none of your files.
/// Ctrl-C ends the lab.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Number of hosts
    #[arg(value_name = "N", value_parser = clap::value_parser!(u16).range(1..=10_000), default_value_t = 10)]
    hosts: u16,
    /// Faults of hosts: `--list` names all faults. @N: only the first N connections have it, which the lab cannot count
    /// with refuse and blackhole
    #[arg(long = "fault", value_name = "NAME[:PARAMETER][@N][=HOSTS|PERCENT%]")]
    faults: Vec<Assignment>,
    /// List all faults: where a client meets them, how a good client ends, what the host does
    #[arg(long, visible_alias = "faults")]
    list: bool,
    /// Start your shell, in which penstock, ssh, clush, pdsh and parallel-ssh mean the hosts of the lab; the lab ends with it
    #[arg(long, conflicts_with = "command")]
    shell: bool,
    /// Run this command with the settings of --shell; the lab ends with it, and the exit code is that of the command
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// Directory of the files; the same directory gives the same identities again [default: a temporary one, removed at
    /// the end]
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
  penstock lab 20 --shell                     then: penstock run -w @lab uptime, ssh lab001
  penstock lab 20 --fault hang-auth=2 -- penstock run -w @lab uptime
  penstock lab 1000 --dir ./lab               the same identities each time
  penstock lab 200 --fault hang-auth=5% --fault reset:4096=lab[010-014] --fault turn-away@2=lab020

All hosts are the group @lab, for clush inside (--shell, COMMAND) too. It says `ready:` on standard output when all hosts listen, \
and how to reach them; standard output of COMMAND is passed through, and LAB is the directory.";

impl Arguments {
    pub(crate) fn programs(&self) -> Programs {
        if self.shell || !self.command.is_empty() { Programs::Named } else { Programs::None }
    }
}

/// Runs the lab until Ctrl-C or SIGTERM, or until the command or shell inside ends.
/// Prints a note if this program runs inside a lab, but was not started by the lab's own `penstock`.
pub(crate) fn note_if_left() {
    let Some(lab) = env::var_os("LAB").filter(|lab| !lab.is_empty()) else { return };
    let is_ours = env::var("HOME").is_ok_and(|home| ssh::lab_home::is_inside(&home));
    if !is_ours && programs::directory(Path::new(&lab)).join("penstock").is_file() {
        complain(
            "note: this uses your own hosts and files; those of the lab have the name penstock without a path\n",
        );
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.list {
        return print(&fault::list());
    }
    let runtime = threads::runtime(std::thread::available_parallelism().map_or(2, usize::from))?;
    // From here on signals no longer end the process directly, so that every exit removes all files.
    let mut signals = {
        let _context = runtime.enter();
        Signals::install()?
    };
    // Each host needs a socket, and each connection one more.
    let limit = lab::raise_descriptors().unwrap_or(u64::MAX);
    let place = Place::of(arguments)?;
    let mut plan = Plan::new(usize::from(arguments.hosts), place.path());
    plan.first = arguments.first;
    plan.port = arguments.port;
    plan.faults.clone_from(&arguments.faults);
    let lab = runtime.block_on(Lab::start(plan)).map_err(failure)?;
    tell_room(arguments.hosts, limit);
    let result = play(arguments, &lab, &runtime, &mut signals);
    drop(lab);
    // Give connections time to notice that they were closed; do not wait for a host that hangs on purpose.
    runtime.shutdown_timeout(std::time::Duration::from_millis(200));
    drop(place);
    result
}

/// Runs what the arguments ask for while the lab is up.
fn play(
    arguments: &Arguments,
    lab: &Lab,
    runtime: &tokio::runtime::Runtime,
    signals: &mut Signals,
) -> Result<(), Failure> {
    let directory = lab.directory();
    let bin = programs::write(lab)?;
    let inside = match (arguments.shell, &arguments.command[..]) {
        (true, _) => {
            complain(&welcome(lab));
            Inside::Shell
        }
        (false, []) => {
            print(&introduction(lab, &bin))?;
            runtime.block_on(signals.any());
            return Ok(());
        }
        (false, command) => Inside::Command(command),
    };
    runtime.block_on(inside.run(directory, &bin, signals))
}

/// Warns if there are too few descriptors for all hosts, because connections would then wait.
fn tell_room(hosts: u16, limit: u64) {
    let hosts = u64::from(hosts);
    if limit < 2 * hosts + OTHERS {
        let room = limit.saturating_sub(hosts + OTHERS).max(1);
        complain(&format!(
            "note: {limit} open files are enough for about {room} connections at once; further ones wait; to raise the limit: ulimit -n\n"
        ));
    }
}

/// Descriptors for other purposes than hosts and connections.
const OTHERS: u64 = 32;

/// Directory of a lab's files.
enum Place {
    /// Chosen by the user; it is kept.
    Chosen(PathBuf),
    /// Removed at the end of the lab.
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

/// Introduction with commands to try, which work unchanged in any terminal.
fn introduction(lab: &Lab, bin: &Path) -> String {
    let Some(Names { first, last, set, count }) = Names::of(lab) else { return String::new() };
    let at = |name: &str| lab.address(name).map_or_else(String::new, |address| address.ip().to_string());
    let port = lab.address(first).map_or(0, |address| address.port());
    let directory = lab.directory();
    let file = |name: &str| shell::path(&directory.join(name));
    let own = |name: &str| shell::path(&bin.join(name));
    let (penstock, ssh, bin, hosts) = (own("penstock"), own("ssh"), shell::path(bin), file("hosts"));
    let (from, to, journal, directory) = (at(first), at(last), file("journal"), shell::path(directory));
    let (program, all) = (program(), units::count(count, "host"));
    format!(
        "\
ready: {all}, {first} at {from} to {last} at {to}, port {port}, files in {directory}

In another terminal, with programs that use this lab and not your own configuration:

  {penstock} run -w @lab uptime
  {penstock} run -b -w '{set}' -- uname -r
  {penstock} host list
  {ssh} {first} uptime

Other programs find that ssh through PATH:

  PATH={bin}:$PATH clush -b -w '{set}' uname
  PATH={bin}:$PATH pdsh -R ssh -w '{set}' uptime
  PATH={bin}:$PATH parallel-ssh -h {hosts} -i hostname

A shell with all of them in its PATH: {program} lab {count} --shell
Faults that hosts can have: {program} lab --list
What each host receives is in {journal}. Ctrl-C ends the lab.
"
    )
}

/// Introduction for a user inside the lab's shell.
fn welcome(lab: &Lab) -> String {
    let Some(Names { first, set, count, .. }) = Names::of(lab) else { return String::new() };
    let all = units::count(count, "host");
    format!(
        "\
lab: {all}; exit ends them. Try:

  penstock run -w @lab uptime
  penstock run -b -w '{set}' -- uname -r
  penstock host list
  ssh {first} uptime
  clush -b -w @lab uname
  cat $LAB/journal

"
    )
}

/// Names of the lab's hosts.
struct Names<'a> {
    first: &'a str,
    last: &'a str,
    /// All names in the notation of clush.
    set: String,
    count: usize,
}

impl<'a> Names<'a> {
    fn of(lab: &'a Lab) -> Option<Self> {
        let (first, last) = (lab.names().next()?, lab.names().last()?);
        let digits = |name: &'a str| name.trim_start_matches(|c: char| !c.is_ascii_digit());
        let set =
            if first == last { first.to_owned() } else { format!("lab[{}-{}]", digits(first), digits(last)) };
        Some(Self { first, last, set, count: lab.names().count() })
    }
}

/// Converts an error: impossible arguments are wrong usage, other errors are failures.
fn failure(error: LabError) -> Failure {
    match error {
        LabError::Addresses { .. }
        | LabError::Fault(_)
        | LabError::Foreign { .. }
        | LabError::Unsafe { .. } => Failure::usage(error),
        error => Failure::Runtime(error.into()),
    }
}
