//! Serves `protocol = "udp"`: one task for each socket of a worker, with all its flows.
//!
//! 1. A batch of datagrams is received from the listening socket (`crates/sys/src/datagram.rs`).
//! 2. `crates/proxy/src/udp/forward.rs` finds the flow of each in the table (`crates/logic/src/udp.rs`), or begins one
//!    at a backend that `crates/proxy/src/upstream.rs` chooses. Then it sends all datagrams of the batch. A flow has a
//!    socket that is connected to its backend: the kernel keeps replies of others away, and tells that no process listens
//!    there. A socket serves one flow after another (`crates/proxy/src/udp/sockets.rs`).
//! 3. An epoll instance tells which flows have replies. `crates/proxy/src/udp/reply.rs` collects those of many flows in
//!    one batch, and sends it to the clients with one system call.
//! 4. The table ends flows, and `crates/proxy/src/udp/flow.rs` says in their outcome how.
//!
//! `crates/proxy/src/udp/listing.rs` shows flows to operators.

use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use config::types::{BindAddress, Protocol, UdpSettings};
use logic::udp::{Ended, FlowTable, Rules};
use state::ending::Ending;
use state::events::Level;
use state::listen::BoundKey;
use state::metrics::ListenerCounters;
use sys::datagram::{Batch, SLOTS};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Sleep;

use crate::accept::CloseSignal;
use crate::restart::{self, Trouble};
use crate::snapshot::ListenerPlan;
use crate::worker::{Current, Worker};

mod flow;
mod forward;
mod listing;
pub(crate) mod mailbox;
mod reply;
mod sockets;
mod tap;

use flow::{End, Flow};
use forward::Unsent;
use mailbox::Registered;
use sockets::{OwnedEpoll, Sockets};

/// How long a socket that is being closed waits for replies that are due.
const LAST_REPLIES: Duration = Duration::from_secs(5);

/// Later than any flow ends that only its backend keeps alive.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Shortest time between two messages about errors of one socket.
const COMPLAIN_EVERY: Duration = Duration::from_secs(10);

/// Shortest time between two lines in the access log about flows that gave their place to others: a flood from forged
/// addresses must not fill the disk. All are counted.
const LOG_EVICTED_EVERY: Duration = Duration::from_secs(1);

/// Flows that are ended for their timeout before other work is looked at.
const EXPIRED_AT_ONCE: usize = 256;

/// Serves one socket until it is closed. When the function returns, the socket is closed.
pub(crate) async fn run(worker: Rc<Worker>, key: BoundKey, socket: UdpSocket, close_signal: Rc<CloseSignal>) {
    worker.accepting.set(worker.accepting.get() + 1);
    let events = &worker.front.state.events;
    let subject = format!("listener.{}", key.listener);
    #[expect(deprecated, reason = "its successor is unsafe; `UdpSocket` keeps the one descriptor it owns")]
    let watched = AsyncFd::with_interest(socket, Interest::READABLE);
    match watched {
        Ok(socket) => {
            let socket = Rc::new(socket);
            let begin = || serve(worker.clone(), key.clone(), socket.clone(), close_signal.clone());
            let tell = |trouble| {
                let message = match trouble {
                    Trouble::Ended(error) => format!("{} is no longer served: {error}", key.bind),
                    // Each flow was counted; the next datagrams begin new ones.
                    Trouble::Panicked => format!(
                        "the task of {} in worker {} failed (a fault of penstock: the process log has the place) and begins anew in 1 s; its UDP flows are lost, and the next datagrams begin new ones",
                        key.bind, worker.index
                    ),
                };
                events.record(Level::Error, &*subject, message);
            };
            restart::serve(&close_signal, restart::PAUSE, begin, tell).await;
        }
        Err(error) => events.record(
            Level::Error,
            &*subject,
            format!("worker {} cannot receive on {}: {error}", worker.index, key.bind),
        ),
    }
    worker.accepting.set(worker.accepting.get() - 1);
}

type ListeningSocket = AsyncFd<UdpSocket>;

/// One listening socket with its flows.
struct Server {
    worker: Rc<Worker>,
    key: BoundKey,
    socket: Rc<ListeningSocket>,
    bound: SocketAddr,
    /// Whether the socket has several local addresses.
    locals: Locals,
    epoll: Rc<OwnedEpoll>,
    sockets: Sockets,
    table: FlowTable<Flow>,
    batch: Batch,
    unsent: Vec<Unsent>,
    /// Number of slots of the batch with replies that were not sent yet.
    collected: usize,
    /// The last snapshot with this listener.
    known: Current,
    plan: Arc<ListenerPlan>,
    /// Descriptors that flows may take before the account is read again.
    room: usize,
    complained: Occasionally,
    evicted_logged: Occasionally,
    registered: Registered,
}

