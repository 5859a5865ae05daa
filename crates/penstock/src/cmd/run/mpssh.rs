//! `penstock run --mpssh`, and this program under the name `mpssh`: options and output of mpssh with our engines.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgAction, Parser};
use fleet::run::board::Board;
use fleet::run::engine::{Engine, Watcher};
use fleet::run::input::Input;
use fleet::run::keep::Keep;
use fleet::run::openssh::{Kind, OpenSsh};
use fleet::run::output::{Outbox, Sinks};
use fleet::run::stop::{Brake, Stop, Why};
use fleet::run::terminal::Terminal;
use fleet::run::view::mpssh::{Mpssh, Reader};
use fleet::run::{Job, Limits, Order, Parallel, Plan};
use hosts::fleet::mpssh::{Header, Reported, Settings, Tally, Unprintable, advice};
use ssh::SshConfig;

use super::course::RESERVE;
use super::engines::EngineName;
use super::engines::{self, Ready};
use super::selection::read_list;
use super::{again, show};
use crate::output::{Failure, complain, plain, plain_lines, print};
use crate::{threads, usage};

/// Executes an SSH command on many hosts, with the options and the output of mpssh-py
#[derive(Debug, Parser)]
#[command(
    name = "mpssh",
    bin_name = "mpssh",
    infer_long_args = true,
    args_override_self = true,
    display_name = "MPSSH.py",
    version = VERSIONS,
    disable_version_flag = true,
    max_term_width = 100,
    after_help = HELP
)]
pub(crate) struct Arguments {
    /// File with the hosts, one per line; lines that begin with # are comments
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Time between two starts
    #[arg(short, long, value_name = "MSEC", default_value_t = 50, allow_negative_numbers = true)]
    delay: i64,
    /// Print exit code 0 too
    #[arg(short = 'e', long)]
    zeroexit: bool,
    /// Do not print exit codes other than 0; 255 and signals are always printed
    #[arg(short = 'E', long)]
    ignexit: bool,
    /// Print non-printable characters
    #[arg(short = 'b', long)]
    badchars_ok: bool,
    /// Do not count the non-printable characters that are left out
    #[arg(short = 'B', long)]
    silent_badchars: bool,
    /// Number of parallel hosts
    #[arg(short, long, value_name = "NPROC", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    procs: u32,
    /// Log in as this user [default: you; `User` in ~/.ssh/config never wins]
    #[arg(short, long, value_name = "USER")]
    user: Option<String>,
    /// Wrap lines that are longer, in bytes
    #[arg(short = 'l', long, value_name = "CHARS", default_value_t = 80, value_parser = clap::value_parser!(u32).range(1..))]
    maxlen: u32,
    /// Program in place of ssh; without -S and -O our own client runs
    #[arg(short = 'S', long, value_name = "SSHBIN")]
    sshbin: Option<PathBuf>,
    /// Option for ssh without its leading dash, as in -O 'o ConnectTimeout=3'; may be given again
    #[arg(short = 'O', long, value_name = "SSHOPT", allow_hyphen_values = true)]
    sshopt: Vec<String>,
    /// No header and no footer
    #[arg(short = 'H', long)]
    noheader: bool,
    /// Also name the program and its options in the header
    #[arg(short, long)]
    verbose: bool,
    /// Accepted without effect: `penstock run --json` reports every step
    #[arg(short = 'D', long)]
    debug: bool,
    /// Print the version of mpssh-py that this follows, and ours
    #[arg(short = 'V', long, action = ArgAction::Version)]
    version: Option<bool>,
    /// The command, one argument
    command: String,
}

const VERSIONS: &str = concat!("1.2\npenstock ", env!("CARGO_PKG_VERSION"));

const HELP: &str = "\
Examples:
  penstock run --mpssh -f hosts.txt uptime
  penstock run --mpssh -f hosts.txt -u root -p 500 -d 0 'df -h / | tail -1'
  penstock run --mpssh -f hosts.txt -O 'o ConnectTimeout=3' uptime      with ssh, not the built-in client
  ln -s \"$(command -v penstock)\" ~/bin/mpssh

Exit codes: 0 with any result of the hosts; 1 Ctrl-C, or it could not be done; 2 wrong usage.

