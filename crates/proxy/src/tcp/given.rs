//! What the next process of an upgrade is told of a session, and a session that goes on in it: one of TCP, or one that began as a
//! request and has switched to another protocol.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::Rc;
use std::str::FromStr;
use std::time::Instant;

use config::types::{BackendAddress, FastClose};
use logic::access_log::Kind;
use logic::acl::Verdict;
use logic::attempts::Fault;
use logic::balance::Tried;
use logic::peers::Peer;
use state::ending::Received;
use sys::socket::Opening;
use tls::Issuer;
use tls::plain::Parked;

use super::{Session, Unsent};
use crate::admission::Admitted;
use crate::arrival::Arrival;
use crate::given::place::Place;
use crate::given::request::{self, CarriedRequest};
use crate::given::{Adoption, Carried};
use crate::http::RequestId;
use crate::idle_sessions::IdleSession;
use crate::live::{Accepted, Live, Movable, Speaks};
use crate::outcome::{Outcome, TlsDetail};
use crate::relay::Watch;
use crate::relay::whole::Watched;
use crate::upstream::InFlight;
use crate::worker::Worker;

/// What the next process is told of a session. `None` if the session ends with this process: its backend is behind a tunnel of
/// this one.
pub(super) fn carried(session: &Session) -> Option<Carried> {
    let Session { watch, outcome, unsent, admitted, .. } = session;
    let (pool, index) = session.backend()?;
    let backend = &pool.backends[index].state;
    if matches!(backend.address, BackendAddress::Ssh { .. }) {
        return None;
    }
    let (now, live) = (Instant::now(), &admitted.handle().live);
    let Watched { idle, silent, fast_close } = watch.watched(now);
    let client = match live.client() {
        Peer::Ip(client) => Some(client),
        Peer::Unix => None,
    };
    let server_name = match outcome.tls_detail.as_deref() {
        Some(TlsDetail::Sni(name)) => Some(String::from_utf8_lossy(name).into_owned()),
        _ => None,
    };
    let (bytes_up, bytes_down) = outcome.relayed().both();
    Some(Carried {
        listener: outcome.listener_name().to_string(),
        client,
        local: unsent.as_ref().and_then(|unsent| unsent.arrival.local),
        server_name,
        passes_tls_through: live.speaks.get() == Speaks::TlsPassthrough,
        age: now.saturating_duration_since(outcome.started()),
        pool: pool.settings.name.to_string(),
        backend: backend.name.to_string(),
        bytes_up,
        bytes_down,
        is_unsent: unsent.is_some(),
        idle_timeout: idle,
        silent,
        fast_close: fast_close.as_str().to_owned(),
        attempts: outcome.attempts,
        moved: outcome.moved,
        queued: outcome.queued,
        connect: outcome.connect.map(Into::into),
        request: match &outcome.received {
            Some(received) => Some(carried_request(request::shown(received)?, outcome, live)),
            None => None,
        },
    })
}

/// What the next process is told of the request by which the session began.
fn carried_request(head: String, outcome: &Outcome, live: &Live) -> CarriedRequest {
    let uptime = outcome.worker().front.state.started.elapsed();
    CarriedRequest {
        head,
        id: outcome.request_id.as_str().to_owned(),
        status: outcome.status,
        speaks: live.speaks.get().word().to_owned(),
        bytes_in: outcome.bytes_in,
        bytes_out: outcome.bytes_out,
        first_byte: outcome.first_byte,
        response_time: outcome.response_time.map(Into::into),
        failed: outcome.failed.iter().map(|(_, fault)| fault.word().to_owned()).collect(),
        connected: live.age(uptime),
        earlier_in: live.up.get(),
        earlier_out: live.down.get(),
    }
}

/// Makes the session one that began as this request.
fn restore(told: &CarriedRequest, received: Received, outcome: &mut Outcome, live: &Live) {
    live.speaks.set(match told.speaks == Speaks::WebSocket.word() {
        true => Speaks::WebSocket,
        false => Speaks::Upgraded,
    });
    live.up.set(told.earlier_in);
    live.down.set(told.earlier_out);
    outcome.set_request_id(RequestId::known(&told.id));
    outcome.received = Some(Rc::new(received));
    (outcome.bytes_in, outcome.bytes_out) = (told.bytes_in, told.bytes_out);
    (outcome.status, outcome.first_byte) = (told.status, told.first_byte);
    outcome.response_time = told.response_time.map(Into::into);
    for fault in told.failed.iter().filter_map(|word| Fault::named(word)) {
        // The backends may have other numbers here.
        outcome.failed.note(usize::MAX, fault);
    }
    outcome.note_answered();
}

