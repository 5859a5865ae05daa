//! Accepts clients on one socket of one worker, within the limits, and starts a task for each.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use logic::access_log::Kind;
use logic::account::Refusal;
use logic::peers::Peer;
use nix::errno::Errno;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Notify;

use crate::account::Wish;
use crate::admission::{Admitted, Limit, Place, Seat, seat_at_source, turn_away};
use crate::arrival::Entry;
use crate::arrival::canonical;
use crate::connection;
use crate::ending::Ending;
use crate::events::Level;
use crate::listen::{BACKLOG, BoundKey, Socket};
use crate::outcome::Outcome;
use crate::plain::Plain;
use crate::snapshot::ListenerPlan;
use crate::worker::{Control, Current, Worker};

/// Pause when descriptors or connections have run out: long enough not to spin, short enough that nobody notices.
const PAUSE: Duration = Duration::from_millis(20);

/// How long clients in the queue of a socket that is given up are waited for, while descriptors are short.
const REST_LIMIT: Duration = Duration::from_secs(5);

/// How long idle backend connections of other workers are waited for before a client is closed instead.
const IDLE_FIRST: Duration = Duration::from_millis(100);

/// A loop says at most so often that it cannot accept.
const COMPLAIN_EVERY: Duration = Duration::from_secs(10);

/// Closes one accept loop.
#[derive(Debug, Default)]
pub struct Gate {
    closing: Cell<bool>,
    notify: Notify,
}

impl Gate {
    /// Ends the loop after it has accepted what waits in the socket's queue.
    pub fn close(&self) {
        self.closing.set(true);
        self.notify.notify_one();
    }
}

enum Acceptor {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Acceptor {
    fn new(socket: Socket) -> io::Result<Self> {
        Ok(match socket {
            Socket::Tcp(tcp) => {
                // Accepted sockets inherit it: a system call per connection less.
                sys::socket::set_nodelay(tcp.as_fd())?;
                Self::Tcp(TcpListener::from_std(tcp)?)
            }
            Socket::Unix(unix) => Self::Unix(UnixListener::from_std(unix)?),
        })
    }

    async fn accept(&self) -> io::Result<(Plain, Peer)> {
        match self {
            Self::Tcp(listener) => listener.accept().await.map(|(stream, peer)| tcp(stream, peer)),
            Self::Unix(listener) => {
                listener.accept().await.map(|(stream, _)| (Plain::Unix(stream), Peer::Unix))
            }
        }
    }

    /// The socket without the runtime, whose readiness may lag behind the queue and whose budget ends a long loop.
    fn into_socket(self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => listener.into_std().map(Socket::Tcp),
            Self::Unix(listener) => listener.into_std().map(Socket::Unix),
        }
    }
}

/// The next of the queue, or `WouldBlock`.
fn accept_now(socket: &Socket) -> io::Result<(Plain, Peer)> {
    match socket {
        Socket::Tcp(listener) => {
            let (stream, peer) = listener.accept()?;
            stream.set_nonblocking(true)?;
            Ok(tcp(TcpStream::from_std(stream)?, peer))
        }
        Socket::Unix(listener) => {
            let (stream, _) = listener.accept()?;
            stream.set_nonblocking(true)?;
            Ok((Plain::Unix(UnixStream::from_std(stream)?), Peer::Unix))
        }
    }
}

fn tcp(stream: TcpStream, peer: SocketAddr) -> (Plain, Peer) {
    (Plain::Tcp(stream), Peer::Ip(canonical(peer)))
}

/// The accept loop of one socket. Its end means that the socket is closed.
pub async fn run(worker: Rc<Worker>, key: BoundKey, socket: Socket, gate: Rc<Gate>) {
    worker.accepting.set(worker.accepting.get() + 1);
    match Acceptor::new(socket) {
        Ok(acceptor) => {
            let known = worker.current();
            let plan = known.listeners.get(&key.listener).cloned();
            let (worker, key, gate) = (&worker, &key, &*gate);
            Loop { worker, key, gate, known, plan, complained: None, rest_until: None }.run(acceptor).await;
        }
        Err(error) => worker.front.state.events.record(
            Level::Error,
            format!("listener.{}", key.listener),
            format!("worker {} cannot accept on {}: {error}", worker.index, key.bind),
        ),
    }
    worker.accepting.set(worker.accepting.get() - 1);
}

