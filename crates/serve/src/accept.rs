//! Accepts clients on one socket of one worker, within the limits, and starts a task for each.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use logic::access_log::Kind;
use logic::peers::Peer;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Notify;

use crate::connection;
use crate::events::Level;
use crate::listen::{BoundKey, Socket};
use crate::outcome::{Ending, Outcome};
use crate::state::{ListenerState, State};
use crate::stream::Plain;
use crate::worker::{Current, Worker};

/// Pause when descriptors or connections have run out: long enough not to spin, short enough that nobody notices.
const PAUSE: Duration = Duration::from_millis(20);

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

/// A client that counts against the limits until it is dropped.
pub struct Admitted {
    state: Arc<State>,
    listener: Arc<ListenerState>,
}

impl Admitted {
    fn new(worker: &Worker, listener: &Arc<ListenerState>) -> Self {
        worker.front.state.connections.fetch_add(1, Relaxed);
        listener.connections.fetch_add(1, Relaxed);
        listener.counters.of(worker.index).connections.add(1);
        Self { state: worker.front.state.clone(), listener: listener.clone() }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.state.connections.fetch_sub(1, Relaxed);
        self.listener.connections.fetch_sub(1, Relaxed);
    }
}

enum Acceptor {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Acceptor {
    fn new(socket: Socket) -> io::Result<Self> {
        Ok(match socket {
            Socket::Tcp(tcp) => Self::Tcp(TcpListener::from_std(tcp)?),
            Socket::Unix(unix) => Self::Unix(UnixListener::from_std(unix)?),
        })
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Plain, Peer)>> {
        Poll::Ready(match self {
            Self::Tcp(listener) => match std::task::ready!(listener.poll_accept(cx)) {
                Ok((stream, peer)) => {
                    // A connection that is gone already fails at its first read.
                    let _ = stream.set_nodelay(true);
                    Ok((Plain::Tcp(stream), Peer::Ip(canonical(peer))))
                }
                Err(error) => Err(error),
            },
            Self::Unix(listener) => std::task::ready!(listener.poll_accept(cx))
                .map(|(stream, _)| (Plain::Unix(stream), Peer::Unix)),
        })
    }
}

/// The accept loop of one socket.
pub async fn run(worker: Rc<Worker>, key: BoundKey, socket: Socket, gate: Rc<Gate>) {
    worker.accepting.set(worker.accepting.get() + 1);
    match Acceptor::new(socket) {
        Ok(acceptor) => accept_all(&worker, &key, &acceptor, &gate).await,
        Err(error) => worker.front.state.events.record(
            Level::Error,
            format!("listener.{}", key.listener),
            format!("worker {} cannot accept on {}: {error}", worker.index, key.bind),
        ),
    }
    worker.accepting.set(worker.accepting.get() - 1);
}

async fn accept_all(worker: &Rc<Worker>, key: &BoundKey, acceptor: &Acceptor, gate: &Gate) {
    // The last snapshot that knows this listener: a reload that removes it does not turn away who waits in its queue.
    let mut known = worker.current();
    let mut complained: Option<Instant> = None;
    while !gate.closing.get() {
        make_room(worker, gate).await;
        let accepted = tokio::select! {
            biased;
            () = gate.notify.notified() => break,
            accepted = std::future::poll_fn(|cx| acceptor.poll_accept(cx)) => accepted,
        };
        match accepted {
            Ok((plain, peer)) => {
                let current = worker.current();
                if current.listeners.contains_key(&key.listener) {
                    known = current;
                }
                admit(worker, &known, key, plain, peer);
            }
            Err(error) if is_exhaustion(&error) => {
                pause(worker, key, &error, &mut complained).await;
            }
            // The client left between its handshake and our accept.
            Err(_) => tokio::task::yield_now().await,
        }
    }
    // What waits in the queue was promised an answer: it is served, then the socket goes.
    let mut context = Context::from_waker(Waker::noop());
    while let Poll::Ready(Ok((plain, peer))) = acceptor.poll_accept(&mut context) {
        admit(worker, &known, key, plain, peer);
    }
}

fn admit(worker: &Rc<Worker>, current: &Current, key: &BoundKey, plain: Plain, peer: Peer) {
    let Some(plan) = current.listeners.get(&key.listener) else { return };
    let admitted = Admitted::new(worker, &plan.state);
    let over = |limit: usize| plan.state.connections.load(Relaxed) > limit;
    if plan.settings.max_connections.is_some_and(over) {
        let mut outcome = Outcome::new(worker, &plan.state, Kind::Tcp, peer, None);
        outcome.end(Ending::ListenerFull);
        return;
    }
    tokio::task::spawn_local(connection::serve(
        worker.clone(),
        current.clone(),
        plan.clone(),
        plain,
        peer,
        admitted,
    ));
}

/// Waits while the process is at its limit of client connections; idle ones are closed to make room.
async fn make_room(worker: &Rc<Worker>, gate: &Gate) {
    let state = &worker.front.state;
    let mut counted = false;
    while state.connections.load(Relaxed) >= state.max_connections.load(Relaxed) && !gate.closing.get() {
        if !counted {
            state.accept_pauses.fetch_add(1, Relaxed);
            counted = true;
        }
        if worker.evict_idle() {
            // Its task closes it when it runs.
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

async fn pause(worker: &Rc<Worker>, key: &BoundKey, error: &io::Error, complained: &mut Option<Instant>) {
    let state = &worker.front.state;
    state.accept_pauses.fetch_add(1, Relaxed);
    let now = Instant::now();
    if complained.is_none_or(|last| now.duration_since(last) > Duration::from_secs(10)) {
        *complained = Some(now);
        state.events.record(
            Level::Error,
            format!("listener.{}", key.listener),
            format!("cannot accept: {error}; {} clients are connected; raise LimitNOFILE or lower max-connections",
                state.connections.load(Relaxed)),
        );
    }
    worker.evict_idle();
    worker.idle.clear();
    tokio::time::sleep(PAUSE).await;
}

/// An IPv4 client of a socket that takes both families is an IPv4 client.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn is_exhaustion(error: &io::Error) -> bool {
    use nix::errno::Errno;
    matches!(
        error.raw_os_error().map(Errno::from_raw),
        Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM)
    )
}
