//! `penstock bench`: measures servers on this machine, prints the results and writes the reports. `bench-load` runs the
//! same program as a load process; users do not call it.

use std::env;
use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process;
use std::thread;
use std::time::Duration;

use bench::agent;
use bench::context::{Context, Extent, Interrupt};
use bench::report::contrast::Contrast;
use bench::report::{self, html, markdown, terminal};
use bench::results::Results;
use bench::run::{self, FULL, QUICK};
use bench::selection::{self, Planned, Selection};
use bench::trial::Step;
use clap::{Args, Subcommand};
use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};

use crate::output::{Failure, complain, print};

/// Measure sockets, proxies and TLS on this machine, fairly, beside the rivals that are installed
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Option<Action>,
    /// What to measure: `all`, or some of the scenarios and groups that `--list` prints
    #[arg(value_name = "SCENARIO[/GROUP]")]
    wanted: Vec<String>,
    /// Short trials, and only the groups that matter most or that are named: all scenarios in about seven minutes
    #[arg(long)]
    quick: bool,
    /// Number of rounds; with fewer than five there is no verdict
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Length of a trial: `500ms`, `2s`
    #[arg(long, value_name = "TIME", value_parser = length)]
    duration: Option<Duration>,
    /// List the scenarios and their groups, and exit
    #[arg(long)]
    list: bool,
    /// Write all results as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a report as Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Write a report as one self-contained page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show what became better or worse between two runs
    #[command(after_help = COMPARE_EXAMPLES)]
    Compare {
        /// JSON of the first run
        a: PathBuf,
        /// JSON of the second run
        b: PathBuf,
    },
}

/// Run as a load process of a benchmark
#[derive(Debug, Args)]
pub(crate) struct LoadArguments {
    /// Answer on standard input, which is a socket, with messages of this many bytes
    #[arg(long, value_name = "BYTES")]
    answer: Option<usize>,
}

const EXAMPLES: &str = "\
Examples:
  penstock bench --list
  penstock bench all --quick                      a page, Markdown and JSON in ./penstock-bench-DATE/
  penstock bench sockets --rounds 9 --duration 2s
  penstock bench http/keep-alive-tcp tcp/download
  penstock bench http --json before.json          then change something, measure again into after.json, and:
  penstock bench compare before.json after.json

Programs to compare with that are not installed are named in the report, with their Debian packages.

Limits are what this project demands of itself, goals what it would like to reach: no figure of your machine depends on them. \
With fewer than five rounds nothing is decided.

Exit codes:
  0    measured; a contestant that failed is named in the report
  1    nothing could be measured, or a report could not be written
  2    wrong usage: a scenario or group that does not exist, a file that cannot be written
  130  ended by Ctrl-C (SIGINT); what was measured until then is written, as far as it is whole
  143  the same, ended by SIGTERM; 129: by SIGHUP";

const COMPARE_EXAMPLES: &str = "\
Examples:
  penstock bench compare before.json after.json

Exit codes:
  0    compared, whatever came out
  1    the two runs have nothing in common that could be compared
  2    a file cannot be read, or holds no results of this version";

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if let Some(Action::Compare { a, b }) = &arguments.action {
        return compare(a, b);
    }
    let (extent, mut rules) = if arguments.quick { (Extent::Quick, QUICK) } else { (Extent::Full, FULL) };
    rules.rounds = arguments.rounds.map_or(rules.rounds, |rounds| rounds as usize);
    rules.duration = arguments.duration.unwrap_or(rules.duration);
    let interrupt = Interrupt::default();
    let program = env::current_exe()?;
    let selection = match &arguments.wanted[..] {
        [] => Selection::all(),
        wanted => Selection::parse(wanted).map_err(|error| unknown(&error))?,
    };
    if arguments.list || arguments.wanted.is_empty() {
        // Planning starts no program and is fast enough for a person to wait for.
        let context = Context::new(program, interrupt, Extent::Full).map_err(failure)?;
        return print(&list(&selection.plan(&context).map_err(|error| unknown(&error))?));
    }
    listen_for_signals(interrupt.clone())?;
    let context = Context::new(program, interrupt.clone(), extent).map_err(failure)?;
    if let Some(notice) = context.notice() {
        complain(&format!("note: {}\n", text::terminal::plain(notice)));
    }
    let planned = selection.plan(&context).map_err(|error| unknown(&error))?;
    let files = Files::of(arguments)?;
    let estimate = selection::estimate(&planned, rules);
    if !estimate.is_zero() {
        complain(&format!("{}\n", forecast(estimate)));
    }
    let results = run::run(&context, planned, rules, command(), &mut observe);
    drop(context);
    let written = finish(&results, &files);
    drop(files);
    match interrupt.signal() {
        None => written,
        Some(signal) => {
            if let Err(failure) = written {
                failure.report();
            }
            // A shell's exit status for a program ended by a signal. `exit` skips destructors; none is left.
            process::exit(128 + signal as i32)
        }
    }
}

