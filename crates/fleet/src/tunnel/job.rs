//! The command that a tunnel is brought up for. Nothing is taken down before it has ended, whatever happens meanwhile: it is asked
//! to end, and waited for.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use logic::tunnel::sequence::{JobEnd, Sequence};
use nix::sys::signal::Signal;
use tokio::process::{Child, Command};

use super::command;
use super::processes::{RUN, RunProcesses, STEP, Step};
use super::run::Say;
use super::stop::{Stop, is_foreground};
use super::supervise::Supervised;

/// A command, and what it runs through.
pub(super) struct Job<'a> {
    /// Program and arguments.
    pub(super) words: &'a [OsString],
    /// The run that it belongs to, by which it is found if that is killed.
    pub(super) started: &'a RunProcesses,
    /// Its environment, beside ours.
    pub(super) variables: Vec<(String, String)>,
    pub(super) supervised: Option<&'a Supervised>,
    pub(super) say: &'a Say,
}

impl Job<'_> {
    /// Runs it. Signals go to it; a tunnel that has given up asks it to end.
    pub(super) async fn to_its_end(&self, stop: &mut Stop, sequence: &mut Sequence) -> JobEnd {
        let Some((program, arguments)) = self.words.split_first() else {
            return JobEnd::NotStarted(127, "there is no command".to_owned());
        };
        let mut command = Command::new(program);
        command.args(arguments).envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.env(RUN, self.started.run()).env(STEP, Step::Job.word());
        match command.spawn() {
            Ok(child) => self.wait_for(child, stop, sequence).await,
            Err(error) => {
                let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
                JobEnd::NotStarted(code, format!("cannot run {}: {error}", program.display()))
            }
        }
    }

    async fn wait_for(&self, mut child: Child, stop: &mut Stop, sequence: &mut Sequence) -> JobEnd {
        let process = command::of_child(&child);
        self.started.note(Step::Job, &process);
        let mut broken = None;
        loop {
            tokio::select! {
                status = child.wait() => return match status {
                    Ok(status) => end(status),
                    Err(error) => JobEnd::NotStarted(126, format!("cannot wait for the job: {error}")),
                },
                why = given_up(self.supervised), if broken.is_none() => {
                    (self.say)(&format!("{why}; asking the job to end"));
                    sequence.handle_broken(why.clone());
                    broken = Some(why);
                    process.signal(Signal::SIGTERM);
                }
                signal = stop.next() => {
                    (self.say)("waiting for the job to end; what is mounted stays until then");
                    // From the terminal it has gone to the job as well, which is in the same group.
                    if !(signal == Signal::SIGINT && is_foreground()) {
                        process.signal(signal);
                    }
                }
            }
        }
    }
}

fn end(status: ExitStatus) -> JobEnd {
    let signal = status.signal().and_then(|signal| u8::try_from(signal).ok());
    match (status.code(), signal) {
        (Some(code), _) => JobEnd::Exited(u8::try_from(code).unwrap_or(u8::MAX)),
        (None, Some(signal)) => JobEnd::Signalled(signal),
        (None, None) => JobEnd::Exited(u8::MAX),
    }
}

/// Waits until no more attempts to connect are made, and says why.
pub(super) async fn given_up(supervised: Option<&Supervised>) -> String {
    match supervised {
        Some(supervised) => supervised.given_up().await,
        None => std::future::pending().await,
    }
}