/// The client that is closed for a new one.
enum Leaving {
    Here(Rc<Control>),
    /// At another worker, as soon as one has an idle client.
    Elsewhere(Wish),
}

impl Leaving {
    /// Whether a client was asked to close, and has neither ended nor gone on with a request that had come meanwhile. Where
    /// no worker has closed one yet, none does later: the next look is at this worker's own clients again.
    fn is_on_its_way(&self) -> bool {
        match self {
            Self::Here(control) => control.is_closing(),
            Self::Elsewhere(wish) => {
                wish.withdraw();
                wish.is_granted()
            }
        }
    }
}

struct Loop<'a> {
    worker: &'a Rc<Worker>,
    key: &'a BoundKey,
    gate: &'a Gate,
    /// The last snapshot that knows this listener: a reload that removes it does not turn away who waits in its queue.
    known: Current,
    /// The listener there.
    plan: Option<Arc<ListenerPlan>>,
    complained: Option<Instant>,
    /// Set once the socket is given up: until then clients in its queue wait for descriptors, all together.
    rest_until: Option<Instant>,
}

impl Loop<'_> {
    async fn run(&mut self, acceptor: Acceptor) {
        while !self.gate.closing.get() {
            let accepted = tokio::select! {
                biased;
                () = self.gate.notify.notified() => break,
                accepted = acceptor.accept() => accepted,
            };
            match accepted {
                Ok((plain, peer)) => self.receive(plain, peer).await,
                Err(error) => match Fault::of(&error) {
                    Fault::OfThatClient => tokio::task::yield_now().await,
                    fault => self.pause(&error, fault).await,
                },
            }
        }
        match acceptor.into_socket() {
            Ok(socket) => self.receive_rest(&socket).await,
            Err(error) => self.complain(&error, Fault::OfTheSocket),
        }
    }

    /// What waits in the queue was promised an answer: it is served, then the socket goes.
    async fn receive_rest(&mut self, socket: &Socket) {
        let deadline = self.rest_until();
        // A socket that others share, or that clients keep filling, is not waited for.
        let mut left = 2 * BACKLOG;
        while left > 0 {
            left -= 1;
            match accept_now(socket) {
                Ok((plain, peer)) => self.receive(plain, peer).await,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => match Fault::of(&error) {
                    Fault::OfThatClient => {}
                    Fault::Exhaustion if Instant::now() < deadline => {
                        self.pause(&error, Fault::Exhaustion).await;
                    }
                    fault => return self.complain(&error, fault),
                },
            }
        }
    }

    /// Starts the session of a client, as soon as the limits allow it.
    async fn receive(&mut self, plain: Plain, peer: Peer) {
        let worker = self.worker;
        let Some(plan) = self.look_up() else { return };
        plan.state.counters.of(worker.index).connections.add(1);
        let Some(seat) = Seat::take(&plan.state, plan.settings.max_connections) else {
            Outcome::new(worker, &plan.state, Kind::Tcp, peer, None).end(Ending::ListenerFull);
            return;
        };
        let (source, leaving) = match seat_at_source(worker, &plan, peer) {
            Ok(seated) => seated,
            Err(why) => return turn_away(worker, &plan, plain, peer, why),
        };
        let (current, plan, place) = match Place::take(worker, Limit::Holds) {
            Some(place) => (self.known.clone(), plan, place),
            None => {
                let Some(place) = self.wait_for_place(leaving).await else {
                    return turn_away(worker, &plan, plain, peer, Refusal::Full);
                };
                // A reload may have come meanwhile.
                let newest = self.look_up().unwrap_or(plan);
                (self.known.clone(), newest, place)
            }
        };
        let admitted = Admitted::new(place, source, seat);
        let entry = Entry { worker: worker.clone(), current, plan, admitted };
        tokio::task::spawn_local(connection::serve(entry, plain, peer));
    }

    fn look_up(&mut self) -> Option<Arc<ListenerPlan>> {
        let current = self.worker.current();
        if !Rc::ptr_eq(&current, &self.known)
            && let Some(plan) = current.listeners.get(&self.key.listener)
        {
            self.plan = Some(plan.clone());
            self.known = current;
        }
        self.plan.clone()
    }

    /// Waits while the process is at its limit of client connections: one idle client is closed to make room for the one
    /// that came, unless one is `leaving` already. `None`: the socket is given up, and there is no descriptor for this client.
    async fn wait_for_place(&mut self, leaving: Option<Rc<Control>>) -> Option<Place> {
        let worker = self.worker;
        let mut leaving = leaving.map(Leaving::Here);
        let (state, account) = (&worker.front.state, worker.place_cache.account());
        state.accept_pauses.fetch_add(1, Relaxed);
        let began = Instant::now();
        loop {
            let limit = if self.gate.closing.get() { Limit::Passed } else { Limit::Holds };
            if let Some(place) = Place::take(worker, limit) {
                return Some(place);
            }
            if limit == Limit::Passed && self.rest_until() <= Instant::now() {
                return None;
            }
            let lacks_descriptors = limit == Limit::Passed
                || state.connections.load(Relaxed) < state.max_connections.load(Relaxed);
            let mut are_backends_closed = true;
            if lacks_descriptors {
                // Idle backend connections are closed before clients are, also those of other workers.
                account.want();
                let places = account.client_places();
                if worker.idle.give_up(places) > 0 {
                    continue;
                }
                // The places of these come back in a moment.
                let closing = worker.lines.give_up(places);
                let is_idle_left = closing > 0 || account.standing().idle >= places;
                are_backends_closed = !is_idle_left || began.elapsed() >= IDLE_FIRST;
            }
            // Another one only when another client took the place of the first, or the first goes on with a request that came
            // just then: it may take a minute.
            if are_backends_closed && !leaving.as_ref().is_some_and(Leaving::is_on_its_way) {
                // The first may have ended since the look above: its place is free then.
                if leaving.is_some()
                    && let Some(place) = Place::take(worker, limit)
                {
                    return Some(place);
                }
                leaving = worker.evict_idle().map(Leaving::Here);
                // Without an idle client here, another worker may have one.
                leaving = leaving.or_else(|| Some(Leaving::Elsewhere(account.wish(worker.index))));
            }
            if lacks_descriptors {
                tokio::select! {
                    () = worker.place_freed.notified() => {}
                    () = account.freed() => {}
                }
            } else {
                // Not at the account: while a task waits there, all workers close their idle backend connections. Clients
                // of other workers do not notify this one.
                let _ = tokio::time::timeout(PAUSE, worker.place_freed.notified()).await;
            }
        }
    }

    fn rest_until(&mut self) -> Instant {
        *self.rest_until.get_or_insert_with(|| Instant::now() + REST_LIMIT)
    }

    async fn pause(&mut self, error: &io::Error, fault: Fault) {
        self.worker.front.state.accept_pauses.fetch_add(1, Relaxed);
        self.complain(error, fault);
        if fault == Fault::Exhaustion {
            self.worker.evict_idle();
            self.worker.give_up_idle(usize::MAX);
            self.worker.place_cache.account().want();
        }
        tokio::time::sleep(PAUSE).await;
    }

    fn complain(&mut self, error: &io::Error, fault: Fault) {
        let now = Instant::now();
        if self.complained.is_some_and(|last| now.duration_since(last) < COMPLAIN_EVERY) {
            return;
        }
        self.complained = Some(now);
        let state = &self.worker.front.state;
        let message = match fault {
            Fault::Exhaustion => format!(
                "cannot accept: {error}; {} clients are connected; raise LimitNOFILE or lower max-connections",
                state.connections.load(Relaxed)
            ),
            Fault::OfThatClient | Fault::OfTheSocket => {
                format!("worker {} cannot accept on {}: {error}", self.worker.index, self.key.bind)
            }
        };
        state.events.record(Level::Error, format!("listener.{}", self.key.listener), message);
    }
}

/// What a failed accept means for the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The client left between its handshake and our accept, or the network between us failed (accept(2): such errors of
    /// the new connection come out of the call). The next one may do.
    OfThatClient,
    /// No descriptors or memory.
    Exhaustion,
    /// It will fail again.
    OfTheSocket,
}

impl Fault {
    fn of(error: &io::Error) -> Self {
        match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM) => Self::Exhaustion,
            Some(
                Errno::ECONNABORTED
                | Errno::EINTR
                | Errno::EPERM
                | Errno::EPROTO
                | Errno::ENOPROTOOPT
                | Errno::ENETDOWN
                | Errno::ENETUNREACH
                | Errno::EHOSTDOWN
                | Errno::EHOSTUNREACH
                | Errno::ENONET
                | Errno::ETIMEDOUT
                | Errno::ECONNRESET,
            ) => Self::OfThatClient,
            _ => Self::OfTheSocket,
        }
    }
}