/// Compares two runs. Unreadable files are wrong usage; two runs without a common figure are a failure.
fn compare(a: &Path, b: &Path) -> Result<(), Failure> {
    let [a, b] = [a, b].map(|path| Results::read(path).map_err(|error| Failure::usage(explain(&error))));
    let Contrast { text, compared } = Contrast::of(&a?, &b?);
    print(&text)?;
    match compared {
        0 => Err(Failure::runtime("nothing was compared: the lines above say what each run has")),
        _ => Ok(()),
    }
}

/// Prints the final tables and writes the reports.
fn finish(results: &Results, files: &Files) -> Result<(), Failure> {
    if let Some(interruption) = report::interruption(results) {
        complain(&format!("\ninterrupted {interruption}\n"));
        if results.scenarios.iter().all(|scenario| scenario.groups.is_empty()) {
            complain("nothing was measured until then, and nothing is written\n");
            return Ok(());
        }
    }
    let limits = terminal::limits(results);
    if !limits.is_empty() {
        print(&format!("{limits}\n"))?;
    }
    files.write(results)?;
    let contestants =
        results.scenarios.iter().flat_map(|scenario| &scenario.groups).flat_map(|group| &group.contestants);
    if results.interrupted.is_none() && !contestants.into_iter().any(|contestant| contestant.failed.is_none())
    {
        return Err(Failure::Runtime(anyhow::anyhow!("nothing could be measured: the lines above say why")));
    }
    Ok(())
}

/// Lists scenarios with their groups, and marks the groups of a quick run.
fn list(planned: &[Planned]) -> String {
    let mut text = String::new();
    for scenario in planned {
        text += &format!("{:<12} {}\n", scenario.name, scenario.question);
        match &scenario.plan {
            Ok(plan) => {
                for group in &plan.groups {
                    let mark = if group.extent == Extent::Quick { '*' } else { ' ' };
                    text += &format!(
                        "  {mark} {:<28} {}\n",
                        format!("{}/{}", scenario.name, group.id),
                        group.title
                    );
                }
                for missing in &plan.missing {
                    text += &format!(
                        "    not installed: {} (Debian package {})\n",
                        missing.program, missing.package
                    );
                }
            }
            Err(error) => text += &format!("    {}\n", explain(error)),
        }
    }
    text + "\n* part of --quick\n"
}

fn forecast(estimate: Duration) -> String {
    let minutes = estimate.as_secs_f64() / 60.0;
    let time = if minutes < 1.5 { format!("{:.0} s", minutes * 60.0) } else { format!("{minutes:.0} min") };
    format!("this takes about {time} if nothing disturbs it; Ctrl-C keeps what is done until then")
}

struct Files {
    /// Files or directory made before the run; removed on drop if they are still empty.
    _made: Made,
    json: Option<PathBuf>,
    markdown: Option<PathBuf>,
    html: Option<PathBuf>,
}

