//! One session in a ring: its state, and the operations that it starts after each result of the kernel.

use std::collections::VecDeque;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::types::{BackendAddress, FastClose, TcpSettings};
use logic::access_log::Kind;
use logic::balance::{HashKey, Tried, client_key};
use logic::peers::Peer;
use logic::route::PoolId;
use nix::libc;
use socket2::SockRef;
use state::ending::Ending;
use sys::ring::{Completion, Lease, Next, Operation, Ring, Then};
use sys::socket::Opening;

use super::super::Session;
use super::{MOST, MOST_WAITING};
use crate::arrival::Entry;
use crate::connect;
use crate::fallback;
use crate::live::{Killed, Movable, Speaks};
use crate::outcome::Outcome;
use crate::relay::{self, Watch};
use crate::retry_budget;
use crate::snapshot::BackendPlan;
use crate::sticky_cookie::Slot;
use crate::upstream::{self, Chosen, Origin, Remember, Wanted};
use crate::worker::Current;

mod leaving;

/// Whether the ring still has a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    InRing,
    /// No operation of it is left, and [`Ringed::finish`] follows.
    Over,
}

/// How far the direction from a side has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Source {
    #[default]
    Open,
    Ended,
    /// Reset.
    Failed,
}

/// The connection to the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// The ring waits for none: no connect was begun, or the wait was cancelled, and the kernel may still open the connection.
    Absent,
    Opening,
    Open,
    /// The error of connect(2).
    Refused(i32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    Stays,
    /// It needs what the ring does not do. The next look cancels its operations.
    Leaves,
    /// Its operations were cancelled.
    Leaving,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Touched {
    Yes,
    No,
}

/// Whether the kernel has an operation for one direction of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kernel {
    Works,
    #[default]
    Rests,
}

#[derive(Default)]
struct Side {
    socket: Option<OwnedFd>,
    receives: Kernel,
    sends: Kernel,
    source: Source,
    /// Bytes for this side.
    waiting: VecDeque<Lease>,
    /// Whether this side was told the end of the other.
    told: bool,
}

/// The fields are in the order in which they are dropped: connections are closed before their places are given back.
pub(super) struct Ringed {
    client: Side,
    backend: Side,
    session: Box<Session>,
    /// A backend to which the ring does not connect.
    chosen: Option<Box<Chosen>>,
    current: Current,
    pool: PoolId,
    peer: Peer,
    began: Instant,
    link: Link,
    opening: Opening,
    /// Number of outages of the backend when the session got it.
    outages: u32,
    fast_close: FastClose,
    /// The side that is still open after the session has ended by `fast-close`: what it sends is thrown away until it ends.
    lingers: Option<relay::Side>,
    /// Number of its pieces that were thrown away. With more than [`MOST_WAITING`] the session leaves the ring.
    thrown_away: usize,
    course: Course,
    /// Operations whose last result is to come.
    pending: u32,
    touched: Touched,
}

/// The session needs what the ring does not do.
struct Unusual;

impl Ringed {
    pub(super) fn new(entry: Entry, settings: &TcpSettings, client: TcpStream, peer: Peer) -> Self {
        let Entry { worker, current, plan, admitted, .. } = entry;
        admitted.handle().live.speaks.set(Speaks::Tcp);
        let mut outcome = Outcome::new(&worker, &plan.state, Kind::Tcp, peer, None);
        outcome.belong(admitted.handle());
        let began = outcome.started();
        let watch = Watch::begun(settings.idle_timeout, began).closing(settings.fast_close);
        Self {
            client: Side { socket: Some(client.into()), ..Side::default() },
            backend: Side::default(),
            session: Box::new(Session { watch, outcome, unsent: None, slot: None, admitted }),
            chosen: None,
            current,
            pool: settings.pool,
            peer,
            began,
            link: Link::Absent,
            opening: Opening::TheyMaySpeak,
            outages: 0,
            fast_close: settings.fast_close,
            lingers: None,
            thrown_away: 0,
            course: Course::Stays,
            pending: 0,
            touched: Touched::No,
        }
    }

