//! The journal of runs: what the last one did, and doing it again where that is safe.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use fleet::run::journal::{self, Journal, Pulse, Record, Standing};
use logic::fleet::nodeset;
use serde_json::{Value, json};

use super::EngineName;
use super::show::Talk;
use crate::output::{Failure, complain, plain_lines, print, print_json};

/// Runs on record.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub struct Arguments {
    /// The last command again, on these of its hosts: never-started; failed (also those); not-well (also where it may have
    /// run, and may still run); or a SET. It goes as it went then, in the same waves, unless other options are given
    #[arg(long, value_name = "HOSTS", conflicts_with_all = ["set", "exclude", "group", "hosts", "command", "script"], help_heading = "Again")]
    pub again: Option<String>,
    /// Show what the last run did; with --json as one JSON object
    #[arg(long, help_heading = "Again")]
    pub last: bool,
    /// With --again or --last: not the last run, but the one with this id, as --last shows it
    #[arg(long, value_name = "RUN", help_heading = "Again")]
    pub id: Option<String>,
}

/// Where runs are recorded, if there is a home.
pub fn directory() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = set("XDG_STATE_HOME").filter(|path| path.is_absolute());
    let state = state.or_else(|| Some(set("HOME")?.join(".local/state")))?;
    Some(state.join("penstock/runs"))
}

/// Letters and digits that a host cannot guess.
pub fn nonce() -> String {
    use std::hash::{BuildHasher, RandomState};
    format!("{:016x}", RandomState::new().hash_one(std::process::id()))
}

fn seconds(time: Option<Duration>) -> Option<f64> {
    time.map(|time| time.as_secs_f64())
}

/// What is needed to do it again.
pub fn remember(arguments: &super::Arguments) -> Value {
    let own = json!({
        "command": arguments.command,
        "script": arguments.script.as_deref().map(absolute),
        "stdin": arguments.stdin,
        "no_leash": arguments.no_leash,
    });
    with_course(own, &arguments.pace, &arguments.engine)
}

/// The same for what concerns every run: added to what its own command adds.
pub fn with_course(own: Value, pace: &super::pace::Arguments, engine: &super::engines::Arguments) -> Value {
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

/// That file from anywhere; `none` is no file.
fn configuration(file: &Path) -> PathBuf {
    if file.as_os_str() == "none" { file.to_owned() } else { absolute(file) }
}

/// A path that means the same from anywhere.
pub fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Begins the record of a run, or says why there is none.
pub fn begin(about: &Value, names: &[String]) -> Option<Journal> {
    let directory = directory()?;
    Journal::begin(&directory, &journal::id(Some(&directory), jiff::Timestamp::now()), about, names)
        .inspect_err(|error| {
            complain(&format!("note: this run is not recorded: {}: {error}\n", directory.display()))
        })
        .ok()
}

/// A run that is named, and not what to do with it, is a slip.
pub fn check_id(id: Option<&str>, again: Option<&str>) -> Result<(), Failure> {
    match (id, again) {
        (Some(_), None) => Err(Failure::usage("--id names a run for --again or --last")),
        _ => Ok(()),
    }
}

/// Shows the last run, or the one that is asked for, as `shown` says.
pub fn show(id: Option<&str>, shown: &super::show::Arguments) -> Result<(), Failure> {
    let record = find(id)?;
    if shown.json {
        return print_json(&format!("{}\n", as_json(&record)));
    }
    let mut text = format!("{}  {}\n", record.id, told(&record.order));
    match (record.status, record.pulse) {
        (Some(code), _) => _ = writeln!(text, "exit code {code}"),
        (None, Pulse::Running) => text.push_str("it still runs\n"),
        (None, Pulse::Gone) => text.push_str("it was killed before its end\n"),
    }
    let width = record.hosts.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    for (name, standing) in &record.hosts {
        let how = match standing {
            Standing::Well => "well".to_owned(),
            Standing::Failed(how) => how.clone(),
            Standing::NeverStarted(how) => format!("never started: {how}"),
            Standing::Unknown(how) if made_by(&record.order) == "run" => format!("may have run: {how}"),
            Standing::Unknown(how) if made_by(&record.order) == "get" => format!("may not be here: {how}"),
            Standing::Unknown(how) => format!("may have changed: {how}"),
        };
        let _ = writeln!(text, "{name:width$}  {how}");
    }
    print(&plain_lines(&text))
}

fn as_json(record: &Record) -> Value {
    let host = |((name, standing), end): (&(String, Standing), &Value)| {
        let mut host = json!({ "host": name, "standing": word(standing) });
        if let Standing::NeverStarted(why) | Standing::Unknown(why) = standing {
            host["why"] = json!(why);
        }
        if let (Some(host), Value::Object(end)) = (host.as_object_mut(), end) {
            // There `host` is a number.
            host.extend(
                end.iter().filter(|(key, _)| *key != "host").map(|(key, value)| (key.clone(), value.clone())),
            );
        }
        host
    };
    let state = match (record.status, record.pulse) {
        (Some(_), _) => "ended",
        (None, Pulse::Running) => "running",
        (None, Pulse::Gone) => "killed",
    };
    json!({
        "id": record.id,
        "state": state,
        "status": record.status,
        "order": record.order,
        "hosts": record.hosts.iter().zip(&record.ends).map(host).collect::<Vec<_>>(),
    })
}

fn word(standing: &Standing) -> &'static str {
    match standing {
        Standing::Well => "well",
        Standing::Failed(_) => "failed",
        Standing::NeverStarted(_) => "never-started",
        Standing::Unknown(_) => "unknown",
    }
}

