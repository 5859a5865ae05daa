//! Processes that a run starts: pinned to cores, in their own session, with a log, and ended when dropped.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, UsageWho, getrusage, setrlimit};
use nix::sys::signal::Signal;
use nix::sys::time::{TimeVal, TimeValLike};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use sys::process::{OwnSession, Sent};

use crate::address::Address;
use crate::context::Context;
use crate::error::{Error, ErrorContext};
use crate::meter::Cpu;

/// Command line and environment of a process.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Name in messages and reports.
    pub name: String,
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
    /// Allowed cores; empty: all.
    pub cores: Vec<usize>,
    /// Environment variables added to those of this process.
    pub environment: Vec<(OsString, OsString)>,
    /// Working directory; `None`: that of this process.
    pub directory: Option<PathBuf>,
}

/// A process that may have ended. Dropping it kills and awaits its whole process group.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    session: OwnSession,
    log: PathBuf,
}

impl Launch {
    /// Makes a command without arguments, pinned to `cores`.
    pub fn new(name: impl Into<String>, program: impl Into<PathBuf>, cores: &[usize]) -> Self {
        Launch {
            name: name.into(),
            program: program.into(),
            arguments: Vec::new(),
            cores: cores.to_vec(),
            environment: Vec::new(),
            directory: None,
        }
    }

    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    pub fn args<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Sets the working directory.
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }
}

impl Process {
    /// Starts the process; both its outputs go into a log file.
    pub fn start(context: &Context, launch: &Launch) -> Result<Self, Error> {
        Self::spawn(context, launch, Pipes::None)
    }

    /// Starts the process with pipes to standard input and output; its standard error goes into a log file.
    pub(crate) fn start_piped(
        context: &Context,
        launch: &Launch,
    ) -> Result<(Self, Option<(ChildStdin, ChildStdout)>), Error> {
        let mut process = Self::spawn(context, launch, Pipes::Both)?;
        let pipes = process.child.stdin.take().zip(process.child.stdout.take());
        Ok((process, pipes))
    }

    fn spawn(context: &Context, launch: &Launch, pipes: Pipes) -> Result<Self, Error> {
        become_subreaper()?;
        forbid_core_files()?;
        let log = context.path(&format!("{}.log", launch.name.replace(['/', ' '], "-")));
        let doing = format!("start {} ({})", launch.name, launch.program.display());
        let file = File::create(&log).doing(format!("create {}", log.display()))?;
        let mut command = Command::new(&launch.program);
        command.args(&launch.arguments).envs(launch.environment.iter().cloned());
        command.stderr(file.try_clone().doing(doing.as_str())?);
        match pipes {
            Pipes::None => command.stdin(Stdio::null()).stdout(file),
            Pipes::Both => command.stdin(Stdio::piped()).stdout(Stdio::piped()),
        };
        if let Some(directory) = &launch.directory {
            command.current_dir(directory);
        }
        sys::child::end_with_parent(&mut command, &launch.cores).doing(doing.as_str())?;
        let nonce = sys::process::mark(&mut command);
        let child = command.spawn().doing(doing)?;
        let session = OwnSession::of_child(child.id(), nonce);
        Ok(Process { name: launch.name.clone(), child, session, log })
    }

    /// Process id, the root of the process tree.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the last lines of the log.
    pub fn last_words(&self) -> String {
        last_lines(&self.log)
    }

    /// Returns an error if the process has ended.
    pub fn check(&mut self) -> Result<(), Error> {
        // `has_ended` does not reap the process: until `drop` does, no other process gets its id or group id.
        match sys::process::has_ended(self.child.id()) {
            false => Ok(()),
            true => Err(Error::Ended { what: self.name.clone(), log: self.last_words() }),
        }
    }

