//! A session that began as a request, and whose client and backend have agreed on another protocol (WebSocket): it goes on as one
//! of TCP. Without a byte it needs no task, and the next process of an upgrade can go on with it.

use std::time::Duration;

use super::{Session, relay, sent_first};
use crate::admission::Admitted;
use crate::live::Movable;
use crate::outcome::Outcome;
use crate::relay::{Early, Watch};
use crate::stream::Stream;
use crate::upstream::InFlight;

/// Two connections that carry bytes of another protocol, both without TLS, limits and taps.
pub struct Upgraded {
    /// Of the request.
    pub outcome: Outcome,
    pub slot: InFlight,
    /// Idle timeout.
    pub idle: Duration,
    pub client: Stream,
    pub backend: Stream,
    /// Bytes in the new protocol that were read with the heads.
    pub early: Early,
}

/// Relays until the session ends or becomes idle.
pub fn go_on(admitted: Admitted, upgraded: Upgraded) -> impl Future<Output = ()> {
    let Upgraded { outcome, slot, idle, client, backend, early } = upgraded;
    outcome.relayed().up.set(early.up.len() as u64);
    outcome.relayed().down.set(early.down.len() as u64);
    let mut watch = Watch::new(idle);
    watch.may_be_handed_over();
    admitted.handle().live.movable.set(Movable::Yes);
    let session = Box::new(Session { watch, outcome, unsent: None, slot: Some(slot), admitted });
    relay(session, client, backend, sent_first(early))
}
