//! Ends a connection whose peer neither receives nor sends data.
//!
//! The SSH library sends keep-alive messages to a silent peer, but not while a write waits: then it neither reads nor
//! looks at a timer, however long the peer receives nothing (RFC 4254 does not rule on this). So the owner of the
//! socket watches the writes that wait. A peer that sends data is alive, whether it receives or not. To see data that
//! arrives now, and not before, the data is read ahead into a buffer.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use crate::keep_alive::KeepAlive;

pub(crate) struct Stall {
    patience: Option<StallLimit>,
    /// Timer of a waiting write. It is not cancelled when the write ends: to cancel it each time costs more than one
    /// unnecessary check.
    timer: Option<Pin<Box<Sleep>>>,
    /// True if the peer has received data since the last check.
    taken: bool,
    /// Data received from the peer since the last check, as far as it was read.
    said: Activity,
    /// Number of checks in a row without activity.
    silent: usize,
    /// Time of the last known activity.
    last: Instant,
    ahead: BytesMut,
}

/// Interval of the checks, and number of checks without activity that ends the connection.
#[derive(Clone, Copy)]
struct StallLimit {
    interval: Duration,
    count: usize,
}

/// The time in which the peer has neither received waiting data nor sent any.
#[derive(Debug, thiserror::Error)]
#[error("timed out: for {} s the other side neither received nor sent anything", .0.as_secs())]
struct Stalled(Duration);

impl Stall {
    /// Creates the watch. Without keep-alive (no interval, or a count of 0), the connection is not watched.
    pub(crate) fn new(keep_alive: KeepAlive) -> Self {
        let KeepAlive { interval, count } = keep_alive;
        let interval = interval.filter(|interval| !interval.is_zero() && count > 0);
        let patience = interval.map(|interval| StallLimit { interval, count });
        let last = Instant::now();
        let said = Activity::Nothing;
        Self { patience, timer: None, taken: true, said, silent: 0, last, ahead: BytesMut::new() }
    }

    pub(crate) fn handle_taken(&mut self) {
        self.taken = true;
    }

    /// Handles a write that waits. `from` is the reading side of the same connection.
    ///
    /// # Errors
    /// The write has waited for too long, or the peer has closed the connection.
    pub(crate) fn handle_waiting(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut (impl AsyncRead + Unpin),
    ) -> io::Result<()> {
        let Some(StallLimit { interval, count }) = self.patience else { return Ok(()) };
        let mut timer = self.timer.take().unwrap_or_else(|| Box::pin(sleep(interval)));
        if !self.taken {
            // The write has waited since the last check: new data from the peer may have caused this wake-up.
            self.read_ahead(cx, from)?;
        }
        // If this process was stopped (SIGSTOP), only one check is overdue.
        while timer.as_mut().poll(cx).is_ready() {
            self.read_ahead(cx, from)?;
            let said = std::mem::replace(&mut self.said, Activity::Nothing);
            if std::mem::take(&mut self.taken) || said == Activity::Something {
                (self.silent, self.last) = (0, Instant::now());
            } else {
                self.silent += 1;
            }
            if self.silent >= count {
                return Err(io::Error::new(io::ErrorKind::TimedOut, Stalled(self.last.elapsed())));
            }
            timer.set(sleep(interval));
        }
        self.timer = Some(timer);
        Ok(())
    }

