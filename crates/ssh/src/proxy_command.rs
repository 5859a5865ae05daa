//! A connection through the standard input and output of a shell command (`ProxyCommand`).

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Pair;
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::thread::Builder;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use sys::guardian::Guard;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

/// A running command and its two standard streams. Its process group is ended with it.
pub(crate) struct ProxyCommand {
    stream: UnixStream,
    /// Ends the command when the stream is dropped.
    _command: Running,
    /// The last of what it said on standard error.
    pub(crate) said: Arc<Mutex<Vec<u8>>>,
}

struct Running(Option<(Child, Guard)>);

impl ProxyCommand {
    /// Starts `command` in a shell.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start(command: &str) -> io::Result<Self> {
        let (ours, theirs) = Pair::pair()?;
        let (errors, their_errors) = Pair::pair()?;
        let mut run = Command::new("/bin/sh");
        run.args(["-c", &format!("exec {command}")])
            .stdin(Stdio::from(OwnedFd::from(theirs.try_clone()?)))
            .stdout(Stdio::from(OwnedFd::from(theirs)))
            .stderr(Stdio::from(OwnedFd::from(their_errors)));
        let child = sys::guardian::spawn(&mut run)?;
        // It has our copies of its ends.
        drop(run);
        ours.set_nonblocking(true)?;
        errors.set_nonblocking(true)?;
        let mut errors = UnixStream::from_std(errors)?;
        let said = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&said);
        tokio::spawn(async move {
            let mut chunk = [0; 512];
            while let Ok(length @ 1..) = errors.read(&mut chunk).await {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&chunk[..length]);
                let excess = kept.len().saturating_sub(KEPT);
                kept.drain(..excess);
            }
        });
        Ok(Self { stream: UnixStream::from_std(ours)?, _command: Running(Some(child)), said })
    }
}

impl Drop for Running {
    /// Asks the group to end, and insists. A thread waits for it, because it may take its time; if the program ends before,
    /// the guardian does the same.
    fn drop(&mut self) {
        let Some((mut child, guard)) = self.0.take() else { return };
        let group = Pid::from_raw(child.id().cast_signed());
        let _ = killpg(group, Signal::SIGHUP);
        if !is_left(&mut child, group) {
            return;
        }
        wait_for(child, guard, Builder::new().name("proxy-command".into()));
    }
}

/// Whether anything of the group is left. The first of it may end before what it started.
fn is_left(child: &mut Child, group: Pid) -> bool {
    !matches!(child.try_wait(), Ok(Some(_))) || killpg(group, None).is_ok()
}

/// Waits for the end of a command on a thread. Without one, as when 1,000 commands end at once, it is ended here and now.
fn wait_for(mut child: Child, guard: Guard, thread: Builder) {
    let group = Pid::from_raw(child.id().cast_signed());
    let waiting = thread.spawn(move || {
        let _ = killpg(group, Signal::SIGTERM);
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if !is_left(&mut child, group) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = killpg(group, Signal::SIGKILL);
        let _ = child.wait();
        drop(guard);
    });
    if waiting.is_err() {
        // The child went with the closure, and was not waited for: its number is still its own.
        let _ = killpg(group, Signal::SIGKILL);
        let _ = waitpid(group, None);
    }
}

impl AsyncRead for ProxyCommand {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for ProxyCommand {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// How long a command may take to end by itself.
const PATIENCE: Duration = Duration::from_secs(2);

/// Of standard error so much is kept.
const KEPT: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_is_ended_and_waited_for_also_where_no_thread_can_be_started() {
        let (mut child, guard) = started("trap '' HUP TERM; echo; sleep 600");
        // It ignores the gentle signals by now.
        std::io::Read::read_exact(&mut child.stdout.take().unwrap(), &mut [0]).unwrap();
        let group = Pid::from_raw(child.id().cast_signed());
        // No machine has room for such a stack.
        let none = Builder::new().stack_size(1 << 60);
        assert!(Builder::new().stack_size(1 << 60).spawn(|| ()).is_err());
        wait_for(child, guard, none);
        assert_eq!(waitpid(group, None), Err(nix::errno::Errno::ECHILD));
    }

    fn started(script: &str) -> (Child, Guard) {
        let mut command = Command::new("/bin/sh");
        sys::guardian::spawn(command.args(["-c", script]).stdout(Stdio::piped())).unwrap()
    }

    #[test]
    fn what_the_command_started_ends_although_the_command_itself_obeyed() {
        // What is started ignores all but SIGKILL; the first of the group does not.
        let script = "(trap '' HUP TERM; echo; exec sleep 600) & wait";
        let (mut child, guard) = started(script);
        let mut out = child.stdout.take().unwrap();
        std::io::Read::read_exact(&mut out, &mut [0]).unwrap();
        drop(Running(Some((child, guard))));
        // Held open by all of the group.
        let begun = Instant::now();
        std::io::Read::read_to_end(&mut out, &mut Vec::new()).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(300));
    }
}
