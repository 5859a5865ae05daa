//! `penstock tunnel`: forwards over SSH that are proved, and a job that is wrapped in a mount. All of that is in `crates/fleet`.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use fleet::tunnel::engine::Engine;
use fleet::tunnel::{
    Asked, Asking, Native, OpenSsh, Patience, PlaceError, Places, Run, RunError, Say, Status, UnwindError,
    Unwound, Work, ask, is_left, last_run, left_over, unwind,
};
use logic::tunnel::plan::{Tunnel, is_name};
use logic::tunnel::sequence::{Act, JobEnd, OURS, Verdict};

use crate::cmd::known_hosts;
use crate::output::{Failure, complain, plain, plain_lines, print, print_json};
use crate::threads;

mod background;
mod configured;
mod log;
mod table;

use background::detach;
use log::Log;
use table::{ago, busy, table};

/// Tunnels over SSH: bring one up, prove it, run a job through it, take everything down in order
///
/// A tunnel is a section [tunnel.NAME] of the configuration. What a run leaves that is killed, or loses its power, is undone at
/// the next start.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(subcommand)]
    command: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Bring a tunnel up, with its mount if it has one, and keep it up until Ctrl-C or `down`
    ///
    /// A connection that breaks is made anew, as often as it takes. A host whose identity is refused, that shows another key than
    /// its pin, ends the tunnel instead: to ask again and again would be to wait until somebody is let in who is not that host.
    /// So does what trying cannot change: a wrong configuration, or a host that accepts no key of ours. `status NAME` says then
    /// how it ended.
    Up {
        #[command(flatten)]
        place: Place,
        /// Its NAME in the configuration
        name: String,
        /// Return once it is up, and leave it to a process in the background
        #[arg(long)]
        detach: bool,
        /// Ask nobody for anything: nobody is there
        #[arg(long, hide = true)]
        background: bool,
        /// Give up if the host cannot be reached, or a service does not answer, at the first attempt
        #[arg(long)]
        once: bool,
    },
    /// Take a tunnel down, in order, and wait until that is done
    Down {
        /// Its NAME
        name: String,
    },
    /// What the tunnels that run are doing
    #[command(after_help = STATUS_HELP)]
    Status {
        /// Only this one
        name: Option<String>,
        /// For programs
        #[arg(long)]
        json: bool,
    },
    /// Bring a tunnel up, run a command, take it down; the exit code is that of the command
    #[command(after_help = WITH_HELP)]
    With {
        #[command(flatten)]
        place: Place,
        /// Its NAME in the configuration
        name: String,
        /// The command, and its arguments; without one, the job of the configuration
        #[arg(last = true)]
        job: Vec<OsString>,
    },
    /// Undo what a run left that was killed
    Unwind {
        /// The configuration, which helps where the list of what to undo is damaged
        #[arg(long, short, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Only this tunnel
        name: Option<String>,
    },
    /// See whether a tunnel can be brought up, and whether every service answers; nothing is mounted
    Check {
        #[command(flatten)]
        place: Place,
        /// Its NAME in the configuration
        name: String,
    },
}

