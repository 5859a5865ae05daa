//! Closes a connection so that the client gets the last bytes sent.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

use crate::plain::Plain;

/// Time limit of reading after the last byte was sent. Reading on prevents a TCP reset, which could destroy those
/// bytes.
pub const LINGER: Duration = Duration::from_secs(1);

/// Bytes that are read at most meanwhile.
pub const LINGER_BYTES: usize = 256 * 1024;

/// Size of one read in bytes.
const AT_ONCE: usize = 16 * 1024;

/// A connection whose last bytes have been sent.
pub trait Lingering: AsyncWrite + Unpin {
    /// Reads bytes that are thrown away: with TLS they stay encrypted, as a client that broke the protocol can still send.
    fn poll_discard(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>>;
}

impl Lingering for Plain {
    fn poll_discard(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(self).poll_read(cx, buffer)
    }
}

/// Shuts down the sending direction, then reads and discards what the client still sends, within limits, and closes when the
/// client has ended, or its time. An immediate close would send a TCP reset, which would arrive before the last answer.
pub async fn linger(mut stream: impl Lingering) {
    let _ = tokio::time::timeout(LINGER, async {
        stream.shutdown().await?;
        let mut read = 0;
        while read < LINGER_BYTES {
            match discard(&mut stream).await? {
                0 => return Ok(()),
                count => read += count,
            }
        }
        // A client that sends on finds its window closed, and reads the last answer: a reset would end it before.
        std::future::pending::<io::Result<()>>().await
    })
    .await;
}

/// Reads once and discards the bytes. The buffer is on the stack, so that a waiting connection holds none.
async fn discard(stream: &mut impl Lingering) -> io::Result<usize> {
    poll_fn(|cx| {
        let mut discarded = [MaybeUninit::uninit(); AT_ONCE];
        let mut buffer = ReadBuf::uninit(&mut discarded);
        ready!(stream.poll_discard(cx, &mut buffer))?;
        Poll::Ready(Ok(buffer.filled().len()))
    })
    .await
}
