//! Hedging of one request: while its backend is slow to respond, a copy goes to a second backend, and the exchange goes on
//! with the backend whose response begins first. `crates/logic/src/hedge.rs` decides when, and how often.

use std::cell::Cell;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use config::types::BackendHttp;
use logic::attempts::Fault;
use logic::hedge::Rule;
use logic::retry::{Idempotence, Progress};

use super::body;
use super::failure::{Answered, Failure};
use super::forwarded::ForwardedHead;
use super::heads::HeadBuffer;
use super::hold::Hold;
use super::moving::{Moving, Others};
use super::reply;
use super::session::{Client, RequestContext, width};
use crate::connect::{ConnectFault, Freshness};
use crate::http2::backend::{Asked, Asker};
use crate::outcome::Outcome;
use crate::snapshot::PoolPlan;
use crate::sticky_cookie::Slot;
use crate::stream::Stream;
use crate::timer::Timer;
use crate::upstream::{self, Beginning, Chosen, Origin, Remember, Wanted};

/// A request without a body whose response may come from either of two backends.
pub(super) struct Race<'a> {
    pub(super) session: &'a RequestContext<'a>,
    pub(super) pool: &'a Arc<PoolPlan>,
    pub(super) head: &'a ForwardedHead<'a>,
    pub(super) key: u64,
}

/// One of the two connections.
pub(super) struct Leg {
    pub(super) stream: Stream,
    pub(super) freshness: Freshness,
    pub(super) began: Instant,
    /// The request head, until it is sent whole.
    pub(super) message: Option<HeadBuffer>,
    /// Bytes of it that were sent.
    pub(super) sent: usize,
}

/// Connection with which the exchange goes on, and the first bytes of the response.
pub(super) enum Raced<'a> {
    /// That of the first backend. Without bytes, no copy is under way; the response is to be waited for, and [`observe`] to
    /// be told of it.
    First(Leg, Vec<u8>),
    /// That of the second.
    Second {
        chosen: Chosen,
        leg: Leg,
        read: Vec<u8>,
        hold: Option<Hold<'a>>,
        /// The first request, if it is still without a response.
        loser: Option<Box<Leg>>,
        /// The failure of the first backend, if it failed before the second responded.
        first_failed: Option<Failure>,
    },
    /// The first backend failed, and there was no copy or that of the backend with this index failed, too.
    Failed(Failure, Option<usize>),
    ClientGone,
}

/// What happened while the first backend was alone.
enum Alone {
    Read(std::io::Result<usize>),
    Failed(Failure),
    ClientGone,
    /// It is time for a copy.
    Due,
}

/// What happened while both backends had the request.
enum Both {
    First,
    Second(Leg, Vec<u8>),
    Failed(Failure),
    /// The copy failed.
    SecondOver,
    ClientGone,
}

/// Whether a backend has got the copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Given {
    Yes,
    No,
}

/// Why a copy failed.
enum CopyFault {
    Connect(ConnectFault),
    Failed(Failure, Freshness),
}

impl CopyFault {
    /// What the access log says of it.
    fn noted(&self) -> Option<Fault> {
        match self {
            Self::Connect(fault) => Some(fault.word()),
            // A kept connection that the backend had closed is no attempt.
            Self::Failed(failure, freshness) if failure.is_stale(*freshness) => None,
            Self::Failed(failure, _) => Some(failure.fault()),
        }
    }
}

