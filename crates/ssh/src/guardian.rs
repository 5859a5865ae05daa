//! Commands of the user's that do not outlive this program, however it ends.
//!
//! Handlers of signals would not do: SIGKILL has none, and the program has its own for some of the time. So a
//! small shell beside us reads from a pipe which commands there are, each in a session of its own. The pipe
//! closes when this program ends. Then the processes in the groups of these commands that are proved to
//! belong to them (`leash/proof.sh` of `logic`) get SIGTERM, and SIGKILL two seconds later.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use logic::fleet::leash;
use nix::sys::signal::Signal;
use sys::process::{self, OwnSession, Sent};

/// A command in a session of its own, which is ended if this program ends before this is dropped.
#[derive(Debug)]
pub struct Guard {
    session: OwnSession,
    /// The command as the guardian knows it; none where /proc does not tell when it was started.
    entry: Option<String>,
}

/// Starts `command` as leader of a session of its own, which does not outlive this program while the guard is kept. It has no
/// controlling terminal.
///
/// Where the guardian cannot be started, as on a machine without a process left, the command is started all the same.
///
/// # Errors
/// The command cannot be started.
pub fn spawn(command: &mut Command) -> io::Result<(Child, Guard)> {
    // Before the command: so the time in which the guardian does not know of it is short.
    WARD.lock().unwrap_or_else(PoisonError::into_inner).start();
    let (child, session) = process::spawn(command)?;
    let entry = session.leader().id().map(|it| entry(it, session.nonce()));
    if let Some(entry) = &entry {
        WARD.lock().unwrap_or_else(PoisonError::into_inner).enter(entry);
    }
    Ok((child, Guard { session, entry }))
}

impl Guard {
    /// Sends a signal to the process group of the command, if that is still the one that we have started.
    pub fn signal(&self, signal: Signal) -> Sent {
        self.session.signal(signal)
    }

    /// Whether something may be left in that group, the command included until it is waited for.
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

fn entry(command: process::ProcessId, nonce: &process::Nonce) -> String {
    format!("{}:{}:{nonce}", command.process, command.start)
}

/// One for the whole program.
static WARD: Mutex<Ward> = Mutex::new(Ward { entries: BTreeSet::new(), guardian: None });

/// The commands that must not outlive us, and the guardian that has been told of them.
#[derive(Debug)]
struct Ward {
    entries: BTreeSet<String>,
    guardian: Option<Guardian>,
}

impl Ward {
    /// Sees that there is a guardian. One that takes the place of another, which was killed, is told of all commands.
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

    fn leave(&mut self, entry: &str) {
        self.entries.remove(entry);
        self.tell('-', entry);
    }

    fn tell(&mut self, what: char, entry: &str) {
        if self.guardian.as_mut().is_some_and(|guardian| guardian.tell(what, entry).is_err()) {
            // The guardian was killed: the next command starts another one.
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
            .args(["-c", &(leash::proof() + SCRIPT)])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // It keeps no file system busy, and no terminal reaches it.
            .current_dir("/")
            .process_group(0)
            .spawn()?;
        let pipe = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { child, pipe })
    }

    /// Whether it was killed: it ends after us otherwise.
    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    fn tell(&mut self, what: char, entry: &str) -> io::Result<()> {
        // In one piece.
        self.pipe.write_all(format!("{what} {entry}\n").as_bytes())
    }
}

/// An entry is PID:START:NONCE. The command leads its group and its session.
const SCRIPT: &str = r#"
trap '' HUP INT QUIT TERM
entries=' '
while read -r what entry; do
  case "$what" in
    +) entries="$entries$entry " ;;
    -) case "$entries" in *" $entry "*) entries="${entries%% $entry *} ${entries#* $entry }" ;; esac ;;
  esac
done
with() {
  P=${1%%:*} T=${1#*:} N=${1##*:} within= before= mine=1
  T=${T%%:*} G=$P S=$P
}
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

    /// A group that ignores all but SIGKILL, and holds its output open; the script goes on after that.
    fn stubborn(script: &str) -> (Child, OwnSession, String) {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &format!("trap '' HUP INT TERM; {script}")]).stdout(Stdio::piped());
        let (mut child, session) = process::spawn(&mut command).unwrap();
        // From now on it ignores them.
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let entry = entry(session.leader().id().unwrap(), session.nonce());
        (child, session, entry)
    }

    #[test]
    fn groups_end_with_the_pipe_and_those_that_were_taken_back_do_not() {
        let both = "echo; sleep 600 | sleep 600";
        let (mut first, mut kept, mut last) = (stubborn(both), stubborn(both), stubborn(both));
        // The leader has ended and was waited for; what it started has not.
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
            // All of the group held its output open.
            child.stdout.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
            child.wait().unwrap();
        }
        assert!(begun.elapsed() < Duration::from_secs(60));
        assert_eq!(kept.0.try_wait().unwrap(), None);
        assert_eq!(kept.1.signal(Signal::SIGKILL), Sent::Signalled);
        kept.0.wait().unwrap();
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
        assert_eq!(process::VARIABLE, leash::VARIABLE);
        assert!(leash::proof().contains(&format!("{}=$N", leash::VARIABLE)));
    }
}
