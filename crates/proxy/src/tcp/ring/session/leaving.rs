//! How a session leaves the ring: it ends, or a task goes on with it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use logic::acl::Verdict;
use logic::attempts::Fault;
use logic::balance::Tried;
use state::ending::Ending;
use sys::ring::{Lease, Ring};
use tls::Issuer;
use tls::linger::linger;
use tls::plain::Parked;

use super::super::super::{Before, Session, Unsent, connect_and_relay, relay, sent_first};
use super::{Link, Ringed, Side, Source, reset};
use crate::arrival::{Arrival, ClientConnection};
use crate::connect::{self, ConnectFault};
use crate::relay::Early;
use crate::stream::Stream;
use crate::upstream::{self, Chosen};

impl Ringed {
    /// Ends the session, or lets a task go on with it. Returns it if its connections are being closed.
    pub(in super::super) fn finish(mut self: Box<Self>, ring: &mut Ring) -> Option<Box<Self>> {
        let is_whole = |from: &Side, to: &Side| from.source == Source::Ended && to.waiting.is_empty();
        if self.lingers.is_none()
            && !self.is_killed()
            && let Some(open) = self.left_open()
            && self.side(open).source != Source::Failed
        {
            self.close_fast(ring, open);
        }
        let ending = if self.is_killed() {
            // `ctl kill` has already set its connections to be reset.
            None
        } else if let Some(side) = self.lingers {
            if self.side(side).source == Source::Open {
                (*self).go_on_lingering(ring, side);
                return None;
            }
            None
        } else if self.owes().is_some() {
            (*self).go_on(ring);
            return None;
        } else if self.client.source == Source::Failed {
            reset(&self.backend);
            Some(Ending::ClientClosed)
        } else if self.link == Link::Open && self.backend.source == Source::Failed {
            reset(&self.client);
            Some(Ending::BackendAborted)
        } else if self.link == Link::Open
            && is_whole(&self.client, &self.backend)
            && is_whole(&self.backend, &self.client)
        {
            Some(Ending::Ok)
        } else {
            (*self).go_on(ring);
            return None;
        };
        if let Some(ending) = ending {
            self.session.outcome.end(ending);
        }
        for side in [&mut self.backend, &mut self.client] {
            side.give_back(ring);
            if let Some(socket) = side.socket.take() {
                ring.close(socket);
            }
        }
        Some(self)
    }

    /// A side that was reset, if the other side still takes what it sent before.
    fn owes(&self) -> Option<relay::Side> {
        let owes = |from: &Side, to: &Side| {
            from.source == Source::Failed && to.source != Source::Failed && !to.waiting.is_empty()
        };
        match self.link {
            Link::Open if owes(&self.client, &self.backend) => Some(relay::Side::Client),
            Link::Open if owes(&self.backend, &self.client) => Some(relay::Side::Backend),
            _ => None,
        }
    }

    fn side(&self, side: relay::Side) -> &Side {
        match side {
            relay::Side::Client => &self.client,
            relay::Side::Backend => &self.backend,
        }
    }

    /// Lets a task wait for the end of a session that has ended by `fast-close`.
    fn go_on_lingering(mut self, ring: &mut Ring, side: relay::Side) {
        self.client.give_back(ring);
        self.backend.give_back(ring);
        let Self { client, backend, session, .. } = self;
        let open = match side {
            relay::Side::Client => client,
            relay::Side::Backend => backend,
        };
        let Some(open) = open.socket.and_then(|socket| watched(socket).ok()) else { return };
        let handle = session.admitted.handle().clone();
        let open = Stream::parked(open);
        let task = tokio::task::spawn_local(async move {
            linger(&open).await;
            drop((open, session));
        });
        handle.live.served_by(task.abort_handle());
    }

