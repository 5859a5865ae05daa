//! Serves `protocol = "tcp"`: takes a backend, relays, and records the outcome.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::types::TcpSettings;
use logic::access_log::Kind;
use logic::account::Refusal;
use logic::acl::Verdict;
use logic::balance::view::View;
use logic::balance::{HashKey, Tried, client_key};
use logic::bandwidth::Bandwidth;
use logic::peers::Peer;
use logic::proxy_header::Additions;
use logic::retry::{self, Idempotence, Progress, WhenDown};
use logic::route::PoolId;
use state::ending::Ending;
use state::{BackendState, ListenerState};
use sys::socket::Opening;
use tls::linger::linger;
use tls::plain::Parked;

use crate::admission::Admitted;
use crate::arrival::{Arrival, ClientConnection, Entry};
use crate::bandwidth::{Begins, Limits};
use crate::boxed::boxed;
use crate::connect::{ConnectFault, Freshness, TimeLimit};
use crate::fallback;
use crate::given::Carried;
use crate::idle_sessions::{IdleRelay, IdleSession};
use crate::live::{Movable, Totals};
use crate::outcome::Outcome;
use crate::relay::{self, Early, End, RelayPause, Side, Watch};
use crate::retry_budget;
use crate::snapshot::PoolPlan;
use crate::sticky_cookie::Slot;
use crate::stream::{Carriage, Stream};
use crate::upstream::{self, Beginning, Chosen, InFlight, NoBackend, Wanted};
use crate::worker::{Current, Worker};

mod given;
pub(crate) mod ring;
mod upgraded;

pub use given::adopt;
pub use upgraded::{Upgraded, go_on};

/// Bytes of a client that are read before it has a backend. Enough for the first message of most protocols, and small
/// for the clients that wait for a busy backend.
const EARLY: usize = 4096;

/// Serves one client connection. [`connection::serve`](crate::connection::serve) says why the function is not `async`.
pub fn serve(
    entry: Entry,
    settings: &TcpSettings,
    client: ClientConnection,
) -> impl Future<Output = ()> + use<> {
    let mut outcome =
        Outcome::new(&entry.worker, &entry.plan.state, Kind::Tcp, client.arrival.peer, client.arrival.tls);
    outcome.belong(entry.admitted.handle());
    let now = outcome.started();
    let watch = Watch::begun(settings.idle_timeout, now).closing(settings.fast_close);
    carry(entry, settings.pool, watch, client, outcome, now)
}

/// Connects a client to a backend of `pool` and relays until the session ends.
pub fn carry(
    entry: Entry,
    pool: PoolId,
    watch: Watch,
    mut client: ClientConnection,
    outcome: Outcome,
    now: Instant,
) -> impl Future<Output = ()> + use<> {
    if let Some(bandwidth) = entry.plan.settings.bandwidth {
        let limits = limits(&entry.worker, &entry.plan.state, bandwidth, client.arrival.peer);
        client.stream.limit(Some(limits));
    }
    let Entry { current, plan, admitted, .. } = entry;
    let denied = plan.settings.denied_pool.filter(|_| client.arrival.standing == Verdict::Deny);
    drop(plan);
    // In its box from the beginning on: it is large, and each step would move it.
    let session = Box::new(Session { watch, outcome, unsent: None, slot: None, admitted });
    connect_and_relay(session, current, denied.unwrap_or(pool), client, now, Before::Nothing)
}

/// Connects the client of a session to a backend and relays until the session ends.
fn connect_and_relay(
    session: Box<Session>,
    current: Current,
    pool: PoolId,
    client: ClientConnection,
    now: Instant,
    before: Before,
) -> impl Future<Output = ()> + use<> {
    let beginning = boxed(|| begin(session, current, pool, client, now, before));
    async move {
        if let Some(Pair { session, client, backend, early }) = beginning.await {
            relay(session, client, backend, early).await;
        }
    }
}

