//! The bytes below SSH: a buffer for reading, an ear for what is said before SSH begins, a cord to pull, and an eye on
//! writes that wait.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tokio::sync::oneshot;

use crate::stall::Stall;
use crate::stream::LAST_WORDS;
use crate::target::KeepAlive;

/// What a connection runs over: a socket, a child's standard streams, a channel of another connection.
pub(crate) trait Carrier: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Carrier for T {}

/// A carrier as the SSH library sees it.
pub(crate) struct Wire {
    carrier: BufReader<Box<dyn Carrier>>,
    heard: Option<Arc<Heard>>,
    cord: Cord,
    stall: Stall,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Alive,
    /// The peer took nothing for too long: it is not waited for, whatever for.
    Stalled,
}

/// What the other side said before SSH began, and how it ended.
#[derive(Debug, Default)]
pub(crate) struct Heard(Mutex<Text>);

#[derive(Debug, Default)]
struct Text {
    bytes: Vec<u8>,
    total: u64,
}

/// Dropped, it ends the connection: the library's task may be waiting for a peer that never speaks again, or never reads, and
/// holds a socket.
pub(crate) struct Lifeline(oneshot::Sender<()>);

/// The lifeline of a connection that is logged in, shared by its session and all that was opened on it. When the last of
/// them is gone the connection mostly ends by itself, with all that was sent before; what has not ended after
/// [`GOODBYE`] never would.
pub(crate) struct Line(Option<Lifeline>);

enum Cord {
    Whole(oneshot::Receiver<()>),
    Pulled,
}

impl Wire {
    /// Reads `carrier` through a buffer of `size` bytes. A write that waits for longer than `keep_alive` allows silence,
    /// while nothing comes, ends with [`io::ErrorKind::TimedOut`].
    pub(crate) fn new(
        carrier: Box<dyn Carrier>,
        size: usize,
        keep_alive: KeepAlive,
    ) -> (Self, Arc<Heard>, Lifeline) {
        let heard = Arc::new(Heard::default());
        let (sender, cord) = oneshot::channel();
        let wire = Self {
            carrier: BufReader::with_capacity(size, carrier),
            heard: Some(Arc::clone(&heard)),
            cord: Cord::Whole(cord),
            stall: Stall::new(keep_alive),
            state: State::Alive,
        };
        (wire, heard, Lifeline(sender))
    }

    /// What became of a write, which may wait for as long as the peer is alive.
    fn watched<T>(&mut self, cx: &mut Context<'_>, wrote: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match wrote {
            Poll::Ready(_) => self.stall.handle_taken(),
            // Before that the greeting is not known as a whole, and the time for connecting is limited as it is.
            Poll::Pending if self.heard.is_none() => {
                if let Err(fault) = self.stall.handle_waiting(cx, &mut self.carrier) {
                    self.state = State::Stalled;
                    return Poll::Ready(Err(fault));
                }
            }
            Poll::Pending => {}
        }
        wrote
    }

    fn poll_cord(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if let Cord::Whole(cord) = &mut self.cord {
            if Pin::new(cord).poll(cx).is_pending() {
                return Ok(());
            }
            self.cord = Cord::Pulled;
        }
        Err(io::Error::new(io::ErrorKind::ConnectionAborted, "given up"))
    }
}

impl Line {
    pub(crate) fn new(lifeline: Lifeline) -> Self {
        Self(Some(lifeline))
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let (Some(Lifeline(mut cord)), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        runtime.spawn(async move {
            let _ = tokio::time::timeout(GOODBYE, cord.closed()).await;
        });
    }
}

impl Heard {
    /// The line that begins with `SSH-`, without its end.
    pub(crate) fn version(&self) -> Option<String> {
        let text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        text.bytes
            .split(|byte| *byte == b'\n')
            .find(|line| line.starts_with(b"SSH-"))
            .map(|line| String::from_utf8_lossy(line).trim_end().to_owned())
    }

    /// All that was said before that line, or all if there is none.
    pub(crate) fn before(&self) -> String {
        let text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = text.bytes.split_inclusive(|byte| *byte == b'\n');
        let before: Vec<u8> =
            lines.take_while(|line| !line.starts_with(b"SSH-")).flatten().copied().collect();
        String::from_utf8_lossy(&before).into_owned()
    }

    fn listen(&self, bytes: &[u8]) -> Ear {
        let mut text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        text.total += bytes.len() as u64;
        let room = LONGEST_GREETING.saturating_sub(text.bytes.len());
        text.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
        let begun =
            text.bytes.starts_with(b"SSH-") || text.bytes.windows(5).any(|window| window == b"\nSSH-");
        let whole = begun && text.bytes.ends_with(b"\n");
        if whole || text.bytes.len() >= LONGEST_GREETING { Ear::Full } else { Ear::Open }
    }
}

enum Ear {
    Open,
    Full,
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        this.poll_cord(cx)?;
        let Some(heard) = &this.heard else {
            if this.stall.is_ahead() {
                this.stall.take(buffer);
                return Poll::Ready(Ok(()));
            }
            return Pin::new(&mut this.carrier).poll_read(cx, buffer);
        };
        // Until the version line is whole, a line at a time at most, so that nothing but text is kept.
        let ready = ready!(Pin::new(&mut this.carrier).poll_fill_buf(cx))?;
        let line = ready.iter().position(|byte| *byte == b'\n').map_or(ready.len(), |end| end + 1);
        let taken = line.min(buffer.remaining());
        buffer.put_slice(&ready[..taken]);
        if matches!(heard.listen(&ready[..taken]), Ear::Full) {
            this.heard = None;
        }
        Pin::new(&mut this.carrier).consume(taken);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_cord(cx)?;
        let wrote = Pin::new(self.carrier.get_mut()).poll_write(cx, data);
        self.watched(cx, wrote)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_cord(cx)?;
        let flushed = Pin::new(self.carrier.get_mut()).poll_flush(cx);
        self.watched(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_cord(cx)?;
        if self.state == State::Stalled {
            // The library tells nobody why it ends before this is done.
            return Poll::Ready(Ok(()));
        }
        let shut = Pin::new(self.carrier.get_mut()).poll_shutdown(cx);
        self.watched(cx, shut)
    }
}

/// How long a connection that nobody uses any more may take to end: longer than what was written last.
const GOODBYE: Duration = LAST_WORDS.saturating_add(Duration::from_secs(2));

/// Of what comes before the version line, so much is kept to be shown.
const LONGEST_GREETING: usize = 4096;
