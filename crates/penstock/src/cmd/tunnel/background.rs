//! `penstock tunnel up --detach`: starts a background process for the tunnel, and watches it until the tunnel is up.

use std::fs::File;
use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use fleet::tunnel::{Asked, Places, UP, ask};
use hosts::tunnel::plan::Tunnel;
use nix::sys::signal::Signal;
use sys::process::Process;
use tokio::signal::unix::{SignalKind, signal};

use super::log::Log;
use super::table::{busy, table};
use super::{asked, with_causes};
use crate::output::{Failure, complain, plain, plain_lines, print};

/// Starts a process for the tunnel, prints its messages, and returns when the tunnel is up. A signal before that also
/// ends the process, which undoes what it has begun.
pub(super) async fn detach(places: &Places, tunnel: &Tunnel) -> Result<(), Failure> {
    let name = tunnel.name.as_ref();
    if let Some(status) = asked(places, name, Asked::Status).await? {
        return Err(Failure::runtime(plain(&busy(&status))));
    }
    places.make().map_err(|error| Failure::runtime(with_causes(&error)))?;
    let log = Log::new(places, name);
    let failed = |error| Failure::runtime(format!("cannot write to {}: {error}", log.path().display()));
    let said = log.begin().map_err(failed)?;
    let mut says = Says { file: File::open(log.path()).map_err(failed)?, rest: Vec::new() };
    let mut ends = Ends::install()?;
    let program = std::env::current_exe()?;
    let arguments = std::env::args_os().skip(1).map(|argument| match argument == "--detach" {
        true => "--background".into(),
        false => argument,
    });
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
    // Own process group, so that a later Ctrl-C in this terminal does not end the process.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut child = command.spawn()?;
    let process = Process::of_child(child.id());
    let mut ended_by = None;
    loop {
        says.tell();
        if let Some(status) = child.try_wait()? {
            says.tell();
            // All lines were printed, so the log is not needed.
            let _ = std::fs::remove_file(log.path());
            let own = status.code().and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0);
            return Err(Failure::Status(ended_by.or(own).unwrap_or(1)));
        }
        if let Ok(Some(status)) = ask(places, name, Asked::Status).await
            && status.step == UP
            && status.pid == child.id()
            && ended_by.is_none()
        {
            says.tell();
            complain(&format!(
                "tunnel {name}: runs in the background: process {}, which writes to {}; `penstock tunnel down {name}` ends it\n",
                status.pid,
                log.path().display()
            ));
            return print(&plain_lines(&table(&status)));
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            code = ends.next() => {
                complain(&format!("tunnel {name}: it is not up yet; taking it down\n"));
                ended_by = Some(code);
                process.signal(Signal::SIGTERM);
            }
        }
    }
}

/// Signals that end the command.
struct Ends {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

impl Ends {
    fn install() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for a signal. Returns the exit status for it.
    async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => 130,
            _ = self.terminate.recv() => 143,
            _ = self.hangup.recv() => 129,
        }
    }
}

/// Copies the contents of a growing file to standard error.
struct Says {
    file: File,
    /// Last line without its newline.
    rest: Vec<u8>,
}

impl Says {
    fn tell(&mut self) {
        // A read error is ignored: the exit status of the process still shows the result.
        let _ = self.file.read_to_end(&mut self.rest);
        if let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') {
            let lines: Vec<u8> = self.rest.drain(..=end).collect();
            complain(&plain_lines(&String::from_utf8_lossy(&lines)));
        }
    }
}

const LOOK: Duration = Duration::from_millis(30);
