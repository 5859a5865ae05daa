//! The bytes below SSH: a copy of the server's text before SSH begins, a way to close the connection from outside, and
//! a watch over writes that wait.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tokio::sync::oneshot;

use crate::keep_alive::KeepAlive;
use crate::stall::Stall;

/// A bidirectional stream: a socket, a child's standard streams, or a channel of another connection.
pub(crate) trait Carrier: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Carrier for T {}

/// A carrier as the SSH library uses it.
pub(crate) struct Wire {
    carrier: BufReader<Box<dyn Carrier>>,
    heard: Option<Arc<ServerText>>,
    cord: CloseState,
    stall: Stall,
    state: State,
    /// Bytes that the carrier has taken.
    written: Arc<AtomicU64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Alive,
    /// The peer has received no data for too long, so the shutdown does not wait for it.
    Stalled,
}

/// The server's text before SSH began.
#[derive(Debug, Default)]
pub(crate) struct ServerText(Mutex<Text>);

#[derive(Debug, Default)]
struct Text {
    bytes: Vec<u8>,
    total: u64,
}

/// Closes the connection on drop. Without it, the library's task could wait for a silent peer for ever, and hold a
/// socket.
pub(crate) struct CloseOnDrop {
    cord: oneshot::Sender<()>,
    /// [`Wire::written`].
    written: Arc<AtomicU64>,
}

/// The lifeline of a connection after the log-in, shared by its session and everything opened on it. After the last of
/// them is dropped, the connection usually ends by itself, and sends all earlier data before. If it sends next to nothing
/// for [`GOODBYE`] and has not ended, the lifeline closes it.
pub(crate) struct Line(Option<CloseOnDrop>);

enum CloseState {
    Whole(oneshot::Receiver<()>),
    Pulled,
}

impl Wire {
    /// Takes a carrier at the beginning of its connection. If the peer neither receives nor sends data for the time of
    /// `keep_alive`, a waiting write ends with [`io::ErrorKind::TimedOut`].
    pub(crate) fn new(
        carrier: Box<dyn Carrier>,
        keep_alive: KeepAlive,
    ) -> (Self, Arc<ServerText>, CloseOnDrop) {
        let heard = Arc::new(ServerText::default());
        let (sender, cord) = oneshot::channel();
        let written = Arc::new(AtomicU64::new(0));
        let wire = Self {
            carrier: BufReader::with_capacity(GREETING_BUFFER, carrier),
            heard: Some(Arc::clone(&heard)),
            cord: CloseState::Whole(cord),
            stall: Stall::new(keep_alive),
            state: State::Alive,
            written: Arc::clone(&written),
        };
        (wire, heard, CloseOnDrop { cord: sender, written })
    }

    /// Passes the result of a write to the watch. The write may wait as long as the peer is alive.
    fn watched<T>(&mut self, cx: &mut Context<'_>, wrote: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match wrote {
            Poll::Ready(_) => self.stall.handle_taken(),
            // Before the version line is complete, no watch is needed: the time for the connection is limited anyway.
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
        if let CloseState::Whole(cord) = &mut self.cord {
            if Pin::new(cord).poll(cx).is_pending() {
                return Ok(());
            }
            self.cord = CloseState::Pulled;
        }
        Err(io::Error::new(io::ErrorKind::ConnectionAborted, "given up"))
    }
}

