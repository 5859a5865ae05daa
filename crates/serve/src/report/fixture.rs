//! A front door without sockets, for tests of what reads and changes one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use arc_swap::ArcSwap;
use tokio::sync::mpsc;

use crate::front::{Front, Request};
use crate::snapshot::Snapshot;
use crate::state::State;
use crate::tls;

/// A front door with a listener `web`, and a pool `app` with these keys.
pub(crate) fn front(pool: &str) -> Arc<Front> {
    with_requests(pool).0
}

/// The same, with what it asks of the supervisor.
pub(crate) fn with_requests(pool: &str) -> (Arc<Front>, mpsc::Receiver<Request>) {
    let state = Arc::new(State::new(2));
    let snapshot = ArcSwap::from_pointee(snapshot(&state, pool));
    let (requests, receiver) = mpsc::channel(4);
    (Arc::new(Front { state, snapshot, requests }), receiver)
}

/// What a reload with these keys of the pool would bring.
pub(crate) fn snapshot(state: &State, pool: &str) -> Snapshot {
    let text = format!(
        "[listener.web]\nbind = '127.0.0.1:0'\nprotocol = 'http'\npool = 'app'\n[pool.app]\n{pool}\n"
    );
    let source = config::Source { name: "test".to_owned(), text };
    let loaded = config::load(&source, &BTreeMap::new()).unwrap_or_else(|faults| panic!("{faults:?}"));
    let snapshot = Snapshot::build(Arc::new(loaded.config), state, &tls::Shared::default(), None);
    state.generation.store(snapshot.generation, Relaxed);
    snapshot
}