/// Goes on with a session of the process before, or leaves it there.
pub fn adopt(worker: &Rc<Worker>, adoption: Adoption) {
    let Adoption { session: told, place, connections: [client, backend], reply } = adoption;
    let Place { listener, plan, backend: served_by, served } = place;
    let (Ok(client), Ok(backend)) = (connection(client), connection(backend)) else { return };
    let (kind, connected, request) = match told.request {
        None => (Kind::Tcp, told.age, None),
        Some(request) => match request.received() {
            Some(received) => (Kind::Http, request.connected, Some((request, received))),
            None => return,
        },
    };
    let (peer, state) = (told.client.map_or(Peer::Unix, Peer::Ip), &worker.front.state);
    let socket = client.as_fd().as_raw_fd();
    let accepted = Accepted { peer, socket, at: state.started.elapsed(), age: connected };
    let Some(admitted) = Admitted::adopt(worker, &listener, plan.as_deref(), &accepted) else { return };
    let now = Instant::now();
    let mut outcome = Outcome::new(worker, &listener, kind, peer, None);
    outcome.begun_before(told.age);
    outcome.belong(admitted.handle());
    let slot = served_by.as_ref().map(|(pool, index)| {
        let slot = InFlight::adopt(pool, *index);
        outcome.show_backend(&pool.backends[*index].state);
        slot
    });
    let unsent = told.is_unsent.then(|| {
        let ((pool, index), current) = (served_by.as_ref()?, worker.current());
        let outages = pool.backends[*index].state.outages();
        served.filter(|served| served.generation == current.generation).map(|_| {
            let (local, standing) = (told.local, Verdict::Permit);
            let arrival =
                Arrival { peer, local, tls: None, issuer: Issuer::Unknown, standing, session: None };
            let opening = match pool.settings.send_proxy {
                None => Opening::TheyMaySpeak,
                Some(_) => Opening::WeSpeak,
            };
            Box::new(Unsent { current, arrival, opening, tried: Tried::default(), outages })
        })
    });
    if let Some((pool, index)) = served_by {
        (outcome.pool, outcome.backend) = (Some(pool), Some(index));
    }
    (outcome.attempts, outcome.moved, outcome.queued) = (told.attempts, told.moved, told.queued);
    outcome.connect = told.connect.map(Into::into);
    outcome.tls_detail = told.server_name.map(|name| Box::new(TlsDetail::Sni(name.into_bytes().into())));
    outcome.relayed().up.set(told.bytes_up);
    outcome.relayed().down.set(told.bytes_down);
    outcome.show_descriptor(backend.as_fd().as_raw_fd());
    let speaks = if told.passes_tls_through { Speaks::TlsPassthrough } else { Speaks::Tcp };
    admitted.handle().live.speaks.set(speaks);
    admitted.handle().live.movable.set(Movable::Yes);
    if let Some((request, received)) = request {
        restore(&request, received, &mut outcome, &admitted.handle().live);
    }
    let fast_close = FastClose::from_str(&told.fast_close).unwrap_or_default();
    let watched = Watched { idle: told.idle_timeout, silent: told.silent, fast_close };
    let watch = Watch::going_on(watched, now);
    let mut session = Box::new(Session { watch, outcome, unsent: unsent.flatten(), slot, admitted });
    if !reply.take() {
        session.outcome.hand_over();
        return drop((client, backend, session));
    }
    // What has arrived meanwhile, and an end that was passed on, wakes it at once.
    worker.idle_sessions.park(IdleSession::Relay { session, client, backend });
}

/// A connection of the process before.
fn connection(socket: OwnedFd) -> io::Result<Parked> {
    let known = socket2::Socket::from(socket);
    if known.r#type()? != socket2::Type::STREAM {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    known.set_nonblocking(true)?;
    let address = known.local_addr()?;
    match address.domain() {
        socket2::Domain::UNIX => Ok(Parked::Unix(OwnedFd::from(known).into())),
        socket2::Domain::IPV4 | socket2::Domain::IPV6 => Ok(Parked::Tcp(OwnedFd::from(known).into())),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}
