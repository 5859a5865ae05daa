//! Ends a connection whose peer neither takes what we write nor says anything.
//!
//! The SSH library asks a silent peer for a sign of life, but not while it writes: then it reads nothing and looks at no
//! timer, however long the peer takes nothing (RFC 4254 leaves both to us). So whoever owns the bytes below it watches
//! the writes that wait. A peer that says something is alive, whether it reads or not: what it says is read ahead, as
//! nobody could tell otherwise what came just now from what was there before.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use crate::target::KeepAlive;

/// Watches the writes of one connection.
pub(crate) struct Stall {
    patience: Option<Patience>,
    /// Begun when a write has to wait, and not taken back when it need not any more: that would cost more than one look
    /// too many at each end.
    timer: Option<Pin<Box<Sleep>>>,
    /// Whether something was taken since the last look.
    taken: bool,
    /// Whether something came since then, as far as anybody looked.
    said: Said,
    /// Looks without a sign of life.
    silent: usize,
    /// When there was one, as far as it was seen.
    last: Instant,
    /// What came meanwhile.
    ahead: BytesMut,
}

/// Looks are so far apart, and so many without a sign of life are the end.
#[derive(Clone, Copy)]
struct Patience {
    interval: Duration,
    count: usize,
}

/// For so long the peer took nothing, though there was something to take, and said nothing.
#[derive(Debug, thiserror::Error)]
#[error("timed out, as for {} s the other side took nothing of what was sent, and sent nothing", .0.as_secs())]
struct Stalled(Duration);

impl Stall {
    /// Whoever is not asked for signs of life is not watched: an interval of none, or a count of 0.
    pub(crate) fn new(keep_alive: KeepAlive) -> Self {
        let KeepAlive { interval, count } = keep_alive;
        let interval = interval.filter(|interval| !interval.is_zero() && count > 0);
        let patience = interval.map(|interval| Patience { interval, count });
        let last = Instant::now();
        let said = Said::Nothing;
        Self { patience, timer: None, taken: true, said, silent: 0, last, ahead: BytesMut::new() }
    }

    /// A write was taken.
    pub(crate) fn handle_taken(&mut self) {
        self.taken = true;
    }

    /// A write waits. `from` is the same connection's other direction.
    ///
    /// # Errors
    /// It has waited for too long, or nothing more can come.
    pub(crate) fn handle_waiting(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut (impl AsyncRead + Unpin),
    ) -> io::Result<()> {
        let Some(Patience { interval, count }) = self.patience else { return Ok(()) };
        let mut timer = self.timer.take().unwrap_or_else(|| Box::pin(sleep(interval)));
        if !self.taken {
            // It waits for long: what wakes us now may be something that came.
            self.read_ahead(cx, from)?;
        }
        // A process that was stopped finds one look overdue, and not all of them.
        while timer.as_mut().poll(cx).is_ready() {
            self.read_ahead(cx, from)?;
            let said = std::mem::replace(&mut self.said, Said::Nothing);
            if std::mem::take(&mut self.taken) || said == Said::Something {
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

    /// Reads all that is there.
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
                    self.said = Said::Something;
                }
            }
        }
        // More may come all the time, for all we know: it is left to whoever gives the connection up.
        self.said = Said::Something;
        Ok(())
    }

    /// Whether something was read ahead, which comes before all else.
    pub(crate) fn is_ahead(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// Hands on what was read ahead.
    pub(crate) fn take(&mut self, into: &mut ReadBuf<'_>) {
        let count = self.ahead.len().min(into.remaining());
        into.put_slice(&self.ahead[..count]);
        self.ahead.advance(count);
        if self.ahead.is_empty() {
            // It is rarely needed, and may have grown.
            self.ahead = BytesMut::new();
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Said {
    Nothing,
    Something,
}

/// So much is read at once.
const PIECE: usize = 8 * 1024;
/// So much is read ahead at most: more than the kernel keeps of a connection by default (`tcp_rmem`: 6 MiB), so that all
/// that was there before a peer fell silent is told from what comes after.
const MOST_AHEAD: usize = 8 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Lifeline, Wire};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::timeout;

    const INTERVAL: Duration = Duration::from_secs(15);
    const HOUR: Duration = Duration::from_secs(3600);

    /// Both ends of a connection that holds 64 bytes each way, after the greeting.
    async fn pair(interval: Option<Duration>, count: usize) -> (Wire, DuplexStream, Lifeline) {
        let (near, mut far) = duplex(64);
        let (mut wire, _, lifeline) = Wire::new(Box::new(near), 16, KeepAlive { interval, count });
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
        // What it said before does not count, and is not lost on anybody: 16 bytes in the buffer, the others below it.
        far.write_all(&bytes(40)).await.unwrap();
        wire.read_exact(&mut [0; 1]).await.unwrap();
        let begun = Instant::now();
        let fault = timeout(HOUR, wire.write_all(&bytes(1000))).await.unwrap().unwrap_err();
        assert!((3 * INTERVAL..=4 * INTERVAL).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        assert_eq!(fault.kind(), io::ErrorKind::TimedOut);
        let said = "timed out, as for 45 s the other side took nothing of what was sent, and sent nothing";
        assert_eq!(fault.to_string(), said);
        // Whoever is told of it lets go of the connection, which does not wait for the peer, either.
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
            Wire::new(Box::new(near), 16, KeepAlive { interval: Some(INTERVAL), count: 3 });
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
