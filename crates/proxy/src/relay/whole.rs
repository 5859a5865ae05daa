//! Brings a relay to a moment at which another process can go on with it: both connections are whole in the kernel, and
//! nothing of the session is in this process but its record.

use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use config::types::FastClose;

use super::{Age, Direction, Leg, Phase, Relay, TimerState, Watch, Way, poll_out};
use crate::stream::Stream;

/// Whether another process may go on with a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandOver {
    Never,
    Possible,
    /// The hand-over has begun: this direction reads no more, and passes on what it holds, before the other one does so.
    Begun(First),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum First {
    Up,
    Down,
}

/// Whether another process can go on now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whole {
    Yes,
    /// Its connections cannot do what the session needs of them any more: it ends here.
    Never,
}

/// What another process is told of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Watched {
    pub(crate) idle: Duration,
    pub(crate) silent: Duration,
    pub(crate) fast_close: FastClose,
}

impl Watch {
    /// Lets the relay pause when another process is to go on with it: neither side has TLS, and no bytes are counted or shown.
    pub(crate) fn may_be_handed_over(&mut self) {
        self.hand_over = HandOver::Possible;
    }

    /// The session stays in this process.
    pub(crate) fn stays(&mut self) {
        self.hand_over = HandOver::Never;
    }

    pub(crate) fn is_for_hand_over(&self) -> bool {
        self.hand_over != HandOver::Never
    }

    pub(crate) fn watched(&self, now: Instant) -> Watched {
        let silent = now.saturating_duration_since(self.since);
        Watched { idle: self.idle, silent, fast_close: self.fast_close }
    }

    /// The watch of a session that another process has had until now.
    pub(crate) fn going_on(watched: Watched, now: Instant) -> Self {
        let Watched { idle, silent, fast_close } = watched;
        Self {
            since: now.checked_sub(silent).unwrap_or(now),
            idle,
            doublings: 0,
            age: Age::Used,
            timer: TimerState::Unset,
            fast_close,
            hand_over: HandOver::Possible,
        }
    }
}

impl Relay<'_> {
    /// Whether another process is to go on with the session.
    #[inline]
    pub(super) fn is_wanted(&self) -> bool {
        self.pipes.are_relays_wanted() && self.watch.is_for_hand_over()
    }

    /// Moves what is buffered, and ends with an empty buffer. First one direction reads nothing more while the other one goes
    /// on: a side that reads only after it could write must not wait for it. When that one is empty, the other one reads
    /// nothing more either.
    #[cold]
    pub(super) fn poll_whole(&mut self, cx: &mut Context<'_>) -> Poll<Whole> {
        let Self { client, backend, totals, pipes, upward, downward, watch, .. } = self;
        let up = Leg { from: client, to: backend, total: &totals.up, pipes };
        let down = Leg { from: backend, to: client, total: &totals.down, pipes };
        let first = match watch.hand_over {
            HandOver::Begun(first) => first,
            HandOver::Never | HandOver::Possible if upward.holds_nothing() => First::Down,
            HandOver::Never | HandOver::Possible => First::Up,
        };
        watch.hand_over = HandOver::Begun(first);
        let (one, its, other, others) = match first {
            First::Up => (&mut *upward, up, &mut *downward, down),
            First::Down => (&mut *downward, down, &mut *upward, up),
        };
        let emptied = one.poll_emptied(cx, its, other);
        if !can_go_on(one, other, watch.fast_close) {
            watch.stays();
            return Poll::Ready(Whole::Never);
        }
        if emptied.is_pending() {
            let was_moving = other.phase == Phase::Moving;
            if other.poll(cx, others, one).is_ready() && was_moving {
                // Its end may be that of the session.
                cx.waker().wake_by_ref();
            }
            return Poll::Pending;
        }
        let emptied = other.poll_emptied(cx, others, one);
        if !can_go_on(one, other, watch.fast_close) {
            watch.stays();
            return Poll::Ready(Whole::Never);
        }
        emptied.map(|()| Whole::Yes)
    }
}

