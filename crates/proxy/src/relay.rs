//! Relays bytes in both directions between two connections until both directions have ended.
//! A half-close is relayed: the end of one direction shuts down only that direction at the other side, after all bytes
//! are delivered. Bulk data on plain connections goes through splice(2).

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use config::types::FastClose;
use logic::room::{PIPE, SPLICE_AFTER};
use state::ending::Ending;
use tokio::time::Sleep;

use crate::bandwidth::{Pace, Wait};
use crate::live::Totals;
use crate::pipes::{Borrowed, Pipes};
use crate::stream::{Carriage, Moved, Stream};
use crate::timer::poll_sleep;

pub(crate) mod whole;

use whole::{HandOver, Whole};

/// Moves per wake-up before other tasks of the worker run. A splice counts as four: 1 MiB copied or 4 MiB spliced.
const TURNS: usize = 16;
const SPLICE_TURNS: usize = 4;

/// Silence after which a relay first counts as quiet, and how often the duration is doubled at most (to 32 s).
const FIRST_PATIENCE: Duration = Duration::from_millis(250);
const MOST_DOUBLINGS: u8 = 7;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Both sides closed their connections without error.
    Finished,
    /// No byte moved in either direction for the idle timeout.
    Idle,
    ClientFailed,
    BackendFailed,
    /// The backend closed before it read all bytes of the client. The client has received all bytes of the backend.
    BackendDeaf,
    /// One side ended, the other one has all of its bytes, and by `fast-close` the session ends with it.
    FastClosed(Side),
}

/// A side of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Client,
    Backend,
}

impl End {
    /// Returns the ending of the session. A reset of one side makes the close of the other connection a reset too, so
    /// that its peer does not take an incomplete stream for a complete one.
    pub fn settle(self, client: &Stream, backend: &Stream) -> Ending {
        match self {
            Self::Finished | Self::FastClosed(_) => Ending::Ok,
            Self::Idle => Ending::IdleTimeout,
            Self::ClientFailed => {
                backend.reset_on_close();
                Ending::ClientClosed
            }
            Self::BackendFailed => {
                client.reset_on_close();
                Ending::BackendAborted
            }
            Self::BackendDeaf => Ending::BackendClosed,
        }
    }
}

/// Result of [`run_until_quiet`].
#[derive(Debug, PartialEq, Eq)]
pub enum RelayPause {
    Ended(End),
    /// No byte has moved for a while, no byte is buffered, and both sides may still send.
    Quiet,
    /// Nothing is buffered: another process may go on with both connections. Returned only after the session called
    /// `Watch::may_be_handed_over`.
    Whole,
}

/// Checks at intervals whether bytes still move. A watch outlives its relay, so that an idle session without a relay
/// knows how long it has been silent.
#[derive(Debug)]
pub struct Watch {
    /// When a check last saw that bytes had moved. Slightly late, as the clock is not read for every move.
    since: Instant,
    /// Idle timeout of the session.
    idle: Duration,
    doublings: u8,
    age: Age,
    timer: TimerState,
    fast_close: FastClose,
    hand_over: HandOver,
}

/// Whether the timer of the checks knows the task. One task polls a relay: it need not be told again, which a poll would
/// do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimerState {
    Unset,
    Set,
}

/// Whether a watch begins with the next relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    New,
    Used,
}

impl Watch {
    pub fn new(idle: Duration) -> Self {
        Self::begun(idle, Instant::now())
    }

    /// A watch for a relay that begins at `now`.
    pub fn begun(idle: Duration, now: Instant) -> Self {
        let (age, timer, fast_close) = (Age::New, TimerState::Unset, FastClose::Off);
        Self { since: now, idle, doublings: 0, age, timer, fast_close, hand_over: HandOver::Never }
    }

    /// Lets the session end with these sides.
    pub fn closing(self, fast_close: FastClose) -> Self {
        Self { fast_close, ..self }
    }

    /// Lets the relay of a new watch begin at `now`.
    pub fn begin_at(&mut self, now: Instant) {
        self.since = now;
    }

