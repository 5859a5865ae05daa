//! `penstock bench`: measures on this machine, tells, and writes down. `bench-load` is the same program as a load
//! process: nobody calls it by hand.

use std::env;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use bench::agent;
use bench::context::{Context, Extent, Interrupt};
use bench::report::terminal;
use bench::run::{self, FULL, QUICK};
use bench::scenario::{self, Scenario};
use bench::trial::Step;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use crate::output::{Failure, complain, print};

/// Measure sockets, proxies and TLS on this machine, fairly, beside the rivals that are installed
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
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
  penstock bench all --quick
  penstock bench sockets --rounds 9 --duration 2s";

/// Measures.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.list || arguments.scenarios.is_empty() {
        let all = scenario::all();
        let lines = all.iter().map(|scenario| format!("{:<12} {}\n", scenario.name(), scenario.question()));
        return print(&lines.collect::<String>());
    }
    let scenarios = chosen(&arguments.scenarios)?;
    let (extent, mut rules) = if arguments.quick { (Extent::Quick, QUICK) } else { (Extent::Full, FULL) };
    rules.rounds = arguments.rounds.map_or(rules.rounds, |rounds| rounds as usize);
    rules.duration = arguments.duration.unwrap_or(rules.duration);
    let interrupt = Interrupt::default();
    listen_for_signals(interrupt.clone())?;
    let program = env::current_exe()?;
    let context = Context::new(program, interrupt, extent).map_err(failure)?;
    let command = env::args().collect::<Vec<_>>().join(" ");
    let results = run::run(&context, &scenarios, rules, command, &mut observe).map_err(failure)?;
    if let Some(path) = &arguments.json {
        results.write(path).map_err(failure)?;
    }
    Ok(())
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