#[derive(Clone, Debug, Args)]
struct Place {
    /// The configuration [default: $PENSTOCK_CONFIG, ~/.config/penstock/penstock.toml, /etc/penstock/penstock.toml]
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// What carries the tunnel: our own client, or the `ssh` of this machine
    #[arg(long, value_enum, value_name = "ENGINE", default_value_t = Carrier::Native)]
    engine: Carrier,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Carrier {
    Native,
    Openssh,
}

const EXAMPLES: &str = "\
Examples:
  penstock tunnel check nas                       does everything answer?
  penstock tunnel with nas -- rsnapshot weekly    up, mount, back up, unmount, down
  penstock tunnel up db --detach                  and go on working
  penstock tunnel status
  penstock tunnel down db
  penstock tunnel unwind                          after a power cut; `up` and `with` do it, too

Exit codes: of `with`, that of the command; 125 if the tunnel failed before it or after it, 126 and 127 if the command \
cannot be run. Of `status`, 1 if a connection or a service is not well. Otherwise 0 well, 1 it failed, 2 wrong usage or a wrong configuration.";

const STATUS_HELP: &str = "\
--json is a list of the tunnels that run; times are seconds, and how long ago, where nothing else is said:
  tunnel, host, process           its name, the SSH host, the process that keeps it
  step                            what it is doing: connecting, proof, mount, job, up, unmount, ...
  connection, since               connecting, up, or waiting for the next attempt; and for how long
  next_attempt                    when that is, while it is waited for
  connections                     how many were made so far
  error, error_age, error_mended  why the last one ended or could not be made, when, and whether there was one since
  error_mended_age                for how long there has been one, then
  mounted                         what is mounted through it, or null
  forwards                        a list; of each:
    name, kind, listen, connect   as in the configuration; listen with the port that it has
    check, service, since         how it is asked; answers, fails, unknown (not asked yet) or unchecked; for how long
    said                          what the service said, or why it fails
    open, total                   connections through it, now and so far
    sent, received                bytes from the side that connected, and to it
    error, error_age, error_mended, error_mended_age  of the last connection through it that failed

Exit codes: 0 every connection stands and every service that is asked answers; 1 not so, or NAME does not run; 2 wrong usage.";

const WITH_HELP: &str = "\
The command has in its environment, for each forward that listens on this machine, with its name in capitals and _ for -:
  TUNNEL_NAME            where it listens: ADDRESS:PORT, or the path of a Unix socket
  TUNNEL_NAME_HOST       the address alone, and
  TUNNEL_NAME_PORT       the port alone; neither of a Unix socket
  TUNNEL_MOUNT_POINT     the mount-point, if the tunnel has a mount
  TUNNEL_RUN             of this run: what it leaves behind is known by it
In its words {NAME}, {NAME.host}, {NAME.port} and {mount-point} are replaced by the same; other braces stay, and so does ${NAME}.

Examples:
  penstock tunnel with nas -- rsnapshot weekly
  penstock tunnel with office -- sh -c 'psql -h \"$TUNNEL_DATABASE_HOST\" -p \"$TUNNEL_DATABASE_PORT\"'";

/// Does what was asked.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let places = Places::from_environment(|name| std::env::var(name).ok());
    let runtime = threads::runtime(2)?;
    let ended = carry_out_command(arguments, &places, &runtime);
    // Threads may wait for a file server that is gone, or at a prompt: the process does not.
    ssh::keys::restore_terminal();
    runtime.shutdown_timeout(LAST_WRITES);
    ended
}

/// For what was learnt of hosts to reach the disk.
const LAST_WRITES: Duration = Duration::from_secs(2);

fn carry_out_command(
    arguments: &Arguments,
    places: &Places,
    runtime: &tokio::runtime::Runtime,
) -> Result<(), Failure> {
    if let What::Down { name } | What::Status { name: Some(name), .. } | What::Unwind { name: Some(name), .. } =
        &arguments.command
        && !is_name(name)
    {
        let said = plain(name);
        return Err(Failure::usage(format!(
            "\"{said}\" is no name of a tunnel: up to 64 of A-Z a-z 0-9 _ -"
        )));
    }
    match &arguments.command {
        What::Up { place, name, detach: true, .. } => {
            let tunnel = configured::tunnel(place.config.as_ref(), name)?;
            runtime.block_on(detach(places, &tunnel))
        }
        What::Up { place, name, once, background, .. } => {
            let tunnel = configured::tunnel(place.config.as_ref(), name)?;
            let patience = if *once { Patience::Once } else { Patience::Keep };
            let asking = if *background { Asking::Nobody } else { Asking::Person };
            let engine = engine(place.engine, asking)?;
            let say = if *background { logger(places, name) } else { teller(name) };
            let verdict = runtime.block_on(carry_out(places, tunnel, engine, Work::Hold, patience, say))?;
            ended_before(&verdict, 1)
        }
        What::Down { name } => runtime.block_on(down(places, name)),
        What::Status { name, json } => runtime.block_on(status(places, name.as_deref(), *json)),
        What::With { place, name, job } => {
            let tunnel = configured::tunnel(place.config.as_ref(), name)?;
            let job = match (job.as_slice(), &tunnel.job) {
                ([], None) => {
                    return Err(Failure::usage(format!(
                        "no command is given, and tunnel.{name} has no job\n  hint: penstock tunnel with {name} -- COMMAND"
                    )));
                }
                ([], Some(job)) => job.iter().map(OsString::from).collect(),
                (job, _) => job.to_vec(),
            };
            let engine = engine(place.engine, Asking::Person)?;
            let verdict = runtime.block_on(carry_out(
                places,
                tunnel,
                engine,
                Work::Job(job),
                Patience::Once,
                teller(name),
            ))?;
            match verdict.exit_code() {
                0 => Ok(()),
                code => Err(Failure::Status(code)),
            }
        }
        What::Unwind { config, name } => {
            runtime.block_on(unwind_all(places, config.as_ref(), name.as_deref()))
        }
        What::Check { place, name } => {
            let tunnel = configured::tunnel(place.config.as_ref(), name)?;
            runtime.block_on(check(places, tunnel, place.engine))
        }
    }
}

