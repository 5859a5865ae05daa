//! The job: the command for which the tunnel runs. The teardown begins only after the job has ended: a request to end
//! the tunnel signals the job and waits for its end.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use hosts::tunnel::sequence::{JobEnd, Sequence};
use nix::sys::signal::Signal;
use sys::privilege::with_core_limit;
use tokio::process::{Child, Command};

use super::command;
use super::processes::{RUN, RunProcesses, STEP, Step};
use super::say::Say;
use super::stop::{Stop, is_foreground};
use super::supervise::Supervised;

pub(super) struct Job<'a> {
    pub(super) words: &'a [OsString],
    /// The run of the job, by which `penstock tunnel` finds the job's processes after a crash.
    pub(super) started: &'a RunProcesses,
    /// Environment variables of the job, added to ours.
    pub(super) variables: Vec<(String, String)>,
    pub(super) supervised: Option<&'a Supervised>,
    pub(super) say: &'a Say,
}

impl Job<'_> {
    /// Runs the job to its end. Signals are passed on to it. After the connection is given up, the job gets SIGTERM.
    pub(super) async fn to_its_end(&self, stop: &mut Stop, sequence: &mut Sequence) -> JobEnd {
        let Some((program, arguments)) = self.words.split_first() else {
            return JobEnd::NotStarted(127, "there is no command".to_owned());
        };
        let mut command = Command::new(program);
        command.args(arguments).envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.env(RUN, self.started.run()).env(STEP, Step::Job.word());
        with_core_limit(command.as_std_mut());
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
                    // The terminal has sent SIGINT to the job as well, since the job is in the same foreground process
                    // group.
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

/// Waits until the supervisor has given up the connection. Returns its reason.
pub(super) async fn given_up(supervised: Option<&Supervised>) -> String {
    match supervised {
        Some(supervised) => supervised.given_up().await,
        None => std::future::pending().await,
    }
}
