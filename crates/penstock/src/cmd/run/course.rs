//! A run from its arguments to its exit status, for all commands on hosts.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use fleet::run::board::Board;
use fleet::run::keep::Keep;
use fleet::run::native::LogIns;
use fleet::run::output::{Outbox, Sinks, View};
use fleet::run::progress::Progress;
use fleet::run::stop::{Brake, Stop};
use fleet::run::terminal::Terminal;
use fleet::run::view::kept::{Kept, Printed};
use fleet::run::{Again, Host, Job, Outcome, Plan, Shown, summary};
use hosts::fleet::verdict::Status;
use serde_json::Value;
use ssh::Purpose;
use ssh::identity::Identities;
use tokio::sync::Notify;

use super::show::{self, Talk};
use super::{again, engines, keys, pace};
use crate::output::{Failure, complain, plain, plain_lines, print_json};
use crate::threads;

/// A run with all its settings except its job.
pub(crate) struct PreparedRun<'a> {
    pub names: Vec<String>,
    pub pace: &'a pace::Arguments,
    pub engine: &'a engines::Arguments,
    pub show: &'a show::Arguments,
    /// Record for the journal that `--again` needs.
    pub about: Value,
    /// Message when the user stops the run.
    pub on_stop: &'static str,
    pub keyboard: Keyboard,
    /// Number of local files open per host, beside its connection and its output.
    pub local_files: usize,
}

/// Use of standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keyboard {
    /// Standard input may be a keyboard with the Enter key.
    Free,
    /// Standard input is sent to the hosts.
    Input,
}

/// What becomes of the output of the hosts.
enum Reader {
    /// It is shown as the options say, and the run is recorded.
    Person,
    /// The caller reads it.
    Caller(Kept),
}

/// A run whose output the caller reads.
pub(crate) struct Collected {
    pub outcome: Outcome,
    /// Output in the order of the hosts.
    pub printed: Vec<Printed>,
    /// The keys of our log-ins; `None` if another program logged in.
    pub log_ins: Option<Arc<LogIns>>,
}

