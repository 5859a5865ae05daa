//! `penstock bench`: measures on this machine, tells, and writes down. `bench-load` is the same program as a load
//! process: nobody calls it by hand.

use std::env;
use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use bench::agent;
use bench::context::{Context, Extent, Interrupt};
use bench::report::{contrast, html, markdown, terminal};
use bench::results::Results;
use bench::run::{self, FULL, QUICK};
use bench::scenario::{self, Scenario};
use bench::trial::Step;
use clap::{Args, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

use crate::output::{Failure, complain, print};

/// Measure sockets, proxies and TLS on this machine, fairly, beside the rivals that are installed
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(subcommand)]
    action: Option<Action>,
    /// What to measure: `all`, or some of the names that `--list` prints
    #[arg(value_name = "SCENARIO")]
    scenarios: Vec<String>,
    /// Only the groups that matter most, with short trials: all scenarios in about five minutes
    #[arg(long)]
    quick: bool,
    /// Rounds that count; fewer than five decide nothing
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Length of a trial: `500ms`, `2s`
    #[arg(long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// Name the scenarios and end
    #[arg(long)]
    list: bool,
    /// Write everything as JSON
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
    /// Say what became better or worse between two runs
    #[command(after_help = COMPARE_EXAMPLES)]
    Compare {
        /// JSON of the first run
        a: PathBuf,
        /// JSON of the second run
        b: PathBuf,
    },
}

/// Be a load process of a benchmark
#[derive(Debug, Args)]
pub struct LoadArguments {
    /// Answer on standard input, which is a socket, with messages of so many bytes
    #[arg(long, value_name = "BYTES")]
    answer: Option<usize>,
}

const EXAMPLES: &str = "\
Examples:
  penstock bench --list
  penstock bench all --quick                      a page, Markdown and JSON in ./penstock-bench-DATE/
  penstock bench sockets --rounds 9 --duration 2s
  penstock bench http --json before.json          then change something, measure again into after.json, and:
  penstock bench compare before.json after.json

Programs to compare with that are not installed are named in the report, with their Debian packages.";

const COMPARE_EXAMPLES: &str = "\
Examples:
  penstock bench compare before.json after.json";

/// Measures.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    if let Some(Action::Compare { a, b }) = &arguments.action {
        let [a, b] = [a, b].map(|path| Results::read(path).map_err(|error| Failure::usage(explain(&error))));
        return print(&contrast::render(&a?, &b?));
    }
    if arguments.list || arguments.scenarios.is_empty() {
        let all = scenario::all();
        let lines = all.iter().map(|scenario| format!("{:<12} {}\n", scenario.name(), scenario.question()));
        return print(&lines.collect::<String>());
    }
    let scenarios = chosen(&arguments.scenarios)?;
    let (extent, mut rules) = if arguments.quick { (Extent::Quick, QUICK) } else { (Extent::Full, FULL) };
    rules.rounds = arguments.rounds.map_or(rules.rounds, |rounds| rounds as usize);
    rules.duration = arguments.duration.unwrap_or(rules.duration);
    let files = Files::of(arguments)?;
    let interrupt = Interrupt::default();
    listen_for_signals(interrupt.clone())?;
    let context = Context::new(env::current_exe()?, interrupt, extent).map_err(failure)?;
    let results = run::run(&context, &scenarios, rules, command(), &mut observe).map_err(failure)?;
    drop(context);
    files.write(&results)
}

/// Where reports go.
struct Files {
    json: Option<PathBuf>,
    markdown: Option<PathBuf>,
    html: Option<PathBuf>,
}

impl Files {
    /// Those that were asked for, or all of them in a new directory. Found out before anything is measured.
    fn of(arguments: &Arguments) -> Result<Self, Failure> {
        let Arguments { json, markdown, html, .. } = arguments;
        if json.is_some() || markdown.is_some() || html.is_some() {
            return Ok(Files { json: json.clone(), markdown: markdown.clone(), html: html.clone() });
        }
        let name = jiff::Zoned::now().strftime("penstock-bench-%Y-%m-%d-%H%M%S").to_string();
        let directory = PathBuf::from(name);
        fs::create_dir_all(&directory).map_err(|error| unwritable(&directory, &error))?;
        let file = |name: &str| Some(directory.join(name));
        Ok(Files { json: file("results.json"), markdown: file("report.md"), html: file("report.html") })
    }

