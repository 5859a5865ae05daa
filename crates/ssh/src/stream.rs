//! A channel as a stream of bytes, for forwards, jump hosts and subsystems.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use russh::client::Msg;
use russh::{Channel, ChannelMsg, ChannelReadHalf, ChannelWriteHalf};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::wire::{LAST_WORDS, Line, while_it_moves};

/// A stream of bytes through a session. `shutdown` closes one direction; the drop closes both.
///
/// Like a socket, the stream needs no flush. Data written before a drop is still sent, as long as the peer reads: a wait
/// of 10 s ends it. The connection is kept until the server has passed the data on, for 10 s at most.
///
/// The server stops sending when one window of unread data has arrived. Until then, the data uses the shared
/// connection: a stream that is not read blocks the other streams of its session.
pub struct Stream {
    /// `None` only during the drop.
    reading: Option<ChannelReadHalf>,
    read: Read,
    channel: Arc<ChannelWriteHalf<Msg>>,
    /// A write that did not fit into the window at once. It continues in its own task.
    writing: Option<Writing>,
    /// Number of pieces of data that have been sent.
    sent: Arc<AtomicU64>,
    /// True if the end of this direction was sent.
    ended: bool,
    /// The task that waits to write; it must be woken when the channel is closed.
    writer: Option<Waker>,
    on_drop: OnDrop,
    /// Session that must live as long as this stream.
    kept: Option<Below>,
    /// Lifeline of this stream's connection.
    _line: Option<Arc<Line>>,
}

/// The task of a write to a channel.
pub(crate) type Writing = JoinHandle<Result<(), russh::Error>>;

/// A session that lives as long as the stream through it.
pub(crate) type Below = Arc<dyn Send + Sync>;

/// What a drop does about data that the server may not have passed on yet.
#[derive(Clone, Copy)]
enum OnDrop {
    AwaitDelivery,
    Close,
}

enum Read {
    Open(Bytes),
    /// The peer sends no more data, but may still read.
    Ended,
    Closed,
}

impl Stream {
    pub(crate) fn new(channel: Channel<Msg>, line: Option<Arc<Line>>) -> Self {
        let (reading, channel) = channel.split();
        Self {
            reading: Some(reading),
            read: Read::Open(Bytes::new()),
            channel: Arc::new(channel),
            writing: None,
            sent: Arc::default(),
            ended: false,
            writer: None,
            on_drop: OnDrop::AwaitDelivery,
            kept: None,
            _line: line,
        }
    }

    /// Adds a session that must live as long as this stream, which carries another connection.
    pub(crate) fn keeping(mut self, session: Below) -> Self {
        self.kept = Some(session);
        self.confirmed()
    }

    /// For a protocol whose own answers say what has arrived.
    pub(crate) fn confirmed(mut self) -> Self {
        self.on_drop = OnDrop::Close;
        self
    }

    /// Returns the half that writes, for another task: it writes as long as this stream lives.
    pub(crate) fn writer(&self) -> Arc<ChannelWriteHalf<Msg>> {
        Arc::clone(&self.channel)
    }

    /// Returns the next bytes without a copy; `None` at the end.
    pub async fn chunk(&mut self) -> Option<Bytes> {
        std::future::poll_fn(|cx| self.poll_chunk(cx)).await
    }

