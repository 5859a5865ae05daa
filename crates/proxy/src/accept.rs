//! Accepts clients on one socket of one worker, within the limits, and starts a task for each client.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use logic::access_log::Kind;
use logic::account::Refusal;
use logic::flood_delay::FloodDelay;
use logic::peers::Peer;
use nix::errno::Errno;
use state::account::{AtSource, Wish};
use state::ending::Ending;
use state::events::Level;
use state::listen::{BoundKey, Socket};
use tls::plain::Plain;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Notify;

use crate::admission::{
    self, Admitted, ConnectionPermit, Counted, Limit, ListenerPermit, count_at_source, flood_wait, turn_away,
};
use crate::arrival::Entry;
use crate::arrival::canonical;
use crate::live::Accepted;
use crate::outcome::Outcome;
use crate::snapshot::ListenerPlan;
use crate::tcp::ring::Engine;
use crate::worker::{ConnectionHandle, Current, Worker};

mod arrived;

use arrived::{Accepts, Arrived, RingAcceptor};

/// Pause when descriptors or connections have run out: long enough not to spin, short enough that clients do not notice.
const PAUSE: Duration = Duration::from_millis(20);

/// Length of queues that this process did not set: those of Unix sockets and of sockets from systemd are no longer.
const LONGEST_USUAL_QUEUE: u32 = 4096;

/// Time limit of waiting for the clients in the queue of a socket that is being closed, while no descriptors are free.
const REST_LIMIT: Duration = Duration::from_secs(5);

/// Time limit of waiting for other workers to close idle backend connections, before an idle client is closed instead.
const IDLE_FIRST: Duration = Duration::from_millis(100);

/// Shortest time between two messages of an accept loop that it cannot accept.
const COMPLAIN_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub struct CloseSignal {
    closing: Cell<bool>,
    cut: Cell<bool>,
    left: Cell<bool>,
    notify: Notify,
    has_ended: Cell<bool>,
    ended: Notify,
}

impl CloseSignal {
    /// Ends the loop after it has accepted the clients in the socket's queue.
    pub fn close(&self) {
        self.closing.set(true);
        self.notify.notify_one();
    }

    /// Ends the loop at once, and leaves the queue to another process that has the socket as well.
    pub(crate) fn leave(&self) {
        self.left.set(true);
        self.close();
    }

    pub(crate) fn is_left(&self) -> bool {
        self.left.get()
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.get()
    }

    /// Ends the loop at once.
    pub(crate) fn cut(&self) {
        self.cut.set(true);
        self.close();
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.cut.get()
    }

    /// Waits until the loop is told to end at once. Only one of this and [`Self::closed`] may be waited for at a time.
    pub(crate) async fn cut_off(&self) {
        while !self.cut.get() {
            self.notify.notified().await;
        }
    }

    /// Waits until the loop is told to end.
    pub(crate) async fn closed(&self) {
        while !self.closing.get() {
            self.notify.notified().await;
        }
    }

    /// The loop has ended, and its socket is closed.
    pub(crate) fn note_end(&self) {
        self.has_ended.set(true);
        self.ended.notify_one();
    }

    /// Waits for [`Self::note_end`]. Only one task may wait at a time.
    pub(crate) async fn has_ended(&self) {
        while !self.has_ended.get() {
            self.ended.notified().await;
        }
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
                // Accepted sockets inherit TCP_NODELAY, which saves a system call per connection.
                sys::socket::set_nodelay(tcp.as_fd())?;
                Self::Tcp(TcpListener::from_std(tcp)?)
            }
            Socket::Unix(unix) => Self::Unix(UnixListener::from_std(unix)?),
            // `udp.rs` and `dsr.rs` serve them.
            Socket::Udp(_) | Socket::Packet(..) | Socket::Proxied(_) => {
                return Err(io::ErrorKind::Unsupported.into());
            }
        })
    }
}

impl Accepts for Acceptor {
    type Client = Plain;

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Plain, Peer)>> {
        match self {
            Self::Tcp(listener) => listener.poll_accept(cx).map_ok(|(stream, peer)| tcp(stream, peer)),
            Self::Unix(listener) => {
                listener.poll_accept(cx).map_ok(|(stream, _)| (Plain::Unix(stream), Peer::Unix))
            }
        }
    }

    fn into_socket(self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => listener.into_std().map(Socket::Tcp),
            Self::Unix(listener) => listener.into_std().map(Socket::Unix),
        }
    }
}

/// Accepts the next client of the queue, or returns `WouldBlock`.
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
        Socket::Udp(_) | Socket::Packet(..) | Socket::Proxied(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}

fn tcp(stream: TcpStream, peer: SocketAddr) -> (Plain, Peer) {
    (Plain::Tcp(stream), Peer::Ip(canonical(peer)))
}