    pub(super) fn is_older(&self, now: Instant, than: Duration) -> bool {
        now.saturating_duration_since(self.began) >= than
    }

    pub(super) fn is_killed(&self) -> bool {
        self.session.admitted.handle().live.killed.get() == Killed::Yes
    }

    /// Puts the session on the list of those to look at, once.
    pub(super) fn touch(&mut self, key: u32, list: &mut Vec<u32>) {
        if self.touched == Touched::No {
            self.touched = Touched::Yes;
            list.push(key);
        }
    }

    /// Begins to receive from the client.
    pub(super) fn receive(&mut self, ring: &mut Ring, key: u32) {
        receive(&mut self.client, ring, Operation::ReceiveClient, key, &mut self.pending);
    }

    /// Takes a result of the kernel into the state. Starts no operation.
    pub(super) fn note(&mut self, ring: &mut Ring, completion: Completion) {
        let Completion { operation, result, lease, more, .. } = completion;
        if !more {
            self.pending = self.pending.saturating_sub(1);
        }
        match operation {
            Operation::ReceiveClient | Operation::ReceiveBackend => {
                self.note_received(ring, operation, result, lease, more);
            }
            Operation::SendClient | Operation::SendBackend => self.note_sent(ring, operation, result, lease),
            Operation::Connect => self.note_connected(result),
            Operation::Cancel => self.note_cancelled(result),
            Operation::Close => {}
        }
    }

    fn note_received(
        &mut self,
        ring: &mut Ring,
        operation: Operation,
        result: Result<usize, i32>,
        lease: Option<Lease>,
        more: bool,
    ) {
        let totals = self.session.outcome.relayed();
        let (from, to, total) = match operation {
            Operation::ReceiveClient => (&mut self.client, &mut self.backend, &totals.up),
            _ => (&mut self.backend, &mut self.client, &totals.down),
        };
        if !more {
            from.receives = Kernel::Rests;
        }
        let lease = match (result, lease) {
            (Ok(count), Some(lease)) if count > 0 && self.lingers.is_some() => {
                self.thrown_away += 1;
                if self.thrown_away > MOST_WAITING {
                    self.course.leaves();
                }
                Some(lease)
            }
            (Ok(count), Some(lease)) if count > 0 => {
                total.set(total.get() + count as u64);
                to.waiting.push_back(lease);
                // Each piece takes a whole buffer of the ring, even one byte.
                if to.waiting.len() > MOST_WAITING {
                    self.course.leaves();
                }
                None
            }
            (_, lease) => lease,
        };
        lease.into_iter().for_each(|lease| ring.give_back(lease));
        match result {
            Ok(count) if count > 0 => {}
            Ok(_) if from.source == Source::Open => from.source = Source::Ended,
            Ok(_) | Err(libc::ECANCELED) => {}
            Err(libc::ENOBUFS | libc::ENOMEM | libc::EAGAIN | libc::EINTR) => self.course.leaves(),
            Err(_) => from.source = Source::Failed,
        }
    }

    fn note_sent(
        &mut self,
        ring: &mut Ring,
        operation: Operation,
        result: Result<usize, i32>,
        lease: Option<Lease>,
    ) {
        let side = if operation == Operation::SendClient { &mut self.client } else { &mut self.backend };
        side.sends = Kernel::Rests;
        let Some(mut lease) = lease else { return };
        match result {
            Ok(count) => lease.advance(count),
            Err(libc::ECANCELED) => {}
            // The kernel tells it once: the next read would say that the client has ended.
            Err(libc::ECONNRESET) if operation == Operation::SendClient => side.source = Source::Failed,
            // The relay meets the same error, and knows what follows from it.
            Err(_) => self.course.leaves(),
        }
        if lease.is_empty() {
            ring.give_back(lease);
        } else {
            side.waiting.push_front(lease);
        }
    }

    fn note_connected(&mut self, result: Result<usize, i32>) {
        match result {
            Ok(_) => self.open(),
            // Only the wait for it was cancelled: the kernel goes on with the connection, and a task waits for it.
            Err(libc::ECANCELED) => self.link = Link::Absent,
            Err(error) => self.link = Link::Refused(error),
        }
        if self.link != Link::Open {
            self.course.leaves();
        }
    }

