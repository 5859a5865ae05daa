//! `penstock lab`: SSH hosts in this process, to try things on. All of them are in `crates/ssh`.

use std::env;
use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use clap::Args;
use ssh::lab::fault::{self, Assignment};
use ssh::lab::{Lab, LabError, Plan};

use crate::directory::Directory;
use crate::output::{Failure, complain, print};
use crate::paste::{program, quote};
use crate::signals::Signals;
use crate::threads;
use inside::Inside;

mod inside;
mod programs;

/// Start a fleet of SSH hosts on loopback addresses, to try things on
///
/// All hosts run in this process. Each has an address in 127.0.0.0/8 and a host key of its own. They interpret a few
/// commands themselves (echo, printf, cat, hostname, uptime, env, sleep, flood, exit, kill-self ...) and start no
/// processes. Files for clients are in one directory: hosts, ssh_config, known_hosts, client_key; journal says what each
/// host received; bin has a penstock, mpssh, ssh, scp and sftp that see the lab and nothing of yours. Ctrl-C ends it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// How many hosts
    #[arg(value_name = "N", value_parser = clap::value_parser!(u16).range(1..=10_000), default_value_t = 10)]
    hosts: u16,
    /// What is wrong with which hosts: `--list` names all faults. @N: only the first N connections have it, which the lab cannot count
    /// with refuse and blackhole
    #[arg(long = "fault", value_name = "NAME[:PARAMETER][@N][=HOSTS|PERCENT%]")]
    faults: Vec<Assignment>,
    /// Name all faults: where a client meets them, how a good client ends, what the host does
    #[arg(long, visible_alias = "faults")]
    list: bool,
    /// Start your shell, in which penstock, ssh, clush, pdsh and parallel-ssh mean the hosts of the lab; the lab ends with it
    #[arg(long, conflicts_with = "command")]
    shell: bool,
    /// Run this in the same surroundings; the lab ends with it, and the exit code is its own
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
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
  penstock lab 20 --shell                     then: penstock run -w @lab uptime, ssh lab001
  penstock lab 20 --fault hang-auth=2 -- penstock run -w @lab uptime
  penstock lab 1000 --dir ./lab               the same identities each time
  penstock lab 200 --fault hang-auth=5% --fault reset:4096=lab[010-014] --fault turn-away@2=lab020

All hosts are the group @lab, for clush inside (--shell, COMMAND) too. It says `ready:` on standard output when all hosts listen, \
and how to reach them; of what runs inside standard output is its own, and LAB is the directory.";

/// Runs the lab until Ctrl-C or SIGTERM, or until what runs inside ends.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.list {
        return print(&fault::list());
    }
    let runtime = threads::runtime(std::thread::available_parallelism().map_or(2, usize::from))?;
    // From here on Ctrl-C waits for its turn, and no way out leaves anything behind.
    let mut signals = {
        let _context = runtime.enter();
        Signals::install()?
    };
    // A socket for each host and one for each connection.
    let limit = ssh::lab::raise_descriptors().unwrap_or(u64::MAX);
    let place = Place::of(arguments)?;
    let mut plan = Plan::new(usize::from(arguments.hosts), place.path());
    plan.first = arguments.first;
    plan.port = arguments.port;
    plan.faults.clone_from(&arguments.faults);
    let lab = runtime.block_on(Lab::start(plan)).map_err(failure)?;
    tell_room(arguments.hosts, limit);
    let result = play(arguments, &lab, &runtime, &mut signals);
    drop(lab);
    // Connections notice that they were cut; whoever hangs on purpose is not waited for.
    runtime.shutdown_timeout(std::time::Duration::from_millis(200));
    drop(place);
    result
}

/// While the lab runs.
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

/// Said before somebody wonders why hosts are slow to answer.
fn tell_room(hosts: u16, limit: u64) {
    let hosts = u64::from(hosts);
    if limit < 2 * hosts + OTHERS {
        let room = limit.saturating_sub(hosts + OTHERS).max(1);
        complain(&format!(
            "note: {limit} open files are enough for about {room} connections at once; more of them wait: ulimit -n\n"
        ));
    }
}

/// Descriptors that are neither of a host nor of a connection.
const OTHERS: u64 = 32;

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

/// What to try: every line works as it stands, in any terminal.
fn introduction(lab: &Lab, bin: &Path) -> String {
    let Some(Names { first, last, set, count }) = Names::of(lab) else { return String::new() };
    let at = |name: &str| lab.address(name).map_or_else(String::new, |address| address.ip().to_string());
    let port = lab.address(first).map_or(0, |address| address.port());
    let directory = lab.directory();
    let file = |name: &str| quote(&directory.join(name));
    let own = |name: &str| quote(&bin.join(name));
    let (penstock, ssh, bin, hosts) = (own("penstock"), own("ssh"), quote(bin), file("hosts"));
    let (from, to, journal, directory) = (at(first), at(last), file("journal"), quote(directory));
    let program = program();
    format!(
        "\
ready: {count} hosts, {first} at {from} to {last} at {to}, port {port}, files in {directory}

In another terminal, with programs that see this lab and nothing of yours:

  {penstock} run -w @lab uptime
  {penstock} run -b -w '{set}' -- uname -r
  {penstock} host list
  {ssh} {first} uptime

Others find that ssh by PATH:

  PATH={bin}:$PATH clush -b -w '{set}' uname
  PATH={bin}:$PATH pdsh -R ssh -w '{set}' uptime
  PATH={bin}:$PATH parallel-ssh -h {hosts} -i hostname

A shell in which all of them have their plain names: {program} lab {count} --shell
What is wrong with hosts, if you wish it so: {program} lab --list
What each host receives is in {journal}. Ctrl-C ends the lab.
"
    )
}

/// The same for who is inside.
fn welcome(lab: &Lab) -> String {
    let Some(Names { first, set, count, .. }) = Names::of(lab) else { return String::new() };
    format!(
        "\
lab: {count} hosts; exit ends them. Try:

  penstock run -w @lab uptime
  penstock run -b -w '{set}' -- uname -r
  penstock host list
  ssh {first} uptime
  clush -b -w @lab uname
  cat $LAB/journal

"
    )
}

/// How the hosts are called.
struct Names<'a> {
    first: &'a str,
    last: &'a str,
    /// All of them, as clush writes it.
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

/// What was asked for cannot be: wrong usage. The rest is a failure.
fn failure(error: LabError) -> Failure {
    match error {
        LabError::Addresses { .. }
        | LabError::Fault(_)
        | LabError::Foreign { .. }
        | LabError::Unsafe { .. } => Failure::usage(error),
        error => Failure::Runtime(error.into()),
    }
}