fn engine(carrier: Carrier, asking: Asking) -> Result<Arc<dyn Engine>, Failure> {
    Ok(match carrier {
        Carrier::Native => Arc::new(Native::new(asking)),
        Carrier::Openssh => Arc::new(OpenSsh::new("ssh", known_hosts::options()?)),
    })
}

/// A run from beginning to end.
async fn carry_out(
    places: &Places,
    tunnel: Tunnel,
    engine: Arc<dyn Engine>,
    work: Work,
    patience: Patience,
    say: Say,
) -> Result<Verdict, Failure> {
    let (name, begun) = (tunnel.name.clone(), work.clone());
    let run = Run { tunnel, engine, places: places.clone(), work, patience, say: Arc::clone(&say) };
    let verdict = match run.to_the_end().await {
        Ok(verdict) => verdict,
        // The command did not run, and its exit codes are its own.
        Err(error) => {
            let told = match &error {
                RunError::Place(place) => in_the_way(places, place).await,
                RunError::Left { .. } | RunError::Begin { .. } => None,
            };
            let told = told.unwrap_or_else(|| with_causes(&error));
            if matches!(begun, Work::Job(_)) {
                complain(&format!("error: {}\n", plain(&told)));
                return Err(Failure::Status(OURS));
            }
            return Err(Failure::runtime(told));
        }
    };
    for problem in &verdict.problems {
        if problem.at != Act::Work || matches!(verdict.job, Some(JobEnd::NotStarted(..))) {
            complain(&format!("error: tunnel {name}: {}: {}\n", problem.at, plain(&problem.text)));
        }
    }
    if verdict.job.is_none() && matches!(begun, Work::Job(_)) {
        say("the command did not run");
    }
    Ok(verdict)
}

/// What a tunnel does that keeps us from it, if it can be asked.
async fn in_the_way(places: &Places, error: &PlaceError) -> Option<String> {
    let PlaceError::Running { tunnel, .. } = error else { return None };
    let status = ask(places, tunnel, Asked::Status).await.ok()??;
    Some(plain(&busy(&status)))
}

fn ended_before(verdict: &Verdict, code: u8) -> Result<(), Failure> {
    match verdict.problems.is_empty() {
        true => Ok(()),
        false => Err(Failure::Status(code)),
    }
}

async fn check(places: &Places, tunnel: Tunnel, engine: Carrier) -> Result<(), Failure> {
    let name = tunnel.name.to_string();
    if let Some(status) = asked(places, &name, Asked::Status).await? {
        print(&plain_lines(&table(&status)))?;
        return if status.is_well() { Ok(()) } else { Err(Failure::Status(1)) };
    }
    let engine = self::engine(engine, Asking::Person)?;
    let verdict = carry_out(places, tunnel, engine, Work::Check, Patience::Once, teller(&name)).await?;
    ended_before(&verdict, 1)
}

/// What it answers, with what is wrong said for people.
async fn asked(places: &Places, name: &str, asked: Asked) -> Result<Option<Status>, Failure> {
    ask(places, name, asked).await.map_err(|error| Failure::runtime(plain(&with_causes(&error))))
}

async fn down(places: &Places, name: &str) -> Result<(), Failure> {
    let slow = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        complain(&format!("tunnel {name}: waiting until everything is down\n"));
        std::future::pending().await
    };
    let down = tokio::select! {
        down = asked(places, name, Asked::Down) => down?,
        never = slow => never,
    };
    match down {
        Some(_) => print(&format!("tunnel {name} is down\n")),
        None if is_left(places, name) => Err(Failure::runtime(format!(
            "tunnel {name} does not run, but a run that was killed left something{}\n  hint: penstock tunnel unwind {name}",
            plain(&named(places, name))
        ))),
        None => Err(not_running(places, name)),
    }
}