    /// A cancel that has found nothing may have come before the operation that it was for: it is sent again, if there still is one.
    fn note_cancelled(&mut self, result: Result<usize, i32>) {
        let has_found = result.is_ok_and(|count| count > 0);
        if self.course == Course::Leaving && !has_found {
            self.course = Course::Leaves;
        }
    }

    /// Counts a connection to the backend.
    fn open(&mut self) {
        self.link = Link::Open;
        let took = self.began.elapsed();
        let outcome = &mut self.session.outcome;
        outcome.connect = Some(took.into());
        let (Some(pool), Some(index)) = (&outcome.pool, outcome.backend) else { return };
        let (worker, backend) = (outcome.worker(), &pool.backends[index].state);
        let counters = backend.counters.of(worker.index);
        counters.connects.add(1);
        counters.sessions.add(1);
        counters.latency.observe(took);
        upstream::note_latency(pool, backend, took, self.began + took);
        upstream::note_answer(worker, pool, index, 0);
        self.session.admitted.handle().live.movable.set(Movable::Yes);
    }

    /// Starts every operation that the state allows.
    pub(super) fn advance(&mut self, ring: &mut Ring, key: u32) -> Stage {
        self.touched = Touched::No;
        if self.course != Course::Leaving {
            self.act(ring, key);
        }
        if self.course == Course::Leaving && self.pending == 0 { Stage::Over } else { Stage::InRing }
    }

    fn act(&mut self, ring: &mut Ring, key: u32) {
        if let Some(side) = self.lingers {
            return self.linger(ring, key, side);
        }
        let is_lost = self.client.source == Source::Failed && self.link == Link::Absent;
        let (up, down) = self.session.outcome.relayed().both();
        // What leaves at once does not begin to connect: a cancel in the same batch may come before there is anything to cancel.
        if self.link == Link::Absent
            && !is_lost
            && self.course == Course::Stays
            && up + down <= MOST
            && let Err(Unusual) = self.choose(ring, key)
        {
            self.course.leaves();
        }
        if is_lost || self.course == Course::Leaves || up + down > MOST {
            return self.leave(ring, key);
        }
        if self.link == Link::Open {
            send(
                &mut self.backend,
                ring,
                (Operation::SendBackend, key),
                self.client.source,
                &mut self.pending,
            );
        }
        send(&mut self.client, ring, (Operation::SendClient, key), self.backend.source, &mut self.pending);
        // Of an end and a reset that come in one turn, the end counts, as in the relay of a task.
        if let Some(side) = self.left_open() {
            self.close_fast(ring, side);
            return self.linger(ring, key, side);
        }
        let is_open = self.link == Link::Open;
        let up = is_open && self.client.source != Source::Open && self.backend.has_all();
        let down = is_open && self.backend.source != Source::Open && self.client.has_all();
        let is_failed =
            up && self.client.source == Source::Failed || down && self.backend.source == Source::Failed;
        if is_failed || up && down {
            return self.leave(ring, key);
        }
        for (is_over, side) in [(up, &mut self.backend), (down, &mut self.client)] {
            if is_over {
                tell_end(side);
            }
        }
        receive(&mut self.client, ring, Operation::ReceiveClient, key, &mut self.pending);
        if is_open {
            receive(&mut self.backend, ring, Operation::ReceiveBackend, key, &mut self.pending);
        }
    }

    /// The side that a session leaves open which ends by `fast-close`: the other side has ended, and this one has all of its bytes.
    fn left_open(&self) -> Option<relay::Side> {
        let is_delivered = |from: &Side, to: &Side| from.source == Source::Ended && to.has_all();
        match self.fast_close {
            _ if self.link != Link::Open => None,
            by if by.is_at_client() && is_delivered(&self.client, &self.backend) => {
                Some(relay::Side::Backend)
            }
            by if by.is_at_backend() && is_delivered(&self.backend, &self.client) => {
                Some(relay::Side::Client)
            }
            _ => None,
        }
    }

