//! Ends the local commands that penstock has started when penstock ends, even if SIGKILL ends penstock.
//!
//! A signal handler is not enough: a process cannot handle SIGKILL, and penstock sets other signal handlers for some of
//! the time. So penstock starts a small shell, the guardian, and writes the list of its running commands to a pipe that
//! the guardian reads. Each command leads its own session. The kernel closes the pipe when penstock ends. Then the
//! guardian proves which processes in the process groups of these commands belong to the commands (`watcher/proof.sh`
//! of `hosts`), and sends SIGTERM to these processes, and SIGKILL two seconds later.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use hosts::fleet::watcher;
use nix::sys::signal::Signal;
use sys::process::{self, Nonce, OwnSession, Sent};

/// A command in its own session. If penstock ends before the guard is dropped, the guardian ends the command.
#[derive(Debug)]
pub struct Guard {
    session: OwnSession,
    /// The line that tells the guardian of the command; `None` where the command's start time could not be read from
    /// /proc.
    entry: Option<String>,
}

/// Starts `command` as the leader of its own session, without a controlling terminal. While the caller keeps the guard,
/// the processes of the session do not outlive penstock.
///
/// If the guardian cannot be started (the limit of processes is reached, for example), the command is started without
/// it.
///
/// # Errors
/// The command cannot be started.
pub fn spawn(command: &mut Command) -> io::Result<(Child, Guard)> {
    process::own_session(command);
    let announced = announce(command);
    let child = command.spawn()?;
    let guard = announced.watch(child.id());
    Ok((child, guard))
}

/// Does the first half of [`spawn`], for callers that start the command themselves, as the leader of its own session: the
/// other half is [`Announced::watch`]. Until then the guardian finds the command by its nonce.
#[must_use]
pub fn announce(command: &mut Command) -> Announced {
    let nonce = process::mark(command);
    let mut ward = WARD.lock().unwrap_or_else(PoisonError::into_inner);
    // The guardian starts before the command.
    ward.start();
    ward.enter(&nonce.to_string());
    Announced(nonce)
}

/// A command that is about to be started. Dropped, it was not.
#[derive(Debug)]
pub struct Announced(Nonce);

impl Announced {
    /// Tells the guardian of the child.
    #[must_use]
    pub fn watch(self, child: u32) -> Guard {
        let session = OwnSession::of_child(child, self.0.clone());
        let entry = session.leader().id().map(|it| entry(it, session.nonce()));
        if let Some(entry) = &entry {
            WARD.lock().unwrap_or_else(PoisonError::into_inner).replace(&self.0.to_string(), entry);
        }
        Guard { session, entry }
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        WARD.lock().unwrap_or_else(PoisonError::into_inner).leave(&self.0.to_string());
    }
}

impl Guard {
    /// Sends a signal to the process group of the command, after a proof that the group is still the group of this
    /// command.
    pub fn signal(&self, signal: Signal) -> Sent {
        self.session.signal(signal)
    }

    /// Returns true if the command's process group may still have members. A command that has not been waited for is a
    /// member.
    #[must_use]
    pub fn is_left(&self) -> bool {
        self.session.is_left()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(entry) = &self.entry {
            WARD.lock().unwrap_or_else(PoisonError::into_inner).leave(entry);
        }
    }
}

fn entry(command: process::ProcessId, nonce: &Nonce) -> String {
    format!("{}:{}:{nonce}", command.process, command.start)
}

static WARD: Mutex<GuardedCommands> =
    Mutex::new(GuardedCommands { entries: BTreeSet::new(), guardian: None });

/// The commands that must not outlive penstock, and the guardian that has the list of these commands.
#[derive(Debug)]
struct GuardedCommands {
    /// Of a command that is being started, its nonce alone.
    entries: BTreeSet<String>,
    guardian: Option<Guardian>,
}

impl GuardedCommands {
    /// Starts a guardian if none runs. A guardian that replaces a killed one gets the list of all commands.
    fn start(&mut self) {
        if self.guardian.as_mut().is_some_and(Guardian::has_ended) {
            self.guardian = None;
        }
        if self.guardian.is_none() {
            self.guardian = Guardian::start().ok();
            for entry in self.entries.clone() {
                self.tell('+', &entry);
            }
        }
    }

    fn enter(&mut self, entry: &str) {
        self.entries.insert(entry.to_owned());
        self.tell('+', entry);
    }

    /// Enters a command that was announced; the guardian finds the announcement by the nonce at the end of the entry.
    fn replace(&mut self, nonce: &str, entry: &str) {
        self.entries.remove(nonce);
        self.enter(entry);
    }

    fn leave(&mut self, entry: &str) {
        if self.entries.remove(entry) {
            self.tell('-', entry);
        }
    }

    fn tell(&mut self, what: char, entry: &str) {
        if self.guardian.as_mut().is_some_and(|guardian| guardian.tell(what, entry).is_err()) {
            // The guardian was killed: the start of the next command starts another guardian.
            self.guardian = None;
        }
    }
}

#[derive(Debug)]
struct Guardian {
    child: Child,
    pipe: ChildStdin,
}

impl Guardian {
    fn start() -> io::Result<Self> {
        let mut child = Command::new("/bin/sh")
            .args(["-c", &(watcher::proof() + SCRIPT)])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // In `/` the guardian keeps no file system in use; in its own process group it gets no signal from the
            // terminal.
            .current_dir("/")
            .process_group(0)
            .spawn()?;
        let pipe = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { child, pipe })
    }

    /// Returns true if the guardian was killed. Otherwise it ends only after penstock.
    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    fn tell(&mut self, what: char, entry: &str) -> io::Result<()> {
        // One write(2), so that the guardian never reads half a line.
        self.pipe.write_all(format!("{what} {entry}\n").as_bytes())
    }
}