/// How far a ring came with a session that has no connection to a backend yet.
enum Before {
    Nothing,
    /// A backend was chosen.
    Chosen(Box<Chosen>),
    /// A backend was chosen, the session was counted for the retry budget of its pool, and the kernel opens the connection.
    Begun {
        /// Closed before the place at the backend is given back.
        socket: OwnedFd,
        chosen: Box<Chosen>,
    },
    /// The session was counted for the retry budget of its pool.
    Counted,
    /// The session was counted for the retry budget of its pool. The backend with this index has refused the connection, and its
    /// fault was noted.
    Refused(usize),
}

struct Pair {
    session: Box<Session>,
    client: Stream,
    backend: Stream,
    /// Bytes that the client sent before the relay.
    early: Option<Box<Early>>,
}

/// Limits of bytes a second for a session of this client.
pub(crate) fn limits(
    worker: &Worker,
    listener: &Arc<ListenerState>,
    bandwidth: Bandwidth,
    client: Peer,
) -> Limits {
    let state = &worker.front.state;
    let source = client.ip().map(|address| state.account.sources.key(address));
    Limits::new(&Begins { bandwidth, listener, worker: worker.index, started: state.started, source })
}

/// State of a session without its connections.
struct Session {
    watch: Watch,
    outcome: Outcome,
    /// Present as long as neither side has sent anything.
    unsent: Option<Box<Unsent>>,
    /// `None` before it has a backend.
    slot: Option<InFlight>,
    admitted: Admitted,
}

/// What a session in which nothing was sent yet needs to move to another backend.
struct Unsent {
    current: Current,
    arrival: Arrival,
    opening: Opening,
    tried: Tried,
    /// Number of outages of the backend when the session got it.
    outages: u32,
}

impl Session {
    fn backend(&self) -> Option<(&Arc<PoolPlan>, usize)> {
        self.outcome.pool.as_ref().zip(self.outcome.backend)
    }

    fn has_sent(&self) -> bool {
        let Totals { up, down } = self.outcome.relayed();
        up.get() + down.get() > 0
    }
}

impl IdleRelay for Session {
    fn may_move(&self) -> bool {
        let (Some(unsent), Some((pool, index))) = (&self.unsent, self.backend()) else { return false };
        let state = &pool.backends[index].state;
        state.outages() != unsent.outages && !state.is_up()
    }

    fn due(&self) -> Instant {
        self.watch.due()
    }

    fn note_key(&self, key: usize) {
        self.admitted.handle().relay_parked(key);
    }

    fn wake(self: Box<Self>, client: Parked, backend: Parked) {
        let handle = self.admitted.handle().clone();
        handle.resumed();
        let relaying = relay(self, Stream::parked(client), Stream::parked(backend), None);
        handle.live.served_by(tokio::task::spawn_local(relaying).abort_handle());
    }

    fn expire(mut self: Box<Self>) {
        self.outcome.end(Ending::IdleTimeout);
    }

    fn is_for_hand_over(&self) -> bool {
        self.watch.is_for_hand_over()
    }

    fn carried(&self) -> Option<Carried> {
        given::carried(self)
    }

    fn stay(&mut self) {
        self.watch.stays();
        self.admitted.handle().live.movable.set(Movable::No);
    }

    fn leave(mut self: Box<Self>) {
        self.outcome.hand_over();
    }
}

/// What a relay begins with; `None` if it is nothing.
fn sent_first(early: Early) -> Option<Box<Early>> {
    let is_something = !early.up.is_empty() || !early.down.is_empty() || early.reset.is_some();
    is_something.then(|| Box::new(early))
}