    /// Ends the session with the side that has ended, and closes that. What the other one, `open`, has sent it since is lost.
    fn close_fast(&mut self, ring: &mut Ring, open: relay::Side) {
        let (ended, other) = match open {
            relay::Side::Client => (&mut self.backend, &mut self.client),
            relay::Side::Backend => (&mut self.client, &mut self.backend),
        };
        tell_end(other);
        ended.give_back(ring);
        if ended.sends == Kernel::Works {
            // It is closed when the session has left the ring.
            self.course.leaves();
        } else if let Some(socket) = ended.socket.take() {
            ring.close(socket);
        }
        let outcome = &mut self.session.outcome;
        outcome.end(Ending::Ok);
        outcome.hide_socket();
        if open == relay::Side::Backend {
            self.session.admitted.handle().live.hide_socket();
        }
        self.lingers = Some(open);
    }

    /// Receives from the side that is still open until it ends: to close it before would answer what it sends with a reset, which
    /// could destroy the last bytes on their way to it.
    fn linger(&mut self, ring: &mut Ring, key: u32, side: relay::Side) {
        let (open, operation) = match side {
            relay::Side::Client => (&mut self.client, Operation::ReceiveClient),
            relay::Side::Backend => (&mut self.backend, Operation::ReceiveBackend),
        };
        if self.course == Course::Leaves || open.source != Source::Open {
            return self.leave(ring, key);
        }
        receive(open, ring, operation, key, &mut self.pending);
    }

    /// Chooses a backend and begins to connect. A choice that the ring cannot use goes along to the task: another one would count
    /// a second turn.
    fn choose(&mut self, ring: &mut Ring, key: u32) -> Result<(), Unusual> {
        let outcome = &mut self.session.outcome;
        let worker = outcome.worker().clone();
        let pool = self.current.pool(self.pool);
        if pool.settings.fallback.is_some() {
            let found = fallback::find(&self.current, pool);
            found.filter(|found| Arc::ptr_eq(found, pool)).ok_or(Unusual)?;
            // If a fallback pool has served until now, this records that the pool serves again.
            fallback::serving(&worker, &self.current, pool);
        }
        let wanted = Wanted {
            client: self.peer,
            judged: Some(self.peer),
            key: match &pool.settings.hash_key {
                HashKey::Client => self.peer.ip().map_or(0, client_key),
                _ => 0,
            },
            tried: &Tried::default(),
            cookie: Slot::Absent,
            origin: Origin::Client,
            remember: Remember::AtOnce,
        };
        let chosen = match upstream::choose_at_once(&worker, &self.current, pool, &wanted, self.began) {
            Some(Ok(chosen)) => chosen,
            None | Some(Err(_)) => return Err(Unusual),
        };
        let first = self.backend.waiting.front();
        self.opening = if first.is_some() { Opening::WeSpeak } else { Opening::TheyMaySpeak };
        let Some((socket, address)) =
            begin_to(&pool.backends[chosen.index], &chosen, self.peer, self.opening)
        else {
            self.chosen = Some(Box::new(chosen));
            return Err(Unusual);
        };
        retry_budget::count(&worker, pool, self.began);
        self.outages = chosen.backend.outages();
        outcome.pool = Some(pool.clone());
        outcome.attempts += 1;
        (outcome.backend, outcome.view) = (Some(chosen.index), chosen.view);
        outcome.show_backend(&chosen.backend);
        outcome.show_descriptor(socket.as_raw_fd());
        self.session.slot = Some(chosen.slot);
        let socket = self.backend.socket.insert(socket);
        let next = match address {
            Some(address) => {
                self.link = Link::Opening;
                self.pending += 1;
                ring.connect(socket.as_fd(), address, key, Next::Waits);
                Next::Waits
            }
            None => Next::Free,
        };
        if let Some(first) = self.backend.waiting.pop_front() {
            self.pending += 1;
            self.backend.sends = Kernel::Works;
            ring.send(socket.as_fd(), first, (Operation::SendBackend, key), next, Then::Nothing);
        }
        receive(&mut self.backend, ring, Operation::ReceiveBackend, key, &mut self.pending);
        if address.is_none() {
            self.open();
        }
        Ok(())
    }

