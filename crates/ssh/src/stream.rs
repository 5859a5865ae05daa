//! A channel as a stream of bytes: forwards, jump hosts, subsystems.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use russh::client::Msg;
use russh::{Channel, ChannelMsg, ChannelReadHalf, ChannelWriteHalf};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::session::Session;
use crate::wire::Line;

/// A stream of bytes through a session. Closing one direction (`shutdown`) leaves the other open; dropping it closes both.
///
/// Like a socket it sends what it took without being asked again: nobody has to flush, and what was taken before a drop goes
/// out for 10 s longer.
///
/// What arrives and is not taken is held back at the server after one window, like on a socket. Until then it shares
/// the connection: a stream that nobody reads holds up the others of its session.
pub struct Stream {
    reading: ChannelReadHalf,
    read: Read,
    channel: Arc<ChannelWriteHalf<Msg>>,
    /// What was taken and did not fit at once. It goes on by itself.
    writing: Option<Writing>,
    /// The end of our direction was said.
    ended: bool,
    /// Who waits to write, to be told that the channel is closed.
    writer: Option<Waker>,
    /// A session that lives as long as this.
    kept: Option<Arc<Session>>,
    /// Of the session that it belongs to.
    _line: Option<Arc<Line>>,
}

/// Something on its way into a channel.
pub(crate) type Writing = JoinHandle<Result<(), russh::Error>>;

enum Read {
    Open(Bytes),
    /// Nothing more will come, but the other side may still read.
    Ended,
    /// Neither.
    Closed,
}

impl Stream {
    pub(crate) fn new(channel: Channel<Msg>, line: Option<Arc<Line>>) -> Self {
        let (reading, channel) = channel.split();
        Self {
            reading,
            read: Read::Open(Bytes::new()),
            channel: Arc::new(channel),
            writing: None,
            ended: false,
            writer: None,
            kept: None,
            _line: line,
        }
    }

    /// The same stream, which counts as a user of `session`.
    pub(crate) fn keeping(mut self, session: Arc<Session>) -> Self {
        self.kept = Some(session);
        self
    }

    /// The next bytes, without copying them; `None` at the end.
    pub async fn chunk(&mut self) -> Option<Bytes> {
        std::future::poll_fn(|cx| self.poll_chunk(cx)).await
    }

    /// Sends bytes without copying them; waits while the other side does not read.
    ///
    /// # Errors
    /// The channel is closed.
    pub async fn send(&mut self, data: Bytes) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_written(cx)).await?;
        if !data.is_empty() {
            let channel = Arc::clone(&self.channel);
            let mut sending = Some(async move { channel.data_bytes(data).await });
            std::future::poll_fn(|cx| {
                Poll::Ready(sending.take().map_or(Ok(()), |sending| self.begin(cx, sending)))
            })
            .await?;
        }
        std::future::poll_fn(|cx| self.poll_written(cx)).await
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            match &mut self.read {
                Read::Open(left) if !left.is_empty() => return Poll::Ready(Some(std::mem::take(left))),
                Read::Open(_) => {}
                Read::Ended | Read::Closed => return Poll::Ready(None),
            }
            let message = ready!(pin!(self.reading.wait()).poll(cx));
            match message {
                Some(ChannelMsg::Data { data }) => self.read = Read::Open(data),
                Some(ChannelMsg::Eof) => self.read = Read::Ended,
                Some(ChannelMsg::Close) | None => self.close(),
                Some(_) => {}
            }
        }
    }

    /// After the end of the other side's data, watches for the channel to be closed.
    fn poll_closed(&mut self, cx: &mut Context<'_>) {
        while matches!(self.read, Read::Ended) {
            let message = pin!(self.reading.wait()).poll(cx);
            match message {
                Poll::Ready(Some(ChannelMsg::Close) | None) => self.close(),
                Poll::Ready(Some(_)) => {}
                Poll::Pending => return,
            }
        }
    }

    fn close(&mut self) {
        self.read = Read::Closed;
        if let Some(writer) = self.writer.take() {
            writer.wake();
        }
    }

    /// Begins to send. What does not fit at once goes on in a task of its own, so that it needs no further poll.
    fn begin(
        &mut self,
        cx: &mut Context<'_>,
        sending: impl Future<Output = Result<(), russh::Error>> + Send + 'static,
    ) -> io::Result<()> {
        let mut sending = Box::pin(sending);
        match sending.as_mut().poll(cx) {
            Poll::Ready(sent) => sent.map_err(|_| gone()),
            Poll::Pending => {
                self.writing = Some(tokio::spawn(sending));
                Ok(())
            }
        }
    }

    /// Ready when what was given to the channel has gone out.
    fn poll_written(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_closed(cx);
        if matches!(self.read, Read::Closed) {
            if let Some(writing) = self.writing.take() {
                writing.abort();
            }
            return Poll::Ready(Err(gone()));
        }
        let Some(writing) = &mut self.writing else { return Poll::Ready(Ok(())) };
        match Pin::new(writing).poll(cx) {
            Poll::Ready(sent) => {
                self.writing = None;
                Poll::Ready(sent.map_err(io::Error::other).and_then(|sent| sent.map_err(|_| gone())))
            }
            Poll::Pending => {
                self.writer = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(mut data) = ready!(self.poll_chunk(cx)) {
            let taken = data.split_to(data.len().min(buffer.remaining()));
            buffer.put_slice(&taken);
            self.read = Read::Open(data);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_written(cx))?;
        if data.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let taken = Bytes::copy_from_slice(&data[..data.len().min(LARGEST_WRITE)]);
        let length = taken.len();
        let channel = Arc::clone(&self.channel);
        let begun = self.begin(cx, async move { channel.data_bytes(taken).await });
        Poll::Ready(begun.map(|()| length))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_written(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Err(fault) = ready!(self.poll_written(cx)) {
            return Poll::Ready(Err(fault));
        }
        // Said once: this is polled again while it does not fit.
        if !std::mem::replace(&mut self.ended, true) {
            let channel = Arc::clone(&self.channel);
            self.begin(cx, async move { channel.eof().await })?;
        }
        self.poll_written(cx)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        close_later(&self.channel, self.writing.take(), self.kept.take());
    }
}

/// Closes a channel from where nobody can wait, after what was being written. The connection below it, if it is one of
/// ours, is let go after that.
pub(crate) fn close_later(
    channel: &Arc<ChannelWriteHalf<Msg>>,
    writing: Option<Writing>,
    below: Option<Arc<Session>>,
) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    let channel = Arc::clone(channel);
    runtime.spawn(async move {
        let closing = async {
            if let Some(mut writing) = writing
                && timeout(LAST_WORDS, &mut writing).await.is_err()
            {
                writing.abort();
            }
            let _ = channel.close().await;
        };
        // A connection that takes nothing any more is not held for that.
        let _ = timeout(LAST_WORDS + CLOSING, closing).await;
        drop(below);
    });
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the other side closed the channel")
}

/// One write is copied at most so much.
const LARGEST_WRITE: usize = 128 * 1024;

/// How long data that was written before a drop may still take.
pub(crate) const LAST_WORDS: Duration = Duration::from_secs(10);

/// How long it may take to say that a channel is closed.
const CLOSING: Duration = Duration::from_secs(2);
