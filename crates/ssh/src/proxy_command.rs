//! A connection through the standard input and output of a shell command (`ProxyCommand`).

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Pair;
use std::os::unix::process::ExitStatusExt;
use std::pin::Pin;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::thread::Builder;
use std::time::{Duration, Instant};

use hosts::fleet::ending::{Failure, Reason};
use hosts::fleet::proxy_command::{self, End};
use nix::sys::signal::Signal;
use sys::process::Sent;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::watch;

use crate::guardian::{self, Guard};
use crate::target::Target;
use crate::trouble::quoted;
use crate::wire::ServerText;

/// A running command and its standard input and output. The drop ends its process group.
pub(crate) struct ProxyCommand {
    stream: UnixStream,
    _command: Running,
    /// The command's messages and exit status, also after the drop.
    pub(crate) account: Arc<Account>,
}

/// Messages of a command on standard error, and its exit status.
pub(crate) struct Account {
    /// The last [`KEPT`] bytes of standard error.
    said: Mutex<Vec<u8>>,
    progress: watch::Sender<Progress>,
}

#[derive(Clone, Copy, Default)]
struct Progress {
    status: Option<ExitStatus>,
    /// True if no process holds standard error open any more.
    silent: bool,
}

struct Running(Option<Group>);

struct Group {
    child: Child,
    guard: Guard,
    account: Arc<Account>,
}

impl ProxyCommand {
    /// Starts `command` in a shell.
    ///
    /// # Errors
    /// The command cannot be started.
    pub(crate) fn start(command: &str) -> io::Result<Self> {
        let (ours, theirs) = Pair::pair()?;
        let (errors, their_errors) = Pair::pair()?;
        let mut run = Command::new("/bin/sh");
        run.args(["-c", &format!("exec {command}")])
            .stdin(Stdio::from(OwnedFd::from(theirs.try_clone()?)))
            .stdout(Stdio::from(OwnedFd::from(theirs)))
            .stderr(Stdio::from(OwnedFd::from(their_errors)));
        let (child, guard) = guardian::spawn(&mut run)?;
        let account = Arc::new(Account::new());
        let group = Group { child, guard, account: Arc::clone(&account) };
        let command = Running(Some(group));
        // `run` holds copies of the command's descriptors, which must be closed here.
        drop(run);
        ours.set_nonblocking(true)?;
        errors.set_nonblocking(true)?;
        let mut errors = UnixStream::from_std(errors)?;
        let kept = Arc::clone(&account);
        tokio::spawn(async move {
            let mut chunk = [0; 512];
            while let Ok(length @ 1..) = errors.read(&mut chunk).await {
                kept.hear(&chunk[..length]);
            }
            kept.progress.send_modify(|progress| progress.silent = true);
        });
        Ok(Self { stream: UnixStream::from_std(ours)?, _command: command, account })
    }
}

impl Account {
    fn new() -> Self {
        Self { said: Mutex::default(), progress: watch::Sender::new(Progress::default()) }
    }

    fn hear(&self, bytes: &[u8]) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.extend_from_slice(bytes);
        let excess = said.len().saturating_sub(KEPT);
        said.drain(..excess);
    }

    /// Adds the command's messages and exit status to the failure of a connection: mostly they are its reason. The
    /// caller must drop the stream first.
    pub(crate) async fn explain(&self, mut failure: Failure, heard: &ServerText, target: &Target) -> Failure {
        let mut progress = self.progress.subscribe();
        // The command closes its streams a moment before it ends, and its last message may not be read yet.
        let _ = tokio::time::timeout(ENDING, progress.wait_for(|it| it.status.is_some() && it.silent)).await;
        let end = progress.borrow().status.and_then(end);
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let said = String::from_utf8_lossy(&said);
        let hung_up = failure.reason == Reason::ClosedByServer && heard.version().is_none();
        let end = end.filter(|_| hung_up && heard.before().is_empty());
        let ended = end.and_then(|end| proxy_command::ended(&target.name, end, &said));
        if said.trim().is_empty() {
            if let Some(ended) = ended {
                let line = target.said.proxy.as_deref().unwrap_or("ProxyCommand in ~/.ssh/config");
                failure = Failure { advice: Some(format!("{line}: run that command by itself")), ..ended };
            }
        } else {
            failure = Failure { advice: None, ..ended.unwrap_or(failure) };
            failure.detail.push_str(&format!("; the proxy command said {}", quoted(&said)));
        }
        failure
    }
}