    /// Cancels what the kernel has of the session. It is over when the results are there.
    pub(super) fn leave(&mut self, ring: &mut Ring, key: u32) {
        self.course = Course::Leaving;
        let is_opening = self.link == Link::Opening;
        for (side, opens) in [(&self.client, false), (&self.backend, is_opening)] {
            if let Some(socket) = &side.socket
                && (opens || side.receives == Kernel::Works || side.sends == Kernel::Works)
            {
                self.pending += 1;
                ring.cancel(socket.as_fd(), key);
            }
        }
    }

    /// Makes the kernel reset both connections when they are closed: else a peer would take what it has for the whole. At the
    /// end of a drain, when the worker cuts all sessions, this does nothing.
    pub(super) fn cut(&mut self) {
        if !self.session.outcome.worker().is_cutting() && self.lingers.is_none() {
            reset(&self.client);
            reset(&self.backend);
            self.session.outcome.end(Ending::InternalError);
        }
    }
}

/// A socket for a chosen backend, and where it is to connect to, unless it is connected. `None` if a task is to do it: the backend
/// is on trial, or has several addresses, which the relay tries one after the other, or cannot be reached at once.
fn begin_to(
    plan: &BackendPlan,
    chosen: &Chosen,
    client: Peer,
    opening: Opening,
) -> Option<(OwnedFd, Option<SocketAddr>)> {
    if chosen.trial.is_some() {
        return None;
    }
    match &plan.state.address {
        BackendAddress::Unix(path) => Some((OwnedFd::from(sys::socket::connect_unix(path).ok()?), None)),
        BackendAddress::Ssh { .. } => None,
        _ if plan.state.addresses.load().len() != 1 => None,
        _ => {
            let (address, outgoing) = connect::first_address(&plan.state, plan.outgoing_for(client))?;
            let socket = sys::socket::prepare_tcp(address, opening, outgoing).ok()?;
            Some((OwnedFd::from(socket), Some(address)))
        }
    }
}

impl Side {
    /// Whether the kernel has taken all bytes for this side.
    fn has_all(&self) -> bool {
        self.waiting.is_empty() && self.sends == Kernel::Rests
    }

    /// Gives back the buffers with bytes for this side, which are lost.
    fn give_back(&mut self, ring: &mut Ring) {
        self.waiting.drain(..).for_each(|lease| ring.give_back(lease));
    }
}

impl Course {
    fn leaves(&mut self) {
        if *self == Self::Stays {
            *self = Self::Leaves;
        }
    }
}

/// Makes the kernel reset a connection when it is closed.
fn reset(side: &Side) {
    if let Some(socket) = &side.socket {
        // An error means that the connection is already closed.
        let _ = sys::socket::set_linger_zero(socket.as_fd());
    }
}

/// Tells a side that the other one has ended, once.
fn tell_end(side: &mut Side) {
    if !std::mem::replace(&mut side.told, true) {
        // An error means that the peer has already closed its connection.
        let _ = side.socket.as_ref().map(|socket| SockRef::from(socket).shutdown(Shutdown::Write));
    }
}

/// Receives from a side, unless the kernel does so already or there is nothing more.
fn receive(side: &mut Side, ring: &mut Ring, operation: Operation, key: u32, pending: &mut u32) {
    if let Some(socket) = &side.socket
        && side.receives == Kernel::Rests
        && side.source == Source::Open
    {
        side.receives = Kernel::Works;
        *pending += 1;
        ring.receive(socket.as_fd(), operation, key);
    }
}

/// Sends a side what waits for it, unless the kernel does so already. If the other side has ended, its end follows the last bytes.
fn send(side: &mut Side, ring: &mut Ring, operation: (Operation, u32), other: Source, pending: &mut u32) {
    if let Some(socket) = &side.socket
        && side.sends == Kernel::Rests
        && let Some(lease) = side.waiting.pop_front()
    {
        let is_last = side.waiting.is_empty() && other == Source::Ended;
        side.sends = Kernel::Works;
        *pending += 1;
        ring.send(
            socket.as_fd(),
            lease,
            operation,
            Next::Free,
            if is_last { Then::ShutsDown } else { Then::Nothing },
        );
    }
}
