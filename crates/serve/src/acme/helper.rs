//! The helper process that runs the commands of dns-01 (`acme.NAME.dns.command`). `serve` may start no program once it
//! serves, so it starts this one before: [`start`] is called with the user of the process, without capabilities, and before
//! files and system calls are restricted. The helper has no sandbox. It runs the commands that it was told at the start and no
//! other: what comes later is the number of a command, a name and a value. It ends with `serve`, and its commands with it.
//!
//! [`run`] is the helper itself, `penstock acme-helper`; `crates/serve/src/acme/hooks.rs` asks it. Both speak lines of JSON over
//! a Unix socket.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use config::Config;
use config::types::AcmeChallenge;
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use state::lock::lock;
use sys::process::{self, OwnSession};

/// Name of the hidden command of this program.
pub const COMMAND: &str = "acme-helper";

/// Environment variables that the commands get; others may hold secrets of the configuration.
const PASSED_ON: [&str; 6] = ["PATH", "HOME", "LANG", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR"];

/// Commands that run at once at most; more are refused.
const MOST: usize = 64;

/// Bytes of a command's output that are kept: the last ones.
const KEPT: usize = 2048;

/// Time from SIGTERM to SIGKILL for a command that does not end in time.
const GRACE: Duration = Duration::from_secs(2);

/// How often a command is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// Commands that the helper may run.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Allowed {
    commands: Vec<Vec<String>>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Request {
    pub(super) id: u64,
    /// Number of the command.
    pub(super) command: usize,
    pub(super) limit: Duration,
    pub(super) action: Action,
    /// Name of the record, with a dot at its end.
    pub(super) name: String,
    pub(super) value: String,
}

/// What a command is to do. The words are those of lego's provider `exec`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Action {
    Present,
    Cleanup,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Reply {
    pub(super) id: u64,
    pub(super) result: Result<(), String>,
}

/// The connection to a helper that was started, and its commands.
#[derive(Debug, Default)]
pub struct Helper {
    pub(super) commands: Vec<Vec<String>>,
    /// `None` if no section has a command.
    pub(super) stream: Option<UnixStream>,
}

impl Helper {
    /// Commands that it runs: a configuration with others needs a new start.
    pub fn commands(&self) -> &[Vec<String>] {
        &self.commands
    }
}

/// Commands of all sections, each once.
pub fn commands(config: &Config) -> Vec<Vec<String>> {
    let mut all: Vec<Vec<String>> = Vec::new();
    for section in &config.acme {
        if let AcmeChallenge::DnsCommand(command) = &section.challenge
            && !all.contains(&command.words)
        {
            all.push(command.words.clone());
        }
    }
    all
}

/// Starts the helper, if a section has a command.
pub fn start(config: &Config) -> io::Result<Helper> {
    let commands = commands(config);
    if commands.is_empty() {
        return Ok(Helper::default());
    }
    let (mut ours, theirs) = UnixStream::pair()?;
    // The file of this program may have been replaced since it was started.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("penstock").arg(COMMAND).env_clear();
    command.envs(PASSED_ON.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    // Ctrl-C is for the front door, with whose end the socket ends.
    command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).current_dir("/").process_group(0);
    command.spawn()?;
    ours.write_all(&line(&Allowed { commands: commands.clone() })?)?;
    Ok(Helper { commands, stream: Some(ours) })
}

pub(super) fn line(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

type Running = Arc<Mutex<HashMap<u64, OwnSession>>>;

/// Runs commands until the front door ends.
///
/// # Errors
/// Standard input is no socket of a front door.
pub fn run() -> io::Result<()> {
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let answers = Arc::new(Mutex::new(socket.try_clone()?));
    let mut lines = BufReader::new(socket).lines();
    let first = lines.next().ok_or(io::ErrorKind::UnexpectedEof)??;
    let allowed: Allowed = serde_json::from_str(&first)?;
    let allowed = Arc::new(allowed.commands);
    let running = Running::default();
    while let Some(Ok(text)) = lines.next() {
        let request: Request = serde_json::from_str(&text)?;
        let id = request.id;
        let answer = {
            let answers = answers.clone();
            move |result| {
                // If the front door has ended, the loop ends.
                if let Ok(line) = line(&Reply { id, result }) {
                    let _ = lock(&answers).write_all(&line);
                }
            }
        };
        if lock(&running).len() >= MOST {
            answer(Err(format!("{MOST} commands are running")));
            continue;
        }
        let (allowed, table, tell) = (allowed.clone(), running.clone(), answer.clone());
        let work = move || tell(perform(&allowed, &request, &table));
        if let Err(error) = thread::Builder::new().spawn(work) {
            answer(Err(format!("cannot start a thread: {error}")));
        }
    }
    for session in lock(&running).values() {
        session.signal(Signal::SIGTERM);
    }
    let end = Instant::now() + GRACE;
    while !lock(&running).is_empty() && Instant::now() < end {
        thread::sleep(LOOK);
    }
    for session in lock(&running).values() {
        session.signal(Signal::SIGKILL);
    }
    Ok(())
}

fn perform(allowed: &[Vec<String>], request: &Request, running: &Running) -> Result<(), String> {
    let words = allowed.get(request.command).ok_or("no such command")?;
    let (program, arguments) = words.split_first().ok_or("no such command")?;
    let action = match request.action {
        Action::Present => "present",
        Action::Cleanup => "cleanup",
    };
    let failed = |error: io::Error| format!("cannot be started: {error}");
    let (output, theirs) = io::pipe().map_err(failed)?;
    let mut command = Command::new(program);
    command.args(arguments).args([action, &request.name, &request.value]);
    command.stdin(Stdio::null()).stdout(theirs.try_clone().map_err(failed)?).stderr(theirs);
    let (mut child, session) = process::spawn(&mut command).map_err(failed)?;
    // It holds the side of the pipe that must be closed here.
    drop(command);
    lock(running).insert(request.id, session);
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = said.clone();
    // A program that the command leaves behind may hold the pipe for ever.
    let listening = thread::Builder::new().spawn(move || listen(output, &heard));
    let signal = |signal| {
        if let Some(session) = lock(running).get(&request.id) {
            session.signal(signal);
        }
    };
    let ended = within(&mut child, request.limit, signal);
    lock(running).remove(&request.id);
    let grace = Instant::now() + Duration::from_millis(200);
    while listening.as_ref().is_ok_and(|thread| !thread.is_finished()) && Instant::now() < grace {
        thread::sleep(LOOK);
    }
    let said = String::from_utf8_lossy(&lock(&said)).trim().to_owned();
    let why = match ended {
        Ok(Some(status)) if status.success() => return Ok(()),
        Ok(Some(status)) => status.to_string(),
        Ok(None) => format!("did not end within {} s", request.limit.as_secs_f32()),
        Err(error) => format!("cannot be waited for: {error}"),
    };
    Err(if said.is_empty() { why } else { format!("{why}; it said: {said}") })
}

/// Waits for a command; `None` if it had to be ended.
fn within(
    child: &mut Child,
    limit: Duration,
    signal: impl Fn(Signal),
) -> io::Result<Option<std::process::ExitStatus>> {
    for (limit, end) in [(limit, Some(Signal::SIGTERM)), (GRACE, Some(Signal::SIGKILL)), (GRACE, None)] {
        let until = Instant::now() + limit;
        let is_first = end == Some(Signal::SIGTERM);
        while Instant::now() < until {
            if let Some(status) = child.try_wait()? {
                return Ok(is_first.then_some(status));
            }
            thread::sleep(LOOK);
        }
        end.into_iter().for_each(&signal);
    }
    Ok(None)
}

fn listen(mut output: impl Read, said: &Mutex<Vec<u8>>) {
    let mut chunk = [0; 1024];
    while let Ok(count @ 1..) = output.read(&mut chunk) {
        let mut said = lock(said);
        said.extend_from_slice(&chunk[..count]);
        let surplus = said.len().saturating_sub(KEPT);
        said.drain(..surplus);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(script: &str, limit: Duration, command: usize) -> Result<(), String> {
        let words = ["/bin/sh", "-c", script, "hook"].map(str::to_owned).to_vec();
        let request = Request {
            id: 1,
            command,
            limit,
            action: Action::Present,
            name: "_acme-challenge.a.example.".into(),
            value: "v".into(),
        };
        perform(&[words], &request, &Running::default())
    }

    #[test]
    fn commands_get_their_words_and_what_fails_is_told_with_its_output() {
        let long = Duration::from_secs(60);
        let words = r#"[ "$*" = "present _acme-challenge.a.example. v" ] || { echo "got $*"; exit 9; }"#;
        assert_eq!(ask(words, long, 0), Ok(()));
        assert_eq!(
            ask("echo out; echo err >&2; exit 3", long, 0).unwrap_err(),
            "exit status: 3; it said: out\nerr"
        );
        assert_eq!(ask("exit 3", long, 0).unwrap_err(), "exit status: 3");
        assert_eq!(ask("", long, 1).unwrap_err(), "no such command");
        let loud = ask("yes | head -c 1000000; echo end; exit 1", long, 0).unwrap_err();
        assert!(loud.len() < KEPT + 100 && loud.ends_with("end"), "{loud}");
        let (name, value) = (String::new(), String::new());
        let missing = Request { id: 1, command: 0, limit: long, action: Action::Cleanup, name, value };
        let nothing = perform(&[vec!["/no/such".into()]], &missing, &Running::default());
        assert!(nothing.unwrap_err().starts_with("cannot be started: "));
    }

    #[test]
    fn a_command_that_does_not_end_is_ended_with_all_that_it_started() {
        let begun = Instant::now();
        let why = ask("echo begun; trap '' TERM; sleep 600 & wait; sleep 600", Duration::from_secs(3), 0);
        assert_eq!(why.unwrap_err(), "did not end within 3 s; it said: begun");
        assert!(begun.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_program_left_behind_does_not_keep_the_answer() {
        assert_eq!(ask("sleep 600 & exit 0", Duration::from_secs(60), 0), Ok(()));
    }
}