/// Fills in what `--again` takes over from the last run and gives its hosts, or nothing without `--again`.
pub fn take_over(arguments: &mut super::Arguments) -> Result<Option<Vec<String>>, Failure> {
    let Some(which) = arguments.again.again.clone() else { return Ok(None) };
    let (id, talk) = (arguments.again.id.as_deref(), arguments.show.talk());
    let (record, names) = recall("run", id, &which, &arguments.pace, talk)?;
    let order = &record.order;
    if order["stdin"] == true {
        return Err(Failure::usage(
            "the last run sent its standard input, which is not kept: give the command again",
        ));
    }
    if order["mpssh"] == true && !order["ssh"].is_null() {
        return Err(Failure::usage(
            "that run was mpssh with -S or -O, which are not repeated here: give the command again",
        ));
    }
    arguments.command = serde_json::from_value(order["command"].clone()).unwrap_or_default();
    arguments.script = order["script"].as_str().map(PathBuf::from);
    arguments.no_leash |= order["no_leash"] == true;
    take_over_course(&mut arguments.pace, &mut arguments.engine, &record);
    Ok(Some(names))
}

/// The run that is asked for, if this command of ours made it, and its hosts that are meant; and tells what is done again.
pub fn recall(
    command: &str,
    id: Option<&str>,
    which: &str,
    pace: &super::pace::Arguments,
    talk: Talk,
) -> Result<(Record, Vec<String>), Failure> {
    let mut record = find(id)?;
    if let Some(directory) = directory() {
        let brought = record.bring_up_to_date(&directory);
        brought.map_err(|error| Failure::usage(format!("the runs in {}: {error}", directory.display())))?;
    }
    let (called, option) = (called(id), id.map(|id| format!(" --id {id}")).unwrap_or_default());
    let look = format!("penstock {command} --last{option}");
    let made_by = made_by(&record.order);
    if made_by != command {
        return Err(Failure::usage(format!(
            "{called} was a penstock {made_by}\n  hint: penstock {made_by} --again {which}{option}"
        )));
    }
    if record.pulse == Pulse::Running {
        return Err(Failure::usage(format!(
            "{called} still goes on: what never started may start yet\n  hint: {look}"
        )));
    }
    let absent = |name: &str| Failure::usage(format!("{name} was not in {called}\n  hint: {look}"));
    let names = choose(&record, which, absent)?;
    let left_out = left_out(&record, which);
    if names.is_empty() {
        let hint = match record.later.last() {
            _ if !left_out.is_empty() => LEFT_OUT.to_owned(),
            Some(later) => format!("it was repeated since: penstock {command} --last --id {later}"),
            None => look,
        };
        return Err(Failure::usage(format!("no host of {called} is {which}\n  hint: {hint}")));
    }
    if talk == Talk::Usual {
        let (count, hosts) = (names.len(), nodeset::fold(names.iter().map(String::as_str)));
        let plural = if count == 1 { "host" } else { "hosts" };
        let mut text =
            format!("again, as run {}: {}\n  on {count} {plural}: {hosts}\n", record.id, told(&record.order));
        let _ = writeln!(text, "  {}{}", counted(&record, &names), in_waves(pace, &record.order));
        if !left_out.is_empty() {
            let hosts = nodeset::fold(left_out.iter().copied());
            let _ = writeln!(text, "  not on {hosts}: {LEFT_OUT}");
        }
        complain(&plain_lines(&text));
    }
    Ok((record, names))
}

/// How those hosts ended then: `2 failed, 1 never started`.
fn counted(record: &Record, names: &[String]) -> String {
    let unclear = if made_by(&record.order) == "run" { "may have run" } else { "may have changed" };
    let count = |wanted: &str| {
        let chosen = record.hosts.iter().filter(|(name, how)| word(how) == wanted && names.contains(name));
        // mpssh takes a host twice.
        chosen.map(|(name, _)| name).collect::<HashSet<_>>().len()
    };
    let words =
        [("well", "well"), ("failed", "failed"), ("unknown", unclear), ("never-started", "never started")];
    let counts = words.map(|(standing, words)| (count(standing), words));
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    counts.map(|(count, words)| format!("{count} {words}")).collect::<Vec<_>>().join(", ")
}

