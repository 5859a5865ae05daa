//! `penstock run`: a command on many hosts at once. The running is in `crates/fleet`.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use fleet::run::board::Board;
use fleet::run::engine::Leash;
use fleet::run::input::{Input, Spool};
use fleet::run::keep::Keep;
use fleet::run::output::{Outbox, Sinks};
use fleet::run::progress::Progress;
use fleet::run::stop::{Brake, Stop, Why};
use fleet::run::terminal::Terminal;
use fleet::run::{Limits, Order, Outcome, Parallel, Pause, Plan, Steps, summary};
use logic::fleet::script;
use logic::fleet::verdict::Status;
use logic::fleet::waves::{StopIf, Waves};
use ssh::identity::Identities;
use tokio::sync::Notify;

use crate::output::{Failure, complain, plain, plain_lines, print};

mod again;
mod engines;
mod hosts;
mod keys;
pub mod mpssh;
mod show;

/// Run a command on many hosts at once, over SSH
///
/// What the hosts print goes to standard output as it comes, each line with its host before it: `->` standard output,
/// `=>` standard error, `=:` how it ended, if not with 0. Everything about the run goes to standard error. Enter shows who is still
/// running, in which phase, for how long. Ctrl-C ends the command on all hosts; a second one lets go at once.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub struct Arguments {
    /// The command, as the shell of each host gets it
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = false)]
    command: Vec<String>,
    #[command(flatten)]
    hosts: hosts::Arguments,
    #[command(flatten)]
    show: show::Arguments,
    #[command(flatten)]
    engine: engines::Arguments,
    /// At most so many hosts at once [default: adapts itself, up to 1,000]
    #[arg(long, short, value_name = "N", help_heading = "Pace", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    parallel: Option<u32>,
    /// Time between two starts, in milliseconds [default: 0]
    #[arg(long, value_name = "MS", help_heading = "Pace")]
    delay: Option<u64>,
    /// Limit of each step up to the start of the command, in seconds [default: 10]
    #[arg(long, value_name = "SECONDS", value_parser = time, help_heading = "Pace")]
    connect_timeout: Option<Duration>,
    /// Limit of the command, in seconds; it is ended on the host when that has passed [default: none]
    #[arg(long, short, value_name = "SECONDS", value_parser = time, help_heading = "Pace")]
    timeout: Option<Duration>,
    /// A few hosts first: numbers of hosts, shares like 10%, and all, as in 1,10%,all
    #[arg(long, value_name = "SIZES", help_heading = "Waves")]
    waves: Option<Waves>,
    /// Start no further wave if this is so: failed>2%, failed>3, or differs (outputs are not all the same)
    #[arg(long, value_name = "CONDITION", requires = "waves", help_heading = "Waves")]
    stop_if: Option<StopIf>,
    /// Wait for Enter between waves, or for so many seconds
    #[arg(long, value_name = "SECONDS", requires = "waves", num_args = 0..=1, require_equals = true, value_parser = time, help_heading = "Waves")]
    pause: Option<Option<Duration>>,
    /// Send our standard input to every host
    #[arg(long, conflicts_with = "script", help_heading = "Input")]
    stdin: bool,
    /// Run this local script on every host, with the COMMAND words as its arguments; its first line says what runs it
    #[arg(long, value_name = "FILE", help_heading = "Input")]
    script: Option<PathBuf>,
    /// Send the command as it is: it may run on if this program is killed
    #[arg(long, help_heading = "Input")]
    no_leash: bool,
    #[command(flatten)]
    again: again::Arguments,
    /// As the first word: options and output of mpssh-py, as `penstock run --mpssh --help` tells them; so does a link to this
    /// program with the name `mpssh`
    #[arg(long)]
    mpssh: bool,
}

const HELP: &str = "\
Examples:
  penstock run -w 'web[1-3]' uptime
  penstock run -w 'web[1-3],db1' -x web2 -- 'df -h / | tail -1'
  penstock run --hosts fleet.txt -b -- uname -r
  penstock run -g web --diff -- cat /etc/resolv.conf
  penstock run -g web --mask date,pid -- journalctl -n 3
  penstock run --hosts fleet.txt --waves 1,10%,all --stop-if 'failed>2%' -- ./upgrade
  penstock run --again never-started

Exit codes. A higher one hides those below it: what else happened is in the summary, and in --json with counts of hosts:
    0  the command ended with 0 on every host
    1  it ended otherwise somewhere: another status, a signal, our --timeout (and it is ended there)
    2  wrong usage; nothing was sent
    3  some hosts never started it: safe to run again there (--again never-started);
       also where the SSH configuration has a fault
    4  some hosts are unknown or not who they should be; nothing was sent to them
    5  on some hosts it may have run, and may still run
    6  output of some hosts could not be written (-o)
  130  Ctrl-C or SIGTERM
  141  nobody reads standard output any more

--json: text that is not UTF-8 has U+FFFD in its place, and then its bytes are in \"base64\".