/// Whether the session goes on, and the kernel knows all of it: the end of a direction that was passed on, too.
fn can_go_on(one: &Direction, other: &Direction, fast_close: FastClose) -> bool {
    let ends = [one, other].map(|direction| match direction.phase {
        Phase::Moving | Phase::Ending | Phase::Failing => None,
        Phase::Ended(way) => Some(way),
    });
    match ends {
        [None, None] => true,
        [Some(Way::Delivered), None] | [None, Some(Way::Delivered)] => fast_close == FastClose::Off,
        _ => false,
    }
}

impl Direction {
    /// Writes what is held, and reads nothing.
    fn poll_emptied(&mut self, cx: &mut Context<'_>, leg: Leg<'_>, other: &Direction) -> Poll<()> {
        match self.phase {
            Phase::Ended(_) => Poll::Ready(()),
            Phase::Ending | Phase::Failing => self.poll_on(cx, leg, other).map(|_| ()),
            Phase::Moving => {
                let written = ready!(self.poll_held(cx, leg.from, leg.to));
                self.pipe = None;
                if let Err(way) = written {
                    (self.rest, self.phase) = (Vec::new(), Phase::Ended(way));
                }
                Poll::Ready(())
            }
        }
    }

    fn poll_held(&mut self, cx: &mut Context<'_>, from: &Stream, to: &Stream) -> Poll<Result<(), Way>> {
        ready!(self.poll_rest(cx, from, to))?;
        match &self.pipe {
            Some(pipe) => poll_out(pipe, cx, to),
            None => Poll::Ready(Ok(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::Ipv4Addr;
    use std::rc::Rc;

    use state::account::{Account, SlotCache};
    use tls::plain::Plain;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream, UnixStream};

    use super::*;
    use crate::live::Totals;
    use crate::pipes::Pipes;
    use crate::relay::{Early, End, RelayPause, Side, run_until_quiet};

    const LONG: Duration = Duration::from_secs(60);

    /// A destination that is never read buffers fewer bytes than this.
    const MUCH: usize = 64 * 1024 * 1024;

    async fn tcp_pair() -> (TcpStream, Stream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (peer, Stream::plain(Plain::Tcp(listener.accept().await.unwrap().0)))
    }

    fn unix_pair() -> (UnixStream, Stream) {
        let (peer, ours) = UnixStream::pair().unwrap();
        (peer, Stream::plain(Plain::Unix(ours)))
    }

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at % 251) as u8).collect()
    }

    fn watch() -> Watch {
        let mut watch = Watch::new(LONG);
        watch.may_be_handed_over();
        watch
    }

    #[tokio::test]
    async fn a_relay_is_whole_when_what_it_holds_is_taken_and_each_side_may_write_before_it_reads() {
        let (mut client_peer, client) = tcp_pair().await;
        let (mut backend_peer, backend) = unix_pair();
        let (sent, said) = (pattern(MUCH), pattern(4 * 1024 * 1024));
        let (totals, pipes) = (Totals::default(), Pipes::new(Rc::new(SlotCache::new(Account::new(1), 0))));
        let mut watch = watch();
        let heard = Cell::new(0);
        let relay = run_until_quiet(&client, &backend, Early::default(), &mut watch, &totals, &pipes);
        let (mut backend_reads, mut backend_writes) = backend_peer.split();
        let (mut client_reads, mut client_writes) = client_peer.split();
        let client_side = async {
            while !backend.is_parked() {
                tokio::task::yield_now().await;
            }
            // The client takes nothing, and the relay holds what it has read for it.
            pipes.want_relays(true);
            client_writes.write_all(&said).await.unwrap();
            let mut buffer = vec![0; 100_000];
            loop {
                let count = client_reads.read(&mut buffer).await.unwrap();
                assert!(buffer[..count] == sent[heard.get()..heard.get() + count], "after {}", heard.get());
                heard.set(heard.get() + count);
            }
        };
        let backend_side = async {
            let mut all = vec![0; said.len()];
            backend_reads.read_exact(&mut all).await.unwrap();
            assert!(all == said, "bytes were lost or changed");
            std::future::pending::<()>().await;
        };
        tokio::select! {
            end = relay => assert_eq!(end, RelayPause::Whole),
            _ = backend_writes.write_all(&sent) => panic!("a full destination took everything"),
            () = async { tokio::join!(client_side, backend_side); } => {}
        }
        // All that was read has been written: the rest is in the kernel.
        let mut rest = vec![0; usize::try_from(totals.down.get()).unwrap() - heard.get()];
        client_reads.read_exact(&mut rest).await.unwrap();
        assert!(rest == sent[heard.get()..heard.get() + rest.len()]);
        assert!(totals.up.get() > 0);
    }