    /// Returns the time when a relay begins. It is that of a new watch, without a look at the clock.
    fn begin(&mut self) -> Instant {
        self.timer = TimerState::Unset;
        match std::mem::replace(&mut self.age, Age::Used) {
            Age::New => self.since,
            Age::Used => Instant::now(),
        }
    }

    /// When the idle timeout expires if no byte moves.
    pub fn due(&self) -> Instant {
        self.since + self.idle
    }

    fn patience(&self) -> Duration {
        FIRST_PATIENCE * (1 << self.doublings)
    }

    fn next_look(&self, now: Instant) -> Instant {
        self.due().min(now + self.patience())
    }

    /// Makes checks rarer for a session that repeatedly becomes active again.
    fn lengthen_pause(&mut self) {
        self.doublings = (self.doublings + 1).min(MOST_DOUBLINGS);
    }
}

/// Bytes that were read before the relay and are sent first.
#[derive(Debug, Default)]
pub struct Early {
    pub up: Vec<u8>,
    pub down: Vec<u8>,
    /// A side that has reset its connection, which the kernel tells once: the other side gets its bytes before the session ends.
    pub reset: Option<Side>,
}

/// Relays between `client` and `backend` until the session ends.
pub async fn run(
    client: &Stream,
    backend: &Stream,
    mut early: Early,
    idle: Duration,
    totals: &Totals,
    pipes: &Rc<Pipes>,
) -> End {
    let mut watch = Watch::new(idle);
    loop {
        let early = std::mem::take(&mut early);
        match run_until_quiet(client, backend, early, &mut watch, totals, pipes).await {
            RelayPause::Ended(end) => return end,
            RelayPause::Quiet | RelayPause::Whole => {}
        }
    }
}

/// Relays until the session ends or is quiet. After [`RelayPause::Quiet`] the function may be called again with the
/// same watch and totals. Not an `async fn`, whose future would hold each argument twice.
pub fn run_until_quiet<'a>(
    client: &'a Stream,
    backend: &'a Stream,
    early: Early,
    watch: &'a mut Watch,
    totals: &'a Totals,
    pipes: &'a Rc<Pipes>,
) -> impl Future<Output = RelayPause> + use<'a> {
    let bulk = match (client.carriage(), backend.carriage()) {
        (Carriage::Plain, Carriage::Plain) => Bulk::Splice,
        (_, Carriage::Multiplexed) | (Carriage::Multiplexed, _) => Bulk::CopyForStream,
        _ => Bulk::Copy,
    };
    let of = |from: &Stream, to: &Stream| if from.pace(to).is_some() { Bulk::Limited } else { bulk };
    let phase = |side| if early.reset == Some(side) { Phase::Failing } else { Phase::Moving };
    let (first_up, first_down) = (phase(Side::Client), phase(Side::Backend));
    let upward = Direction::new(early.up, of(client, backend), first_up);
    let downward = Direction::new(early.down, of(backend, client), first_down);
    let seen = totals.both();
    let mut relay = Relay { client, backend, totals, pipes, upward, downward, watch, seen };
    async move {
        let begin = relay.watch.begin();
        let mut look = pin!(tokio::time::sleep_until(relay.watch.next_look(begin).into()));
        std::future::poll_fn(|cx| {
            if relay.is_wanted() {
                match relay.poll_whole(cx) {
                    Poll::Ready(Whole::Yes) => return Poll::Ready(RelayPause::Whole),
                    Poll::Ready(Whole::Never) => {}
                    Poll::Pending => return relay.poll_look(cx, look.as_mut()),
                }
            }
            match relay.poll(cx) {
                Poll::Ready(end) => Poll::Ready(RelayPause::Ended(end)),
                Poll::Pending => relay.poll_look(cx, look.as_mut()),
            }
        })
        .await
    }
}

struct Relay<'a> {
    client: &'a Stream,
    backend: &'a Stream,
    totals: &'a Totals,
    pipes: &'a Rc<Pipes>,
    upward: Direction,
    downward: Direction,
    watch: &'a mut Watch,
    /// The totals at the last check.
    seen: (u64, u64),
}

