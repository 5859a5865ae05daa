//! What follows an answer 101: the bytes of another protocol. If nothing but bytes is between client and backend, the session goes
//! on without its request (`crates/proxy/src/tcp/upgraded.rs`); the others have their relay here.

use std::time::Duration;

use state::ending::{ClientProtocol, Received};

use super::super::session::{After, Client};
use super::{Exchanged, Forwarding};
use crate::live::Speaks;
use crate::outcome::Outcome;
use crate::relay::{self, Early};
use crate::snapshot::PoolPlan;
use crate::stream::{Carriage, Stream};
use crate::upstream::InFlight;

/// A backend that has switched to another protocol, as the client has.
pub(in super::super) struct Switched {
    pub(in super::super) backend: Stream,
    pub(in super::super) slot: InFlight,
    /// First bytes of the backend in the new protocol.
    pub(in super::super) rest: Vec<u8>,
    /// Idle timeout.
    pub(in super::super) idle: Duration,
}

impl Forwarding<'_> {
    /// Goes on after the backend with this index has switched protocols.
    pub(super) async fn switch(
        &self,
        client: &mut Client,
        backend: Stream,
        rest: Vec<u8>,
        index: usize,
        outcome: &mut Outcome,
    ) -> Exchanged {
        if outcome.spoken == ClientProtocol::Http1 {
            let Received { head, request } = &*self.session.received;
            let wanted = request.upgrade.map(|span| span.of(head));
            let is_web = wanted.is_some_and(|word| word.eq_ignore_ascii_case(b"websocket"));
            let speaks = if is_web { Speaks::WebSocket } else { Speaks::Upgraded };
            self.session.handle.live.speaks.set(speaks);
        }
        outcome.show_socket(&backend);
        let are_plain = client.stream.carriage() == Carriage::Plain && backend.carriage() == Carriage::Plain;
        if are_plain {
            let slot = InFlight::adopt(self.pool, index);
            let idle = self.pool.settings.timeouts.tunnel;
            return Err(Box::new(Switched { backend, slot, rest, idle }));
        }
        tunnel(client, &backend, rest, self.pool, outcome).await;
        Ok(After::Drop)
    }
}

/// Relays until both sides have ended.
async fn tunnel(
    client: &mut Client,
    backend: &Stream,
    rest: Vec<u8>,
    pool: &PoolPlan,
    outcome: &mut Outcome,
) {
    let totals = outcome.relayed();
    let early = Early { up: std::mem::take(&mut client.buffer), down: rest, reset: None };
    totals.up.set(early.up.len() as u64);
    totals.down.set(early.down.len() as u64);
    let (limit, pipes) = (pool.settings.timeouts.tunnel, &outcome.worker().pipes);
    let end = relay::run(&client.stream, backend, early, limit, totals, pipes).await;
    outcome.end(end.settle(&client.stream, backend));
}