/// Relays until the session ends or becomes idle; then [`park`] stores it without a task.
#[expect(clippy::manual_async_fn, reason = "an async function holds its arguments twice")]
fn relay(
    mut session: Box<Session>,
    mut client: Stream,
    mut backend: Stream,
    mut early: Option<Box<Early>>,
) -> impl Future<Output = ()> {
    async move {
        session.admitted.handle().keep_waker_of_task().await;
        loop {
            if session.may_move()
                && Box::pin(change_backend(&mut session, &mut backend)).await == Change::Failed
            {
                return drop((client, backend, session));
            }
            let stays = session.may_move();
            let Session { watch, outcome, .. } = &mut *session;
            let first = early.take().map_or_else(Early::default, |early| *early);
            match relay::run_until_quiet(
                &client,
                &backend,
                first,
                watch,
                outcome.relayed(),
                &outcome.worker().pipes,
            )
            .await
            {
                RelayPause::Quiet | RelayPause::Whole => {}
                RelayPause::Ended(end) => {
                    outcome.end(end.settle(&client, &backend));
                    if let End::FastClosed(side) = end {
                        outcome.hide_socket();
                        if side == Side::Client {
                            session.admitted.handle().live.hide_socket();
                        }
                        Box::pin(close_after(side, client, backend)).await;
                        return drop(session);
                    }
                    if client.is_broken() {
                        // Its descriptor may be that of another connection while the client lingers.
                        outcome.hide_socket();
                        drop(backend);
                        Box::pin(linger(&client)).await;
                        return drop((client, session));
                    }
                    // Closes the connections before their slots are released.
                    return drop((client, backend, session));
                }
            }
            if session.has_sent() {
                session.unsent = None;
            } else if session.may_move() && !stays {
                continue;
            }
            match park(session, client, backend) {
                None => return,
                Some(restless) => (session, client, backend) = restless,
            }
        }
    }
}

/// Closes a session that has ended with one side. The other one may still send: a close would answer that with a reset,
/// which could destroy the last bytes on their way to it.
async fn close_after(side: Side, client: Stream, backend: Stream) {
    let (ended, other) = match side {
        Side::Client => (client, backend),
        Side::Backend => (backend, client),
    };
    drop(ended);
    linger(&other).await;
}

/// Stores an idle session in the worker, or gives it to the next process. Returns the session if one of its connections cannot
/// be parked.
fn park(
    mut session: Box<Session>,
    client: Stream,
    backend: Stream,
) -> Option<(Box<Session>, Stream, Stream)> {
    let client = match client.into_parked() {
        Ok(client) => client,
        Err(client) => {
            session.stay();
            return Some((session, client, backend));
        }
    };
    let backend = match backend.into_parked() {
        Ok(backend) => backend,
        Err(backend) => {
            session.stay();
            return Some((session, Stream::parked(client), backend));
        }
    };
    let worker = session.outcome.worker().clone();
    if session.watch.is_for_hand_over() && worker.pipes.are_relays_wanted() {
        session.admitted.handle().set_aside();
        worker.give(IdleSession::Relay { session, client, backend });
    } else {
        worker.idle_sessions.park(IdleSession::Relay { session, client, backend });
    }
    None
}

