//! Requests of one SFTP channel, each of which ends with the channel.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};

use russh_sftp::client::RawSftpSession;
use russh_sftp::client::error::Error;
use russh_sftp::extensions::Statvfs;
use russh_sftp::protocol::{Attrs, Data, FileAttributes, Handle, Name, OpenFlags, Packet, Status};
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
    read(handle: String, offset: u64, length: u32) -> Data;
    readdir(handle: &str) -> Name;
    readlink(path: &str) -> Name;
    realpath(path: &str) -> Name;
    remove(path: &str) -> Status;
    rename(from: &str, to: &str) -> Status;
    setstat(path: &str, attributes: FileAttributes) -> Status;
    stat(path: &str) -> Attrs;
    statvfs(path: &str) -> Statvfs;
    symlink(leads: &str, path: &str) -> Status;
    write(handle: String, offset: u64, data: Vec<u8>) -> Status;
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
            _ = state.wait_for(|state| *state != State::Open) => {
                Err(Error::UnexpectedBehavior("the channel ended".to_owned()))
            }
        };
        match answer {
            // The library's error describes only the effect on this request, so it is replaced by the reason.
            Err(Error::UnexpectedBehavior(_)) if *state.borrow() == State::Flooded => {
                Err(Error::UnexpectedBehavior(FLOODED.to_owned()))
            }
            answer => {
                self.seen.unasked.store(0, Relaxed);
                answer
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Ended,
    /// Penstock ended the channel because the server sent too much data that was not requested.
    Flooded,
}

/// The state of a [`Watched`] stream, for its users.
#[derive(Clone)]
pub(super) struct Seen {
    state: watch::Receiver<State>,
    unasked: Arc<AtomicUsize>,
}

/// A stream that reports its end, and that ends if too much unrequested data arrives.
pub(super) struct Watched<S> {
    stream: S,
    state: watch::Sender<State>,
    /// Bytes received since the last answer for which a task waited.
    unasked: Arc<AtomicUsize>,
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S) -> (Self, Seen) {
        let (sender, state) = watch::channel(State::Open);
        let unasked = Arc::new(AtomicUsize::new(0));
        (Self { stream, state: sender, unasked: Arc::clone(&unasked) }, Seen { state, unasked })
    }
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
            self.state.send_replace(State::Ended);
        }
        let came = before - buffer.remaining();
        if self.unasked.fetch_add(came, Relaxed) + came > MOST_UNASKED {
            self.state.send_replace(State::Flooded);
            return Poll::Ready(Err(io::Error::other(FLOODED)));
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
const MOST_UNASKED: usize = 32 << 20;

pub(super) const FLOODED: &str = "the server keeps sending data that was not requested";
