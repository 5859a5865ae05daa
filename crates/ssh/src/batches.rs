//! TCP for bulk: while much comes, the reader is woken once for many packets instead of once for each.
//!
//! A client is faster than the server that encrypts for it, so it empties the socket after every packet of 32 KiB and goes
//! to sleep: a quarter of its CPU time is that. In a long transfer the kernel is told to wake us only when a batch has
//! come; a timer ends that when it does not, so the last bytes of a transfer wait two milliseconds, and short ones never.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

/// A TCP connection that is read in batches while much comes.
pub(crate) struct Batches {
    stream: TcpStream,
    mark: Mark,
    /// Bytes that came without a pause.
    streak: usize,
    /// When something was read last.
    last: Instant,
    patience: Pin<Box<Sleep>>,
}

/// What wakes us.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// Any byte.
    Low,
    /// A batch.
    High,
}

impl Batches {
    pub(crate) fn new(stream: TcpStream) -> Self {
        let patience = Box::pin(sleep(Duration::ZERO));
        Self { stream, mark: Mark::Low, streak: 0, last: Instant::now(), patience }
    }

    fn set(&mut self, mark: Mark) {
        if self.mark != mark {
            let bytes = if mark == Mark::High { BATCH } else { 1 };
            // A kernel that does not know it wakes us for every packet.
            if sys::low_water::set_low_water(&self.stream, bytes).is_ok() {
                self.mark = mark;
            } else {
                self.streak = 0;
            }
        }
    }

    fn came(&mut self, count: usize) {
        let now = Instant::now();
        if now.duration_since(self.last) > PAUSE {
            self.streak = 0;
        }
        self.last = now;
        self.streak = self.streak.saturating_add(count);
    }
}

impl AsyncRead for Batches {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        if let Poll::Ready(result) = Pin::new(&mut this.stream).poll_read(cx, buffer) {
            this.came(buffer.filled().len() - before);
            return Poll::Ready(result);
        }
        if this.streak < LONG {
            this.set(Mark::Low);
            return Poll::Pending;
        }
        this.set(Mark::High);
        let until = this.last + PAUSE;
        if this.patience.deadline() != until {
            this.patience.as_mut().reset(until);
        }
        if this.patience.as_mut().poll(cx).is_ready() {
            this.streak = 0;
            // What is there wakes us now: the stream has our waker.
            this.set(Mark::Low);
        }
        Poll::Pending
    }
}

impl AsyncWrite for Batches {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// What wakes us in a long transfer: eight packets of OpenSSH.
const BATCH: i32 = 256 * 1024;
/// A transfer is long when so much has come without a pause.
const LONG: usize = 2 * 1024 * 1024;
/// Silence that ends a streak.
const PAUSE: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// Writes `sizes`, waiting for an answer of a byte after each, while the other side reads them through batches.
    async fn transfer(sizes: &[usize]) -> (usize, bool) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (sender, accepted) =
            tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        let (mut sender, reader) = (sender.unwrap(), accepted.unwrap().0);
        let mut reader = Batches::new(reader);
        let (mut total, mut raised) = (0, false);
        for size in sizes {
            let data = vec![7; *size];
            let write = sender.write_all(&data);
            let read = async {
                let mut left = *size;
                let mut buffer = vec![0; 64 * 1024];
                while left > 0 {
                    let count = reader.read(&mut buffer).await.unwrap();
                    assert!(count > 0);
                    raised |= reader.mark == Mark::High;
                    left -= count;
                    total += count;
                }
            };
            let (wrote, ()) = tokio::join!(write, read);
            wrote.unwrap();
        }
        drop(sender);
        assert_eq!(reader.read(&mut [0; 16]).await.unwrap(), 0, "the end is not waited for");
        (total, raised)
    }

    #[tokio::test]
    async fn the_tail_of_a_long_transfer_comes_and_so_do_single_bytes_after_it() {
        let sizes = [16 << 20, 1, 1, 5 << 20, 3, 300_000];
        let (total, raised) = transfer(&sizes).await;
        assert_eq!(total, sizes.iter().sum::<usize>());
        assert!(raised, "a long transfer is read in batches");
    }

    #[tokio::test]
    async fn a_short_transfer_is_not_read_in_batches() {
        assert_eq!(transfer(&[1000, 100_000, 1]).await, (101_001, false));
    }
}