/// The script of the guardian. An entry is PID:START:NONCE; the command leads its process group and its session. Of a command
/// that is being started there is the nonce alone. The child holds the pipe open until execve(2), so at the end of the pipe a
/// session leader has the nonce in its environment, or none was started. Each entry is a variable: of a thousand in one
/// list, the removal of all takes minutes.
const SCRIPT: &str = r#"
trap '' HUP INT QUIT TERM
while read -r what entry; do
  case "$what" in
    +) eval "penstock_guarded_${entry##*:}=$entry" ;;
    -) unset "penstock_guarded_${entry##*:}" ;;
  esac
done
with() {
  P=${1%%:*} T=${1#*:} N=${1##*:} within= before= mine=1
  T=${T%%:*} G=$P S=$P
}
entries=
for entry in $(set | tr -d "'" | grep "^penstock_guarded_[0-9a-f]*=[-0-9a-f:]*$"); do
  entry=${entry#*=}
  case "$entry" in *:*) entries="$entries $entry"; continue ;; esac
  N=$entry
  for pid in /proc/[0-9]*; do
    pid=${pid#/proc/}
    look "$pid" && [ "$group $session" = "$pid $pid" ] && is_own "$pid" && entries="$entries $pid:$start:$N"
  done
done
for entry in $entries; do with "$entry"; end TERM; done
tries=0
while [ "$tries" -lt 20 ]; do
  left=
  for entry in $entries; do with "$entry"; is_left && left="$left $entry"; done
  [ "$left" ] || exit 0
  entries=$left
  tries=$((tries + 1))
  sleep 0.1
done
for entry in $entries; do with "$entry"; end KILL; done
"#;

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::time::{Duration, Instant};

    use super::*;

    /// Starts a shell that ignores HUP, INT and TERM, and then runs `script`, which must first write one byte.
    fn stubborn(script: &str) -> (Child, OwnSession, String) {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &format!("trap '' HUP INT TERM; {script}")]).stdout(Stdio::piped());
        let (mut child, session) = process::spawn(&mut command).unwrap();
        // The shell ignores these signals from now on.
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let entry = entry(session.leader().id().unwrap(), session.nonce());
        (child, session, entry)
    }

    #[test]
    fn groups_end_with_the_pipe_and_those_that_were_taken_back_do_not() {
        let both = "echo; sleep 600 | sleep 600";
        let (mut first, mut kept, mut last) = (stubborn(both), stubborn(both), stubborn(both));
        // The leader has ended and was waited for; the process that it started still runs.
        let mut orphan = stubborn("sleep 600 & echo");
        orphan.0.wait().unwrap();
        let mut guardian = Guardian::start().unwrap();
        for (_, _, entry) in [&first, &kept, &last, &orphan] {
            guardian.tell('+', entry).unwrap();
        }
        guardian.tell('-', &kept.2).unwrap();
        drop(guardian);
        let begun = Instant::now();
        for (child, ..) in [&mut first, &mut last, &mut orphan] {
            // Every process of the group held the output open.
            child.stdout.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
            child.wait().unwrap();
        }
        assert!(begun.elapsed() < Duration::from_secs(60));
        assert_eq!(kept.0.try_wait().unwrap(), None);
        assert_eq!(kept.1.signal(Signal::SIGKILL), Sent::Signalled);
        kept.0.wait().unwrap();
    }

    #[test]
    fn command_that_was_only_announced_ends_with_the_pipe_and_one_that_was_withdrawn_does_not() {
        let (mut ours, session, _) = stubborn("echo; sleep 600");
        let (mut kept, other, _) = stubborn("echo; sleep 600");
        let mut guardian = Guardian::start().unwrap();
        for nonce in [session.nonce(), other.nonce()] {
            guardian.tell('+', &nonce.to_string()).unwrap();
        }
        guardian.tell('-', &other.nonce().to_string()).unwrap();
        drop(guardian);
        ours.stdout.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
        ours.wait().unwrap();
        assert_eq!(kept.try_wait().unwrap(), None);
        assert_eq!(other.signal(Signal::SIGKILL), Sent::Signalled);
        kept.wait().unwrap();
    }

    #[test]
    fn process_that_has_the_number_of_a_command_by_now_is_not_ended() {
        let (mut bystander, session, _) = stubborn("echo; sleep 600");
        let (mut ours, _, entry) = stubborn("echo; sleep 600");
        let (process, nonce) = (bystander.id(), session.nonce());
        let mut guardian = Guardian::start().unwrap();
        for recycled in
            [format!("{process}:1:{nonce}"), "1:1:a".to_owned(), "0:0:".to_owned(), "-1:1:a".to_owned()]
        {
            guardian.tell('+', &recycled).unwrap();
        }
        guardian.tell('+', &entry).unwrap();
        drop(guardian);
        ours.stdout.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
        ours.wait().unwrap();
        assert_eq!(bystander.try_wait().unwrap(), None);
        assert_eq!(session.signal(Signal::SIGKILL), Sent::Signalled);
        bystander.wait().unwrap();
    }

    #[test]
    fn variable_of_the_nonce_is_the_same_here_and_on_hosts() {
        assert_eq!(process::VARIABLE, watcher::VARIABLE);
        assert!(watcher::proof().contains(&format!("{}=$N", watcher::VARIABLE)));
    }
}