    #[tokio::test]
    async fn what_a_side_sent_before_its_reset_is_delivered_and_then_the_session_fails() {
        for side in [Side::Client, Side::Backend] {
            let (client_peer, client) = tcp_pair().await;
            let (backend_peer, backend) = tcp_pair().await;
            // The kernel says of a connection whose reset was told before that it has ended.
            let (mut reader, writer) = match side {
                Side::Client => (backend_peer, client_peer),
                Side::Backend => (client_peer, backend_peer),
            };
            drop(writer);
            let bytes = pattern(MUCH);
            let early = match side {
                Side::Client => Early { up: bytes.clone(), reset: Some(side), ..Early::default() },
                Side::Backend => Early { down: bytes.clone(), reset: Some(side), ..Early::default() },
            };
            let (totals, pipes) =
                (Totals::default(), Pipes::new(Rc::new(SlotCache::new(Account::new(1), 0))));
            let mut watch = watch();
            let relay = run_until_quiet(&client, &backend, early, &mut watch, &totals, &pipes);
            let reading = async {
                let mut first = [0; 4096];
                reader.read_exact(&mut first).await.unwrap();
                assert!(first == bytes[..first.len()]);
                // Another process could not know of the reset: the session stays.
                pipes.want_relays(true);
                let mut rest = vec![0; bytes.len() - first.len()];
                reader.read_exact(&mut rest).await.unwrap();
                assert!(rest == bytes[first.len()..]);
            };
            let (end, ()) = tokio::join!(relay, reading);
            let wanted = if side == Side::Client { End::ClientFailed } else { End::BackendFailed };
            assert_eq!(end, RelayPause::Ended(wanted));
        }
    }

    #[tokio::test]
    async fn a_half_closed_relay_is_whole_and_one_with_fast_close_ends() {
        for (fast_close, wanted) in
            [(FastClose::Off, "Whole"), (FastClose::Both, "Ended(FastClosed(Client))")]
        {
            let (mut client_peer, client) = unix_pair();
            let (mut backend_peer, backend) = unix_pair();
            let (totals, pipes) =
                (Totals::default(), Pipes::new(Rc::new(SlotCache::new(Account::new(1), 0))));
            let mut watch = watch().closing(fast_close);
            client_peer.write_all(b"last").await.unwrap();
            client_peer.shutdown().await.unwrap();
            let hearing = async {
                let mut heard = Vec::new();
                backend_peer.read_to_end(&mut heard).await.unwrap();
                assert_eq!(heard, b"last");
                pipes.want_relays(true);
                backend_peer.write_all(b"answer").await.unwrap();
                std::future::pending::<()>().await;
            };
            let relay = run_until_quiet(&client, &backend, Early::default(), &mut watch, &totals, &pipes);
            tokio::select! {
                end = relay => assert_eq!(format!("{end:?}"), wanted),
                () = hearing => {}
            }
        }
    }
}