Folded output (-b, --diff, --mask) comes when all hosts are done, and so far when --pause gives time to look. Hosts go together
if both streams and the ending are the same. Standard output stands as it came, standard error after `=>`, an ending other than
0 after `=:`; a line of standard output that looks like one of these has `->` before it. What is masked is shown as <host>, <ip>
and so on, unless the host is alone. All output is compared; 8 MiB of each stream of a host are kept to be shown, and of a
difference 200 lines: -o DIRECTORY keeps everything. --stop-if differs then means: not all in one group.

Groups: @NAME is looked for in our own files, then in the default source of ClusterShell's groups.conf ($CLUSTERSHELL_CFGDIR,
~/.config/clustershell, ~/.local/etc/clustershell, /etc/clustershell); @SOURCE:NAME in that source. A command of a source
may take ten seconds.

The leash: beside the command a small watcher (sh) runs on each host. It ends the command when the connection is gone, so
nothing is left running if this program is killed. Hosts where something else than a shell takes the command (a forced
command, an appliance) want --no-leash.";

fn time(text: &str) -> Result<Duration, String> {
    let seconds: f64 =
        text.trim_end_matches('s').parse().map_err(|_| format!("{text:?} is not a number of seconds"))?;
    if seconds > 0.0 && seconds <= 1e7 {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("a number of seconds is above 0".to_owned())
    }
}

/// Which of two engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EngineName {
    /// Our own client
    Native,
    /// The ssh of this machine, a process per host: its known_hosts, always with StrictHostKeyChecking yes
    Openssh,
}

/// Runs it, tells what happened, and says by the exit code how well.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.mpssh {
        return Err(Failure::usage(
            "--mpssh comes before everything else, and after it the options of mpssh\n  hint: penstock run --mpssh --help",
        ));
    }
    if arguments.again.last {
        return again::show(arguments);
    }
    if arguments.again.id.is_some() && arguments.again.again.is_none() {
        return Err(Failure::usage("--id names a run for --again or --last"));
    }
    let mut arguments = arguments.clone();
    let repeated = again::take_over(&mut arguments)?;
    let names = match repeated {
        Some(names) => names,
        None => arguments.hosts.names()?,
    };
    if arguments.script.is_none() && arguments.command.is_empty() {
        return Err(Failure::usage("no command\n  hint: penstock run -w web1 uptime"));
    }
    let sessions = sessions(&arguments)?;
    // Two threads: a handshake is mostly computing, and a thread more costs memory and little else.
    let threads = std::thread::available_parallelism().map_or(2, usize::from).min(4);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    let status = runtime.block_on(whole(&arguments, names, sessions))?;
    // Threads that wait for a terminal or a slow reader must not hold up the end.
    runtime.shutdown_background();
    match status {
        Status::Well => Ok(()),
        status => Err(Failure::Status(status.code())),
    }
}

async fn whole(arguments: &Arguments, names: Vec<String>, sessions: usize) -> Result<Status, Failure> {
    let brake = Brake::default();
    let board = Arc::new(Board::new(names.clone()));
    let quiet_line = !std::io::stderr().is_terminal() || show::is_dumb() || arguments.show.is_quiet();
    let keep = match &arguments.show.directory {
        Some(directory) => Keep::files(directory, &names)
            .map_err(|error| Failure::usage(format!("cannot write to {}: {error}", directory.display())))?,
        None => Keep::hashes(names.len()),
    };
    let terminal = Arc::new(Terminal::default());
    let enter = Arc::new(Notify::new());
    let steps = steps(arguments, &enter)?;
    let order = order(arguments, &brake)?;
    let engines::Ready { engine, hosts, identities } =
        arguments.engine.ready(&names, arguments.connect_timeout.unwrap_or(CONNECT_TIMEOUT), &terminal)?;
    let sinks = Sinks {
        view: arguments.show.view(&hosts),
        keep,
        progress: (!quiet_line).then(|| Progress::new(Arc::clone(&board), Arc::clone(&terminal))),
    };
    let journal = again::begin(&again::remember(arguments), &names);
    let out = Outbox::open(sinks, brake.clone())?;
    let said = out.clone();
    brake.obey_signals(move |stop| {
        said.note(match stop {
            Stop::AtOnce(_) => "letting go at once".to_owned(),
            _ => "ending the command on all hosts; Ctrl-C again to let go at once".to_owned(),
        });
    })?;
    if !quiet_line {
        let ticker = out.clone();
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(TICK);
            loop {
                ticks.tick().await;
                ticker.tick();
            }
        });
    }
    if !arguments.stdin && std::io::stdin().is_terminal() && std::io::stderr().is_terminal() {
        keys::listen(out.clone(), Arc::clone(&enter), terminal);
    }
    let limits = Limits {
        parallel: arguments.parallel.map_or(Parallel::Adaptive, |count| Parallel::Fixed(count as usize)),
        sessions,
        delay: Duration::from_millis(arguments.delay.unwrap_or(0)),
    };
    let plan = Plan { hosts, order, engine, limits, steps, journal };
    let outcome = fleet::run::run(plan, board, brake, out).await;
    if let Some(identities) = &identities {
        tell_notes(arguments, identities)?;
    }
    // Moves and rotations of keys that were seen on the way.
    for error in identities.map(|identities| identities.flush().failed).unwrap_or_default() {
        complain(&format!("note: {}\n", plain(&error.to_string())));
    }
    tell(arguments, &names, &outcome)?;
    Ok(outcome.status)
}