/// Something that is done at most once in a while.
struct Occasionally {
    every: Duration,
    last: Option<Instant>,
}

impl Occasionally {
    fn new(every: Duration) -> Self {
        Self { every, last: None }
    }

    /// Whether it is to be done now.
    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.last.is_none_or(|last| now.duration_since(last) >= self.every);
        if is_due {
            self.last = Some(now);
        }
        is_due
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Locals {
    One,
    /// The socket is bound to every address.
    Several,
}

/// Datagrams that wait in sockets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Left {
    Nothing,
    Perhaps,
}

/// What woke the task.
#[derive(Default)]
struct Ready {
    clients: bool,
    backends: bool,
    operators: bool,
}

async fn serve(
    worker: Rc<Worker>,
    key: BoundKey,
    socket: Rc<ListeningSocket>,
    close_signal: Rc<CloseSignal>,
) -> io::Result<()> {
    let now = Instant::now();
    let known = worker.current();
    // A listener that a reload has removed already is not opened by it.
    let Some(plan) = known.listeners.get(&key.listener).cloned() else { return Ok(()) };
    let Some(rules) = rules(&worker, &known, &plan) else { return Ok(()) };
    let bound = socket.get_ref().local_addr()?;
    let locals = match bound.ip().is_unspecified() {
        true => Locals::Several,
        false => Locals::One,
    };
    let epoll = Rc::new(OwnedEpoll::new()?);
    #[expect(deprecated, reason = "its successor is unsafe; `OwnedEpoll` keeps the one descriptor it owns")]
    let watched = AsyncFd::with_interest(epoll.clone(), Interest::READABLE)?;
    let mut server = Server {
        registered: Registered::new(&worker.mailboxes),
        worker,
        key,
        socket,
        bound,
        locals,
        sockets: Sockets::new(epoll.clone()),
        epoll,
        table: FlowTable::new(rules, now),
        batch: Batch::default(),
        unsent: Vec::with_capacity(SLOTS),
        collected: 0,
        known,
        plan,
        room: 0,
        complained: Occasionally::new(COMPLAIN_EVERY),
        evicted_logged: Occasionally::new(LOG_EVICTED_EVERY),
    };
    server.run(&watched, &close_signal).await
}

impl Server {
    async fn run(&mut self, replies: &AsyncFd<Rc<OwnedEpoll>>, close_signal: &CloseSignal) -> io::Result<()> {
        let socket = self.socket.clone();
        let mut timer = pin!(tokio::time::sleep(Duration::ZERO));
        let (mut closed, mut cut) = (pin!(close_signal.closed()), pin!(close_signal.cut_off()));
        let mut last_replies: Option<Instant> = None;
        loop {
            let times = [self.table.poll_timeout(), self.sockets.poll_timeout(), last_replies];
            let due = times.into_iter().flatten().min();
            let is_closing = last_replies.is_some();
            let ready = poll_fn(|cx| {
                let mut ready = Ready::default();
                // What clients send after an upgrade is for the next process.
                if !close_signal.is_left()
                    && let Poll::Ready(guard) = socket.poll_read_ready(cx)
                {
                    drop(guard?);
                    ready.clients = true;
                }
                if let Poll::Ready(guard) = replies.poll_read_ready(cx) {
                    drop(guard?);
                    ready.backends = true;
                }
                ready.operators = self.registered.poll(cx).is_ready();
                let is_told = match is_closing {
                    true => cut.as_mut().poll(cx).is_ready(),
                    false => closed.as_mut().poll(cx).is_ready(),
                };
                let is_due = due.is_some_and(|due| poll_until(timer.as_mut(), due, cx));
                let is_awake = ready.clients || ready.backends || ready.operators || is_told || is_due;
                if is_awake { Poll::Ready(io::Result::Ok(ready)) } else { Poll::Pending }
            })
            .await?;
            let now = Instant::now();
            self.refresh(now);
            // Before clients are served: epoll reports the sockets that rest with something in them, and the others are used
            // again without a system call that looks into each.
            let of_backends = match ready.backends || (ready.clients && self.sockets.has_resting()) {
                true => self.relay_replies(replies, now)?,
                false => Left::Nothing,
            };
            let of_clients = if ready.clients { self.forward_batch(now) } else { Left::Nothing };
            self.expire(now);
            if ready.operators {
                self.answer_questions(now);
            }
            self.sockets.close_unused(now);
            if of_clients.max(of_backends) == Left::Perhaps {
                // A batch may have opened 32 sockets, or relayed 159 replies: other clients of the worker have their turn
                // before the next one.
                tokio::task::yield_now().await;
            }
            if close_signal.is_left() && !close_signal.is_cut() {
                // Backends may send to the clients of flows for as long as these are not idle.
                last_replies.get_or_insert(now + FAR);
                if self.table.is_empty() {
                    return Ok(());
                }
            } else if close_signal.is_closing() {
                let until = *last_replies.get_or_insert(now + LAST_REPLIES);
                let are_read = !ready.clients && of_backends == Left::Nothing;
                let is_quiet = are_read && !self.table.is_any_reply_due();
                if is_quiet || until <= now || close_signal.is_cut() {
                    self.close();
                    return Ok(());
                }
            }
        }
    }