/// Runs the accept loop of one socket. When the function returns, the socket is closed.
pub(crate) async fn run(
    worker: Rc<Worker>,
    key: BoundKey,
    socket: Socket,
    close_signal: Rc<CloseSignal>,
    engine: Option<Rc<Engine>>,
) {
    worker.accepting.set(worker.accepting.get() + 1);
    let begun = match (engine, socket) {
        (Some(engine), Socket::Tcp(tcp)) => match RingAcceptor::new(tcp, engine) {
            Ok(acceptor) => {
                Box::pin(serve(&worker, &key, &close_signal, acceptor)).await;
                Ok(())
            }
            Err(error) => Err(error),
        },
        (_, socket) => match Acceptor::new(socket) {
            Ok(acceptor) => {
                serve(&worker, &key, &close_signal, acceptor).await;
                Ok(())
            }
            Err(error) => Err(error),
        },
    };
    match begun {
        Ok(()) => {}
        Err(error) => worker.front.state.events.record(
            Level::Error,
            format!("listener.{}", key.listener),
            format!("worker {} cannot accept on {}: {error}", worker.index, key.bind),
        ),
    }
    worker.accepting.set(worker.accepting.get() - 1);
}

async fn serve(worker: &Rc<Worker>, key: &BoundKey, close_signal: &CloseSignal, acceptor: impl Accepts) {
    let known = worker.current();
    let plan = known.listeners.get(&key.listener).cloned();
    Loop { worker, key, close_signal, known, plan, complained: None, rest_until: None }.run(acceptor).await;
}

/// The client that is closed to make room for a new one.
enum Leaving {
    Here(Rc<ConnectionHandle>),
    /// A client of another worker, as soon as a worker has an idle one.
    Elsewhere(Wish),
}

