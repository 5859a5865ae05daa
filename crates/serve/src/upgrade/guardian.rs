//! The guardian: the process that starts the next one. `serve` may start no program once it serves, so it starts the guardian
//! before: with the user of the process, the capabilities that it keeps, and without new privileges, and before files are
//! restricted. System calls that no ordinary program makes are refused to it and to the next process. The
//! guardian runs one of the programs that it was told at the start (`crates/serve/src/upgrade/program.rs`), with the arguments and
//! the environment of the start, and nothing else: what comes later is a path to compare, and a socket for the new process.
//! It ends with `serve`.
//!
//! [`run`] is the guardian itself, `penstock upgrade-guardian`; [`Guardian`] asks it.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::sys::prctl;
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use state::lock::lock;
use sys::message_socket::MessageSocket;
use sys::{privilege, process, sandbox};

use super::program::{Launch, permitted};
use super::protocol::{Link, LinkError};

/// Name of the hidden command of this program.
pub const COMMAND: &str = "upgrade-guardian";

/// How often the guardian looks whether the new process has ended, while it starts.
const LOOK: Duration = Duration::from_millis(20);

/// Time for the guardian to answer. It reads a few files.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Time for the guardian to end.
const END_LIMIT: Duration = Duration::from_secs(2);

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
enum Order {
    /// Run a program; the socket beside it becomes its standard input.
    Start { program: Option<String> },
    /// End the program, and say how it ended.
    End,
    /// The new process serves: leave it alone.
    Leave,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
enum Report {
    /// It has given up what it does not need, and waits for orders.
    Waiting,
    Started {
        program: String,
        pid: u32,
    },
    Refused {
        why: String,
    },
    Ended {
        how: String,
    },
}

/// The side of the front door.
#[derive(Debug)]
pub struct Guardian {
    link: Link,
    child: Mutex<Child>,
}

/// The new process, as the guardian started it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Started {
    pub(crate) program: String,
    pub(crate) pid: u32,
}

impl Guardian {
    /// Starts the guardian. To be called when privileges are dropped, and before files and system calls are restricted.
    pub fn start(launch: &Launch) -> io::Result<Self> {
        let (ours, theirs) = MessageSocket::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("penstock").arg(COMMAND);
        for path in &launch.allowed {
            command.arg("--allow").arg(path);
        }
        command.arg("--").args(launch.taking_over());
        // Ctrl-C is for the front door, with whose end the socket ends. Its outputs are those of the next process.
        command.stdin(OwnedFd::from(theirs)).process_group(0);
        let child = Mutex::new(privilege::with_inherited(|| command.spawn())?);
        Ok(Self { link: Link::new(ours), child })
    }

    /// Waits until the guardian can do its work.
    pub(crate) fn confirm(&self) -> Result<(), String> {
        match self.hear()? {
            Report::Waiting => Ok(()),
            Report::Started { .. } | Report::Refused { .. } | Report::Ended { .. } => {
                Err(MIXED_UP.to_owned())
            }
        }
    }

    /// Runs a program. The error is an explanation for operators.
    pub(crate) fn start_program(
        &self,
        program: Option<&str>,
        socket: MessageSocket,
    ) -> Result<Started, String> {
        let order = Order::Start { program: program.map(str::to_owned) };
        self.link.give(&order, &[socket.as_fd()]).map_err(gone)?;
        // Its end of the pair is open in the new process alone, so that its end is seen.
        drop(socket);
        match self.hear()? {
            Report::Started { program, pid } => Ok(Started { program, pid }),
            Report::Refused { why } => Err(why),
            Report::Waiting | Report::Ended { .. } => Err(MIXED_UP.to_owned()),
        }
    }

    /// Ends the program that was started, and returns how it ended.
    pub(crate) fn end_program(&self) -> Result<String, String> {
        self.link.say(&Order::End).map_err(gone)?;
        match self.hear()? {
            Report::Ended { how } => Ok(how),
            Report::Waiting | Report::Started { .. } | Report::Refused { .. } => Err(MIXED_UP.to_owned()),
        }
    }

