//! `penstock tunnel`: forwards over SSH to verified hosts, and a job with a mount through them, with `crates/fleet`.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use fleet::tunnel::engine::Engine;
use fleet::tunnel::{
    Asked, Asking, Native, OpenSsh, PlaceError, Places, RetryPolicy, Run, RunError, Say, Status, UnwindError,
    Unwound, Work, ask, is_left, last_run, left_over, unwind,
};
use hosts::tunnel::plan::{Tunnel, is_name};
use hosts::tunnel::sequence::{Act, JobEnd, OURS, Verdict};

use crate::cmd::known_hosts;
use crate::output::{Failure, complain, plain, plain_lines, print, print_failed, print_json};
use crate::threads;

mod background;
mod configured;
mod log;
mod table;

use background::detach;
use log::Log;
use table::{ago, busy, table};

/// Tunnels over SSH: bring one up, check it, run a job through it, take everything down in order
///
/// A tunnel is a section [tunnel.NAME] of the configuration. The next start undoes leftovers of a run that was killed,
/// or lost power.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Bring a tunnel up, with its mount if it has one, and keep it up until Ctrl-C or `down`
    ///
    /// A broken connection is opened again, without limit. If the host's identity is refused, or the host shows another
    /// key than its pin, the tunnel ends instead: a retry could connect to another host. It also ends if a retry cannot
    /// help: because of a wrong configuration, or a host that accepts no key of the user. `status NAME` shows the
    /// reason.
    Up {
        #[command(flatten)]
        place: Place,
        /// NAME of the tunnel in the configuration
        name: String,
        /// Return once it is up, and keep it in a background process
        #[arg(long)]
        detach: bool,
        /// Never prompt for a passphrase or another answer: no person is there
        #[arg(long, hide = true)]
        background: bool,
        /// Give up if the first attempt fails: the host cannot be reached, or a service does not answer
        #[arg(long)]
        once: bool,
    },
    /// Take a tunnel down, in order, and wait until that is done
    Down {
        /// The configuration: a running tunnel does not need it; names the tunnels there are for an unknown name
        #[arg(long, short, value_name = "FILE")]
        config: Option<PathBuf>,
        /// NAME of the tunnel
        name: String,
    },
    /// Show the running tunnels
    #[command(after_help = STATUS_HELP)]
    Status {
        /// Only this tunnel
        name: Option<String>,
        /// Print JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Bring a tunnel up, run a command, take it down; the exit code is that of the command
    #[command(after_help = WITH_HELP)]
    With {
        #[command(flatten)]
        place: Place,
        /// NAME of the tunnel in the configuration
        name: String,
        /// The command, and its arguments; without one, the job of the configuration
        #[arg(last = true)]
        job: Vec<OsString>,
    },
    /// Undo the leftovers of a killed run
    Unwind {
        /// The configuration: used if the undo list is damaged
        #[arg(long, short, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Only this tunnel
        name: Option<String>,
    },
    /// Check whether a tunnel can be brought up, and whether every service answers; nothing is mounted
    Check {
        #[command(flatten)]
        place: Place,
        /// NAME of the tunnel in the configuration
        name: String,
    },
}

#[derive(Clone, Debug, Args)]
struct Place {
    /// The configuration [default: $PENSTOCK_CONFIG, ~/.config/penstock/penstock.toml, /etc/penstock/penstock.toml]
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// SSH engine of the tunnel: the built-in client, or the `ssh` of this machine
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
  penstock tunnel unwind                          after a power cut; `up` and `with` do the same

Exit codes: of `with`, that of the command; 125 if the tunnel failed before it or after it, 126 and 127 if the command \
cannot be run. Of `status`, 1 if a connection or a service is not ok. Otherwise 0 ok, 1 it failed, 2 wrong usage or a wrong configuration.";

const STATUS_HELP: &str = "\
--json is a list of the running tunnels; times are in seconds:
  tunnel, host, pid                name, SSH host, process
  step                             what it is doing, for people: connecting, check, mount, job, up, unmount, ...
  connection, since_seconds        connecting, connected or retrying; how long it has been connected, or not
  retry_in_seconds                 time until the next attempt, while retrying
  connects                         connections to the host so far
  error, error_age_seconds         why the last one ended or could not be made, and how long ago
  recovered, recovered_seconds     whether it has been connected since, and for how long
  mounted                          what is mounted through it, or null
  forwards                         a list; of each:
    name, kind, listen, connect    as in the configuration; listen with its actual port
    check, service, since_seconds  kind of check; ok, failed, unknown (not checked yet) or unchecked; for how long
    detail                         what the service answered, or why it failed
    connections, accepted          connections through it, now and so far
    bytes_in, bytes_out            bytes from the side that connected, and to it
    error, error_age_seconds, recovered, recovered_seconds
                                   the same for the last connection through it that failed

Exit codes: 0 every tunnel is connected and every checked service is ok; 1 not so, or NAME does not run; 2 wrong usage.";

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

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let places = Places::of_user().map_err(Failure::runtime)?;
    let runtime = threads::runtime(2)?;
    let ended = carry_out_command(arguments, &places, &runtime);
    // Do not wait for threads that are blocked by an unreachable file server or a prompt.
    ssh::keys::restore_terminal();
    runtime.shutdown_timeout(LAST_WRITES);
    ended
}