    /// Sends bytes without a copy, and waits while the peer does not read.
    ///
    /// # Errors
    /// The channel is closed.
    pub async fn send(&mut self, data: Bytes) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_written(cx)).await?;
        if !data.is_empty() {
            let mut sending = Some(self.sending(data));
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
            match ready!(self.poll_message(cx)) {
                Some(ChannelMsg::Data { data }) => self.read = Read::Open(data),
                Some(ChannelMsg::Eof) => self.read = Read::Ended,
                message if is_end(message.as_ref()) => self.close(),
                _ => {}
            }
        }
    }

    /// After the end of the peer's data, checks if the channel is closed.
    fn poll_closed(&mut self, cx: &mut Context<'_>) {
        while matches!(self.read, Read::Ended) {
            match self.poll_message(cx) {
                Poll::Ready(message) if is_end(message.as_ref()) => self.close(),
                Poll::Ready(_) => {}
                Poll::Pending => return,
            }
        }
    }

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<ChannelMsg>> {
        match &mut self.reading {
            Some(reading) => pin!(reading.wait()).poll(cx),
            None => Poll::Ready(None),
        }
    }

    fn close(&mut self) {
        self.read = Read::Closed;
        if let Some(writer) = self.writer.take() {
            writer.wake();
        }
    }

    /// Sends data in pieces of one packet, and counts them: the progress of a write that waits is known.
    fn sending(&self, mut data: Bytes) -> impl Future<Output = Result<(), russh::Error>> + Send + 'static {
        let (channel, sent) = (Arc::clone(&self.channel), Arc::clone(&self.sent));
        async move {
            while !data.is_empty() {
                channel.data_bytes(data.split_to(data.len().min(PIECE))).await?;
                sent.fetch_add(1, Relaxed);
            }
            Ok(())
        }
    }

    /// Begins a write. If it does not complete at once, it continues in its own task and needs no further poll.
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

    /// Ready when the current write has completed.
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
        let sending = self.sending(taken);
        Poll::Ready(self.begin(cx, sending).map(|()| length))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_written(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Err(fault) = ready!(self.poll_written(cx)) {
            return Poll::Ready(Err(fault));
        }
        // The end is sent once: this function is polled again while the message waits.
        if !std::mem::replace(&mut self.ended, true) {
            let channel = Arc::clone(&self.channel);
            self.begin(cx, async move { channel.eof().await })?;
        }
        self.poll_written(cx)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let writing = self.writing.take().map(|writing| (writing, Arc::clone(&self.sent)));
        let answer = match (self.on_drop, &self.read) {
            (OnDrop::Close, _) | (_, Read::Closed) => None,
            (OnDrop::AwaitDelivery, Read::Open(_) | Read::Ended) => self.reading.take(),
        };
        close_later(&self.channel, writing, answer, self.kept.take());
    }
}

/// Closes a channel from a function that cannot wait, after the current write, whose progress is counted. If there is an
/// `answer`, waits for the server to close the channel as well: OpenSSH does so when it has passed the data on, and
/// discards the data if the connection ends before. Then drops `below`, the session below the channel.
pub(crate) fn close_later(
    channel: &Arc<ChannelWriteHalf<Msg>>,
    writing: Option<(Writing, Arc<AtomicU64>)>,
    answer: Option<ChannelReadHalf>,
    below: Option<Below>,
) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    let channel = Arc::clone(channel);
    runtime.spawn(async move {
        if let Some((mut writing, sent)) = writing
            && while_it_moves(LAST_WORDS, 1, &sent, &mut writing).await.is_none()
        {
            writing.abort();
        }
        // The wait ends if the connection accepts no more data.
        let closed = timeout(CLOSING, channel.close()).await;
        if let (Some(mut answer), Ok(Ok(()))) = (answer, closed) {
            let answered = async { while !is_end(answer.wait().await.as_ref()) {} };
            let _ = timeout(LAST_WORDS, answered).await;
        }
        drop(below);
    });
}

/// Whether no message of the channel follows this one.
fn is_end(message: Option<&ChannelMsg>) -> bool {
    matches!(message, Some(ChannelMsg::Close) | None)
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the other side closed the channel")
}

/// Bytes that are sent as one piece: the longest packet of our connections.
const PIECE: usize = 64 * 1024;

/// Maximum number of bytes that one write copies.
const LARGEST_WRITE: usize = 128 * 1024;

/// Timeout for the close message of a channel.
const CLOSING: Duration = Duration::from_secs(2);
