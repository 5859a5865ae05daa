//! Requests of one SFTP channel, each of which ends with the channel.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};

use russh_sftp::client::RawSftpSession;
use russh_sftp::client::error::Error;
use russh_sftp::extensions::Statvfs;
use russh_sftp::protocol::{Attrs, FileAttributes, Handle, Name, OpenFlags, Packet, Status};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;

/// When the channel ends, the library wakes all requests. But a request that is sent a moment later, before the
/// library's writer has noticed the end, would wait for its timeout. So each request also waits for the end of the
/// channel.
pub(super) struct Requests {
    raw: RawSftpSession,
    seen: Seen,
}

macro_rules! requests {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $answer:ty;)*) => {
        impl Requests {
            $(pub(super) async fn $name(&self, $($argument: $kind),*) -> Result<$answer, Error> {
                self.or_end(self.raw.$name($($argument),*)).await
            })*
        }
    };
}

requests! {
    close(handle: impl Into<String>) -> Status;
    extended(name: &str, data: Vec<u8>) -> Packet;
    fsetstat(handle: &str, attributes: FileAttributes) -> Status;
    lstat(path: &str) -> Attrs;
    mkdir(path: &str, attributes: FileAttributes) -> Status;
    open(path: &str, flags: OpenFlags, attributes: FileAttributes) -> Handle;
    opendir(path: &str) -> Handle;
    readdir(handle: &str) -> Name;
    readlink(path: &str) -> Name;
    realpath(path: &str) -> Name;
    remove(path: &str) -> Status;
    rename(from: &str, to: &str) -> Status;
    setstat(path: &str, attributes: FileAttributes) -> Status;
    stat(path: &str) -> Attrs;
    statvfs(path: &str) -> Statvfs;
    symlink(leads: &str, path: &str) -> Status;
}

impl Requests {
    pub(super) fn new(raw: RawSftpSession, seen: Seen) -> Self {
        Self { raw, seen }
    }

    async fn or_end<T>(&self, request: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let mut state = self.seen.state.clone();
        let answer = tokio::select! {
            // An answer that arrived before the end of the channel counts.
            biased;
            answer = request => answer,
            _ = state.wait_for(|state| *state != State::Open) => Err(self.seen.ended()),
        };
        match answer {
            // The library's error describes only the effect on this request, so it is replaced by the reason.
            Err(Error::UnexpectedBehavior(_)) if *state.borrow() == State::Flooded => Err(self.seen.ended()),
            answer => {
                self.seen.unasked.store(0, Relaxed);
                answer
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Open,
    Ended,
    /// Penstock ended the channel because the server sent too much data that was not requested.
    Flooded,
}

/// The state of the channel, for those who wait for answers.
#[derive(Clone)]
pub(super) struct Seen {
    pub(super) state: watch::Receiver<State>,
    /// Bytes received since the last answer for which a task waited.
    pub(super) unasked: Arc<AtomicUsize>,
}

impl Seen {
    /// Why a request has no answer after the end of the channel.
    pub(super) fn ended(&self) -> Error {
        let why = if *self.state.borrow() == State::Flooded { FLOODED } else { "the channel ended" };
        Error::UnexpectedBehavior(why.to_owned())
    }
}

/// The library's stream, which reports its end.
pub(super) struct Watched<S> {
    stream: S,
    state: watch::Sender<State>,
}

/// Returns the stream, its state for those who wait for answers, and the sender of the state.
pub(super) fn watch<S>(stream: S) -> (Watched<S>, Seen, watch::Sender<State>) {
    let (sender, state) = watch::channel(State::Open);
    (Watched { stream, state: sender.clone() }, Seen { state, unasked: Arc::default() }, sender)
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.remaining();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Poll::Ready(read) = &read
            && (read.is_err() || (before > 0 && buffer.remaining() == before))
        {
            // All earlier answers have been delivered, because they are read in order.
            self.state.send_if_modified(|state| {
                let is_news = *state == State::Open;
                if is_news {
                    *state = State::Ended;
                }
                is_news
            });
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Maximum number of unrequested bytes. The answers to all requests in flight (4 MiB) may arrive before their tasks
/// run, and the tasks may have given up.
pub(super) const MOST_UNASKED: usize = 32 << 20;

pub(super) const FLOODED: &str = "the server keeps sending data that was not requested";