impl PreparedRun<'_> {
    /// Runs the job, prints the results, and returns a failure with the exit status of the run. `job` is called with
    /// the largest number of parallel hosts.
    pub(crate) fn run(self, job: impl FnOnce(&Brake, usize) -> Result<Job, Failure>) -> Result<(), Failure> {
        let (outcome, _) = self.drive(job, Reader::Person)?;
        match outcome.status {
            Status::Ok => Ok(()),
            status => Err(Failure::Status(status.code())),
        }
    }

    /// Runs the job and returns what the hosts printed. Nothing is printed, and the run is not recorded.
    pub(crate) fn collect(
        self,
        job: impl FnOnce(&Brake, usize) -> Result<Job, Failure>,
    ) -> Result<Collected, Failure> {
        let kept = Kept::of(self.names.len());
        let (outcome, log_ins) = self.drive(job, Reader::Caller(kept.clone()))?;
        Ok(Collected { outcome, printed: kept.take(), log_ins })
    }

    fn drive(
        self,
        job: impl FnOnce(&Brake, usize) -> Result<Job, Failure>,
        reader: Reader,
    ) -> Result<(Outcome, Option<Arc<LogIns>>), Failure> {
        let sessions = self.sessions()?;
        // At most four threads: handshakes are limited by CPU, and each thread needs memory.
        let workers = std::thread::available_parallelism().map_or(2, usize::from).min(4);
        // A connection that is alone is faster if nothing is handed from one thread to another.
        let runtime = if self.names.len() == 1 { threads::single()? } else { threads::runtime(workers)? };
        let ran = runtime.block_on(self.run_on_hosts(sessions, job, reader));
        // Do not wait for threads that are blocked on a terminal or a slow reader.
        runtime.shutdown_background();
        ran
    }

    async fn run_on_hosts(
        self,
        sessions: usize,
        job: impl FnOnce(&Brake, usize) -> Result<Job, Failure>,
        reader: Reader,
    ) -> Result<(Outcome, Option<Arc<LogIns>>), Failure> {
        let brake = Brake::default();
        let names = &self.names;
        let board = Arc::new(Board::new(names.clone()));
        let quiet_line =
            !std::io::stderr().is_terminal() || show::is_dumb() || self.show.talk() == Talk::Quiet;
        let keep = match &self.show.directory {
            Some(directory) => Keep::files(directory, names).map_err(|error| {
                Failure::usage(format!("cannot write to {}: {error}", directory.display()))
            })?,
            None => Keep::hashes(names.len()),
        };
        let terminal = Arc::new(Terminal::default());
        let enter = Arc::new(Notify::new());
        let steps = self.pace.steps(&enter)?;
        let limits = self.pace.limits(sessions);
        let job = job(&brake, limits.sessions.min(names.len()))?;
        let ready = self.engine.ready(names, self.pace.connect_timeout(), &terminal)?;
        let engines::Ready { engine, mut hosts, identities, log_ins } = ready;
        if matches!(job, Job::Copy(_)) && limits.sessions.min(hosts.len()) <= FEW_SESSIONS {
            hosts.iter_mut().for_each(for_bulk);
        }
        let (view, journal): (Box<dyn View>, _) = match &reader {
            Reader::Person => (self.show.view(&hosts), again::begin(&self.about, names)),
            Reader::Caller(kept) => (Box::new(kept.clone()), None),
        };
        let sinks = Sinks {
            view,
            keep,
            progress: (!quiet_line).then(|| Progress::new(Arc::clone(&board), Arc::clone(&terminal))),
        };
        let out = Outbox::open(sinks, brake.clone()).map_err(|error| threads::refused(1, &error))?;
        let (said, on_stop, stages) = (out.clone(), self.on_stop, Arc::clone(&board));
        brake.obey_signals(move |stop| {
            said.note(match stop {
                Stop::AtOnce(_) => "quitting immediately".to_owned(),
                _ if stages.at_work().is_empty() => "stopping: no command runs on the hosts".to_owned(),
                _ => on_stop.to_owned(),
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
        let person = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
        if self.keyboard == Keyboard::Free && person {
            let taken = if self.pace.waits_for_enter() { keys::Taken::Lines } else { keys::Taken::Enter };
            keys::listen(taken, out.clone(), Arc::clone(&enter), terminal);
        }
        let plan = Plan { hosts, job, engine, limits, steps, journal };
        let mut outcome = fleet::run::run(plan, board, brake, out).await;
        // Outside of the lab, the suggested `--again` command would use the user's own hosts.
        if std::env::var("HOME").is_ok_and(|home| ssh::lab_home::is_inside(&home)) {
            outcome.again = Again::NotOffered;
        }
        if let Some(identities) = &identities {
            self.tell_notes(identities, &outcome)?;
        }
        // Write changes of addresses and host keys that connections noticed.
        for error in identities.map(|identities| identities.flush().failed).unwrap_or_default() {
            complain(&format!("note: {}\n", plain(&error.to_string())));
        }
        if matches!(reader, Reader::Person) {
            self.tell(&outcome)?;
        }
        Ok((outcome, log_ins))
    }

    /// Number of parallel sessions that the descriptors of this process allow.
    fn sessions(&self) -> Result<usize, Failure> {
        let limit = usize::try_from(sys::descriptors::raise_limit()?).unwrap_or(usize::MAX);
        let open = sys::descriptors::open_count().unwrap_or(16);
        let output = if self.show.directory.is_some() { 2 } else { 0 };
        let each = self.engine.descriptors() + output + self.local_files;
        match limit.saturating_sub(open + RESERVE) / each {
            0 => Err(Failure::runtime(format!("{limit} descriptors are too few for a single host"))),
            room => Ok(room),
        }
    }

    /// Reports whether the summary is written to standard output.
    fn to_stdout(&self, outcome: &Outcome) -> bool {
        self.show.json && outcome.output != Shown::Truncated
    }

    /// Prints what the run noticed about verified hosts, such as a new address.
    fn tell_notes(&self, identities: &Identities, outcome: &Outcome) -> Result<(), Failure> {
        for (host, note) in identities.take_notes().into_iter().chain(identities.notes_of_several()) {
            if self.to_stdout(outcome) {
                let line = serde_json::json!({ "event": "note", "host": host, "text": note });
                print_line(&line, outcome.status)?;
            } else if self.show.talk() == Talk::Usual {
                complain(&format!("{}\n", plain(&note)));
            }
        }
        Ok(())
    }

    fn tell(&self, outcome: &Outcome) -> Result<(), Failure> {
        if self.to_stdout(outcome) {
            // A program that reads JSON expects the summary on standard output.
            let line = summary::json(&self.names, outcome);
            return print_line(&line, outcome.status);
        }
        let mut text = String::new();
        if outcome.status != Status::Ok || self.show.talk() == Talk::Usual {
            text.push_str(&summary::text(&self.names, outcome));
        }
        complain(&plain_lines(&text));
        Ok(())
    }
}

/// Prints a line of JSON. An earlier loss of standard output has already been reported.
fn print_line(line: &Value, status: Status) -> Result<(), Failure> {
    match print_json(&format!("{line}\n")) {
        Err(Failure::OutputClosed) | Ok(()) => Ok(()),
        Err(_) if status >= Status::OutputLost => Err(Failure::Status(status.code())),
        Err(error) => {
            let _ = error.report();
            Err(Failure::Status(Status::OutputLost.code()))
        }
    }
}

/// Selects larger flow-control windows.
fn for_bulk(host: &mut Host) {
    if let Ok(target) = &mut host.target {
        target.purpose = Purpose::Bulk;
    }
}

/// Descriptors for standard streams, the runtime, the agent, name servers and the journal.
pub(crate) const RESERVE: usize = 48;
const TICK: Duration = Duration::from_millis(200);
/// Largest number of hosts with windows of 16 MiB each.
const FEW_SESSIONS: usize = 32;