What is not as in mpssh-py:
  Without -S and -O the built-in client connects. It knows hosts by `penstock host`, asks nothing, and \
gives each step of a connection 10 s. Where it fails, a `=>` line says why, before `SSH exit code 255 (possible SSH failure)`; \
what helps is said on standard error at the end.
  -S and -O run a program per host with mpssh's arguments, but without a terminal to ask on.
  Lines are wrapped between characters of UTF-8, never within one, and a slow line is not cut where \
it paused. On a terminal, what is no harmless text is shown as <9B>. Non-printable characters are counted per stream, \
not per read.
  -l and -p below 1 are refused. Ctrl-C ends the command on the hosts where the server takes signals.";

/// Returns the arguments after `run --mpssh`, or after the program name `mpssh`. `None` for other calls.
pub(crate) fn called(words: impl IntoIterator<Item = std::ffi::OsString>) -> Option<Vec<std::ffi::OsString>> {
    let mut words: Vec<_> = words.into_iter().collect();
    let name = Path::new(words.first()?).file_name()?.to_owned();
    if name == "mpssh" || name == "mpssh.py" {
        return Some(words);
    }
    let is = |at: usize, word: &str| words.get(at).is_some_and(|given| given == word);
    (is(1, "run") && is(2, "--mpssh")).then(|| words.split_off(2))
}

pub(crate) fn run(words: Vec<std::ffi::OsString>) -> Result<(), Failure> {
    let arguments = Arguments::try_parse_from(words).map_err(|error| usage::answer(&error))?;
    let names = arguments.names()?;
    let user = match &arguments.user {
        Some(user) => user.clone(),
        None => SshConfig::current_user().map_err(Failure::runtime)?.user,
    };
    let sessions = (arguments.procs as usize).min(names.len());
    let (program, options) = match arguments.engine() {
        EngineName::Native => ("penstock".to_owned(), Vec::new()),
        EngineName::Openssh => (arguments.program().display().to_string(), arguments.options()),
    };
    let verbose = arguments.verbose.then_some((program.as_str(), options.as_slice()));
    let header = Header { hosts: names.len(), command: &arguments.command, user: &user, sessions, verbose };
    if !arguments.noheader {
        print(&header.text())?;
    }
    let workers = std::thread::available_parallelism().map_or(2, usize::from).min(4);
    let runtime = threads::runtime(workers)?;
    let told = runtime.block_on(arguments.whole(names, user, sessions));
    runtime.shutdown_background();
    let tally = told?;
    if arguments.noheader { Ok(()) } else { print(&tally.footer()) }
}

impl Arguments {
    fn names(&self) -> Result<Vec<String>, Failure> {
        let shown = self.file.display();
        let text = std::fs::File::open(&self.file)
            .and_then(read_list)
            .map_err(|error| Failure::runtime(format!("cannot read the list of hosts {shown}: {error}")))?;
        let text = String::from_utf8(text)
            .map_err(|_| Failure::runtime(format!("the list of hosts {shown} is not in UTF-8")))?;
        let hosts = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        Ok(hosts.map(str::to_owned).collect())
    }

    fn engine(&self) -> EngineName {
        if self.sshbin.is_none() && self.sshopt.is_empty() { EngineName::Native } else { EngineName::Openssh }
    }

    /// Returns the program that runs for each host.
    fn program(&self) -> PathBuf {
        let named = |directory: PathBuf| directory.join("ssh");
        let found =
            || std::env::split_paths(&std::env::var_os("PATH")?).map(named).find(|file| file.is_file());
        self.sshbin.clone().or_else(found).unwrap_or_else(|| PathBuf::from("ssh"))
    }

    /// Returns the program's options without their dashes.
    fn options(&self) -> Vec<String> {
        let usual = "o NumberOfPasswordPrompts=0".to_owned();
        std::iter::once(usual).chain(self.sshopt.iter().cloned()).collect()
    }

    fn settings(&self) -> Settings {
        let told = |not: bool| if not { Reported::No } else { Reported::Yes };
        Settings {
            zero: told(!self.zeroexit),
            other: told(self.ignexit),
            unprintable: match (self.badchars_ok, self.silent_badchars) {
                (true, _) => Unprintable::Printed,
                (false, true) => Unprintable::LeftOut,
                (false, false) => Unprintable::Counted,
            },
            longest: self.maxlen as usize,
        }
    }

