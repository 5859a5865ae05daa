//! The standard input of a command: a channel of our own client, or a pipe to `ssh`.

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;

/// A writer to the standard input of a command. Dropping it closes a pipe, but leaves a channel open.
pub(super) enum Writer {
    Native(ssh::Stdin),
    /// `None` after standard input was closed.
    Pipe(Option<pipe::Sender>),
}

/// No process reads standard input any more. This is no error: a command may end before it has read all of its input.
pub(super) struct InputClosed;

impl Writer {
    /// Writes `bytes`, after it has waited for the other side to read.
    pub(super) async fn write(&mut self, bytes: Bytes) -> Result<(), InputClosed> {
        match self {
            Self::Native(stdin) => stdin.write(bytes).await.map_err(|_| InputClosed),
            Self::Pipe(Some(pipe)) => pipe.write_all(&bytes).await.map_err(|_| InputClosed),
            Self::Pipe(None) => Err(InputClosed),
        }
    }

    pub(super) async fn finish(&mut self) {
        match self {
            Self::Native(stdin) => _ = stdin.finish().await,
            Self::Pipe(pipe) => *pipe = None,
        }
    }
}