    fn write(&self, results: &Results) -> Result<(), Failure> {
        if let Some(path) = &self.json {
            results.write(path).map_err(failure)?;
        }
        let texts =
            [(&self.markdown, markdown::render as fn(&Results) -> String), (&self.html, html::render)];
        for (path, render) in texts {
            if let Some(path) = path {
                fs::write(path, render(results)).map_err(|error| unwritable(path, &error))?;
            }
        }
        let disturbed = results.disturbed().count();
        if disturbed > 0 {
            complain(&format!("warning: {disturbed} groups were disturbed to the end: see the reports\n"));
        }
        let written = [&self.json, &self.markdown, &self.html].into_iter().flatten();
        print(&written.map(|path| format!("written: {}\n", path.display())).collect::<String>())
    }
}

/// The command line, as somebody else could type it: without the directory of the program.
fn command() -> String {
    let arguments = env::args().skip(1);
    std::iter::once("penstock".to_owned()).chain(arguments).collect::<Vec<_>>().join(" ")
}

/// Is a load process.
pub fn load(arguments: &LoadArguments) -> Result<(), Failure> {
    match arguments.answer {
        Some(size) => agent::answer(size)?,
        None => agent::main()?,
    }
    Ok(())
}

fn chosen(names: &[String]) -> Result<Vec<Box<dyn Scenario>>, Failure> {
    let all = scenario::all();
    let known: Vec<_> = all.iter().map(|scenario| scenario.name()).collect();
    if let Some(name) = names.iter().find(|name| *name != "all" && !known.contains(&name.as_str())) {
        let known = known.join(", ");
        return Err(Failure::usage(format_args!(
            "there is no scenario {name:?}\n  hint: there are: all, {known}"
        )));
    }
    let wanted = |scenario: &dyn Scenario| names.iter().any(|name| name == "all" || name == scenario.name());
    Ok(all.into_iter().filter(|scenario| wanted(scenario.as_ref())).collect())
}

/// Shows where a run is: one line that changes on a terminal, whole lines elsewhere.
fn observe(step: Step<'_>) {
    let terminal = io::stderr().is_terminal();
    match step {
        Step::Scenario(name) => complain(&format!("== {name}\n")),
        Step::Trial(name, round, rounds) if terminal => {
            complain(&format!("\r\x1b[K  round {round}/{rounds}: {name}"));
        }
        Step::Finished(group) => {
            if terminal {
                complain("\r\x1b[K");
            }
            // A reader that has seen enough is found out about at the end.
            let _ = print(&format!("{}\n", terminal::group(group)));
        }
        Step::Failed(name, error) => complain(&format!("\n  {name}: {error}\n")),
        Step::Repeated(disturbance) => {
            complain(&format!("\n  round repeated: {}\n", disturbance.reasons.join("; ")));
        }
        Step::Group(..) | Step::Trial(..) | Step::Figure(..) => {}
    }
}

/// Ctrl-C and its relatives end the run in order: every process is ended, every file removed.
fn listen_for_signals(interrupt: Interrupt) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let [mut first, mut second, mut third] = {
        let _context = runtime.enter();
        [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?]
    };
    thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! { _ = first.recv() => {} _ = second.recv() => {} _ = third.recv() => {} }
            interrupt.set();
            std::future::pending::<()>().await;
        });
    });
    Ok(())
}

fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()));
    let factor = match unit {
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        _ => return Err("a number and one of ms, s, m is needed: 500ms, 2s".to_owned()),
    };
    let seconds = number.parse::<f64>().map_err(|error| error.to_string())? * factor;
    let allowed = (0.01..=3600.0).contains(&seconds);
    if allowed { Ok(Duration::from_secs_f64(seconds)) } else { Err("it must be from 10ms to 60m".to_owned()) }
}

fn failure(error: bench::Error) -> Failure {
    Failure::Runtime(error.into())
}

/// An error with its cause, for messages about wrong usage.
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
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        for wrong in ["", "2", "s", "1h", "-1s", "0s", "9999m", "nans", "2 s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_scenario_that_does_not_exist_is_wrong_usage_and_the_others_are_named() {
        let Err(Failure::Usage(text)) = chosen(&["sokets".to_owned()]) else { panic!("it was taken") };
        assert!(text.contains("\"sokets\"") && text.contains("sockets, http"), "{text}");
        assert_eq!(chosen(&["all".to_owned()]).unwrap().len(), scenario::all().len());
    }
}