async fn status(places: &Places, name: Option<&str>, json: bool) -> Result<(), Failure> {
    let names = match name {
        Some(name) => vec![name.to_owned()],
        None => places.known().map_err(|error| Failure::runtime(with_causes(&error)))?,
    };
    let mut found = Vec::new();
    let mut left = String::new();
    let mut failed = Vec::new();
    for name in names {
        match asked(places, &name, Asked::Status).await {
            // The others are told all the same.
            Err(failure) => failed.push(failure),
            Ok(Some(status)) => found.push(status),
            Ok(None) if is_left(places, &name) => {
                let _ = writeln!(
                    left,
                    "{name}: does not run, and left something{}: `penstock tunnel unwind {name}`",
                    plain(&named(places, &name))
                );
            }
            Ok(None) => {}
        }
    }
    if json {
        let list = serde_json::to_string_pretty(&found).map_err(Failure::runtime)?;
        print_json(&format!("{list}\n"))?;
    } else {
        complain(&plain_lines(&left));
        match (found.as_slice(), name) {
            _ if found.is_empty() && !failed.is_empty() => {}
            ([], Some(name)) => return Err(not_running(places, name)),
            ([], None) => print("no tunnel runs\n")?,
            (found, _) => print(&plain_lines(&found.iter().map(table).collect::<Vec<_>>().join("\n")))?,
        }
    }
    match failed.pop() {
        None if found.iter().all(Status::is_well) => Ok(()),
        None => Err(Failure::Status(1)),
        Some(last) => {
            for failure in failed {
                let _ = failure.report();
            }
            Err(last)
        }
    }
}

/// The steps that a run left which was killed, as far as its list can be believed.
fn named(places: &Places, name: &str) -> String {
    let steps: Vec<_> = left_over(places, name).iter().map(ToString::to_string).collect();
    if steps.is_empty() { String::new() } else { format!(": {}", steps.join(", ")) }
}

/// Nothing is to be done. How its last run ended is told, and who mistyped its name is told that.
fn not_running(places: &Places, name: &str) -> Failure {
    if let Some((ending, age)) = last_run(places, name) {
        let how = plain(&ending.told(&ago(age.as_secs_f64())));
        return Failure::runtime(format!("tunnel {} does not run: {how}", plain(name)));
    }
    let hint = if places.has_run(name) { None } else { configured::unknown(None, name) };
    let hint = hint.map_or_else(String::new, |hint| format!("\n  hint: {hint}"));
    Failure::runtime(format!("tunnel {} does not run{hint}", plain(name)))
}

async fn unwind_all(places: &Places, config: Option<&PathBuf>, only: Option<&str>) -> Result<(), Failure> {
    // It only helps, so that a broken one is no obstacle, unless it was asked for.
    let tunnels = match (configured::tunnels(config), config) {
        (Ok(configured), _) => configured.tunnels,
        (Err(failure), Some(_)) => return Err(failure),
        (Err(_), None) => Vec::new(),
    };
    let names = match only {
        Some(name) => vec![name.to_owned()],
        None => places.known().map_err(|error| Failure::runtime(with_causes(&error)))?,
    };
    if let Some(name) = only
        && !is_left(places, name)
        && !places.has_run(name)
        && configured::knows(config, name) == configured::Known::No
    {
        let hint =
            configured::unknown(config, name).map_or_else(String::new, |hint| format!("\n  hint: {hint}"));
        return Err(Failure::runtime(format!("there is no tunnel {name}, and nothing of one to undo{hint}")));
    }
    let mut failed = false;
    let mut undone = false;
    let mut busy = false;
    for name in names.iter().filter(|name| is_left(places, name)) {
        let tunnel = tunnels.iter().find(|tunnel| *tunnel.name == **name);
        match unwind(places, name, tunnel, &teller(name)).await {
            Ok(Unwound::Undone) => undone = true,
            Ok(Unwound::Nothing) => {}
            Err(UnwindError::Place(error @ PlaceError::Running { .. })) => {
                let told = in_the_way(places, &error).await.unwrap_or_else(|| with_causes(&error));
                // Of all tunnels, those that run are none of its business.
                let (word, all) = if only.is_none() { ("", true) } else { ("error: ", false) };
                complain(&format!("{word}{}\n", plain(&told)));
                (busy, failed) = (busy || all, failed || !all);
            }
            Err(error) => {
                complain(&format!("error: tunnel {name}: {}\n", plain(&with_causes(&error))));
                failed = true;
            }
        }
    }
    match (failed, undone || busy) {
        (true, _) => Err(Failure::Status(1)),
        (false, true) => Ok(()),
        (false, false) => print("nothing is left to undo\n"),
    }
}

fn teller(name: &str) -> Say {
    let name = name.to_owned();
    Arc::new(move |line| complain(&format!("tunnel {name}: {}\n", plain(line))))
}

/// The same in the background, where nobody throws away what is old.
fn logger(places: &Places, name: &str) -> Say {
    let (say, log) = (teller(name), Log::new(places, name));
    Arc::new(move |line| {
        say(line);
        // If it cannot be done now, it is done after another line.
        let _ = log.renew();
    })
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            let _ = write!(text, ": {said}");
        }
        cause = error.source();
    }
    text
}
