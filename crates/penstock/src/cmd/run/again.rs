//! The journal of runs: shows a recorded run, and repeats it on hosts where that is safe.

use std::fmt::{Display, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use fleet::run::again::{self, AgainError};
use fleet::run::journal::{self, Journal, Record};
use hosts::fleet::again::{Choice, Maker, Refusal, Wanted, choose, counted};
use hosts::fleet::nodeset;
use serde_json::{Value, json};
use sys::directories::{self, NoDirectory};
use text::units;

use super::engines::{self, EngineName};
use super::show::{self, Talk};
use super::{pace, selection};
use crate::output::{Failure, complain, plain_lines, print, print_json};

/// Options for recorded runs.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub(crate) struct Arguments {
    /// Repeat the last command on these of its hosts: not-started; failed (also those); not-ok (also where it may have
    /// run, and may still run); or a SET. Options and waves are those of the last run, unless given again
    #[arg(long, value_name = "HOSTS", conflicts_with_all = ["set", "exclude", "group", "hosts", "command", "script"], help_heading = "Again")]
    pub again: Option<String>,
    /// Show the results of the last run; with --json as one JSON object
    #[arg(long, help_heading = "Again")]
    pub last: bool,
    /// With --again or --last: the run with this id (shown by --last) instead of the last one
    #[arg(long, value_name = "RUN", help_heading = "Again")]
    pub id: Option<String>,
}

fn directory() -> Result<PathBuf, NoDirectory> {
    Ok(directories::state()?.join("runs"))
}

fn seconds(time: Option<Duration>) -> Option<f64> {
    time.map(|time| time.as_secs_f64())
}

/// Adds the options that all runs share to the record of a command.
pub(crate) fn with_course(own: Value, pace: &pace::Arguments, engine: &engines::Arguments) -> Value {
    let mut order = json!({
        "again": pace.again,
        "user": engine.user,
        "ssh_config": engine.ssh_config.as_deref().map(configuration),
        "waves": pace.waves.as_ref().map(ToString::to_string),
        "stop_if": pace.stop_if.map(|condition| condition.to_string()),
        "pause": pace.pause.map(|time| time.map_or(json!("enter"), |time| json!(time.as_secs_f64()))),
        "timeout": seconds(pace.timeout),
        "connect_timeout": seconds(pace.connect_timeout),
        "parallel": pace.parallel,
        "delay": pace.delay,
        "engine": engine.engine.and_then(|engine| Some(engine.to_possible_value()?.get_name().to_owned())),
        "ssh": engine.ssh,
    });
    if let (Some(order), Value::Object(own)) = (order.as_object_mut(), own) {
        order.extend(own);
    }
    order
}

/// Makes the path of an SSH configuration absolute; `none` stays unchanged.
fn configuration(file: &Path) -> PathBuf {
    if file.as_os_str() == "none" { file.to_owned() } else { absolute(file) }
}

/// Makes a path absolute, so that it does not depend on the working directory.
pub(crate) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Begins the record of a run, or prints why the run is not recorded.
pub(crate) fn begin(about: &Value, names: &[String]) -> Option<Journal> {
    let unrecorded = |why: &dyn Display| complain(&format!("note: this run is not recorded: {why}\n"));
    let directory = directory().inspect_err(|error| unrecorded(error)).ok()?;
    Journal::begin(&directory, &journal::id(Some(&directory), jiff::Timestamp::now()), about, names)
        .inspect_err(|error| unrecorded(&format_args!("{}: {error}", directory.display())))
        .ok()
}

/// Refuses `--id` without an option that uses it.
pub(crate) fn check_id(id: Option<&str>, again: Option<&str>) -> Result<(), Failure> {
    match (id, again) {
        (Some(_), None) => Err(Failure::usage("--id needs --again or --last")),
        _ => Ok(()),
    }
}

/// Shows the last run, or the run `id`, in the format of `shown`.
pub(crate) fn show(id: Option<&str>, shown: &show::Arguments) -> Result<(), Failure> {
    let directory = directory().map_err(Failure::usage)?;
    let record = journal::find(&directory, id).map_err(|error| unread(id, &directory, &error))?;
    match shown.json {
        true => print_json(&format!("{}\n", record.json())),
        false => print(&plain_lines(&record.text())),
    }
}