impl Relay<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        let Self { client, backend, totals, pipes, upward, downward, watch, .. } = self;
        // Which came first, of what one wake-up brings, is not known: by `fast-close`, the end that was delivered. That a
        // side takes no more bytes is known before its end if an earlier wake-up brought it.
        let (deaf, gone) = (upward.failed(), downward.failed());
        let up = upward.poll(cx, Leg { from: client, to: backend, total: &totals.up, pipes }, downward);
        let down = downward.poll(cx, Leg { from: backend, to: client, total: &totals.down, pipes }, upward);
        match (up, down) {
            (Poll::Ready(Way::Delivered), Poll::Ready(Way::Delivered)) => Poll::Ready(End::Finished),
            (Poll::Ready(Way::Delivered), _) if watch.fast_close.is_at_client() && !gone => {
                Poll::Ready(End::FastClosed(Side::Client))
            }
            (_, Poll::Ready(Way::Delivered)) if watch.fast_close.is_at_backend() && !deaf => {
                Poll::Ready(End::FastClosed(Side::Backend))
            }
            (Poll::Ready(Way::SourceFailed), _) => Poll::Ready(End::ClientFailed),
            (_, Poll::Ready(Way::SourceFailed)) => Poll::Ready(End::BackendFailed),
            // A side that accepts no more bytes may have sent its last bytes: they are delivered first.
            (Poll::Ready(_), Poll::Ready(Way::Delivered)) => Poll::Ready(End::BackendDeaf),
            (Poll::Ready(_), Poll::Ready(_)) => Poll::Ready(End::ClientFailed),
            _ => Poll::Pending,
        }
    }

    /// Checks at the due time whether bytes have moved.
    fn poll_look(&mut self, cx: &mut Context<'_>, mut look: Pin<&mut Sleep>) -> Poll<RelayPause> {
        if self.watch.timer == TimerState::Set && !look.is_elapsed() {
            return Poll::Pending;
        }
        loop {
            self.watch.timer = TimerState::Set;
            ready!(poll_sleep(look.as_mut(), cx));
            let now = Instant::now();
            let moved = self.totals.both();
            if moved != self.seen || self.is_slowed() {
                self.seen = moved;
                self.watch.since = now;
                self.watch.lengthen_pause();
            } else if now >= self.watch.due() {
                return Poll::Ready(RelayPause::Ended(End::Idle));
            } else if self.is_quiet() && now >= self.watch.since + self.watch.patience() {
                self.watch.lengthen_pause();
                return Poll::Ready(RelayPause::Quiet);
            }
            look.as_mut().reset(self.watch.next_look(now).into());
        }
    }

    fn is_quiet(&self) -> bool {
        self.upward.is_quiet() && self.downward.is_quiet()
    }

    /// Whether bytes are held because of a limit of bytes a second: then the session is not idle.
    fn is_slowed(&self) -> bool {
        let waits = |pace: Option<&Pace>| pace.is_some_and(Pace::waits);
        waits(self.client.pace(self.backend)) || waits(self.backend.pace(self.client))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bulk {
    Copy,
    /// One side is a stream of a multiplexed connection, which limits how many bytes are read.
    CopyForStream,
    Splice,
    /// There is a limit of bytes a second: each piece is held until it may go.
    Limited,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The source ended, and the destination has received all bytes.
    Delivered,
    SourceFailed,
    DestinationFailed,
}

/// How the destination learns that a direction has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shutdown {
    /// By shutdown(2); the other direction continues.
    HalfClose,
    /// By the close that follows at once, which saves a system call per session. The other direction has ended and all
    /// its bytes were read, so the close sends the remaining bytes and a FIN.
    Close,
}

struct Direction {
    /// Bytes read from the source but not yet written.
    rest: Vec<u8>,
    written: usize,
    phase: Phase,
    bulk: Bulk,
    pipe: Option<Borrowed>,
}