/// Time limit for writing changed identities of hosts to the disk.
const LAST_WRITES: Duration = Duration::from_secs(2);

fn carry_out_command(
    arguments: &Arguments,
    places: &Places,
    runtime: &tokio::runtime::Runtime,
) -> Result<(), Failure> {
    if let What::Down { name, .. }
    | What::Status { name: Some(name), .. }
    | What::Unwind { name: Some(name), .. } = &arguments.command
        && !is_name(name)
    {
        let said = plain(name);
        return Err(Failure::usage(format!(
            "invalid tunnel name \"{said}\"; allowed: up to 64 of A-Z a-z 0-9 _ -"
        )));
    }
    match &arguments.command {
        What::Up { place, name, detach: true, .. } => {
            let tunnel = configured::tunnel(place.config.as_ref(), name)?;
            runtime.block_on(detach(places, &tunnel))
        }
        What::Up { place, name, once, background, .. } => {
            let tunnel = configured::tunnel(place.config.as_ref(), name)?;
            let patience = if *once { RetryPolicy::Once } else { RetryPolicy::Keep };
            let asking = if *background { Asking::Never } else { Asking::Person };
            let engine = engine(place.engine, asking)?;
            let say = if *background { logger(places, name) } else { teller(name) };
            let verdict = runtime.block_on(carry_out(places, tunnel, engine, Work::Hold, patience, say))?;
            fail_on_problems(&verdict, 1)
        }
        What::Down { config, name } => runtime.block_on(down(places, config.as_ref(), name)),
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
                RetryPolicy::Once,
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

/// Runs a tunnel from its start to its end.
async fn carry_out(
    places: &Places,
    tunnel: Tunnel,
    engine: Arc<dyn Engine>,
    work: Work,
    patience: RetryPolicy,
    say: Say,
) -> Result<Verdict, Failure> {
    let (name, begun) = (tunnel.name.clone(), work.clone());
    let run = Run { tunnel, engine, places: places.clone(), work, patience, say: Arc::clone(&say) };
    let verdict = match run.to_the_end().await {
        Ok(verdict) => verdict,
        // The command did not run, so use an exit status of our own.
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

/// Describes the running tunnel that prevents this run, if its process answers.
async fn in_the_way(places: &Places, error: &PlaceError) -> Option<String> {
    let PlaceError::Running { tunnel, .. } = error else { return None };
    let status = ask(places, tunnel, Asked::Status).await.ok()??;
    Some(plain(&busy(&status)))
}

fn fail_on_problems(verdict: &Verdict, code: u8) -> Result<(), Failure> {
    match verdict.problems.is_empty() {
        true => Ok(()),
        false => Err(Failure::Status(code)),
    }
}

async fn check(places: &Places, tunnel: Tunnel, engine: Carrier) -> Result<(), Failure> {
    let name = tunnel.name.to_string();
    if let Some(status) = asked(places, &name, Asked::Status).await? {
        let text = plain_lines(&table(&status));
        return if status.is_ok() { print(&text) } else { Err(print_failed(&text, 1)) };
    }
    let engine = self::engine(engine, Asking::Person)?;
    let verdict = carry_out(places, tunnel, engine, Work::Check, RetryPolicy::Once, teller(&name)).await?;
    fail_on_problems(&verdict, 1)
}

/// Sends a request to a tunnel's process, and formats an error for people.
async fn asked(places: &Places, name: &str, asked: Asked) -> Result<Option<Status>, Failure> {
    ask(places, name, asked).await.map_err(|error| Failure::runtime(plain(&with_causes(&error))))
}

async fn down(places: &Places, config: Option<&PathBuf>, name: &str) -> Result<(), Failure> {
    let slow = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        complain(&format!("tunnel {name}: waiting for its teardown\n"));
        std::future::pending().await
    };
    let down = tokio::select! {
        down = asked(places, name, Asked::Down) => down?,
        never = slow => never,
    };
    match down {
        Some(_) => print(&format!("tunnel {name} is down\n")),
        None if is_left(places, name) => Err(Failure::runtime(format!(
            "tunnel {name} does not run, but a killed run has leftovers{}\n  hint: penstock tunnel unwind {name}",
            plain(&named(places, name))
        ))),
        None => Err(not_running(places, config, name)),
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
            // Report the other tunnels too.
            Err(failure) => failed.push(failure),
            Ok(Some(status)) => found.push(status),
            Ok(None) if is_left(places, &name) => {
                let _ = writeln!(
                    left,
                    "{name}: does not run, and has leftovers{}: `penstock tunnel unwind {name}`",
                    plain(&named(places, &name))
                );
            }
            Ok(None) => {}
        }
    }
    if json {
        let list = serde_json::to_string_pretty(&found).map_err(Failure::runtime)?;
        print_json(&format!("{list}\n"))?;
        complain(&plain_lines(&left));
        if let ([], true, Some(name)) = (found.as_slice(), failed.is_empty(), name) {
            return Err(not_running(places, None, name));
        }
    } else {
        complain(&plain_lines(&left));
        match (found.as_slice(), name) {
            _ if found.is_empty() && !failed.is_empty() => {}
            ([], Some(name)) => return Err(not_running(places, None, name)),
            ([], None) => print("no tunnel runs\n")?,
            (found, _) => print(&plain_lines(&found.iter().map(table).collect::<Vec<_>>().join("\n")))?,
        }
    }
    match failed.pop() {
        None if found.iter().all(Status::is_ok) => Ok(()),
        None => Err(Failure::Status(1)),
        Some(last) => {
            for failure in failed {
                let _ = failure.report();
            }
            Err(last)
        }
    }
}

/// Lists the remaining steps of a killed run, as far as its undo list is readable.
fn named(places: &Places, name: &str) -> String {
    let steps: Vec<_> = left_over(places, name).iter().map(ToString::to_string).collect();
    if steps.is_empty() { String::new() } else { format!(": {}", steps.join(", ")) }
}

/// Reports that the tunnel is not running, with the end of its last run, or a hint about a mistyped name.
fn not_running(places: &Places, config: Option<&PathBuf>, name: &str) -> Failure {
    if let Some((ending, age)) = last_run(places, name) {
        let how = plain(&ending.text(&ago(age.as_secs_f64())));
        return Failure::runtime(format!("tunnel {} does not run: {how}", plain(name)));
    }
    let hint = if places.has_run(name) { None } else { configured::unknown(config, name) };
    let hint = hint.map_or_else(String::new, |hint| format!("\n  hint: {hint}"));
    Failure::runtime(format!("tunnel {} does not run{hint}", plain(name)))
}

async fn unwind_all(places: &Places, config: Option<&PathBuf>, only: Option<&str>) -> Result<(), Failure> {
    // The configuration is only needed for damaged undo lists: ignore its faults unless `--config` names it.
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
        return Err(Failure::runtime(format!("there is no tunnel {name}, and no leftovers of one{hint}")));
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
                // Without a name, running tunnels are no error.
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
        (false, false) => print("nothing to undo\n"),
    }
}

fn teller(name: &str) -> Say {
    let name = name.to_owned();
    Arc::new(move |line| complain(&format!("tunnel {name}: {}\n", plain(line))))
}

/// Like [`teller`], but also rotates the log, because no other program does.
fn logger(places: &Places, name: &str) -> Say {
    let (say, log) = (teller(name), Log::new(places, name));
    Arc::new(move |line| {
        say(line);
        // After a failure, the next line tries again.
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
