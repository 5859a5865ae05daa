//! Runs a script about keys on hosts, with the machinery of `penstock run`, and reads what it tells.

use std::path::Path;
use std::time::Duration;

use clap::Args;
use fleet::run::engine::Watcher;
use fleet::run::input::Input;
use fleet::run::{Job, Order, Shown};
use hosts::authorized::report::Report;
use hosts::authorized::script::{Becomes, Task, Work, script};
use hosts::fleet::ending::{Ending, Phase, Remote};
use hosts::fleet::verdict::{self, Status};
use hosts::ssh::key::Fingerprint;
use ssh::identity::{Places, Store};
use text::shell;

use crate::cmd::run::course::{Keyboard, PreparedRun};
use crate::cmd::run::{engines, pace, selection, show};
use crate::output::{Failure, complain, plain};

/// Options of commands about keys on hosts.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub(super) struct Fleet {
    #[command(flatten)]
    pub(super) hosts: selection::Arguments,
    /// Become root on the hosts by `sudo -n`, without a password: all accounts are seen then, as with a log-in as root
    #[arg(long, help_heading = "SSH")]
    pub(super) sudo: bool,
    #[command(flatten)]
    engine: engines::Arguments,
    #[command(flatten)]
    pace: pace::Arguments,
}

/// What became of a host.
pub(super) struct Host {
    pub(super) name: String,
    pub(super) report: Report,
    pub(super) ending: Ending,
    /// Why the script did not come to its end there; `None` if it did.
    pub(super) trouble: Option<String>,
    /// Key of our log-in, if it is known.
    pub(super) log_in: Option<Fingerprint>,
}

/// All hosts, in their order, and the exit status of the run itself.
pub(super) struct Ran {
    pub(super) hosts: Vec<Host>,
    pub(super) status: Status,
}

/// Longest time of the work on a host.
const TIMEOUT: Duration = Duration::from_secs(120);

impl Fleet {
    /// The hosts that are named; without any those of `penstock host list`.
    pub(super) fn names(&self) -> Result<Vec<String>, Failure> {
        if !self.hosts.is_empty() {
            return self.hosts.names();
        }
        let listed = Places::of_user().and_then(|places| Store::new(places).list());
        let listed = listed.map_err(|error| Failure::usage(format_args!("{error}")))?;
        let hosts = listed.hosts.into_iter().filter(|host| host.retired.is_none());
        let names: Vec<String> = hosts.map(|host| host.name.to_string()).collect();
        if names.is_empty() {
            return Err(Failure::usage(
                "no hosts, and none is enrolled\n  hint: -w 'web[1-3]', or penstock host import ~/.ssh/known_hosts",
            ));
        }
        complain(&format!("{} of penstock host list\n", text::units::count(names.len(), "host")));
        Ok(names)
    }

    /// The options that the same command needs to reach other hosts in the same way, each with a blank before it.
    pub(super) fn options(&self) -> String {
        let engine = &self.engine;
        let file = |path: &Path| shell::word(&path.display().to_string());
        let mut all = String::new();
        let mut add = |option: &str, value: Option<String>| {
            if let Some(value) = value {
                all += &format!(" {option} {value}");
            }
        };
        add("-l", engine.user.as_deref().map(shell::word));
        add("-F", engine.ssh_config.as_deref().map(file));
        add("-S", engine.ssh.as_deref().map(file));
        let own_program = engine.ssh.is_none() && engine.engine() == engines::EngineName::Openssh;
        add("--engine", own_program.then(|| "openssh".to_owned()));
        if self.sudo {
            all += " --sudo";
        }
        all
    }

    pub(super) fn becomes(&self) -> Becomes {
        if self.sudo { Becomes::Root } else { Becomes::Itself }
    }

    /// Runs the task on the hosts.
    pub(super) fn run(&self, names: &[String], task: &Task, on_stop: &'static str) -> Result<Ran, Failure> {
        if names.is_empty() {
            return Ok(Ran { hosts: Vec::new(), status: Status::Ok });
        }
        let mut pace = self.pace.clone();
        pace.timeout = pace.timeout.or(Some(TIMEOUT));
        if task.work == Work::Look {
            // Waves are for changes.
            (pace.waves, pace.stop_if, pace.pause) = (None, None, None);
        }
        let course = PreparedRun {
            names: names.to_vec(),
            pace: &pace,
            engine: &self.engine,
            show: &show::Arguments::default(),
            about: serde_json::Value::Null,
            on_stop,
            keyboard: Keyboard::Free,
            local_files: 0,
        };
        // The watcher prints its own nonce.
        let mark = fleet::run::nonce();
        let sent = script(task, &mark);
        let (connect_timeout, timeout) = (pace.connect_timeout(), pace.timeout);
        let collected = course.collect(|_, _| {
            Ok(Job::Command(Order {
                command: sent.command,
                input: Input::Bytes(sent.input.into()),
                watcher: Watcher::Wanted,
                nonce: fleet::run::nonce(),
                connect_timeout,
                timeout,
            }))
        })?;
        let outcome = collected.outcome;
        let mut status = outcome.status;
        if outcome.output == Shown::InternalError {
            status = status.max(Status::OutputLost);
        }
        let all = names.iter().zip(outcome.endings).zip(collected.printed);
        let hosts: Vec<Host> = all
            .map(|((name, ending), printed)| {
                let report = Report::parse(&printed.stdout, &mark);
                let trouble = (!report.is_whole).then(|| trouble(&ending, &printed.stderr));
                let log_in = collected.log_ins.as_ref().and_then(|log_ins| log_ins.key(name));
                Host { name: name.clone(), report, ending, trouble, log_in }
            })
            .collect();
        if status == Status::Ok && hosts.iter().any(|host| host.trouble.is_some()) {
            status = Status::Failed;
        }
        Ok(Ran { hosts, status })
    }
}

impl Host {
    /// What is known of changes where the script did not come to its end.
    pub(super) fn left(&self) -> &'static str {
        match self.ending.remote() {
            Remote::NotStarted => "nothing was changed",
            // Its last words may have been on their way when it was ended.
            Remote::Ended | Remote::MayHaveRun => "what is not listed may have been changed",
        }
    }
}

/// Says why a script did not come to its end.
fn trouble(ending: &Ending, stderr: &[u8]) -> String {
    let said = String::from_utf8_lossy(stderr);
    let said = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_owned();
    match ending {
        Ending::Failed(failure) => match &failure.advice {
            Some(advice) if failure.phase < Phase::Run => format!("{}; {advice}", failure.detail),
            _ => failure.detail.clone(),
        },
        _ if said.is_empty() => format!("the script ended too early ({})", verdict::title(ending)),
        _ => said,
    }
}

/// Hosts for a line of people: `web[1-3]`.
pub(super) fn folded<S: AsRef<str>>(names: &[S]) -> String {
    plain(&hosts::fleet::nodeset::fold(names.iter().map(AsRef::as_ref)))
}
