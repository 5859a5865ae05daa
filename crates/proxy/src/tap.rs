//! Connects a session with a capture that an operator started: `crates/state/src/capture.rs`.

use std::net::SocketAddr;

use logic::peers::Peer;
use state::capture::{Begins, Tap};

use crate::arrival::{Arrival, ClientConnection};
use crate::snapshot::ListenerPlan;
use crate::stream::Stream;
use crate::worker::Worker;

/// Taps a connection that begins, if its listener is captured.
#[inline]
pub(crate) fn attach(worker: &Worker, plan: &ListenerPlan, client: ClientConnection) -> ClientConnection {
    if !worker.front.state.captures.is_active() {
        return client;
    }
    let ClientConnection { stream, early, arrival } = client;
    let mut tap = tap(worker, plan, arrival.peer, arrival.local_of(&stream), Begins::Here);
    if let Some(tap) = &mut tap {
        tap.read(&early);
    }
    ClientConnection { stream: stream.tapped(tap), early, arrival }
}

/// Taps a connection that was idle, if its listener is captured.
#[inline]
pub(crate) fn attach_again(
    worker: &Worker,
    plan: &ListenerPlan,
    arrival: &Arrival,
    stream: Stream,
) -> Stream {
    if !worker.front.state.captures.is_active() {
        return stream;
    }
    let tap = tap(worker, plan, arrival.peer, arrival.local, Begins::Earlier);
    stream.tapped(tap)
}

#[cold]
fn tap(
    worker: &Worker,
    plan: &ListenerPlan,
    client: Peer,
    local: Option<SocketAddr>,
    begins: Begins,
) -> Option<Tap> {
    worker.front.state.captures.tap(&plan.settings.name, client, local, begins)
}
