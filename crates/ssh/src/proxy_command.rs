//! A connection through the standard input and output of a shell command (`ProxyCommand`).

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Pair;
use std::os::unix::process::CommandExt;
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
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

struct Running(Option<Child>);

impl ProxyCommand {
    /// Starts `command` in a shell.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start(command: &str) -> io::Result<Self> {
        let (ours, theirs) = Pair::pair()?;
        let (errors, their_errors) = Pair::pair()?;
        let child = Command::new("/bin/sh")
            .args(["-c", &format!("exec {command}")])
            .stdin(Stdio::from(OwnedFd::from(theirs.try_clone()?)))
            .stdout(Stdio::from(OwnedFd::from(theirs)))
            .stderr(Stdio::from(OwnedFd::from(their_errors)))
            .process_group(0)
            .spawn()?;
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
    /// Asks the group to end, and insists. A thread waits for it, because it may take its time.
    fn drop(&mut self) {
        let Some(mut child) = self.0.take() else { return };
        let group = Pid::from_raw(child.id().cast_signed());
        let _ = killpg(group, Signal::SIGHUP);
        if matches!(child.try_wait(), Ok(Some(_))) {
            return;
        }
        std::thread::spawn(move || {
            let _ = killpg(group, Signal::SIGTERM);
            let begun = Instant::now();
            while begun.elapsed() < PATIENCE {
                if matches!(child.try_wait(), Ok(Some(_))) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = killpg(group, Signal::SIGKILL);
            let _ = child.wait();
        });
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