    /// Leaves the new process alone, and waits until the guardian has ended: the new process then belongs to init, which sees
    /// its end.
    pub(crate) fn leave(&self) {
        // A guardian that is gone leaves it alone as well.
        let _ = self.link.say(&Order::Leave);
        let until = Instant::now() + END_LIMIT;
        while matches!(lock(&self.child).try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(LOOK / 10);
        }
    }

    fn hear(&self) -> Result<Report, String> {
        self.link.hear(ANSWER_LIMIT).map(|(report, _)| report).map_err(gone)
    }
}

fn gone(error: LinkError) -> String {
    format!(
        "the process that starts programs for this one (penstock {COMMAND}) does not answer: {error}; the next start of the server has another one"
    )
}

const MIXED_UP: &str = "the process that starts programs for this one gave the answer to another question";

/// Waits for orders until the front door ends. `allowed` and `arguments` are those of [`Launch`].
///
/// # Errors
/// Standard input is no socket of a front door.
pub fn run(allowed: &[PathBuf], arguments: &[OsString]) -> io::Result<()> {
    let link = Link::new(MessageSocket::take_standard_input()?);
    // Other processes of this user, such as the one that serves, must not look into it.
    prctl::set_dumpable(false)?;
    if let Err(error) = sandbox::filter_calls_of_programs() {
        // As for the front door itself, which says it.
        tracing::debug!("system calls of the next process are not restricted before its start: {error}");
    }
    let mut running: Option<Child> = None;
    if link.say(&Report::Waiting).is_err() {
        return Ok(());
    }
    loop {
        let (order, descriptors): (Order, _) = match link.hear(LOOK_FOR_ORDERS) {
            Ok(heard) => heard,
            Err(LinkError::Silent(_)) => continue,
            // The front door has ended. The new process learns of that from its own socket.
            Err(_) => return Ok(()),
        };
        let refuse = |why: String| Report::Refused { why };
        let report = match order {
            Order::Start { program } => {
                let started = permitted(allowed, program.as_deref().map(Path::new)).and_then(|program| {
                    let child = start(&program, arguments, descriptors)?;
                    Ok((program, child))
                });
                match started {
                    Ok((program, child)) => {
                        let pid = child.id();
                        running = Some(child);
                        Report::Started { program: program.display().to_string(), pid }
                    }
                    Err(why) => refuse(why),
                }
            }
            Order::End => {
                Report::Ended { how: running.take().map_or_else(|| "it was not there".to_owned(), end) }
            }
            Order::Leave => return Ok(()),
        };
        if link.say(&report).is_err() {
            return Ok(());
        }
    }
}

/// Orders may come after months.
const LOOK_FOR_ORDERS: Duration = Duration::from_secs(3600);

fn start(program: &Path, arguments: &[OsString], descriptors: Vec<OwnedFd>) -> Result<Child, String> {
    let [socket] = <[OwnedFd; 1]>::try_from(descriptors).map_err(|_| "one socket belongs to the order")?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::from(socket));
    command.spawn().map_err(|error| {
        let hint = match error.raw_os_error().map(nix::errno::Errno::from_raw) {
            Some(nix::errno::Errno::ENOEXEC) => " (is it for another kind of processor?)",
            Some(nix::errno::Errno::ENOENT) => " (is its loader or interpreter missing?)",
            _ => "",
        };
        format!("{} cannot be run: {error}{hint}", program.display())
    })
}

/// Ends a program that did not become the next front door, unless it has ended by itself.
fn end(mut child: Child) -> String {
    // It may be about to end, and its status says why.
    let until = Instant::now() + END_LIMIT / 4;
    while Instant::now() < until {
        if let Ok(Some(status)) = child.try_wait() {
            return how(status);
        }
        std::thread::sleep(LOOK);
    }
    process::Process::of_child(child.id()).signal(Signal::SIGKILL);
    match child.wait() {
        Ok(status) if status.signal() == Some(Signal::SIGKILL as i32) => "it was ended".to_owned(),
        Ok(status) => how(status),
        Err(error) => format!("it cannot be waited for: {error}"),
    }
}

fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("it ended with exit status {code}"),
        (_, Some(signal)) => format!("it was ended by signal {signal}"),
        _ => format!("it ended ({status})"),
    }
}