impl Leaving {
    /// Returns true if a client was asked to close and has neither ended nor begun another request. If no worker has
    /// closed a client yet, returns false: this worker's own clients are looked at again.
    fn is_on_its_way(&self) -> bool {
        match self {
            Self::Here(handle) => handle.is_closing(),
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
    close_signal: &'a CloseSignal,
    /// The last snapshot with this listener: after a reload that removes the listener, the clients in its queue are
    /// still served.
    known: Current,
    plan: Option<Arc<ListenerPlan>>,
    complained: Option<Instant>,
    /// Set when the socket is being closed: time limit until which all clients in its queue wait for descriptors.
    rest_until: Option<Instant>,
}

impl Loop<'_> {
    async fn run(&mut self, acceptor: impl Accepts) {
        let signal = self.close_signal;
        let mut closed = pin!(signal.notify.notified());
        // The signal knows the task from the first poll on: it need not be told again.
        let mut is_watched = false;
        while !signal.closing.get() {
            let accepting = std::future::poll_fn(|cx| match acceptor.poll_accept(cx) {
                Poll::Ready(accepted) => Poll::Ready(Some(accepted)),
                Poll::Pending if signal.closing.get() => Poll::Ready(None),
                Poll::Pending if std::mem::replace(&mut is_watched, true) => Poll::Pending,
                Poll::Pending => closed.as_mut().poll(cx).map(|()| None),
            });
            let Some(accepted) = accepting.await else { break };
            match accepted {
                Ok((client, peer)) => self.receive(client, peer).await,
                Err(error) => match Fault::of(&error) {
                    Fault::OfThatClient => tokio::task::yield_now().await,
                    fault => self.pause(&error, fault).await,
                },
            }
        }
        if signal.is_left() {
            return;
        }
        match acceptor.into_socket() {
            Ok(socket) => self.receive_rest(&socket).await,
            Err(error) => self.complain(&error, Fault::OfTheSocket),
        }
    }

    /// Serves the clients in the queue, then closes the socket.
    async fn receive_rest(&mut self, socket: &Socket) {
        let deadline = self.rest_until();
        // The loop has a limit, because other processes may share the socket, or clients may keep filling the queue.
        let backlog = self.plan.as_ref().map_or(0, |plan| plan.settings.backlog);
        let mut left = 2 * backlog.max(LONGEST_USUAL_QUEUE);
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

    /// Starts the session of a client when the limits allow it.
    async fn receive(&mut self, client: impl Arrived, peer: Peer) {
        let worker = self.worker;
        let Some(plan) = self.look_up() else { return };
        plan.state.counters.of(worker.index).connections.add(1);
        let standing = admission::standing(&plan, peer);
        if admission::turns_away(&plan, standing) {
            let Some(plain) = client.watched() else { return };
            return admission::hold_or_deny(worker, &plan, plain, peer);
        }
        let Some(listener) = ListenerPermit::take(&plan.state, plan.settings.max_connections) else {
            Outcome::new(worker, &plan.state, Kind::Tcp, peer, None).end(Ending::ListenerFull);
            return tell_full(worker, &plan);
        };
        let Counted { source, place, leaving } = match count_at_source(worker, &plan, peer) {
            Ok(counted) => counted,
            Err(why) => {
                let Some(plain) = client.watched() else { return };
                return turn_away(worker, &plan, plain, peer, why);
            }
        };
        let (current, plan, permit) = match ConnectionPermit::take(worker, Limit::Holds) {
            Some(permit) => (self.known.clone(), plan, permit),
            None => {
                let Some(permit) = self.wait_for_permit(leaving).await else {
                    let Some(plain) = client.watched() else { return };
                    return turn_away(worker, &plan, plain, peer, Refusal::NoDescriptors);
                };
                // A reload may have happened while the client waited.
                let newest = self.look_up().unwrap_or(plan);
                (self.known.clone(), newest, permit)
            }
        };
        let floods = source.as_ref().map_or_else(FloodDelay::default, AtSource::floods);
        let wait = flood_wait(worker, &plan, floods);
        let (socket, at) = (client.number(), worker.front.state.started.elapsed());
        let admitted = Admitted::new(
            permit,
            source,
            listener,
            place,
            &Accepted { peer, socket, at, age: Duration::ZERO },
        );
        client.begin(Entry { worker: worker.clone(), current, plan, standing, admitted }, peer, wait);
    }

    fn look_up(&mut self) -> Option<Arc<ListenerPlan>> {
        let current = self.worker.current();
        if !Rc::ptr_eq(&current, &self.known)
            && let Some(plan) = current.listeners.get(&self.key.listener)
            && plan.settings.protocol.transport() == self.key.transport
        {
            self.plan = Some(plan.clone());
            self.known = current;
        }
        self.plan.clone()
    }

    /// Waits while the process is at its limit of client connections: closes one idle client to make room for the new
    /// one, unless a client is `leaving` already. `None` if the socket is being closed and no descriptor is free for
    /// this client.
    async fn wait_for_permit(&mut self, leaving: Option<Rc<ConnectionHandle>>) -> Option<ConnectionPermit> {
        let worker = self.worker;
        let mut leaving = leaving.map(Leaving::Here);
        let (state, account) = (&worker.front.state, worker.slot_cache.account());
        state.accept_pauses.fetch_add(1, Relaxed);
        let began = Instant::now();
        loop {
            let limit = if self.close_signal.closing.get() { Limit::Passed } else { Limit::Holds };
            if let Some(permit) = ConnectionPermit::take(worker, limit) {
                return Some(permit);
            }
            if limit == Limit::Passed && self.rest_until() <= Instant::now() {
                return None;
            }
            let lacks_descriptors = limit == Limit::Passed
                || state.connections.load(Relaxed) < state.max_connections.load(Relaxed);
            let mut are_backends_closed = true;
            if lacks_descriptors {
                // Idle backend connections of all workers are closed before idle clients are.
                account.want();
                let slots = account.client_slots();
                if worker.idle.give_up(slots) > 0 {
                    continue;
                }
                // The slots of HTTP/2 connections become free a moment later.
                let closing = worker.lines.give_up(slots);
                let is_idle_left = closing > 0 || account.standing().idle >= slots;
                are_backends_closed = !is_idle_left || began.elapsed() >= IDLE_FIRST;
            }
            // Closes another client only if another new client took the freed place, or if the first one began another
            // request: that may take a minute.
            if are_backends_closed && !leaving.as_ref().is_some_and(Leaving::is_on_its_way) {
                // The first client may have ended since the check above: its place is free then.
                if leaving.is_some()
                    && let Some(permit) = ConnectionPermit::take(worker, limit)
                {
                    return Some(permit);
                }
                leaving = worker.evict_idle().map(Leaving::Here);
                // If this worker has no idle client, another worker may have one.
                leaving = leaving.or_else(|| Some(Leaving::Elsewhere(account.wish(worker.index))));
            }
            if lacks_descriptors {
                tokio::select! {
                    () = worker.place_freed.notified() => {}
                    () = account.freed() => {}
                }
            } else {
                // Waiting at the account would make all workers close their idle backend connections. Clients of other
                // workers do not notify `place_freed`, hence the timeout.
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
            self.worker.slot_cache.account().want();
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

/// Reports a listener at its limit to the operator. Clients cause it at any rate, so the events are limited.
fn tell_full(worker: &Worker, plan: &ListenerPlan) {
    let state = &worker.front.state;
    if let Some(most) = plan.settings.max_connections
        && plan.state.full_told.may(state.started.elapsed())
    {
        let message = format!(
            "max-connections = {most} are open: further clients are closed at once (listener-full in the log), until \
             some of these end"
        );
        state.events.record(Level::Warning, format!("listener.{}", plan.settings.name), message);
    }
}

/// Consequence of a failed accept for the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The client left before it was accepted, or the network failed (accept(2) returns such errors of the new
    /// connection). The next accept may succeed.
    OfThatClient,
    /// No descriptors or memory are free.
    Exhaustion,
    /// The next accept will fail, too.
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
