//! Requests of one channel, each of which ends when the channel does.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use russh_sftp::client::RawSftpSession;
use russh_sftp::client::error::Error;
use russh_sftp::extensions::Statvfs;
use russh_sftp::protocol::{Attrs, Data, FileAttributes, Handle, Name, OpenFlags, Packet, Status};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;

/// The library wakes all requests when the channel ends, but one that is sent a moment after that, before its own writer
/// has seen the end, waits for its time limit. So each also waits for the end itself.
pub(super) struct Requests {
    raw: RawSftpSession,
    alive: watch::Receiver<bool>,
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
    remove(path: &str) -> Status;
    rename(from: &str, to: &str) -> Status;
    setstat(path: &str, attributes: FileAttributes) -> Status;
    stat(path: &str) -> Attrs;
    statvfs(path: &str) -> Statvfs;
    symlink(leads: &str, path: &str) -> Status;
    write(handle: String, offset: u64, data: Vec<u8>) -> Status;
}

impl Requests {
    pub(super) fn new(raw: RawSftpSession, alive: watch::Receiver<bool>) -> Self {
        Self { raw, alive }
    }

    async fn or_end<T>(&self, request: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let mut alive = self.alive.clone();
        tokio::select! {
            // An answer that came before the end counts.
            biased;
            answer = request => answer,
            _ = alive.wait_for(|alive| !alive) => Err(Error::UnexpectedBehavior("the channel ended".to_owned())),
        }
    }
}

/// A stream that tells its end: of what comes, or of itself.
pub(super) struct Watched<S> {
    stream: S,
    alive: watch::Sender<bool>,
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S) -> (Self, watch::Receiver<bool>) {
        let (alive, seen) = watch::channel(true);
        (Self { stream, alive }, seen)
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
            // All answers before it have been handed over: they are read one after the other.
            self.alive.send_replace(false);
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