    /// Waits until the process takes clients at `address`.
    pub fn wait_listening(&mut self, context: &Context, address: &Address) -> Result<(), Error> {
        let start = Instant::now();
        while !address.is_served() {
            context.check()?;
            self.check()?;
            if start.elapsed() > READY_LIMIT {
                let seconds = READY_LIMIT.as_secs();
                return Err(Error::NotReady { what: self.name.clone(), seconds, log: self.last_words() });
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Waits until the process has ended, and returns its exit status as an [`Ending`].
    pub fn wait(&mut self, context: &Context, limit: Duration) -> Result<Ending, Error> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().doing(format!("wait for {}", self.name))? {
                return Ok(if status.success() { Ending::Well } else { Ending::Badly });
            }
            context.check()?;
            if start.elapsed() > limit {
                let seconds = limit.as_secs();
                return Err(Error::NotReady { what: self.name.clone(), seconds, log: self.last_words() });
            }
            thread::sleep(POLL);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Exit status 0.
    Well,
    /// Another exit status, or a signal.
    Badly,
}

impl Drop for Process {
    fn drop(&mut self) {
        let group = Pid::from_raw(self.pid());
        let start = Instant::now();
        let mut signal = Signal::SIGTERM;
        while self.session.signal(signal) == Sent::Signalled && start.elapsed() <= GRACE * 4 {
            thread::sleep(POLL);
            let _ = self.child.try_wait();
            reap_adopted(group);
            if start.elapsed() > GRACE {
                signal = Signal::SIGKILL;
            }
        }
        let _ = self.child.try_wait();
        let _ = fs::remove_file(&self.log);
    }
}

/// Finds a program in `PATH` or in Debian's directories for daemons.
pub fn find(program: &str, package: &str) -> Result<PathBuf, Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let daemons = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    let mut directories = std::env::split_paths(&path).chain(daemons);
    let found = directories.find_map(|directory| Some(directory.join(program)).filter(|file| file.is_file()));
    found.ok_or_else(|| Error::Missing { program: program.to_owned(), package: package.to_owned() })
}

/// CPU time of all ended and reaped children of this process: exact to the microsecond, including their start.
pub(crate) fn cpu_of_ended() -> Result<Cpu, Error> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).doing("read the CPU time of processes that ended")?;
    let seconds = |time: TimeVal| time.num_microseconds() as f64 / 1e6;
    let (user, system) = (seconds(usage.user_time()), seconds(usage.system_time()));
    Ok(Cpu { total: user + system, user, system })
}

/// Whether standard input and output are pipes to this process.
#[derive(Clone, Copy)]
enum Pipes {
    None,
    Both,
}

/// Makes this process a subreaper (prctl(2)), so that it can wait for workers whose parent has ended.
fn become_subreaper() -> Result<(), Error> {
    nix::sys::prctl::set_child_subreaper(true).doing("adopt processes whose parent ends")
}

/// Disables core files: a program that crashes at its end must not leave one in the user's directory. pen crashes so,
/// and first raises its soft limit to the hard one.
fn forbid_core_files() -> Result<(), Error> {
    setrlimit(Resource::RLIMIT_CORE, 0, 0).doing("forbid core files")
}

fn reap_adopted(group: Pid) {
    let members = Pid::from_raw(-group.as_raw());
    while let Ok(status) = waitpid(members, Some(WaitPidFlag::WNOHANG)) {
        if status.pid().is_none() {
            break;
        }
    }
}

fn last_lines(log: &Path) -> String {
    let text = match fs::read(log) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => error.to_string(),
    };
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    if lines.is_empty() { "(nothing)".to_owned() } else { lines[lines.len().saturating_sub(5)..].join(" | ") }
}

/// Writes a line to a process. Write errors are ignored: other checks detect an ended process.
pub(crate) fn tell(stdin: &mut ChildStdin, line: &str) {
    let _ =
        stdin.write_all(line.as_bytes()).and_then(|()| stdin.write_all(b"\n")).and_then(|()| stdin.flush());
}

const POLL: Duration = Duration::from_millis(3);
const READY_LIMIT: Duration = Duration::from_secs(60);
/// Time that a process gets to end after a signal.
const GRACE: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::{Extent, Interrupt};

    #[test]
    fn no_process_can_raise_its_limit_of_core_files() {
        let context = Context::new("/nonexistent".into(), Interrupt::default(), Extent::Quick).unwrap();
        let launch = Launch::new("sh", "sh", &[]).args(["-c", "ulimit -H -c; ulimit -S -c"]);
        let mut process = Process::start(&context, &launch).unwrap();
        assert_eq!(process.wait(&context, Duration::from_secs(20)).unwrap(), Ending::Well);
        assert_eq!(process.last_words(), "0 | 0");
    }
}
