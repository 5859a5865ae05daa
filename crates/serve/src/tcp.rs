//! A `protocol = "tcp"` session: a backend, a relay, an outcome.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use config::types::TcpSettings;
use logic::access_log::Kind;
use logic::balance::{HashKey, Tried, client_key};
use logic::peers::Peer;
use logic::retry::{self, Idempotence, Progress};
use logic::route::PoolId;
use sys::socket::Opening;

use crate::connect::ConnectFault;
use crate::connection::{Arrival, Entry, Guest};
use crate::outcome::{Ending, Outcome};
use crate::relay::{self, Totals};
use crate::snapshot::{PoolPlan, Snapshot};
use crate::stream::Stream;
use crate::upstream::{self, Chosen, NoBackend, Slot, Wanted};
use crate::worker::{Current, Worker};

/// Bytes of a client that are read before it has a backend: the first message of most protocols, and little to hold for
/// those who wait for a busy backend.
const EARLY: usize = 4096;

/// Serves one client connection. See [`connection::serve`](crate::connection::serve) for why this makes a future instead of
/// being one.
pub fn serve(entry: Entry, settings: &TcpSettings, guest: Guest) -> impl Future<Output = ()> + use<> {
    let Entry { worker, current, plan, admitted } = entry;
    let outcome = Outcome::new(&worker, &plan.state, Kind::Tcp, guest.arrival.peer, guest.arrival.tls);
    let idle = settings.idle_timeout;
    let beginning = Box::pin(begin(worker, current, settings.pool, guest, outcome));
    async move {
        if let Some(pair) = beginning.await {
            relay(pair, idle).await;
        }
        drop(admitted);
    }
}

/// Two connections to be relayed.
struct Pair {
    client: Stream,
    backend: Stream,
    /// What the client has said already.
    early: Vec<u8>,
    totals: Rc<Totals>,
    outcome: Outcome,
    _slot: Slot,
}

/// Relays a pair to its end.
fn relay(mut pair: Box<Pair>, idle: Duration) -> impl Future<Output = ()> {
    let early = std::mem::take(&mut pair.early);
    async move {
        let Pair { client, backend, totals, .. } = &*pair;
        let end = relay::run(client, backend, early, Vec::new(), idle, totals).await;
        let ending = end.settle(client, backend);
        pair.outcome.end(ending);
    }
}

/// Gets a client its backend, or the outcome its ending.
async fn begin(
    worker: Rc<Worker>,
    snapshot: Current,
    pool: PoolId,
    guest: Guest,
    mut outcome: Outcome,
) -> Option<Box<Pair>> {
    let Guest { stream: client, mut early, arrival } = guest;
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
    let totals = Rc::new(Totals::default());
    totals.up.set(early.len() as u64);
    match backend.write_now(&early) {
        sent if sent == early.len() => early = Vec::new(),
        sent => drop(early.drain(..sent)),
    }
    outcome.relayed = Some(totals.clone());
    Some(Box::new(Pair { client, backend, early, totals, outcome, _slot: chosen.slot }))
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
        if let Ok(backend) = connect(worker, pool, &chosen, arrival, opening, outcome).await {
            return Some((backend, chosen));
        }
        tried.insert(chosen.index);
        let (attempts, retries) = (outcome.attempts, pool.settings.retries);
        let decision = retry::decide(Idempotence::NotIdempotent, Progress::NothingSent, attempts, retries);
        if decision == retry::Decision::GiveUp {
            outcome.end(Ending::ConnectFailed);
            return None;
        }
        chosen.backend.counters.of(worker.index).retries.add(1);
    }
}

async fn connect(
    worker: &Rc<Worker>,
    pool: &PoolPlan,
    chosen: &Chosen,
    arrival: &Arrival,
    opening: Opening,
    outcome: &mut Outcome,
) -> Result<Stream, ()> {
    let started = std::time::Instant::now();
    let counters = chosen.backend.counters.of(worker.index);
    match upstream::connect(worker, &chosen.backend, opening, pool.settings.timeouts.connect).await {
        Ok(stream) => {
            let took = started.elapsed();
            if let Some(version) = pool.settings.send_proxy {
                let header = proxy_header(version, arrival);
                if stream.write_all(&header).await.is_err() {
                    upstream::note_failure(worker, pool, chosen.index, logic::health::Cause::ClosedEarly);
                    return Err(());
                }
            }
            counters.sessions.add(1);
            counters.latency.observe(took);
            outcome.connect = Some(took);
            upstream::note_success(&chosen.backend);
            Ok(stream)
        }
        Err(ConnectFault::Backend(cause)) => {
            upstream::note_failure(worker, pool, chosen.index, cause);
            Err(())
        }
        Err(ConnectFault::Ours(error)) => {
            tracing::debug!(backend = %chosen.backend.name, "cannot connect: {error}");
            Err(())
        }
    }
}

/// The PROXY header that tells a backend who the client is.
pub fn proxy_header(version: logic::proxy_header::Version, arrival: &Arrival) -> Vec<u8> {
    let mut header = Vec::new();
    let local = arrival.local.map_or(Peer::Unix, Peer::Ip);
    logic::proxy_header::write(version, &mut header, &arrival.peer, &local);
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