impl Line {
    pub(crate) fn new(lifeline: CloseOnDrop) -> Self {
        Self(Some(lifeline))
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let (Some(CloseOnDrop { mut cord, written }), Ok(runtime)) =
            (self.0.take(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        runtime.spawn(async move {
            let _ = while_it_moves(GOODBYE, LEAST_SENT, &written, cord.closed()).await;
        });
    }
}

impl ServerText {
    /// Returns the line that begins with `SSH-`, without its newline.
    pub(crate) fn version(&self) -> Option<String> {
        let text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        text.bytes
            .split(|byte| *byte == b'\n')
            .find(|line| line.starts_with(b"SSH-"))
            .map(|line| String::from_utf8_lossy(line).trim_end().to_owned())
    }

    /// Returns false if the version line names another protocol than SSH 2 (RFC 4253 sections 4.2 and 5.1).
    pub(crate) fn may_be_ssh_2(&self) -> bool {
        let version = self.version();
        version.is_none_or(|version| ["SSH-2.0-", "SSH-1.99-"].iter().any(|known| version.starts_with(known)))
    }

    /// Returns all text before the version line, or all text if there is no such line.
    pub(crate) fn before(&self) -> String {
        let text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = text.bytes.split_inclusive(|byte| *byte == b'\n');
        let before: Vec<u8> =
            lines.take_while(|line| !line.starts_with(b"SSH-")).flatten().copied().collect();
        String::from_utf8_lossy(&before).into_owned()
    }

    fn listen(&self, bytes: &[u8]) -> CaptureState {
        let mut text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        text.total += bytes.len() as u64;
        let room = LONGEST_GREETING.saturating_sub(text.bytes.len());
        text.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
        let begun =
            text.bytes.starts_with(b"SSH-") || text.bytes.windows(5).any(|window| window == b"\nSSH-");
        let whole = begun && text.bytes.ends_with(b"\n");
        if whole || text.bytes.len() >= LONGEST_GREETING { CaptureState::Full } else { CaptureState::Open }
    }
}

enum CaptureState {
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
        // Until the version line is complete, at most one line is read at a time, so that only text is kept.
        let ready = ready!(Pin::new(&mut this.carrier).poll_fill_buf(cx))?;
        let line = ready.iter().position(|byte| *byte == b'\n').map_or(ready.len(), |end| end + 1);
        let taken = line.min(buffer.remaining());
        buffer.put_slice(&ready[..taken]);
        let is_full = matches!(heard.listen(&ready[..taken]), CaptureState::Full);
        if is_full && !heard.may_be_ssh_2() {
            // The library takes the line for text before the version line, and would wait for another.
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "not SSH 2")));
        }
        if is_full {
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
        if let Poll::Ready(Ok(count)) = wrote {
            self.written.fetch_add(count as u64, Relaxed);
        }
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
            // The library reports the reason of its end only after this function has returned.
            return Poll::Ready(Ok(()));
        }
        let shut = Pin::new(self.carrier.get_mut()).poll_shutdown(cx);
        self.watched(cx, shut)
    }
}

/// Waits for `done` as long as `progress` grows by `least` or more in each `limit`. `None` if it did not.
pub(crate) async fn while_it_moves<T>(
    limit: Duration,
    least: u64,
    progress: &AtomicU64,
    done: impl Future<Output = T>,
) -> Option<T> {
    let mut done = std::pin::pin!(done);
    let mut before = progress.load(Relaxed);
    loop {
        if let Ok(done) = tokio::time::timeout(limit, &mut done).await {
            return Some(done);
        }
        let now = progress.load(Relaxed);
        if now.saturating_sub(before) < least {
            return None;
        }
        before = now;
    }
}

/// Maximum time without progress of an unused connection that has not ended: longer than [`LAST_WORDS`].
const GOODBYE: Duration = LAST_WORDS.saturating_add(Duration::from_secs(2));

/// Size of the buffer in which the version line is looked for. Once it is empty, a longer read passes it by.
const GREETING_BUFFER: usize = 1024;
/// Maximum number of bytes kept of the text before the version line.
const LONGEST_GREETING: usize = 4096;
/// Bytes of an unused connection that count as progress: more than those of the keepalives in this time.
const LEAST_SENT: u64 = 4096;
/// Maximum time without progress of data that was written before a drop.
pub(crate) const LAST_WORDS: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::{Instant, sleep};

    #[tokio::test(start_paused = true)]
    async fn connection_that_is_no_longer_used_may_send_as_long_as_its_peer_reads() {
        let (near, mut far) = duplex(1024);
        let (mut wire, _, lifeline) = Wire::new(Box::new(near), KeepAlive { interval: None, count: 0 });
        far.write_all(b"SSH-2.0-far\r\n").await.unwrap();
        wire.read_exact(&mut [0; 13]).await.unwrap();
        drop(Line::new(lifeline));
        let data = vec![7; 64 * 1024];
        let reads = async {
            let mut taken = vec![0; data.len()];
            for piece in taken.chunks_mut(8 * 1024) {
                sleep(GOODBYE / 2).await;
                far.read_exact(piece).await.unwrap();
            }
            taken
        };
        let (taken, wrote) = tokio::join!(reads, wire.write_all(&data));
        wrote.unwrap();
        assert!(taken == data);
        // A peer that reads no more has the connection for one limit.
        let begun = Instant::now();
        let fault = wire.write_all(&data).await.unwrap_err();
        assert_eq!(fault.kind(), io::ErrorKind::ConnectionAborted);
        assert!(begun.elapsed() <= 2 * GOODBYE, "{:?}", begun.elapsed());
    }
}