/// Connects a client to a backend. `None` if that failed; the outcome has the reason.
async fn begin(
    mut session: Box<Session>,
    mut snapshot: Current,
    pool: PoolId,
    client: ClientConnection,
    mut now: Instant,
    mut before: Before,
) -> Option<Pair> {
    let ClientConnection { stream: client, mut early, arrival } = client;
    let outcome = &mut session.outcome;
    let pool = snapshot.pool(pool);
    let mut pool = match before {
        Before::Nothing => fallback::serving(outcome.worker(), &snapshot, pool).clone(),
        Before::Chosen(_) | Before::Begun { .. } | Before::Counted | Before::Refused(_) => pool.clone(),
    };
    outcome.pool = Some(pool.clone());
    // Bytes that have a limit are left to the relay.
    let is_limited = client.limits().is_some_and(|limits| limits.up.is_some());
    // Most clients send first, and their first bytes have arrived: they go to the backend with the handshake.
    if early.is_empty() && !is_limited && client.fill_now(&mut early, EARLY).await.is_err() {
        outcome.end(Ending::ClientClosed);
        if client.is_broken() {
            linger(&client).await;
        }
        return None;
    }
    let opening_to = |pool: &PoolPlan| match early.is_empty() && pool.settings.send_proxy.is_none() {
        true => Opening::TheyMaySpeak,
        false => Opening::WeSpeak,
    };
    let (opening, tried, obtained) = loop {
        let (opening, mut tried) = (opening_to(&pool), Tried::default());
        let begin = Begin { opening, at: now, before: std::mem::replace(&mut before, Before::Nothing) };
        let why = match obtain(&mut snapshot, &mut pool, &arrival, begin, &mut tried, outcome).await {
            Ok(obtained) => break (opening, tried, obtained),
            Err(why) => why,
        };
        let next = if is_unreachable(why) { fallback::after(&snapshot, &pool) } else { None };
        match next {
            Some(next) => {
                now = Instant::now();
                pool = next.clone();
                outcome.pool = Some(pool.clone());
                (outcome.backend, outcome.view, outcome.attempts) = (None, View::default(), 0);
                outcome.failed.leave_pool();
            }
            None => {
                outcome.end(why);
                return None;
            }
        }
    };
    let Obtained { stream: backend, chosen, at } = obtained;
    let unsent = early.is_empty().then(|| {
        let outages = chosen.backend.outages();
        Box::new(Unsent { current: snapshot, arrival, opening, tried, outages })
    });
    outcome.relayed().up.set(early.len() as u64);
    outcome.show_socket(&backend);
    match if is_limited { 0 } else { backend.write_now(&early) } {
        sent if sent == early.len() => early = Vec::new(),
        sent => drop(early.drain(..sent)),
    }
    session.watch.begin_at(at);
    if client.carriage() == Carriage::Plain && backend.carriage() == Carriage::Plain {
        session.watch.may_be_handed_over();
        session.admitted.handle().live.movable.set(Movable::Yes);
    }
    (session.unsent, session.slot) = (unsent, Some(chosen.slot));
    let early = sent_first(Early { up: early, ..Early::default() });
    Some(Pair { session, client, backend, early })
}

#[derive(PartialEq, Eq)]
enum Change {
    /// The session has another backend, or keeps its own because no other one has room.
    Done,
    /// No other backend could be reached; the outcome has the reason.
    Failed,
}

/// Gives a session whose backend was judged down another one. Neither side has sent anything.
async fn change_backend(session: &mut Session, backend: &mut Stream) -> Change {
    let worker = session.outcome.worker().clone();
    let (Some((mut pool, index)), Some(mut unsent)) =
        (session.backend().map(|(pool, index)| (pool.clone(), index)), session.unsent.take())
    else {
        return Change::Done;
    };
    let room =
        upstream::elsewhere(&worker, &pool, index, &unsent.tried, Some(unsent.arrival.peer), Instant::now());
    let Session { outcome, slot, .. } = session;
    let (attempts, retries) = (outcome.attempts, pool.settings.retries);
    let nothing = Progress::NothingSent;
    if retry::when_down(Idempotence::NotIdempotent, nothing, attempts, retries, room) == WhenDown::Move {
        unsent.tried.insert(index);
        let Unsent { current, arrival, opening, tried, .. } = &mut *unsent;
        let left = pool.backends[index].state.clone();
        let obtaining = obtain(
            current,
            &mut pool,
            arrival,
            Begin { opening: *opening, at: Instant::now(), before: Before::Nothing },
            tried,
            outcome,
        );
        let Obtained { stream, chosen, .. } = match obtaining.await {
            Ok(obtained) => obtained,
            Err(why) => {
                outcome.end(why);
                return Change::Failed;
            }
        };
        outcome.moved += 1;
        left.counters.of(worker.index).moved.add(1);
        unsent.outages = chosen.backend.outages();
        *slot = Some(chosen.slot);
        *backend = stream;
        outcome.show_socket(backend);
    }
    session.unsent = Some(unsent);
    Change::Done
}

/// Returns true if a session found no backend of its pool that works.
fn is_unreachable(why: Ending) -> bool {
    matches!(why, Ending::NoBackendAvailable | Ending::ConnectFailed | Ending::Denied)
}

/// A connection to a backend.
struct Obtained {
    stream: Stream,
    chosen: Chosen,
    /// When it was open.
    at: Instant,
}

/// What a connection begins with, and when.
struct Begin {
    opening: Opening,
    at: Instant,
    before: Before,
}