#[derive(Clone, Copy)]
struct Leg<'a> {
    from: &'a Stream,
    to: &'a Stream,
    total: &'a Cell<u64>,
    pipes: &'a Rc<Pipes>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Moving,
    /// The source has ended.
    Ending,
    /// The source was reset.
    Failing,
    Ended(Way),
}

impl Direction {
    fn new(rest: Vec<u8>, bulk: Bulk, phase: Phase) -> Self {
        Self { rest, written: 0, phase, bulk, pipe: None }
    }

    /// Whether the direction waits only for its source.
    fn is_quiet(&self) -> bool {
        self.phase == Phase::Moving && self.holds_nothing()
    }

    /// Whether no bytes wait for the destination.
    fn holds_nothing(&self) -> bool {
        self.rest.is_empty() && self.pipe.as_ref().is_none_or(|pipe| pipe.is_empty())
    }

    /// Whether nothing is to be done, for the destination neither, before a source without TLS has sent something.
    fn waits_for_plain_source(&self) -> bool {
        self.bulk == Bulk::Splice
            && self.phase == Phase::Moving
            && self.rest.is_empty()
            && self.pipe.is_none()
    }

    /// Whether the destination takes no more bytes.
    fn failed(&self) -> bool {
        self.phase == Phase::Ended(Way::DestinationFailed)
    }

    fn shutdown_of_other(&self) -> Shutdown {
        match self.phase {
            Phase::Ended(Way::Delivered) => Shutdown::Close,
            _ => Shutdown::HalfClose,
        }
    }

    #[inline]
    fn poll(&mut self, cx: &mut Context<'_>, leg: Leg<'_>, other: &Direction) -> Poll<Way> {
        // Of both directions of a relay, one has bytes when its task is woken: this is the cheapest look at the other.
        if self.waits_for_plain_source() {
            ready!(leg.from.poll_readable(cx));
        }
        self.poll_on(cx, leg, other)
    }

    fn poll_on(&mut self, cx: &mut Context<'_>, leg: Leg<'_>, other: &Direction) -> Poll<Way> {
        if let Phase::Ended(way) = self.phase {
            return Poll::Ready(way);
        }
        let way = ready!(self.poll_moving(cx, leg, other)).map_or_else(|broken| broken, |()| Way::Delivered);
        self.rest = Vec::new();
        self.pipe = None;
        self.phase = Phase::Ended(way);
        Poll::Ready(way)
    }

