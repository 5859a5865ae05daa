//! TCP for bulk data: during a long transfer, the kernel wakes the reader once for many packets and not once for each.
//!
//! A client is faster than the server that encrypts, so it empties the socket after every packet of 32 KiB and waits
//! again, which takes a quarter of its CPU time. In a long transfer, penstock tells the kernel to wake it only after
//! `BATCH` bytes. A timer of `PAUSE` resets this: the last bytes of a long transfer wait 2 ms, and short transfers
//! never wait.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

pub(crate) struct Batches {
    stream: TcpStream,
    mark: Mark,
    /// Bytes received without a pause.
    streak: usize,
    /// When bytes were last read from the connection.
    last: Instant,
    patience: Pin<Box<Sleep>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// The kernel wakes the reader after one byte.
    Low,
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
            // A kernel that does not support the option wakes the reader for every packet.
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
            // If data is in the buffer, the kernel wakes this task now: the stream has its waker.
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

/// Low-water mark of a long transfer in bytes: eight packets of OpenSSH.
const BATCH: i32 = 256 * 1024;
/// Bytes without a pause from which on a transfer is long.
const LONG: usize = 2 * 1024 * 1024;
/// Time without data that ends the count of bytes.
const PAUSE: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// Writes `sizes`, and waits for an answer of one byte after each; the other side reads through [`Batches`].
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