impl<'a> Race<'a> {
    pub(super) async fn run(
        self,
        rule: &Rule,
        client: &mut Client,
        outcome: &mut Outcome,
        mut first: Leg,
        moving: &Moving<'_>,
    ) -> Raced<'a> {
        let (worker, current) = (self.session.worker, self.session.current());
        let after = worker.with_hedging(current, self.pool.id, |hedging| hedging.after(rule));
        if self.send(&mut first, &client.timer).await.is_err() {
            return Raced::First(first, Vec::new());
        }
        let Client { stream, buffer, timer } = client;
        let mut read = Vec::new();
        let due = after.map(|after| first.began + after);
        let limit = first.began + self.pool.settings.timeouts.response;
        let alone = std::future::poll_fn(|cx| {
            if let Poll::Ready(filled) = first.stream.poll_fill_for(cx, &mut read, stream) {
                return Poll::Ready(Alone::Read(filled));
            }
            if let Poll::Ready(failure) = self.poll_failed(cx, timer, moving, limit) {
                return Poll::Ready(Alone::Failed(failure));
            }
            if reply::poll_gone(cx, stream, buffer).is_ready() {
                return Poll::Ready(Alone::ClientGone);
            }
            match due {
                Some(due) => timer.poll_due(cx, due).map(|()| Alone::Due),
                None => Poll::Pending,
            }
        })
        .await;
        match alone {
            Alone::Read(Ok(1..)) => {
                self.observe(first.began.elapsed());
                return Raced::First(first, read);
            }
            Alone::Read(_) => return Raced::Failed(closed(&first.stream), None),
            Alone::Failed(failure) => return Raced::Failed(failure, None),
            Alone::ClientGone => return Raced::ClientGone,
            Alone::Due => {}
        }
        let Some((chosen, hold)) = self.choose(moving) else { return Raced::First(first, read) };
        outcome.hedged += 1;
        outcome.attempts += 1;
        chosen.backend.counters.of(worker.index).hedges.add(1);
        let mut first_failed = None;
        let given = Cell::new(Given::No);
        let both = {
            let mut copy = Some(Box::pin(self.copy(&chosen, moving, stream, timer, &given)));
            std::future::poll_fn(|cx| {
                if first_failed.is_none() {
                    match first.stream.poll_fill_for(cx, &mut read, stream) {
                        Poll::Ready(Ok(1..)) => return Poll::Ready(Both::First),
                        Poll::Ready(_) => first_failed = Some(closed(&first.stream)),
                        Poll::Pending => {
                            if let Poll::Ready(failure) = self.poll_failed(cx, timer, moving, limit) {
                                first_failed = Some(failure);
                            }
                        }
                    }
                }
                if let Some(Poll::Ready(copied)) = copy.as_mut().map(|copy| copy.as_mut().poll(cx)) {
                    copy = None;
                    match copied {
                        Ok((leg, read)) => return Poll::Ready(Both::Second(leg, read)),
                        Err(fault) => {
                            self.blame(&chosen, &fault);
                            if let Some(fault) = fault.noted() {
                                outcome.failed.note(chosen.index, fault);
                            }
                        }
                    }
                }
                match (copy.is_none(), first_failed.take()) {
                    (true, Some(failure)) => return Poll::Ready(Both::Failed(failure)),
                    (true, None) => return Poll::Ready(Both::SecondOver),
                    (false, failure) => first_failed = failure,
                }
                reply::poll_gone(cx, stream, buffer).map(|()| Both::ClientGone)
            })
            .await
        };
        // If the response is that of the copy, the exchange counts its session, as it does for every response.
        if !matches!(both, Both::Second(..)) && given.get() == Given::Yes {
            chosen.backend.counters.of(worker.index).sessions.add(1);
        }
        match both {
            Both::First => {
                self.observe(first.began.elapsed());
                Raced::First(first, read)
            }
            Both::Second(leg, read) => {
                self.observe(first.began.elapsed());
                chosen.backend.counters.of(worker.index).hedge_wins.add(1);
                let loser = first_failed.is_none().then(|| Box::new(first));
                Raced::Second { chosen, leg, read, hold, loser, first_failed }
            }
            Both::SecondOver => Raced::First(first, read),
            Both::Failed(failure) => Raced::Failed(failure, Some(chosen.index)),
            Both::ClientGone => Raced::ClientGone,
        }
    }

    /// Takes a second backend and the descriptors for it, if there is budget and no wait is needed.
    fn choose(&self, moving: &Moving<'_>) -> Option<(Chosen, Option<Hold<'a>>)> {
        let (worker, current) = (self.session.worker, self.session.current());
        if !worker.with_hedging(current, self.pool.id, |hedging| hedging.may_spend()) {
            return None;
        }
        let mut tried = moving.tried.clone();
        tried.insert(moving.backend);
        let wanted = Wanted {
            client: self.session.arrival.peer,
            judged: moving.judged,
            key: self.key,
            // The configuration allows no hedging with `sticky`.
            cookie: Slot::Absent,
            tried: &tried,
            origin: Origin::Client,
            remember: Remember::AtOnce,
        };
        let chosen = upstream::choose_at_once(worker, current, self.pool, &wanted, Instant::now())?.ok()?;
        let hold = match self.pool.settings.http {
            BackendHttp::Http1 => Some(Hold::take(worker, self.session.handle).ok()?),
            BackendHttp::Http2 => None,
        };
        worker.with_hedging(current, self.pool.id, |hedging| hedging.spend()).then_some((chosen, hold))
    }

    /// Sends the request to the second backend, and waits for the first bytes of its response. `given` says whether the
    /// backend has got it.
    async fn copy(
        &self,
        chosen: &Chosen,
        before: &Moving<'_>,
        client: &Stream,
        timer: &Timer,
        given: &Cell<Given>,
    ) -> Result<(Leg, Vec<u8>), CopyFault> {
        let worker = self.session.worker;
        let number = before.attempt + 1;
        let others = Others { tried: before.tried, judged: before.judged };
        let moving = Moving::new(worker, self.pool, chosen.index, others, number, Idempotence::Idempotent);
        let opened = match moving.until(timer, self.open(chosen, client)).await {
            Ok(opened) => opened.map_err(CopyFault::Connect)?,
            Err(lost) => {
                let failure = Failure::Lost { lost, progress: Progress::NothingSent };
                return Err(CopyFault::Failed(failure, Freshness::Kept));
            }
        };
        let (stream, freshness) = opened;
        let message = Some(self.head.write(self.pool));
        let mut leg = Leg { stream, freshness, began: Instant::now(), message, sent: 0 };
        given.set(Given::Yes);
        let sent = self.send(&mut leg, timer).await;
        let limit = leg.began + self.pool.settings.timeouts.response;
        let mut read = Vec::new();
        let failure = match sent {
            Err(()) => closed(&leg.stream),
            Ok(()) => {
                let filled =
                    std::future::poll_fn(|cx| match leg.stream.poll_fill_for(cx, &mut read, client) {
                        Poll::Ready(Ok(1..)) => Poll::Ready(None),
                        Poll::Ready(_) => Poll::Ready(Some(closed(&leg.stream))),
                        Poll::Pending => self.poll_failed(cx, timer, &moving, limit).map(Some),
                    });
                match filled.await {
                    None => return Ok((leg, read)),
                    Some(failure) => failure,
                }
            }
        };
        if failure.is_stale(leg.freshness) {
            // The backend had closed the connection.
            given.set(Given::No);
        }
        Err(CopyFault::Failed(failure, leg.freshness))
    }

    async fn open(&self, chosen: &Chosen, client: &Stream) -> Result<(Stream, Freshness), ConnectFault> {
        let worker = self.session.worker;
        let plan = &self.pool.backends[chosen.index];
        let asker = Asker { client: self.session.handle, width: width(client, plan) };
        // A PROXY header or a client's address belongs to a connection, which must not carry another client's request.
        if !self.pool.settings.connects_per_client() {
            let kept = upstream::reuse(worker, plan, asker, Idempotence::Idempotent, Instant::now());
            if let Some(kept) = kept {
                return Ok((kept, Freshness::Kept));
            }
        }
        let asking = plan.http2.map(|rules| worker.lines.ask(plan, rules, asker));
        let asking = asking.as_ref().map(|asking| (asking, Asked::New));
        let header = match asking {
            Some(_) => Vec::new(),
            None => self.session.proxy_header(self.pool, client),
        };
        let limit = self.pool.settings.timeouts.connect;
        let outgoing = plan.outgoing_for(self.session.arrival.peer);
        let (opening, began) = (sys::socket::Opening::WeSpeak, Instant::now());
        let beginning = Beginning { outgoing, opening, preface: &header, began };
        upstream::connect(worker, plan, asking, beginning, limit).await
    }

    /// Sends the rest of the request.
    async fn send(&self, leg: &mut Leg, timer: &Timer) -> Result<(), ()> {
        let Some(message) = &leg.message else { return Ok(()) };
        let sent = Cell::new(leg.sent as u64);
        let limit = self.pool.settings.timeouts.body;
        let wrote = body::write(timer, &leg.stream, &message[leg.sent..], &[], limit, &sent).await;
        leg.sent = usize::try_from(sent.get()).unwrap_or(message.len());
        if wrote.is_ok() {
            leg.message = None;
        }
        wrote.map_err(|_| ())
    }

    /// Tests whether a backend was judged down, or has not responded until `limit`.
    fn poll_failed(
        &self,
        cx: &mut Context<'_>,
        timer: &Timer,
        moving: &Moving<'_>,
        limit: Instant,
    ) -> Poll<Failure> {
        let progress = Progress::RequestSent;
        if let Poll::Ready(lost) = moving.poll_lost(cx, timer, || progress) {
            return Poll::Ready(Failure::Lost { lost, progress });
        }
        let after = self.pool.settings.timeouts.response;
        timer.poll_due(cx, limit).map(|()| Failure::TimedOut { after, progress })
    }

    fn observe(&self, took: Duration) {
        observe(self.session, self.pool, took);
    }

    fn blame(&self, chosen: &Chosen, fault: &CopyFault) {
        let cause = match fault {
            CopyFault::Connect(ConnectFault::Backend(cause)) => Some(cause.clone()),
            CopyFault::Connect(_) => None,
            // A kept connection that the backend had closed says nothing about the backend.
            CopyFault::Failed(failure, freshness) if failure.is_stale(*freshness) => None,
            CopyFault::Failed(failure, _) => failure.blame(),
        };
        if let Some(cause) = cause {
            upstream::note_failure(self.session.worker, self.pool, chosen.index, cause);
        }
    }
}

/// Records how long a request of a pool with hedging waited for its response.
pub(super) fn observe(session: &RequestContext<'_>, pool: &PoolPlan, took: Duration) {
    session.worker.with_hedging(session.current(), pool.id, |hedging| hedging.observe(took));
}

/// The failure of a backend that closed without a byte of its response.
fn closed(stream: &Stream) -> Failure {
    Failure::closed(stream.processing(), Answered::Nothing, Progress::RequestSent)
}