    fn ready(&self, names: &[String], user: String) -> Result<Ready, Failure> {
        if self.engine() == EngineName::Native {
            let native = engines::Arguments {
                user: Some(user),
                ssh_config: None,
                engine: Some(EngineName::Native),
                ssh: None,
            };
            return native.ready(names, STEP, &Arc::new(Terminal::default()));
        }
        let engine = Engine::OpenSsh(OpenSsh {
            program: self.program(),
            arguments: self.options().iter().map(|option| format!("-{option}")).collect(),
            kind: Kind::Substitute,
            login: format!("{user}@"),
        });
        Ok(Ready { engine, hosts: engines::by_name(names), identities: None, log_ins: None })
    }

    /// Returns the record that `penstock run --again` needs, or that shows that the run cannot be repeated.
    fn remember(&self, user: &str) -> serde_json::Value {
        let program = (self.engine() == EngineName::Openssh).then(|| self.program());
        serde_json::json!({
            "command": [self.command],
            "user": user,
            "no_watcher": true,
            "parallel": self.procs,
            "delay": u64::try_from(self.delay).unwrap_or(0),
            "mpssh": true,
            "ssh": program,
        })
    }

    async fn whole(&self, names: Vec<String>, user: String, sessions: usize) -> Result<Tally, Failure> {
        if names.is_empty() {
            return Ok(Tally::default());
        }
        let login = user.clone();
        let Ready { engine, hosts, identities, .. } = self.ready(&names, user)?;
        let brake = Brake::default();
        let reader = if io::stdout().is_terminal() { Reader::Terminal } else { Reader::Program };
        let sinks = Sinks {
            view: Box::new(Mpssh::new(&names, self.settings(), show::colour(), reader)),
            keep: Keep::hashes(names.len()),
            progress: None,
        };
        let journal = again::begin(&self.remember(&login), &names);
        let out = Outbox::open(sinks, brake.clone())?;
        let said = out.clone();
        brake.obey_signals(move |stop| {
            if !matches!(stop, Stop::AtOnce(_)) {
                said.note("\nERROR: Terminated by CTRL+C! Cleaning up, wait a few seconds.".to_owned());
            }
        })?;
        let plan = Plan {
            hosts,
            job: Job::Command(Order {
                command: self.command.clone(),
                input: Input::None,
                // No watcher: a script that calls mpssh may use hosts without a shell.
                watcher: Watcher::None,
                nonce: fleet::run::nonce(),
                connect_timeout: STEP,
                timeout: None,
            }),
            engine,
            limits: Limits {
                parallel: Parallel::Fixed(sessions),
                sessions: room(self.engine())?.min(sessions),
                delay: Duration::from_millis(u64::try_from(self.delay).unwrap_or(0)),
            },
            steps: None,
            journal,
        };
        let board = Arc::new(Board::new(names.clone()));
        let outcome = fleet::run::run(plan, board, brake.clone(), out).await;
        // Write changes of addresses and host keys that connections noticed.
        for error in identities.map(|identities| identities.flush().failed).unwrap_or_default() {
            complain(&format!("note: {}\n", plain(&error.to_string())));
        }
        match brake.now() {
            Stop::No => {
                let endings = names.iter().map(String::as_str).zip(&outcome.endings);
                complain(&plain_lines(&advice(endings)));
                Ok(Tally::of(&outcome.endings))
            }
            Stop::Gently(Why::ReaderGone) | Stop::AtOnce(Why::ReaderGone) => Err(Failure::OutputClosed),
            Stop::Gently(_) | Stop::AtOnce(_) => Err(Failure::Status(1)),
        }
    }
}

/// Number of parallel sessions that the descriptors of this process allow.
fn room(engine: EngineName) -> Result<usize, Failure> {
    let limit = usize::try_from(sys::descriptors::raise_limit()?).unwrap_or(usize::MAX);
    let open = sys::descriptors::open_count().unwrap_or(16);
    Ok((limit.saturating_sub(open + RESERVE) / engines::descriptors(engine)).max(1))
}

/// Time limit of each step of a connection of our client.
const STEP: Duration = Duration::from_secs(10);