/// Report files made before a run, so that an unwritable path is reported early.
enum Made {
    /// Directory for all reports.
    Directory(PathBuf),
    /// Empty files that did not exist before.
    Files(Vec<PathBuf>),
}

impl Drop for Made {
    /// Removes empty files or the empty directory.
    fn drop(&mut self) {
        match self {
            // rmdir(2) fails for a directory that is not empty.
            Self::Directory(directory) => drop(fs::remove_dir(directory)),
            Self::Files(files) => {
                for file in files {
                    if fs::metadata(&*file).is_ok_and(|file| file.is_file() && file.len() == 0) {
                        let _ = fs::remove_file(file);
                    }
                }
            }
        }
    }
}

impl Files {
    /// Opens the requested report files, or makes all of them in a new directory, before any measurement.
    fn of(arguments: &Arguments) -> Result<Self, Failure> {
        let Arguments { json, markdown, html, .. } = arguments;
        if json.is_some() || markdown.is_some() || html.is_some() {
            // Report an unwritable path now and not after minutes of measuring.
            let asked: Vec<_> = [json, markdown, html].into_iter().flatten().collect();
            let new = asked.iter().filter(|path| !path.exists()).map(|path| path.to_path_buf());
            let made = Made::Files(new.collect());
            for (at, path) in asked.iter().enumerate() {
                if asked[..at].contains(path) {
                    return Err(Failure::usage(format_args!("{} is asked for twice", path.display())));
                }
                let file = fs::OpenOptions::new().append(true).create(true).open(path);
                file.map_err(|error| unwritable(path, &error))?;
            }
            return Ok(Files {
                _made: made,
                json: json.clone(),
                markdown: markdown.clone(),
                html: html.clone(),
            });
        }
        let name = jiff::Zoned::now().strftime("penstock-bench-%Y-%m-%d-%H%M%S").to_string();
        let directory = make_directory(&name)?;
        let file = |name: &str| Some(directory.join(name));
        let (json, markdown, html) = (file("results.json"), file("report.md"), file("report.html"));
        Ok(Files { _made: Made::Directory(directory), json, markdown, html })
    }

    /// Writes all reports that can be written. Returns the first failure.
    fn write(&self, results: &Results) -> Result<(), Failure> {
        let mut failed = None;
        if let Some(path) = &self.json
            && let Err(error) = results.write(path)
        {
            failed.get_or_insert(failure(error));
        }
        let texts =
            [(&self.markdown, markdown::render as fn(&Results) -> String), (&self.html, html::render)];
        for (path, render) in texts {
            if let Some(path) = path
                && let Err(error) = fs::write(path, render(results))
            {
                failed.get_or_insert(unwritable(path, &error));
            }
        }
        if let Some(failed) = failed {
            return Err(failed);
        }
        let disturbed = results.disturbed().count();
        if disturbed > 0 {
            let groups = text::units::count(disturbed, "group");
            complain(&format!("warning: disturbed to the end: {groups}; the reports say which\n"));
        }
        let written = [&self.json, &self.markdown, &self.html].into_iter().flatten();
        print(&written.map(|path| format!("written: {}\n", path.display())).collect::<String>())
    }
}

/// Makes a directory that no other run uses: two runs may begin in the same second.
fn make_directory(name: &str) -> Result<PathBuf, Failure> {
    let mut directory = PathBuf::from(name);
    let mut number = 1;
    loop {
        match fs::create_dir(&directory) {
            Ok(()) => return Ok(directory),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                number += 1;
                directory = PathBuf::from(format!("{name}-{number}"));
            }
            Err(error) => return Err(unwritable(&directory, &error)),
        }
    }
}

/// Returns the command line without the directory of the program, so that another user can repeat it.
fn command() -> String {
    let arguments = env::args().skip(1);
    std::iter::once("penstock".to_owned()).chain(arguments).collect::<Vec<_>>().join(" ")
}

/// Runs as a load process.
pub(crate) fn load(arguments: &LoadArguments) -> Result<(), Failure> {
    match arguments.answer {
        Some(size) => agent::answer(size)?,
        None => agent::main()?,
    }
    Ok(())
}