/// Converts an exit status; `None` if a signal of penstock may have ended the command.
fn end(status: ExitStatus) -> Option<End> {
    let ours = [Signal::SIGHUP, Signal::SIGTERM, Signal::SIGKILL];
    match (status.code(), status.signal()) {
        (Some(code), _) => Some(End::Exited(code)),
        (None, Some(signal)) if !ours.iter().any(|ours| *ours as i32 == signal) => {
            Some(End::Signalled(signal))
        }
        _ => None,
    }
}

impl Drop for Running {
    /// Sends SIGHUP to the process group, and then SIGTERM and SIGKILL if needed. A thread waits for the end of the
    /// group. If the program ends first, the guardian ends the group.
    fn drop(&mut self) {
        let Some(mut group) = self.0.take() else { return };
        // Records the command's own end, before a signal of penstock ends it.
        group.look();
        if group.guard.signal(Signal::SIGHUP) == Sent::Signalled && group.is_left() {
            wait_for(group, Builder::new().name("proxy-command".into()));
        }
    }
}

impl Group {
    /// Returns true if the first process of the group runs.
    fn look(&mut self) -> bool {
        let Ok(Some(status)) = self.child.try_wait() else { return true };
        self.account.progress.send_modify(|progress| progress.status = Some(status));
        false
    }

    fn end(&mut self) {
        self.guard.signal(Signal::SIGKILL);
        let _ = self.child.wait();
    }

    /// Returns true if a process of the group is left. The command may end before the processes that it started.
    fn is_left(&mut self) -> bool {
        self.look() || self.guard.is_left()
    }
}

/// Waits for the end of a command on a thread. If no thread can be started (1,000 commands end at once, for example),
/// kills the group at once.
fn wait_for(group: Group, thread: Builder) {
    let group = Arc::new(Mutex::new(group));
    let kept = Arc::clone(&group);
    let waiting = thread.spawn(move || {
        let mut group = kept.lock().unwrap_or_else(PoisonError::into_inner);
        group.guard.signal(Signal::SIGTERM);
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if !group.is_left() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        group.end();
    });
    if waiting.is_err() {
        group.lock().unwrap_or_else(PoisonError::into_inner).end();
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

/// Time between SIGTERM and SIGKILL.
const PATIENCE: Duration = Duration::from_secs(2);

/// Maximum wait for the exit status and the last messages of a command that has closed its streams.
const ENDING: Duration = Duration::from_secs(2);

/// Maximum number of bytes kept of standard error.
const KEPT: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_is_ended_and_waited_for_also_where_no_thread_can_be_started() {
        let mut group = started("trap '' HUP TERM; echo; sleep 600");
        // From here on, the shell ignores SIGHUP and SIGTERM.
        std::io::Read::read_exact(&mut group.child.stdout.take().unwrap(), &mut [0]).unwrap();
        let number = group.child.id();
        // No machine has memory for this stack size.
        let none = Builder::new().stack_size(1 << 60);
        assert!(Builder::new().stack_size(1 << 60).spawn(|| ()).is_err());
        wait_for(group, none);
        assert_eq!(sys::process::stat(number.cast_signed()), None, "it runs, or was not waited for");
    }

    fn started(script: &str) -> Group {
        let mut command = Command::new("/bin/sh");
        let (child, guard) = guardian::spawn(command.args(["-c", script]).stdout(Stdio::piped())).unwrap();
        Group { child, guard, account: Arc::new(Account::new()) }
    }

    #[test]
    fn what_the_command_started_ends_although_the_command_itself_obeyed() {
        // The subshell ignores SIGHUP and SIGTERM; the first process of the group does not.
        let script = "(trap '' HUP TERM; echo; exec sleep 600) & wait";
        let mut group = started(script);
        let mut out = group.child.stdout.take().unwrap();
        std::io::Read::read_exact(&mut out, &mut [0]).unwrap();
        drop(Running(Some(group)));
        // Every process of the group held the output open.
        let begun = Instant::now();
        std::io::Read::read_to_end(&mut out, &mut Vec::new()).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(300));
    }
}
