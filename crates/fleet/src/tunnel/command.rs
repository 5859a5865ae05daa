//! The commands of a tunnel that mount and unmount.

use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::sys::signal::Signal;
use sys::process::{self, Process};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};

use super::awake::within;
use super::processes::{RUN, RunProcesses, STEP, Step};

/// Runs a mount or unmount command to its end, in a session of its own. The error has its standard error. `started` is
/// `None` if a damaged list does not name the run: then the processes that the command leaves cannot be found.
pub(crate) async fn run(
    words: &[String],
    started: Option<&RunProcesses>,
    variables: &[(String, String)],
    limit: Duration,
) -> Result<(), String> {
    let Some((program, arguments)) = words.split_first() else { return Err("no command".to_owned()) };
    let mut command = std::process::Command::new(program);
    command.args(arguments).envs(variables.iter().map(|(name, value)| (name, value)));
    command.env(RUN, started.map_or("", RunProcesses::run)).env(STEP, Step::Mount.word());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // Ctrl-C is for the job: a mount helper in the background must not get SIGINT.
    process::own_session(&mut command);
    let spawned = Command::from(command).spawn();
    let mut child = spawned.map_err(|error| format!("cannot run {program}: {error}"))?;
    let process = of_child(&child);
    if let Some(started) = started {
        started.note(Step::Mount, &process);
    }
    let said = StderrTail::collect(child.stderr.take());
    let status = match within(limit, child.wait()).await {
        Ok(status) => status.map_err(|error| format!("cannot wait for {program}: {error}"))?,
        Err(_) => {
            process.signal(Signal::SIGTERM);
            return Err(format!("{program} did not end within {} s", limit.as_secs()));
        }
    };
    match (status.success(), status.code()) {
        (true, _) => Ok(()),
        (false, Some(code)) => Err(format!("{program} failed with status {code}{}", said.shown().await)),
        (false, None) => Err(format!("{program} was ended by a signal{}", said.shown().await)),
    }
}

pub(crate) fn of_child(child: &Child) -> Process {
    // A child that was waited for has no process id; 0 stands for none.
    Process::of_child(child.id().unwrap_or(0))
}

/// The end of a process's standard error. A helper in the background may keep the pipe open without a limit.
#[derive(Clone, Default)]
pub(crate) struct StderrTail {
    text: Arc<Mutex<Vec<u8>>>,
}

impl StderrTail {
    pub(crate) fn collect(from: Option<impl AsyncRead + Unpin + Send + 'static>) -> Self {
        let said = Self::default();
        let text = Arc::clone(&said.text);
        if let Some(mut from) = from {
            tokio::spawn(async move {
                let mut buffer = [0; 1024];
                while let Ok(count @ 1..) = from.read(&mut buffer).await {
                    let mut text = text.lock().unwrap_or_else(PoisonError::into_inner);
                    text.extend_from_slice(&buffer[..count]);
                    let most = 4096;
                    let surplus = text.len().saturating_sub(most);
                    text.drain(..surplus);
                }
            });
        }
        said
    }

    /// The last lines after `: `, escaped for a terminal. Empty if the process wrote nothing.
    pub(crate) async fn shown(&self) -> String {
        // The last output may not have been read yet.
        tokio::time::sleep(Duration::from_millis(50)).await;
        match self.last_lines().as_str() {
            "" => String::new(),
            lines => format!(": {lines}"),
        }
    }

    /// The last 4 KiB, not escaped.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn last_lines(&self) -> String {
        let text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let last = &lines[lines.len().saturating_sub(4)..];
        last.join("; ").chars().map(|c| if c.is_control() { '.' } else { c }).collect()
    }
}