    /// Lets a task go on with the session.
    fn go_on(self, ring: &mut Ring) {
        let reset = self.owes();
        let Self {
            client,
            backend,
            mut session,
            chosen,
            current,
            pool,
            peer,
            began,
            link,
            opening,
            outages,
            ..
        } = self;
        let (up, down) = (collect(ring, backend.waiting), collect(ring, client.waiting));
        let Some(client) = client.socket.and_then(|socket| watched(socket).ok()) else { return };
        let client = Stream::parked(client);
        let handle = session.admitted.handle().clone();
        let (standing, now) = (Verdict::Permit, Instant::now());
        let arrival =
            Arrival { peer, local: None, tls: None, issuer: Issuer::Unknown, standing, session: None };
        let task = if link == Link::Open {
            let Some(backend) = backend.socket.and_then(|socket| watched(socket).ok()) else { return };
            session.unsent = (session.outcome.relayed().both() == (0, 0))
                .then(|| Box::new(Unsent { current, arrival, opening, tried: Tried::default(), outages }));
            session.watch.begin_at(now);
            session.watch.may_be_handed_over();
            let early = sent_first(Early { up, down, reset });
            tokio::task::spawn_local(relay(session, client, Stream::parked(backend), early))
        } else {
            debug_assert!(down.is_empty(), "a backend sends nothing before the connection to it is open");
            let before = begin_again(&mut session, link, chosen, backend.socket);
            let now = match before {
                // Its time limit goes on.
                Before::Begun { .. } => began,
                Before::Nothing | Before::Chosen(_) | Before::Counted | Before::Refused(_) => now,
            };
            let client = ClientConnection { stream: client, early: up, arrival };
            tokio::task::spawn_local(connect_and_relay(session, current, pool, client, now, before))
        };
        handle.live.served_by(task.abort_handle());
    }
}

/// Says where the task begins with a session whose backend connection is not open, and undoes what the ring has counted for that
/// connection. If the backend has refused it, that is noted as its fault. If the kernel still opens it, the task gets it with the
/// backend: a new choice would take a second turn of the balancing.
fn begin_again(
    session: &mut Session,
    link: Link,
    chosen: Option<Box<Chosen>>,
    socket: Option<OwnedFd>,
) -> Before {
    let outcome = &mut session.outcome;
    outcome.relayed().up.set(0);
    outcome.hide_socket();
    let slot = session.slot.take();
    // The last to be declared is dropped first: the connection is closed before its place is given back.
    let socket = socket;
    if let Some(chosen) = chosen {
        return Before::Chosen(chosen);
    }
    let (Some(pool), Some(index)) = (outcome.pool.clone(), outcome.backend) else { return Before::Nothing };
    if let Link::Refused(error) = link {
        let backend = &pool.backends[index].state;
        let address = backend.addresses.load().first().copied();
        let (error, limit) = (io::Error::from_raw_os_error(error), pool.settings.timeouts.connect);
        if let ConnectFault::Backend(cause) = connect::fault_of(error, address, limit) {
            outcome.failed.note(index, Fault::of(&cause));
            upstream::note_failure(outcome.worker(), &pool, index, cause);
            return Before::Refused(index);
        }
    }
    let view = std::mem::take(&mut outcome.view);
    (outcome.backend, outcome.attempts) = (None, 0);
    match (socket, slot, link) {
        (Some(socket), Some(slot), Link::Absent) => {
            let backend = pool.backends[index].state.clone();
            let chosen = Chosen { index, backend, slot, trial: None, view, queued: None, followed: None };
            Before::Begun { socket, chosen: Box::new(chosen) }
        }
        _ => Before::Counted,
    }
}

/// The bytes of buffers, which go back to the ring.
fn collect(ring: &mut Ring, leases: VecDeque<Lease>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(leases.iter().map(Lease::len).sum());
    for lease in leases {
        bytes.extend_from_slice(ring.bytes(&lease));
        ring.give_back(lease);
    }
    bytes
}

/// A connection for the runtime.
fn watched(socket: OwnedFd) -> io::Result<Parked> {
    let known = socket2::Socket::from(socket);
    known.set_nonblocking(true)?;
    Ok(match known.local_addr()?.is_unix() {
        true => Parked::Unix(OwnedFd::from(known).into()),
        false => Parked::Tcp(OwnedFd::from(known).into()),
    })
}