    fn read_ahead(&mut self, cx: &mut Context<'_>, from: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
        let mut piece = [0; PIECE];
        while self.ahead.len() < MOST_AHEAD {
            let mut buffer = ReadBuf::new(&mut piece);
            match Pin::new(&mut *from).poll_read(cx, &mut buffer)? {
                Poll::Pending => return Ok(()),
                Poll::Ready(()) if buffer.filled().is_empty() => {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                Poll::Ready(()) => {
                    self.ahead.extend_from_slice(buffer.filled());
                    self.said = Activity::Something;
                }
            }
        }
        // The buffer is full, so further data cannot be seen: the peer counts as active. The task that uses the
        // connection must end it.
        self.said = Activity::Something;
        Ok(())
    }

    /// Returns true if data was read ahead. The reader must take this data first.
    pub(crate) fn is_ahead(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// Moves data that was read ahead into the reader's buffer.
    pub(crate) fn take(&mut self, into: &mut ReadBuf<'_>) {
        let count = self.ahead.len().min(into.remaining());
        into.put_slice(&self.ahead[..count]);
        self.ahead.advance(count);
        if self.ahead.is_empty() {
            // The buffer is rarely needed and may be large, so its memory is freed.
            self.ahead = BytesMut::new();
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Activity {
    Nothing,
    Something,
}

/// Bytes per read.
const PIECE: usize = 8 * 1024;
/// Maximum number of bytes to read ahead: more than the kernel's default receive buffer (`tcp_rmem`: 6 MiB), so that
/// data from before the peer's silence is told from later data.
const MOST_AHEAD: usize = 8 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{CloseOnDrop, Wire};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::timeout;

    const INTERVAL: Duration = Duration::from_secs(15);
    const HOUR: Duration = Duration::from_secs(3600);

    /// Returns both ends of a connection with 64 bytes of buffer each way, after the version exchange.
    async fn pair(interval: Option<Duration>, count: usize) -> (Wire, DuplexStream, CloseOnDrop) {
        let (near, mut far) = duplex(64);
        let (mut wire, _, lifeline) = Wire::new(Box::new(near), KeepAlive { interval, count });
        far.write_all(b"SSH-2.0-far\r\n").await.unwrap();
        wire.read_exact(&mut [0; 13]).await.unwrap();
        (wire, far, lifeline)
    }

    fn bytes(count: usize) -> Vec<u8> {
        (0..count).map(|n| (n % 251) as u8).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_and_says_nothing_ends_the_connection_in_time() {
        let (mut wire, mut far, _lifeline) = pair(Some(INTERVAL), 3).await;
        // Earlier data does not count as activity, and is not lost: 16 bytes are in the buffer, the others in the pipe.
        far.write_all(&bytes(40)).await.unwrap();
        wire.read_exact(&mut [0; 1]).await.unwrap();
        let begun = Instant::now();
        let fault = timeout(HOUR, wire.write_all(&bytes(1000))).await.unwrap().unwrap_err();
        assert!((3 * INTERVAL..=4 * INTERVAL).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        assert_eq!(fault.kind(), io::ErrorKind::TimedOut);
        let said = "timed out: for 45 s the other side neither received nor sent anything";
        assert_eq!(fault.to_string(), said);
        // The library then shuts the connection down, which does not wait for the peer either.
        timeout(HOUR, wire.shutdown()).await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_sends_without_reading_is_left_alone_and_all_that_it_sent_comes_in_order() {
        let (mut wire, mut far, _lifeline) = pair(Some(INTERVAL), 3).await;
        let (all, ours) = (bytes(1000), bytes(500));
        far.write_all(&all[..50]).await.unwrap();
        let mut first = [0; 3];
        wire.read_exact(&mut first).await.unwrap();
        let talks = async {
            for piece in all[50..].chunks(10) {
                sleep(2 * INTERVAL).await;
                far.write_all(piece).await.unwrap();
            }
            let mut theirs = vec![0; ours.len()];
            far.read_exact(&mut theirs).await.unwrap();
            theirs
        };
        let (theirs, wrote) = tokio::join!(talks, wire.write_all(&ours));
        wrote.unwrap();
        assert!(theirs == ours);
        let mut rest = vec![0; all.len() - first.len()];
        wire.read_exact(&mut rest).await.unwrap();
        assert!([&first[..], &rest].concat() == all);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_a_little_now_and_then_is_alive() {
        let (mut wire, mut far, _lifeline) = pair(Some(INTERVAL), 3).await;
        let ours = bytes(300);
        let reads = async {
            let mut theirs = Vec::new();
            while theirs.len() < ours.len() {
                sleep(2 * INTERVAL).await;
                theirs.push(far.read_u8().await.unwrap());
            }
            theirs
        };
        let (theirs, wrote) = tokio::join!(reads, wire.write_all(&ours));
        wrote.unwrap();
        assert!(theirs == ours);
    }

    #[tokio::test(start_paused = true)]
    async fn each_write_is_given_the_whole_time() {
        let (mut wire, mut far, _lifeline) = pair(Some(INTERVAL), 3).await;
        for _ in 0..5 {
            let reads = async {
                sleep(2 * INTERVAL).await;
                far.read_exact(&mut [0; 200]).await.unwrap();
            };
            let ((), wrote) = tokio::join!(reads, wire.write_all(&[7; 200]));
            wrote.unwrap();
            sleep(HOUR).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_watched_who_is_not_to_be_asked() {
        for (interval, count) in [(None, 3), (Some(INTERVAL), 0), (Some(Duration::ZERO), 3)] {
            let (mut wire, _far, _lifeline) = pair(interval, count).await;
            assert!(timeout(24 * HOUR, wire.write_all(&[7; 1000])).await.is_err());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_hangs_up_while_we_write_is_told_from_one_that_is_silent() {
        let (near, far) = duplex(64);
        let (mut wire, _, _lifeline) =
            Wire::new(Box::new(near), KeepAlive { interval: Some(INTERVAL), count: 3 });
        let (mut reads, mut writes) = tokio::io::split(far);
        writes.write_all(b"SSH-2.0-far\r\n").await.unwrap();
        wire.read_exact(&mut [0; 13]).await.unwrap();
        writes.shutdown().await.unwrap();
        let fault = timeout(HOUR, wire.write_all(&[7; 1000])).await.unwrap().unwrap_err();
        assert_eq!(fault.kind(), io::ErrorKind::UnexpectedEof);
        reads.read_exact(&mut [0; 64]).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_sends_more_than_is_kept_is_left_alone() {
        let (mut near, mut far) = duplex(1 << 20);
        let mut stall = Stall::new(KeepAlive { interval: Some(INTERVAL), count: 3 });
        let waits = std::future::poll_fn(|cx| match stall.handle_waiting(cx, &mut near) {
            Err(fault) => Poll::Ready(fault),
            Ok(()) => Poll::Pending,
        });
        let floods = async { while timeout(HOUR, far.write_all(&[7; 1 << 16])).await.is_ok() {} };
        tokio::select! {
            () = floods => {}
            fault = waits => panic!("{fault}"),
        }
        assert!((MOST_AHEAD..MOST_AHEAD + PIECE).contains(&stall.ahead.len()), "{}", stall.ahead.len());
    }
}
