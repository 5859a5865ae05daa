//! A `protocol = "tcp"` session: a backend, a relay, an outcome.

use std::rc::Rc;
use std::sync::Arc;

use config::types::TcpSettings;
use logic::balance::{HashKey, Tried, client_key};
use logic::peers::Peer;
use logic::retry::{self, Idempotence, Progress};

use crate::connect::ConnectFault;
use crate::connection::{Arrival, Guest};
use crate::outcome::{Ending, Outcome};
use crate::relay::{self, Totals};
use crate::snapshot::{PoolPlan, Snapshot};
use crate::stream::Stream;
use crate::upstream::{self, Chosen, NoBackend, Wanted};
use crate::worker::Worker;

/// Serves one client connection.
pub async fn serve(
    worker: &Rc<Worker>,
    snapshot: &Snapshot,
    settings: &TcpSettings,
    guest: Guest,
    outcome: &mut Outcome,
) {
    let Guest { stream: client, early, arrival } = guest;
    let pool = snapshot.pool(settings.pool).clone();
    outcome.pool = Some(pool.clone());
    // Boxed, so that a relay does not hold the state of how it came about for as long as it lasts.
    let Some((backend, chosen)) = Box::pin(obtain(worker, snapshot, &pool, &arrival, outcome)).await else {
        return;
    };
    let totals = Rc::new(Totals::default());
    outcome.relayed = Some(totals.clone());
    totals.up.set(early.len() as u64);
    let end = relay::run(&client, &backend, early, Vec::new(), settings.idle_timeout, &totals).await;
    outcome.end(end.settle(&client, &backend));
    drop(chosen.slot);
}

/// A connection to a backend, or the outcome's ending.
async fn obtain(
    worker: &Rc<Worker>,
    snapshot: &Snapshot,
    pool: &Arc<PoolPlan>,
    arrival: &Arrival,
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
        if let Ok(backend) = connect(worker, pool, &chosen, arrival, outcome).await {
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
    outcome: &mut Outcome,
) -> Result<Stream, ()> {
    let started = std::time::Instant::now();
    let counters = chosen.backend.counters.of(worker.index);
    match upstream::connect(worker, &chosen.backend, pool.settings.timeouts.connect).await {
        Ok(stream) => {
            let took = started.elapsed();
            if let Some(version) = pool.settings.send_proxy {
                let header = proxy_header(version, arrival);
                if stream.write_all(&header, &[], |_| {}).await.is_err() {
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
