//! A `protocol = "tcp"` session: a backend, a relay, an outcome.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::types::TcpSettings;
use logic::access_log::Kind;
use logic::account::Refusal;
use logic::balance::{HashKey, Tried, client_key};
use logic::peers::Peer;
use logic::proxy_header::Additions;
use logic::retry::{self, Idempotence, Progress};
use logic::route::PoolId;
use sys::socket::Opening;

use crate::admission::Admitted;
use crate::arrival::{Arrival, Entry, Guest};
use crate::connect::ConnectFault;
use crate::dormitory::{Asleep, Sleeper};
use crate::ending::Ending;
use crate::outcome::Outcome;
use crate::plain::Parked;
use crate::relay::{self, Early, Halt, Watch};
use crate::snapshot::{PoolPlan, Snapshot};
use crate::stream::Stream;
use crate::upstream::{self, Chosen, NoBackend, Slot, Wanted};
use crate::worker::Worker;

/// Bytes of a client that are read before it has a backend: the first message of most protocols, and little to hold for
/// those who wait for a busy backend.
const EARLY: usize = 4096;

/// Serves one client connection. See [`connection::serve`](crate::connection::serve) for why this makes a future instead of
/// being one.
pub fn serve(entry: Entry, settings: &TcpSettings, guest: Guest) -> impl Future<Output = ()> + use<> {
    let outcome =
        Outcome::new(&entry.worker, &entry.plan.state, Kind::Tcp, guest.arrival.peer, guest.arrival.tls);
    carry(entry, settings.pool, settings.idle_timeout, guest, outcome)
}

/// Takes a client to a backend of a pool, and relays the two to their end.
pub fn carry(
    entry: Entry,
    pool: PoolId,
    idle: Duration,
    guest: Guest,
    outcome: Outcome,
) -> impl Future<Output = ()> + use<> {
    let beginning = Box::pin(begin(entry, pool, idle, guest, outcome));
    async move {
        if let Some(Pair { session, client, backend, early }) = beginning.await {
            relay(session, client, backend, early).await;
        }
    }
}

/// Two connections to be relayed.
struct Pair {
    session: Box<Session>,
    client: Stream,
    backend: Stream,
    /// What the client has said already.
    early: Vec<u8>,
}

/// What is known of a session beside its connections.
struct Session {
    watch: Watch,
    outcome: Outcome,
    _slot: Slot,
    _admitted: Admitted,
}

impl Asleep for Session {
    fn due(&self) -> Instant {
        self.watch.due()
    }

    fn wake(self: Box<Self>, client: Parked, backend: Parked) {
        tokio::task::spawn_local(relay(self, Stream::parked(client), Stream::parked(backend), Vec::new()));
    }

    fn expire(mut self: Box<Self>) {
        self.outcome.end(Ending::Idle);
    }
}

/// Relays a session to its end, or until nobody has spoken for a while.
#[expect(clippy::manual_async_fn, reason = "an async function holds its arguments twice")]
fn relay(
    mut session: Box<Session>,
    mut client: Stream,
    mut backend: Stream,
    mut early: Vec<u8>,
) -> impl Future<Output = ()> {
    async move {
        loop {
            let Session { watch, outcome, .. } = &mut *session;
            let first = Early { up: std::mem::take(&mut early), down: Vec::new() };
            match relay::run_until_quiet(
                &client,
                &backend,
                first,
                watch,
                &outcome.relayed,
                &outcome.worker().pipes,
            )
            .await
            {
                Halt::Quiet => {}
                Halt::Ended(end) => {
                    outcome.end(end.settle(&client, &backend));
                    // The connections first: their places are given away when they are closed.
                    return drop((client, backend, session));
                }
            }
            match lay_down(session, client, backend) {
                None => return,
                Some(restless) => (session, client, backend) = restless,
            }
        }
    }
}

/// Lays a session down; gives it back if it cannot sleep.
fn lay_down(
    session: Box<Session>,
    client: Stream,
    backend: Stream,
) -> Option<(Box<Session>, Stream, Stream)> {
    let client = match client.into_parked() {
        Ok(client) => client,
        Err(client) => return Some((session, client, backend)),
    };
    let backend = match backend.into_parked() {
        Ok(backend) => backend,
        Err(backend) => return Some((session, Stream::parked(client), backend)),
    };
    let worker = session.outcome.worker().clone();
    worker.dormitory.lay(Sleeper::new(session, client, backend));
    None
}

/// Gets a client its backend, or the outcome its ending.
async fn begin(
    entry: Entry,
    pool: PoolId,
    idle: Duration,
    guest: Guest,
    mut outcome: Outcome,
) -> Option<Pair> {
    let Entry { worker, current: snapshot, plan, admitted } = entry;
    let Guest { stream: client, mut early, arrival } = guest;
    drop(plan);
    let pool = snapshot.pool(pool).clone();
    outcome.pool = Some(pool.clone());
    // Most clients speak first, and have spoken when they are accepted: their words then go with our handshake.
    if early.is_empty() && client.fill_now(&mut early, EARLY).await.is_err() {
        outcome.end(Ending::ClientClosed);
        return None;
    }
    let opening = match early.is_empty() && pool.settings.send_proxy.is_none() {
        true => Opening::TheyMaySpeak,
        false => Opening::WeSpeak,
    };
    let (backend, chosen) = obtain(&worker, &snapshot, &pool, &arrival, opening, &mut outcome).await?;
    outcome.relayed.up.set(early.len() as u64);
    match backend.write_now(&early) {
        sent if sent == early.len() => early = Vec::new(),
        sent => drop(early.drain(..sent)),
    }
    let watch = Watch::new(idle);
    let (_slot, _admitted) = (chosen.slot, admitted);
    let session = Box::new(Session { watch, outcome, _slot, _admitted });
    Some(Pair { session, client, backend, early })
}