    fn poll_moving(
        &mut self,
        cx: &mut Context<'_>,
        leg: Leg<'_>,
        other: &Direction,
    ) -> Poll<Result<(), Way>> {
        let Leg { from, to, total, .. } = leg;
        let mut turns = 0;
        while turns < TURNS {
            ready!(self.poll_rest(cx, from, to))?;
            match self.phase {
                Phase::Moving if self.bulk == Bulk::Splice && total.get() >= SPLICE_AFTER => {
                    ready!(self.poll_splice(cx, leg, other))?;
                    turns += SPLICE_TURNS;
                }
                Phase::Moving => {
                    ready!(self.poll_copy(cx, from, to, total))?;
                    turns += 1;
                }
                Phase::Failing => return Poll::Ready(Err(Way::SourceFailed)),
                Phase::Ending | Phase::Ended(_) => {
                    if other.shutdown_of_other() == Shutdown::HalfClose || to.carriage() != Carriage::Plain {
                        // An error means that the peer has already closed its connection.
                        let _ = ready!(to.poll_shutdown(cx));
                    }
                    return Poll::Ready(Ok(()));
                }
            }
            if self.waits_for_plain_source() {
                ready!(from.poll_readable(cx));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_rest(&mut self, cx: &mut Context<'_>, from: &Stream, to: &Stream) -> Poll<Result<(), Way>> {
        while self.written < self.rest.len() {
            if self.bulk == Bulk::Limited && self.written == 0 {
                ready!(self.poll_turn(cx, from, to))?;
            }
            match ready!(to.poll_write(cx, &[IoSlice::new(&self.rest[self.written..])])) {
                Ok(count) => self.written += count,
                Err(_) => return Poll::Ready(Err(Way::DestinationFailed)),
            }
        }
        if !self.rest.is_empty() {
            // Frees the buffer, so that an idle connection holds none.
            self.rest = Vec::new();
            self.written = 0;
            if let (Bulk::Limited, Some(pace)) = (self.bulk, from.pace(to)) {
                pace.gone();
            }
        }
        if self.bulk == Bulk::Splice {
            // Neither side buffers anything.
            return Poll::Ready(Ok(()));
        }
        to.poll_flush(cx).map_err(|_| Way::DestinationFailed)
    }

    /// Waits until the rest may go. The source is not read meanwhile: that it was reset ends the session all the same, and
    /// so does a receiver that is gone.
    fn poll_turn(&mut self, cx: &mut Context<'_>, from: &Stream, to: &Stream) -> Poll<Result<(), Way>> {
        let Some(pace) = from.pace(to) else { return Poll::Ready(Ok(())) };
        if pace.poll_turn(cx, self.rest.len()).is_ready() {
            return Poll::Ready(Ok(()));
        }
        match to.look_after(pace) {
            Wait::GoesOn => {}
            Wait::Over => return Poll::Ready(Err(Way::DestinationFailed)),
            // The whole piece goes at its turn.
            Wait::Ask if self.rest.len() == 1 => {}
            Wait::Ask => match to.poll_write(cx, &[IoSlice::new(&self.rest[..1])]) {
                Poll::Ready(Ok(sent)) => drop(self.rest.drain(..sent)),
                Poll::Ready(Err(_)) => return Poll::Ready(Err(Way::DestinationFailed)),
                Poll::Pending => {}
            },
        }
        from.poll_reset(cx).map(|()| Err(Way::SourceFailed))
    }

    /// Reads the next piece of a direction with a limit.
    fn poll_piece(
        &mut self,
        cx: &mut Context<'_>,
        from: &Stream,
        to: &Stream,
        total: &Cell<u64>,
    ) -> Poll<Result<(), Way>> {
        ready!(to.poll_flows(cx));
        match ready!(from.poll_fill_for(cx, &mut self.rest, to)) {
            Ok(0) => self.phase = Phase::Ending,
            Ok(count) => total.set(total.get() + count as u64),
            Err(_) => return Poll::Ready(Err(Way::SourceFailed)),
        }
        Poll::Ready(Ok(()))
    }

    fn poll_copy(
        &mut self,
        cx: &mut Context<'_>,
        from: &Stream,
        to: &Stream,
        total: &Cell<u64>,
    ) -> Poll<Result<(), Way>> {
        let moved = match self.bulk {
            Bulk::Copy => from.poll_move(cx, to, &mut self.rest),
            Bulk::Splice => from.poll_move_readable(cx, to, &mut self.rest),
            Bulk::CopyForStream => from.poll_move_for(cx, to, &mut self.rest),
            Bulk::Limited => return self.poll_piece(cx, from, to, total),
        };
        match ready!(moved) {
            Ok(Moved::Bytes(count)) => total.set(total.get() + count as u64),
            Ok(Moved::End) => self.phase = Phase::Ending,
            Ok(Moved::ReadFailed(_)) => return Poll::Ready(Err(Way::SourceFailed)),
            Err(_) => return Poll::Ready(Err(Way::DestinationFailed)),
        }
        Poll::Ready(Ok(()))
    }

    fn poll_splice(
        &mut self,
        cx: &mut Context<'_>,
        leg: Leg<'_>,
        other: &Direction,
    ) -> Poll<Result<(), Way>> {
        let Leg { from, to, total, pipes } = leg;
        let pipe = match self.pipe.take() {
            Some(pipe) => self.pipe.insert(pipe),
            None => match pipes.take(PIPE) {
                Ok(pipe) => self.pipe.insert(pipe),
                // No descriptors for a pipe: copy instead.
                Err(_) => {
                    self.bulk = Bulk::Copy;
                    return Poll::Ready(Ok(()));
                }
            },
        };
        let emptied = poll_out(pipe, cx, to);
        match emptied {
            Poll::Ready(emptied) => emptied?,
            Poll::Pending => {
                // Stops watching the source: each arriving segment would wake the task in vain, which costs more than
                // the segment. Nothing is lost: when the pipe is empty, the source is read again, its end included. If
                // the other direction waits to write to the source, the source must be watched.
                if other.holds_nothing() {
                    from.park();
                }
                return Poll::Pending;
            }
        }
        let filled = match from.poll_splice_from(cx, |fd| pipe.splice_in(fd, PIPE)) {
            Poll::Pending => {
                // The pipe goes back, so that an idle flow costs two descriptors, not four.
                self.pipe = None;
                return Poll::Pending;
            }
            Poll::Ready(filled) => filled,
        };
        match filled {
            Ok(0) => {
                self.pipe = None;
                self.phase = Phase::Ending;
            }
            Ok(count) => total.set(total.get() + count as u64),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Some socket types cannot be spliced: copy instead. No byte was taken.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => self.bulk = Bulk::Copy,
            Err(_) => return Poll::Ready(Err(Way::SourceFailed)),
        }
        Poll::Ready(Ok(()))
    }
}

/// Moves what is in the pipe to `to`.
#[inline]
fn poll_out(pipe: &Borrowed, cx: &mut Context<'_>, to: &Stream) -> Poll<Result<(), Way>> {
    while !pipe.is_empty() {
        match ready!(to.poll_splice_to(cx, |fd| pipe.splice_out(fd, PIPE))) {
            Ok(0) => return Poll::Ready(Err(Way::DestinationFailed)),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Poll::Ready(Err(Way::DestinationFailed)),
        }
    }
    Poll::Ready(Ok(()))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream, UnixStream};

    use super::*;
    use state::account::{Account, SlotCache};
    use tls::plain::Plain;

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

    fn pipes() -> Rc<Pipes> {
        Pipes::new(Rc::new(SlotCache::new(Account::new(1), 0)))
    }

    async fn until_parked(stream: &Stream) {
        while !stream.is_parked() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn what_arrives_while_the_destination_is_full_is_delivered_with_its_end() {
        let (mut client_peer, client) = tcp_pair().await;
        let (mut backend_peer, backend) = tcp_pair().await;
        let sent = pattern(MUCH);
        let (totals, pipes) = (Totals::default(), pipes());
        let relay = run(&client, &backend, Early::default(), LONG, &totals, &pipes);
        let sending = async {
            backend_peer.write_all(&sent).await.unwrap();
            backend_peer.shutdown().await.unwrap();
        };
        let receiving = async {
            until_parked(&backend).await;
            let mut received = Vec::new();
            client_peer.read_to_end(&mut received).await.unwrap();
            assert!(received == sent, "bytes were lost or changed");
            client_peer.shutdown().await.unwrap();
        };
        let (end, (), ()) = tokio::join!(relay, sending, receiving);
        assert_eq!(end, End::Finished);
        assert_eq!(totals.down.get(), MUCH as u64);
    }

    #[tokio::test]
    async fn a_source_that_nobody_watches_is_still_written_to_in_bulk() {
        let (mut client_peer, client) = tcp_pair().await;
        let (mut backend_peer, backend) = unix_pair();
        let (sent, said) = (pattern(MUCH), pattern(4 * 1024 * 1024));
        let (totals, pipes) = (Totals::default(), pipes());
        let relay = run(&client, &backend, Early::default(), LONG, &totals, &pipes);
        let (mut backend_reads, mut backend_writes) = backend_peer.split();
        let sending = async {
            backend_writes.write_all(&sent).await.unwrap();
            backend_writes.shutdown().await.unwrap();
        };
        let (mut client_reads, mut client_writes) = client_peer.split();
        let talking = async {
            until_parked(&backend).await;
            let mut heard = Vec::new();
            let saying = async {
                client_writes.write_all(&said).await.unwrap();
                client_writes.shutdown().await.unwrap();
            };
            // The client reads only after the backend has received everything.
            let ((), heard_all) = tokio::join!(saying, backend_reads.read_to_end(&mut heard));
            heard_all.unwrap();
            assert!(heard == said, "bytes were lost or changed");
            let mut received = vec![0; MUCH];
            client_reads.read_exact(&mut received).await.unwrap();
            assert!(received == sent, "bytes were lost or changed");
        };
        let (end, (), ()) = tokio::join!(relay, sending, talking);
        assert_eq!(end, End::Finished);
    }

    #[tokio::test]
    async fn a_reset_that_nobody_watched_for_is_found_when_the_destination_has_taken_its_bytes() {
        let (mut client_peer, client) = tcp_pair().await;
        let (mut backend_peer, backend) = tcp_pair().await;
        let sent = pattern(MUCH);
        let (totals, pipes) = (Totals::default(), pipes());
        let relay = run(&client, &backend, Early::default(), LONG, &totals, &pipes);
        let breaking = async {
            tokio::select! {
                _ = backend_peer.write_all(&sent) => panic!("a full destination took everything"),
                () = until_parked(&backend) => {}
            }
            Stream::plain(Plain::Tcp(backend_peer)).reset_on_close();
            let mut received = vec![0; MUCH];
            while client_peer.read(&mut received).await.is_ok_and(|count| count > 0) {}
        };
        tokio::select! {
            end = relay => assert_eq!(end, End::BackendFailed),
            () = async { breaking.await; std::future::pending().await } => {}
        }
    }

    /// Ends a peer's direction, and then resets the connection.
    async fn end_and_reset(mut peer: TcpStream) {
        peer.shutdown().await.unwrap();
        Stream::plain(Plain::Tcp(peer)).reset_on_close();
    }

    #[tokio::test]
    async fn an_end_and_a_reset_at_one_wake_up_end_the_session_by_fast_close_and_fail_it_otherwise() {
        for (fast_close, client_ends, wanted) in [
            (FastClose::Down, true, End::FastClosed(Side::Client)),
            (FastClose::Both, true, End::FastClosed(Side::Client)),
            (FastClose::Up, true, End::ClientFailed),
            (FastClose::Up, false, End::FastClosed(Side::Backend)),
            (FastClose::Both, false, End::FastClosed(Side::Backend)),
            (FastClose::Down, false, End::BackendDeaf),
        ] {
            let (mut client_peer, client) = tcp_pair().await;
            let (mut backend_peer, backend) = tcp_pair().await;
            // Both sides have sent something: one cannot take that of the other any more.
            client_peer.write_all(b"hello").await.unwrap();
            backend_peer.write_all(b"hello").await.unwrap();
            let stays = if client_ends {
                end_and_reset(client_peer).await;
                backend_peer
            } else {
                end_and_reset(backend_peer).await;
                client_peer
            };
            // The runtime learns of all that has arrived before the relay begins.
            tokio::task::yield_now().await;
            let (totals, pipes) = (Totals::default(), pipes());
            let mut watch = Watch::new(LONG).closing(fast_close);
            let ended =
                run_until_quiet(&client, &backend, Early::default(), &mut watch, &totals, &pipes).await;
            assert_eq!(ended, RelayPause::Ended(wanted), "{fast_close:?} client ends: {client_ends}");
            drop(stays);
        }
    }

    #[tokio::test]
    async fn a_destination_that_takes_nothing_ends_the_session_at_the_idle_limit() {
        let (_client_peer, client) = tcp_pair().await;
        let (mut backend_peer, backend) = tcp_pair().await;
        let sent = pattern(MUCH);
        let (totals, pipes) = (Totals::default(), pipes());
        let relay = run(&client, &backend, Early::default(), Duration::from_secs(2), &totals, &pipes);
        tokio::select! {
            end = relay => assert_eq!(end, End::Idle),
            _ = backend_peer.write_all(&sent) => panic!("a full destination took everything"),
        }
        assert!(backend.is_parked());
    }
}
