//! Commands of the user's that do not outlive this program, however it ends.
//!
//! Handlers of signals would not do: SIGKILL has none, and the program has its own for some of the time. So a small shell
//! beside us reads from a pipe which process groups there are. The pipe closes when this program ends. The groups that are
//! left then are asked to end (SIGTERM), and ended two seconds later (SIGKILL).

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// A process group that is ended if this program ends before this is dropped.
#[derive(Debug)]
pub struct Guard(u32);

/// Starts `command` as leader of a process group of its own, which does not outlive this program while the guard is kept.
///
/// Where the guardian cannot be started, as on a machine without a process left, the command is started all the same.
///
/// # Errors
/// The command cannot be started.
pub fn spawn(command: &mut Command) -> io::Result<(Child, Guard)> {
    // Before the command: so the time in which nobody knows of it is short.
    {
        let mut guardian = GUARDIAN.lock().unwrap_or_else(PoisonError::into_inner);
        if guardian.is_none() {
            *guardian = Guardian::start().ok();
        }
    }
    let child = command.process_group(0).spawn()?;
    let group = child.id();
    tell('+', group);
    Ok((child, Guard(group)))
}

impl Drop for Guard {
    fn drop(&mut self) {
        tell('-', self.0);
    }
}

fn tell(what: char, group: u32) {
    let mut guardian = GUARDIAN.lock().unwrap_or_else(PoisonError::into_inner);
    // Somebody ended it: the next command has another one.
    if guardian.as_mut().is_some_and(|guardian| guardian.tell(what, group).is_err()) {
        *guardian = None;
    }
}

/// One for the whole program.
static GUARDIAN: Mutex<Option<Guardian>> = Mutex::new(None);

#[derive(Debug)]
struct Guardian {
    pipe: ChildStdin,
}

impl Guardian {
    fn start() -> io::Result<Self> {
        let mut child = Command::new("/bin/sh")
            .args(["-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // It keeps no file system busy, and no terminal reaches it.
            .current_dir("/")
            .process_group(0)
            .spawn()?;
        // Nobody waits for it: it ends after us.
        let pipe = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { pipe })
    }

    fn tell(&mut self, what: char, group: u32) -> io::Result<()> {
        // In one piece.
        self.pipe.write_all(format!("{what} {group}\n").as_bytes())
    }
}

const SCRIPT: &str = r#"# Ends process groups when the program that started them has ended.
trap '' HUP INT QUIT TERM
groups=' '
while read -r what group; do
  case "$what" in
    +) groups="$groups$group " ;;
    -) groups="${groups%% $group *} ${groups#* $group }" ;;
  esac
done
for group in $groups; do kill -TERM "-$group"; done
tries=0
while [ "$tries" -lt 20 ]; do
  left=
  for group in $groups; do kill -0 "-$group" && left="$left $group"; done
  [ "$left" ] || exit 0
  groups=$left
  tries=$((tries + 1))
  sleep 0.1
done
for group in $groups; do kill -KILL "-$group"; done
"#;

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::time::{Duration, Instant};

    use super::*;

    /// A group of two that ignores all but SIGKILL: the leader, and one that holds `alive` open.
    fn stubborn() -> Child {
        let mut child = Command::new("/bin/sh")
            .args(["-c", "trap '' HUP INT TERM; echo; sleep 600 | sleep 600"])
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        // From now on it ignores them.
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        child
    }

    #[test]
    fn groups_end_with_the_pipe_and_those_that_were_taken_back_do_not() {
        let (mut first, mut kept, mut last) = (stubborn(), stubborn(), stubborn());
        let mut guardian = Guardian::start().unwrap();
        for child in [&first, &kept, &last] {
            guardian.tell('+', child.id()).unwrap();
        }
        guardian.tell('-', kept.id()).unwrap();
        drop(guardian);
        let begun = Instant::now();
        for child in [&mut first, &mut last] {
            // All of the group held its output open.
            child.stdout.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
            child.wait().unwrap();
        }
        assert!(begun.elapsed() < Duration::from_secs(60));
        assert_eq!(kept.try_wait().unwrap(), None);
        let group = nix::unistd::Pid::from_raw(kept.id().cast_signed());
        nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL).unwrap();
        kept.wait().unwrap();
    }
}