/// A connection to a backend, or the outcome's ending.
async fn obtain(
    worker: &Rc<Worker>,
    snapshot: &Snapshot,
    pool: &Arc<PoolPlan>,
    arrival: &Arrival,
    opening: Opening,
    outcome: &mut Outcome,
) -> Option<(Stream, Chosen)> {
    let key = match &pool.settings.hash_key {
        HashKey::Client => arrival.peer.ip().map_or(0, client_key),
        // Without HTTP there is nothing else to go by; the configuration refuses it.
        _ => 0,
    };
    let mut tried = Tried::default();
    loop {
        let wanted = Wanted { client: arrival.peer, key, tried: &tried };
        let chosen = match upstream::choose(worker, snapshot, pool, wanted).await {
            Ok(chosen) => chosen,
            Err(none) => {
                outcome.end(no_backend(none));
                return None;
            }
        };
        outcome.attempts += 1;
        outcome.backend = Some(chosen.index);
        outcome.queued = chosen.queued.or(outcome.queued);
        let lacks = match connect(worker, pool, &chosen, arrival, opening, outcome).await {
            Ok(backend) => return Some((backend, chosen)),
            Err(lacks) => lacks,
        };
        tried.insert(chosen.index);
        let (attempts, retries) = (outcome.attempts, pool.settings.retries);
        let decision = retry::decide(Idempotence::NotIdempotent, Progress::NothingSent, attempts, retries);
        if decision == retry::Decision::GiveUp {
            if let Lack::Descriptors = lacks {
                worker.place_cache.account().count(Refusal::Full);
            }
            outcome.end(lacks.ending());
            return None;
        }
        chosen.backend.counters.of(worker.index).retries.add(1);
    }
}

/// Why a session got no connection to a backend.
#[derive(Clone, Copy)]
enum Lack {
    Backend,
    Descriptors,
}

impl Lack {
    fn ending(self) -> Ending {
        match self {
            Self::Backend => Ending::ConnectFailed,
            Self::Descriptors => Ending::NoDescriptors(Refusal::Full),
        }
    }
}

async fn connect(
    worker: &Rc<Worker>,
    pool: &PoolPlan,
    chosen: &Chosen,
    arrival: &Arrival,
    opening: Opening,
    outcome: &mut Outcome,
) -> Result<Stream, Lack> {
    let started = Instant::now();
    let counters = chosen.backend.counters.of(worker.index);
    let header = pool.settings.send_proxy.map(|version| proxy_header(version, arrival)).unwrap_or_default();
    let (plan, limit) = (&pool.backends[chosen.index], pool.settings.timeouts.connect);
    match upstream::connect(worker, plan, None, opening, &header, limit).await {
        Ok((stream, _)) => {
            let took = started.elapsed();
            counters.sessions.add(1);
            counters.latency.observe(took);
            outcome.connect = Some(took);
            upstream::note_success(&chosen.backend);
            Ok(stream)
        }
        Err(ConnectFault::Backend(cause)) => {
            upstream::note_failure(worker, pool, chosen.index, cause);
            Err(Lack::Backend)
        }
        Err(ConnectFault::NoDescriptors(_)) => Err(Lack::Descriptors),
        Err(ConnectFault::Ours(error)) => {
            tracing::debug!(backend = %chosen.backend.name, "cannot connect: {error}");
            Err(Lack::Backend)
        }
    }
}

/// The PROXY header that tells a backend who the client is.
pub fn proxy_header(version: logic::proxy_header::Version, arrival: &Arrival) -> Vec<u8> {
    let mut header = Vec::new();
    let local = arrival.local.map_or(Peer::Unix, Peer::Ip);
    let nothing = Additions::default();
    let additions = arrival.session.as_ref().map_or(&nothing, |session| &session.additions);
    logic::proxy_header::write(version, &mut header, &arrival.peer, &local, additions);
    header
}

/// How a session ends that got no backend.
pub fn no_backend(none: NoBackend) -> Ending {
    match none {
        NoBackend::AllDown => Ending::AllDown,
        NoBackend::AllTried => Ending::ConnectFailed,
        NoBackend::QueueFull => Ending::QueueFull,
        NoBackend::QueueTimeout => Ending::QueueTimeout,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a future takes that such a function makes.
    fn size_of_made<F>(_: fn(Box<Session>, Stream, Stream, Vec<u8>) -> F) -> usize {
        size_of::<F>()
    }

    /// Each step to the next size of mimalloc (384, 448, 512 bytes) is paid for every open session.
    #[test]
    fn a_session_takes_no_more_memory_than_was_measured() {
        assert!(size_of::<Session>() <= 384, "{}", size_of::<Session>());
        assert!(size_of::<Sleeper>() <= 32, "{}", size_of::<Sleeper>());
        assert!(size_of_made(relay) <= 512, "{}", size_of_made(relay));
    }
}
