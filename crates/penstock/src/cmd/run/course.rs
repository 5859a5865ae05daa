//! A run from its arguments to its exit status, whatever is done with the hosts.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use fleet::run::board::Board;
use fleet::run::keep::Keep;
use fleet::run::output::{Outbox, Sinks};
use fleet::run::progress::Progress;
use fleet::run::stop::{Brake, Stop};
use fleet::run::terminal::Terminal;
use fleet::run::{Again, Host, Job, Outcome, Plan, Shown, summary};
use logic::fleet::verdict::Status;
use serde_json::Value;
use ssh::Purpose;
use ssh::identity::Identities;
use tokio::sync::Notify;

use super::show::{self, Talk};
use super::{again, engines, keys, pace};
use crate::output::{Failure, complain, plain, plain_lines, print_json};
use crate::threads;

/// A run, ready but for its job.
pub struct Course<'a> {
    pub names: Vec<String>,
    pub pace: &'a pace::Arguments,
    pub engine: &'a engines::Arguments,
    pub show: &'a show::Arguments,
    /// For the journal: what is needed to do it again.
    pub about: Value,
    /// Said when somebody stops it.
    pub on_stop: &'static str,
    pub keyboard: Keyboard,
    /// Files that are open for a host, beside its connection and its output.
    pub local_files: usize,
}

/// What our standard input is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keyboard {
    /// Where somebody may press Enter.
    Free,
    /// Input for the hosts.
    Input,
}

impl Course<'_> {
    /// Runs it, tells what happened, and says by the exit code how well. `job` learns how many hosts are worked on at once,
    /// at most.
    pub fn run(self, job: impl FnOnce(&Brake, usize) -> Result<Job, Failure>) -> Result<(), Failure> {
        let sessions = self.sessions()?;
        // At most four threads: a handshake is mostly computing, and a thread more costs memory and little else.
        let workers = std::thread::available_parallelism().map_or(2, usize::from).min(4);
        let runtime = threads::runtime(workers)?;
        let status = runtime.block_on(self.whole(sessions, job));
        // Threads that wait for a terminal or a slow reader must not hold up the end.
        runtime.shutdown_background();
        match status? {
            Status::Well => Ok(()),
            status => Err(Failure::Status(status.code())),
        }
    }

    async fn whole(
        self,
        sessions: usize,
        job: impl FnOnce(&Brake, usize) -> Result<Job, Failure>,
    ) -> Result<Status, Failure> {
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
        let engines::Ready { engine, mut hosts, identities } = ready;
        if matches!(job, Job::Copy(_)) && limits.sessions.min(hosts.len()) <= FEW {
            hosts.iter_mut().for_each(for_bulk);
        }
        let sinks = Sinks {
            view: self.show.view(&hosts),
            keep,
            progress: (!quiet_line).then(|| Progress::new(Arc::clone(&board), Arc::clone(&terminal))),
        };
        let journal = again::begin(&self.about, names);
        let out = Outbox::open(sinks, brake.clone())?;
        let (said, on_stop, where_all_stand) = (out.clone(), self.on_stop, Arc::clone(&board));
        brake.obey_signals(move |stop| {
            said.note(match stop {
                Stop::AtOnce(_) => "letting go at once".to_owned(),
                _ if where_all_stand.at_work().is_empty() => "stopping: nothing runs on the hosts".to_owned(),
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
            keys::listen(out.clone(), Arc::clone(&enter), terminal);
        }
        let plan = Plan { hosts, job, engine, limits, steps, journal };
        let mut outcome = fleet::run::run(plan, board, brake, out).await;
        // Typed outside of the lab it would go to the user's own fleet.
        if std::env::var("HOME").is_ok_and(|home| ssh::lab::is_inside(&home)) {
            outcome.again = Again::NotOffered;
        }
        if let Some(identities) = &identities {
            self.tell_notes(identities, &outcome)?;
        }
        // Moves and rotations of keys that were seen on the way.
        for error in identities.map(|identities| identities.flush().failed).unwrap_or_default() {
            complain(&format!("note: {}\n", plain(&error.to_string())));
        }
        self.tell(&outcome)?;
        Ok(outcome.status)
    }

    /// Sessions that the descriptors of this process allow.
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

    /// Whether the end is told on standard output.
    fn to_stdout(&self, outcome: &Outcome) -> bool {
        self.show.json && outcome.output != Shown::GivenUp
    }

    /// What was noticed of hosts that are who they should be: that they moved.
    fn tell_notes(&self, identities: &Identities, outcome: &Outcome) -> Result<(), Failure> {
        for (host, note) in identities.take_notes() {
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
            // Whoever reads JSON reads all of it there.
            let line = summary::json(&self.names, outcome);
            return print_line(&line, outcome.status);
        }
        let mut text = String::new();
        if outcome.status != Status::Well || self.show.talk() == Talk::Usual {
            text.push_str(&summary::text(&self.names, outcome));
        }
        complain(&plain_lines(&text));
        Ok(())
    }
}

/// A line of JSON. Standard output that was lost before has been told.
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

/// Larger windows, for few hosts.
fn for_bulk(host: &mut Host) {
    if let Ok(target) = &mut host.target {
        target.purpose = Purpose::Bulk;
    }
}

/// Standard streams, the runtime, the agent, name servers, the journal.
pub const RESERVE: usize = 48;
const TICK: Duration = Duration::from_millis(200);
/// So many hosts may have windows of 16 MiB each.
const FEW: usize = 32;