fn steps(arguments: &Arguments, enter: &Arc<Notify>) -> Result<Option<Steps>, Failure> {
    let Some(waves) = arguments.waves.clone() else { return Ok(None) };
    let pause = match arguments.pause {
        None => Pause::None,
        Some(Some(time)) => Pause::For(time),
        Some(None) if std::io::stdin().is_terminal() && std::io::stderr().is_terminal() => {
            Pause::Enter(Arc::clone(enter))
        }
        Some(None) => {
            return Err(Failure::usage(
                "--pause waits for Enter, and there is no terminal\n  hint: --pause=30 waits for 30 seconds",
            ));
        }
    };
    Ok(Some(Steps { waves, stop_if: arguments.stop_if, pause }))
}

fn order(arguments: &Arguments, brake: &Brake) -> Result<Order, Failure> {
    let nonce = again::nonce();
    let (command, input) = match &arguments.script {
        Some(file) => {
            let source = std::fs::read(file).map_err(|error| {
                Failure::usage(format!("cannot read the script {}: {error}", file.display()))
            })?;
            let name = file.file_name().map_or_else(|| "script".into(), |name| name.to_string_lossy());
            let sent = script::sent(&source, &name, &arguments.command, &nonce);
            (sent.command, Input::Bytes(sent.input.into()))
        }
        None if arguments.stdin => {
            let brake = brake.clone();
            let spool = Spool::fill(std::io::stdin(), move |error| {
                complain(&format!("error: {error}\n"));
                brake.pull(Why::NoInput);
            })
            .map_err(Failure::runtime)?;
            (arguments.command.join(" "), Input::Spool(spool))
        }
        None => (arguments.command.join(" "), Input::None),
    };
    if command.len() > LONGEST {
        return Err(Failure::usage(format!(
            "the command has {} bytes; hosts take {LONGEST}\n  hint: --script FILE",
            command.len()
        )));
    }
    Ok(Order {
        command,
        input,
        leash: if arguments.no_leash { Leash::None } else { Leash::Wanted },
        nonce,
        connect_timeout: arguments.connect_timeout.unwrap_or(CONNECT_TIMEOUT),
        timeout: arguments.timeout,
    })
}

/// Sessions that the descriptors of this process allow.
fn sessions(arguments: &Arguments) -> Result<usize, Failure> {
    let limit = usize::try_from(sys::descriptors::raise_limit()?).unwrap_or(usize::MAX);
    let open = sys::descriptors::open_count().unwrap_or(16);
    let files = if arguments.show.directory.is_some() { 2 } else { 0 };
    let each = arguments.engine.descriptors() + files;
    let wanted = arguments.parallel.map_or(MOST, |count| count as usize);
    let room = limit.saturating_sub(open + RESERVE) / each;
    if room == 0 {
        return Err(Failure::runtime(format!("{limit} descriptors are too few for a single host")));
    }
    Ok(room.min(wanted))
}

/// What was noticed of hosts that are who they should be: that they moved.
fn tell_notes(arguments: &Arguments, identities: &Identities) -> Result<(), Failure> {
    for (host, note) in identities.take_notes() {
        if arguments.show.json {
            let line = serde_json::json!({ "event": "note", "host": host, "text": note });
            match print(&format!("{line}\n")) {
                Err(Failure::OutputClosed) | Ok(()) => {}
                Err(error) => return Err(error),
            }
        } else if !arguments.show.is_quiet() {
            complain(&format!("{}\n", plain(&note)));
        }
    }
    Ok(())
}

fn tell(arguments: &Arguments, names: &[String], outcome: &Outcome) -> Result<(), Failure> {
    if arguments.show.json {
        // Whoever reads JSON reads all of it there.
        let line = summary::json(names, outcome);
        return match print(&format!("{line}\n")) {
            Err(Failure::OutputClosed) | Ok(()) => Ok(()),
            Err(error) => Err(error),
        };
    }
    let mut text = String::new();
    if outcome.status != Status::Well || !arguments.show.is_quiet() {
        text.push_str(&summary::text(names, outcome));
    }
    complain(&plain_lines(&text));
    Ok(())
}

const MOST: usize = 1_000;
/// Standard streams, the runtime, the agent, name servers, the journal.
const RESERVE: usize = 48;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(200);
/// Linux takes 128 KiB in one argument; the leash needs some of it.
const LONGEST: usize = 100 * 1024;