/// Reports an unknown name as wrong usage, with similar names.
fn unknown(error: &bench::Error) -> Failure {
    let bench::Error::Unknown { near, known, .. } = error else { return Failure::usage(explain(error)) };
    let near = match &near[..] {
        [] => String::new(),
        near => format!("did you mean {}? ", near.join(" or ")),
    };
    Failure::usage(format_args!("{error}\n  hint: {near}there are: {}", known.join(", ")))
}

/// Shows the progress of a run: one changing line on a terminal, whole lines elsewhere.
fn observe(step: Step<'_>) {
    let terminal = io::stderr().is_terminal();
    match step {
        // A closed standard output is reported at the end.
        Step::Scenario(scenario) => drop(print(&format!("{}\n", terminal::scenario(scenario)))),
        Step::Trial(name, round, rounds) if terminal => {
            complain(&format!("\r\x1b[K  round {round}/{rounds}: {name}"));
        }
        Step::Finished(group) => {
            if terminal {
                complain("\r\x1b[K");
            }
            drop(print(&format!("{}\n", terminal::group(group))));
        }
        Step::Failed(name, error) => {
            complain(&format!("\n  {name}: {}\n", text::terminal::plain(&error.to_string())))
        }
        Step::Repeated(disturbance) => {
            complain(&format!("\n  round repeated: {}\n", disturbance.reasons.join("; ")));
        }
        // Start and warm-up of all contestants take some time.
        Step::Group(_, count) if terminal => {
            complain(&format!("\r\x1b[K  starting {count} contestants"));
        }
        Step::Group(..) | Step::Trial(..) | Step::Figure(..) => {}
    }
}

/// Makes Ctrl-C, SIGTERM and similar signals interrupt the run, so that every process is ended and every file removed.
fn listen_for_signals(interrupt: Interrupt) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let [mut interrupted, mut terminated, mut hung_up] = {
        let _context = runtime.enter();
        [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?]
    };
    thread::spawn(move || {
        runtime.block_on(async {
            interrupt.set(tokio::select! {
                _ = interrupted.recv() => Signal::SIGINT,
                _ = terminated.recv() => Signal::SIGTERM,
                _ = hung_up.recv() => Signal::SIGHUP,
            });
            std::future::pending::<()>().await;
        });
    });
    Ok(())
}

fn length(text: &str) -> Result<Duration, String> {
    if text.parse::<f64>().is_ok() {
        return Err("a number and one of ms, s, m is needed: 500ms, 2s".to_owned());
    }
    let length = config::duration(text)?;
    let allowed = (Duration::from_millis(10)..=Duration::from_secs(3600)).contains(&length);
    if allowed { Ok(length) } else { Err("it must be from 10ms to 60m".to_owned()) }
}

fn failure(error: bench::Error) -> Failure {
    Failure::Runtime(error.into())
}

/// Formats an error with its cause, for messages about wrong usage.
fn explain(error: &bench::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::runtime(format_args!("cannot write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trial_lengths_need_a_unit_and_a_sensible_size() {
        assert_eq!(length("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(length("1.5s"), Ok(Duration::from_millis(1500)));
        for wrong in ["", "2", "s", "2h", "-1s", "0s", "9999m", "nans", "2 s"] {
            assert!(length(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_scenario_that_does_not_exist_is_wrong_usage_and_the_others_are_named() {
        let error = Selection::parse(&["sokets".to_owned()]).unwrap_err();
        let Failure::Usage(text) = unknown(&error) else { panic!("it is no wrong usage") };
        assert!(text.contains("\"sokets\"") && text.contains("did you mean sockets?"), "{text}");
        assert!(text.contains("sockets, http"), "{text}");
    }

    #[test]
    fn a_forecast_is_in_seconds_if_it_is_short() {
        assert!(forecast(Duration::from_secs(80)).contains("about 80 s"));
        assert!(forecast(Duration::from_secs(290)).contains("about 5 min"));
    }
}