    /// Follows the newest snapshot. A listener that it does not have is served by the last one that has it.
    fn refresh(&mut self, now: Instant) {
        let current = self.worker.current();
        if Rc::ptr_eq(&current, &self.known) {
            return;
        }
        if let Some(plan) = current.listeners.get(&self.key.listener).cloned()
            && let Some(rules) = rules(&self.worker, &current, &plan)
        {
            self.table.set_rules(rules, now);
            (self.plan, self.known) = (plan, current);
        }
    }

    fn settings(&self) -> Option<&UdpSettings> {
        settings(&self.plan)
    }

    fn counters(&self) -> &ListenerCounters {
        self.plan.state.counters.of(self.worker.index)
    }

    fn expire(&mut self, now: Instant) {
        for _ in 0..EXPIRED_AT_ONCE {
            let Some(ended) = self.table.expire(now) else { return };
            self.finish(ended, End::Timeout);
        }
    }

    /// Finishes the outcome of a flow that has left the table. Its socket rests for the next one, or is closed.
    fn finish(&mut self, ended: Ended<Flow>, why: End) {
        ended.value.note_trial(&self.worker);
        // A reply that did not come may still do, and must not reach the next client of the socket.
        let may_rest = ended.missing == 0;
        let socket = flow::end(ended, why);
        match why {
            End::Complete if !may_rest => self.sockets.close(socket),
            End::Complete => self.sockets.rest(socket, self.table.room()),
            End::Timeout | End::Evicted | End::Closing | End::Killed => self.sockets.close(socket),
        }
    }

    /// Ends every flow.
    fn close(&mut self) {
        let all: Vec<_> = self.table.drain().collect();
        all.into_iter().for_each(|ended| self.finish(ended, End::Closing));
    }

    /// Counts datagrams that are not forwarded.
    fn drop_datagrams(&self, count: usize, why: Ending) {
        self.counters().datagrams_dropped.add(count as u64);
        self.plan.state.count_endings(self.worker.index, why.word(), count as u64);
    }

    fn complain(&mut self, error: &io::Error, now: Instant) {
        if self.complained.is_due(now) {
            let message =
                format!("worker {} cannot receive on {}: {error}", self.worker.index, self.key.bind);
            let events = &self.worker.front.state.events;
            events.record(Level::Error, format!("listener.{}", self.key.listener), message);
        }
    }
}

/// Waits for the next event of a descriptor, because its last one was handled. No event is lost: the runtime, which has
/// one thread, looks for events between two turns of this task only.
fn clear<T: AsRawFd>(watched: &AsyncFd<T>) {
    let mut cx = Context::from_waker(Waker::noop());
    if let Poll::Ready(Ok(mut guard)) = watched.poll_read_ready(&mut cx) {
        guard.clear_ready();
    }
}

/// Whether `due` has come; otherwise the task is woken then.
fn poll_until(mut timer: Pin<&mut Sleep>, due: Instant, cx: &mut Context<'_>) -> bool {
    if timer.deadline().into_std() != due {
        timer.as_mut().reset(due.into());
    }
    timer.poll(cx).is_ready()
}

fn settings(plan: &ListenerPlan) -> Option<&UdpSettings> {
    match &plan.settings.protocol {
        Protocol::Udp(settings) => Some(settings),
        // Of a service without packets.
        Protocol::Dsr(settings) => Some(&settings.proxied_udp),
        Protocol::Tcp(_) | Protocol::Http(_) | Protocol::TlsPassthrough(_) => None,
    }
}

/// The rules of one socket: of the flows of its listener, and of those of each source, it may have an equal part.
fn rules(worker: &Worker, current: &Current, plan: &ListenerPlan) -> Option<Rules> {
    let settings = settings(plan)?;
    let of_one = |bind: &BindAddress| match bind {
        // One worker has it.
        BindAddress::Systemd(_) => 1,
        BindAddress::AnyIp(_) | BindAddress::Ip(_) | BindAddress::EveryPort(_) | BindAddress::Unix(_) => {
            worker.front.state.workers
        }
    };
    let sockets = plan.settings.binds.iter().map(of_one).sum::<usize>().max(1);
    Some(Rules {
        flows: settings.max_flows.div_ceil(sockets),
        per_source: settings.flows_per_source.div_ceil(sockets),
        sources: current.config.process.source_prefixes,
        idle: settings.idle_timeout,
        replies: settings.replies,
    })
}