/// Chooses and connects a backend, with retries. A session that has waited goes on with the snapshot that is served then.
async fn obtain(
    snapshot: &mut Current,
    pool: &mut Arc<PoolPlan>,
    arrival: &Arrival,
    Begin { opening, at: mut now, before }: Begin,
    tried: &mut Tried,
    outcome: &mut Outcome,
) -> Result<Obtained, Ending> {
    let worker = &outcome.worker().clone();
    let key = match &pool.settings.hash_key {
        HashKey::Client => arrival.peer.ip().map_or(0, client_key),
        // Other keys need HTTP; the configuration rejects them for TCP.
        _ => 0,
    };
    // A session that has a backend already leaves it.
    let mut origin = match (outcome.backend, &before) {
        (_, Before::Begun { .. } | Before::Counted | Before::Refused(_)) => upstream::Origin::Client,
        (Some(_), Before::Nothing) => upstream::Origin::DownBackend,
        (None, Before::Nothing) | (_, Before::Chosen(_)) => {
            retry_budget::count(worker, pool, now);
            upstream::Origin::Client
        }
    };
    let mut failed: Option<Arc<BackendState>> = None;
    let (mut at_once, mut begun_socket) = (None, None);
    match before {
        Before::Nothing | Before::Counted => {}
        Before::Chosen(chosen) => at_once = Some(chosen),
        Before::Begun { socket, chosen } => (at_once, begun_socket) = (Some(chosen), Some(socket)),
        Before::Refused(index) => {
            tried.insert(index);
            failed = Some(pool.backends[index].state.clone());
            may_try_again(worker, pool, outcome, NoConnection::Backend)?;
        }
    }
    loop {
        let remember = upstream::Remember::AtOnce;
        let (client, judged) = (arrival.peer, Some(arrival.peer));
        let cookie = Slot::Absent;
        let wanted = Wanted { client, judged, key, tried, cookie, origin, remember };
        origin = upstream::Origin::Client;
        let mut chosen = match at_once.take() {
            Some(chosen) => *chosen,
            None => match upstream::choose(worker, snapshot, pool, wanted, now).await {
                Ok(chosen) => chosen,
                Err(none) => return Err(no_backend(none)),
            },
        };
        if chosen.queued.is_some() {
            now = Instant::now();
        }
        if let Some(followed) = chosen.followed.take() {
            *tried = followed.tried(pool, tried);
            (*snapshot, *pool) = (followed.current.clone(), followed.pool.clone());
            outcome.pool = Some(pool.clone());
            outcome.failed.leave_pool();
        }
        if let Some(failed) = failed.take() {
            failed.counters.of(worker.index).retries.add(1);
        }
        outcome.attempts += 1;
        (outcome.backend, outcome.view) = (Some(chosen.index), chosen.view);
        outcome.show_backend(&chosen.backend);
        outcome.queued = chosen.queued.or(outcome.queued);
        let attempt = Attempt { opening, began: now, socket: begun_socket.take() };
        let lacks = match connect(worker, pool, &chosen, arrival, attempt, outcome).await {
            Ok((stream, at)) => return Ok(Obtained { stream, chosen, at }),
            Err(lacks) => lacks,
        };
        now = Instant::now();
        tried.insert(chosen.index);
        may_try_again(worker, pool, outcome, lacks)?;
        failed = Some(chosen.backend.clone());
    }
}

