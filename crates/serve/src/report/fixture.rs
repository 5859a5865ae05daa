//! A front door without sockets, for tests.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use arc_swap::ArcSwap;
use proxy::front::{Front, Request};
use proxy::snapshot::Snapshot;
use state::State;
use tokio::sync::mpsc;

/// Makes a front door with a listener `web` and a pool `app` with the keys `pool`.
pub(crate) fn front(pool: &str) -> Arc<Front> {
    with_requests(pool).0
}

/// Like [`front`], with the receiver of its requests to the supervisor.
pub(crate) fn with_requests(pool: &str) -> (Arc<Front>, mpsc::Receiver<Request>) {
    let state = Arc::new(State::new(2));
    let snapshot = ArcSwap::from_pointee(snapshot(&state, pool));
    let (requests, receiver) = mpsc::channel(4);
    (Arc::new(Front { state, snapshot, requests, questions: Vec::new() }), receiver)
}

/// Builds the snapshot of a reload with the pool keys `pool`.
pub(crate) fn snapshot(state: &State, pool: &str) -> Snapshot {
    let text = format!(
        "[listener.web]\nbind = '127.0.0.1:0'\nprotocol = 'http'\npool = 'app'\n[pool.app]\n{pool}\n"
    );
    let source = config::Source { name: "test".to_owned(), text };
    let loaded =
        config::load(&source, &config::Environment::default()).unwrap_or_else(|faults| panic!("{faults:?}"));
    let snapshot = crate::reload::build(Arc::new(loaded.config), state, &tls::Shared::default(), None);
    state.generation.store(snapshot.generation, Relaxed);
    snapshot
}