/// Finds the recorded run of `maker`, and those of its hosts that `which` selects. Fills absent options from the
/// record, and prints what is repeated.
pub(crate) fn recall(
    maker: Maker,
    id: Option<&str>,
    which: &str,
    pace: &mut pace::Arguments,
    engine: &mut engines::Arguments,
    talk: Talk,
) -> Result<(Record, Vec<String>), Failure> {
    let directory = directory().map_err(Failure::usage)?;
    let called = called(id);
    let option = id.map(|id| format!(" --id {id}")).unwrap_or_default();
    let look = format!("penstock {} --last{option}", maker.word());
    let record = again::find(&directory, id, maker).map_err(|error| match error {
        AgainError::Record(error) => unread(id, &directory, &error),
        AgainError::Later(error) => Failure::usage(format!("the runs in {}: {error}", directory.display())),
        AgainError::OtherMaker(other) => {
            let command = format!("penstock {}", other.word());
            Failure::usage(format!("{called} was a {command}\n  hint: {command} --again {which}{option}"))
        }
        AgainError::Running => Failure::usage(format!(
            "{called} is still running; hosts not started yet may still start\n  hint: {look}"
        )),
    })?;
    let wanted = match Wanted::word(which) {
        Some(wanted) => wanted,
        None => {
            Wanted::Named(selection::Arguments { set: vec![which.to_owned()], ..Default::default() }.names()?)
        }
    };
    let Choice { hosts, left_out } = choose(&record.hosts, maker, &wanted).map_err(|refusal| match refusal {
        Refusal::Absent(name) => Failure::usage(format!("{name} is no host of {called}, nor not-started, failed or not-ok\n  hint: {look}")),
        Refusal::MayHaveRun { host, how } => Failure::usage(format!(
            "on {host} the command may have run ({how})\n  hint: check there first; --again not-ok runs it again anyway"
        )),
    })?;
    if hosts.is_empty() {
        let hint = match record.later.last() {
            _ if !left_out.is_empty() => LEFT_OUT.to_owned(),
            Some(later) => format!("it was run again since: penstock {} --last --id {later}", maker.word()),
            None => look,
        };
        return Err(Failure::usage(format!(
            "no host is {which} in {called}: nothing to repeat\n  hint: {hint}"
        )));
    }
    take_over_course(pace, engine, &record);
    if talk == Talk::Usual {
        let folded = |names: &[String]| nodeset::fold(names.iter().map(String::as_str));
        let mut text = format!(
            "again, as run {}: {}\n  on {}: {}\n  {}{}\n",
            record.id,
            record.asked(),
            units::count(hosts.len(), "host"),
            folded(&hosts),
            counted(&record.hosts, maker, &hosts),
            in_waves(pace)
        );
        if !left_out.is_empty() {
            let _ = writeln!(text, "  not on {}: {LEFT_OUT}", folded(&left_out));
        }
        complain(&plain_lines(&text));
    }
    Ok((record, hosts))
}

/// Describes the waves and the stop condition.
fn in_waves(pace: &pace::Arguments) -> String {
    let Some(waves) = &pace.waves else { return String::new() };
    let stop = pace.stop_if.map(|condition| format!(", stopping if {condition}"));
    format!("; in waves {waves}{}", stop.unwrap_or_default())
}

/// Fills absent options from the record; given options have priority.
fn take_over_course(pace: &mut pace::Arguments, engine: &mut engines::Arguments, record: &Record) {
    let order = &record.order;
    pace.again = Some(record.origin().to_owned());
    let text = |name: &str| order[name].as_str();
    engine.user = engine.user.take().or(text("user").map(str::to_owned));
    engine.ssh_config = engine.ssh_config.take().or_else(|| text("ssh_config").map(PathBuf::from));
    let time = |value: &Value| value.as_f64().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let number = |name: &str| order[name].as_u64();
    pace.waves = pace.waves.take().or_else(|| text("waves")?.parse().ok());
    pace.stop_if = pace.stop_if.take().or_else(|| text("stop_if")?.parse().ok());
    pace.pause = pace.pause.take().or_else(|| match &order["pause"] {
        Value::Null => None,
        pause => Some(time(pause)),
    });
    pace.timeout = pace.timeout.or_else(|| time(&order["timeout"]));
    pace.connect_timeout = pace.connect_timeout.or_else(|| time(&order["connect_timeout"]));
    pace.parallel = pace.parallel.or_else(|| number("parallel")?.try_into().ok());
    pace.delay = pace.delay.or_else(|| number("delay"));
    // `-S` decides the engine, so take both engine and program from the record, or neither.
    if engine.engine.is_none() && engine.ssh.is_none() {
        engine.engine = text("engine").and_then(|name| EngineName::from_str(name, false).ok());
        engine.ssh = text("ssh").map(PathBuf::from);
    }
}

fn unread(id: Option<&str>, directory: &Path, error: &std::io::Error) -> Failure {
    Failure::usage(format!("{} in {}: {error}", called(id), directory.display()))
}

fn called(id: Option<&str>) -> String {
    id.map_or_else(|| "the last run".to_owned(), |id| format!("the run {id:?}"))
}

/// Reason why `failed` leaves out some hosts.
const LEFT_OUT: &str = "it may have run there; check there first, or use --again not-ok";