/// After a failed attempt: the session may have another one, or ends.
fn may_try_again(
    worker: &Worker,
    pool: &PoolPlan,
    outcome: &Outcome,
    lacks: NoConnection,
) -> Result<(), Ending> {
    let (attempts, retries) = (outcome.attempts, pool.settings.retries);
    let decision = retry::decide(Idempotence::NotIdempotent, Progress::NothingSent, attempts, retries);
    if decision == retry::Decision::GiveUp || !retry_budget::spend(worker, pool) {
        if let NoConnection::Descriptors = lacks {
            worker.slot_cache.account().count(Refusal::NoDescriptors);
        }
        return Err(lacks.ending());
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum NoConnection {
    Backend,
    Descriptors,
}

impl NoConnection {
    fn ending(self) -> Ending {
        match self {
            Self::Backend => Ending::ConnectFailed,
            Self::Descriptors => Ending::NoDescriptors(Refusal::NoDescriptors),
        }
    }
}

/// One attempt to connect.
struct Attempt {
    opening: Opening,
    began: Instant,
    /// Of a connection that the ring has begun: the attempt waits for it, and begins none.
    socket: Option<OwnedFd>,
}

/// Opens a connection to the chosen backend.
async fn connect(
    worker: &Rc<Worker>,
    pool: &PoolPlan,
    chosen: &Chosen,
    arrival: &Arrival,
    Attempt { opening, began, socket }: Attempt,
    outcome: &mut Outcome,
) -> Result<(Stream, Instant), NoConnection> {
    let counters = chosen.backend.counters.of(worker.index);
    let (plan, limit) = (&pool.backends[chosen.index], pool.settings.timeouts.connect);
    let outgoing = plan.outgoing_for(arrival.peer);
    let opened = match socket {
        Some(socket) => upstream::finish(worker, plan, socket, TimeLimit { began, limit }).await,
        None => {
            let header =
                pool.settings.send_proxy.map(|version| proxy_header(version, arrival)).unwrap_or_default();
            let beginning = Beginning { outgoing, opening, preface: &header, began };
            upstream::connect(worker, plan, None, beginning, limit).await
        }
    };
    match opened {
        Ok((stream, freshness)) => {
            let took = match freshness {
                Freshness::Fresh(took) => took,
                Freshness::Kept => Duration::ZERO,
            };
            let at = began + took;
            counters.sessions.add(1);
            counters.latency.observe(took);
            upstream::note_latency(pool, &chosen.backend, took, at);
            outcome.connect = Some(took.into());
            upstream::note_answer(worker, pool, chosen.index, 0);
            Ok((stream, at))
        }
        Err(fault) => {
            outcome.failed.note(chosen.index, fault.word());
            Err(no_connection(worker, pool, chosen, fault))
        }
    }
}

fn no_connection(worker: &Worker, pool: &PoolPlan, chosen: &Chosen, fault: ConnectFault) -> NoConnection {
    match fault {
        ConnectFault::Backend(cause) => {
            upstream::note_failure(worker, pool, chosen.index, cause);
            NoConnection::Backend
        }
        ConnectFault::NoDescriptors(_) => NoConnection::Descriptors,
        ConnectFault::Ours(error) => {
            tracing::debug!(backend = %chosen.backend.name, "cannot connect: {error}");
            NoConnection::Backend
        }
    }
}

/// Builds the PROXY header that tells a backend the address of the client.
pub fn proxy_header(version: logic::proxy_header::Version, arrival: &Arrival) -> Vec<u8> {
    let mut header = Vec::new();
    let local = arrival.local.map_or(Peer::Unix, Peer::Ip);
    let nothing = Additions::default();
    let additions = arrival.session.as_ref().map_or(&nothing, |session| &session.additions);
    logic::proxy_header::write(version, &mut header, &arrival.peer, &local, additions);
    header
}

pub fn no_backend(none: NoBackend) -> Ending {
    match none {
        NoBackend::Unavailable => Ending::NoBackendAvailable,
        NoBackend::Denied => Ending::Denied,
        NoBackend::AllTried => Ending::ConnectFailed,
        NoBackend::QueueFull => Ending::QueueFull,
        NoBackend::QueueTimeout => Ending::QueueTimeout,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the size of the future that such a function returns.
    fn size_of_made<F>(_: fn(Box<Session>, Stream, Stream, Option<Box<Early>>) -> F) -> usize {
        size_of::<F>()
    }

    /// mimalloc has size classes of 384, 448 and 512 bytes: each step up costs memory for every open session.
    #[test]
    fn a_session_takes_no_more_memory_than_was_measured() {
        assert!(size_of::<Session>() <= 384, "{}", size_of::<Session>());
        assert!(size_of::<IdleSession>() <= 32, "{}", size_of::<IdleSession>());
        assert!(size_of_made(relay) <= 512, "{}", size_of_made(relay));
    }
}