/// Hosts that `which` does not take, though it sounds as if it did.
fn left_out<'r>(record: &'r Record, which: &str) -> Vec<&'r str> {
    if which != "failed" || made_by(&record.order) != "run" {
        return Vec::new();
    }
    let unknown = record.hosts.iter().filter(|(_, how)| matches!(how, Standing::Unknown(_)));
    unknown.map(|(name, _)| name.as_str()).collect()
}

/// In which waves it goes, and what stops it: what is given now, or else was given then.
fn in_waves(pace: &super::pace::Arguments, order: &Value) -> String {
    let then = |name: &str| order[name].as_str().map(str::to_owned);
    let mut text = String::new();
    if let Some(waves) = pace.waves.as_ref().map(ToString::to_string).or_else(|| then("waves")) {
        let _ = write!(text, "; in waves {waves}");
        if let Some(condition) =
            pace.stop_if.map(|condition| condition.to_string()).or_else(|| then("stop_if"))
        {
            let _ = write!(text, ", stopping if {condition}");
        }
    }
    text
}

/// Which command of ours wrote that.
fn made_by(order: &Value) -> &'static str {
    ["put", "get"].into_iter().find(|copy| order[copy].is_object()).unwrap_or("run")
}

/// What is given now goes before what was given then.
pub fn take_over_course(
    pace: &mut super::pace::Arguments,
    engine: &mut super::engines::Arguments,
    record: &Record,
) {
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
    // A program of the user's decides the engine, so that one given now must not meet the other one of then.
    if engine.engine.is_none() && engine.ssh.is_none() {
        engine.engine = text("engine").and_then(|name| EngineName::from_str(name, false).ok());
        engine.ssh = text("ssh").map(PathBuf::from);
    }
}

/// The hosts of a record that are meant; `absent` says that one is not in it.
fn choose(record: &Record, which: &str, absent: impl Fn(&str) -> Failure) -> Result<Vec<String>, Failure> {
    let pick = |wanted: &dyn Fn(&Standing) -> bool| {
        let chosen = record.hosts.iter().filter(|(_, standing)| wanted(standing));
        // mpssh takes a host twice.
        let mut known = HashSet::new();
        chosen.filter(|(name, _)| known.insert(name.as_str())).map(|(name, _)| name.clone()).collect()
    };
    match which {
        "never-started" => return Ok(pick(&|standing| matches!(standing, Standing::NeverStarted(_)))),
        // A file that is copied twice is the same file; a command that runs twice is not the same.
        "failed" if made_by(&record.order) == "run" => {
            return Ok(pick(&|standing| matches!(standing, Standing::Failed(_) | Standing::NeverStarted(_))));
        }
        "failed" | "not-well" => return Ok(pick(&|standing| *standing != Standing::Well)),
        _ => {}
    }
    let asked = super::hosts::Arguments { set: vec![which.to_owned()], ..Default::default() }.names()?;
    for name in &asked {
        match record.hosts.iter().find(|(known, _)| known == name) {
            None => return Err(absent(name)),
            // A file that is copied twice is the same file.
            Some((_, Standing::Unknown(how))) if made_by(&record.order) == "run" => {
                return Err(Failure::usage(format!(
                    "on {name} the command may have run ({how})\n  hint: look there first; --again not-well runs it again all the same"
                )));
            }
            Some(_) => {}
        }
    }
    Ok(asked)
}

fn find(id: Option<&str>) -> Result<Record, Failure> {
    let directory = directory().ok_or_else(|| Failure::usage("no HOME, so no runs are recorded"))?;
    journal::find(&directory, id)
        .map_err(|error| Failure::usage(format!("{} in {}: {error}", called(id), directory.display())))
}

fn called(id: Option<&str>) -> String {
    id.map_or_else(|| "the last run".to_owned(), |id| format!("the run {id:?}"))
}

fn told(order: &Value) -> String {
    let copy = made_by(order);
    if copy != "run" {
        let named = order[copy]["sources"].as_array().into_iter().flatten();
        let named = named.chain([&order[copy]["to"]]).filter_map(Value::as_str);
        return std::iter::once(copy).chain(named).collect::<Vec<_>>().join(" ");
    }
    let words: Vec<&str> =
        order["command"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    match order["script"].as_str() {
        Some(script) => format!("{script} {}", words.join(" ")),
        None => words.join(" "),
    }
}

/// Why a host is not among the failed ones.
const LEFT_OUT: &str = "it may have run there; look there first, or --again not-well";
