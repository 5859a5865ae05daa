//! The bytes below SSH: a buffer for reading, an ear for what is said before SSH begins, and a cord to pull.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tokio::sync::oneshot;

/// What a connection runs over: a socket, a child's standard streams, a channel of another connection.
pub(crate) trait Carrier: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Carrier for T {}

/// A carrier as the SSH library sees it.
pub(crate) struct Wire {
    carrier: BufReader<Box<dyn Carrier>>,
    heard: Option<Arc<Heard>>,
    cord: Option<oneshot::Receiver<Cord>>,
}

/// What the other side said before SSH began, and how it ended.
#[derive(Debug, Default)]
pub(crate) struct Heard(Mutex<Text>);

#[derive(Debug, Default)]
struct Text {
    bytes: Vec<u8>,
    total: u64,
}

/// Dropped before [`Lifeline::keep`], it ends the connection: the library's task may be waiting for a peer that never
/// speaks again, and holds a socket.
pub(crate) struct Lifeline(Option<oneshot::Sender<Cord>>);

enum Cord {
    Keep,
}

impl Wire {
    /// Reads `carrier` through a buffer of `size` bytes.
    pub(crate) fn new(carrier: Box<dyn Carrier>, size: usize) -> (Self, Arc<Heard>, Lifeline) {
        let heard = Arc::new(Heard::default());
        let (sender, cord) = oneshot::channel();
        let carrier = BufReader::with_capacity(size, carrier);
        (Self { carrier, heard: Some(Arc::clone(&heard)), cord: Some(cord) }, heard, Lifeline(Some(sender)))
    }

    fn poll_cord(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let Some(cord) = &mut self.cord else { return Ok(()) };
        match Pin::new(cord).poll(cx) {
            Poll::Pending => Ok(()),
            Poll::Ready(Ok(Cord::Keep)) => {
                self.cord = None;
                Ok(())
            }
            Poll::Ready(Err(_)) => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "given up")),
        }
    }
}

impl Lifeline {
    /// The connection lives on by itself.
    pub(crate) fn keep(mut self) {
        if let Some(sender) = self.0.take() {
            let _ = sender.send(Cord::Keep);
        }
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
        Pin::new(self.carrier.get_mut()).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.carrier.get_mut()).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.carrier.get_mut()).poll_shutdown(cx)
    }
}

/// Of what comes before the version line, so much is kept to be shown.
const LONGEST_GREETING: usize = 4096;
