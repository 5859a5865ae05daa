//! A request, the client's side of its connection, and the further use of the connection.

use std::rc::Rc;
use std::time::{Duration, Instant};

use config::types::HttpSettings;
use logic::bandwidth::Bandwidth;
use logic::http1::forward;
use logic::http1::request::Persistence;
use logic::peers::Peer;
use logic::rate::Rate;
use state::ending::Received;

use crate::arrival::Arrival;
use crate::bandwidth::Limits;
use crate::http2::rules::Width;
use crate::snapshot::{BackendPlan, ListenerPlan, PoolPlan};
use crate::stream::Stream;
use crate::tcp::{limits, proxy_header};
use crate::timer::Timer;
use crate::upstream::Chain;
use crate::worker::{ConnectionHandle, Current, Worker};

pub(super) struct Client {
    pub(super) stream: Stream,
    /// Bytes read and not yet used: part of a head, or the bytes after it.
    pub(super) buffer: Vec<u8>,
    /// Timer for every wait of this connection.
    pub(super) timer: Timer,
}

/// Further use of the client's connection after an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// The next request may come.
    KeepAlive,
    /// Close gracefully: the client's remaining bytes are read for a while.
    Close,
    /// Close at once: the client announced that it would send nothing more (RFC 9112 section 9.6), and has sent
    /// nothing.
    HangUp,
    /// Drop: the client has left, or must see that the response was cut short.
    Drop,
}

/// A request, with the state needed to answer it.
pub(super) struct RequestContext<'a> {
    pub(super) worker: &'a Rc<Worker>,
    /// Handle of the client's connection, and its share of backend connections.
    pub(super) handle: &'a Rc<ConnectionHandle>,
    /// The snapshot under which the request began; [`Self::current`] is the one with which it goes on.
    pub(super) first: &'a Current,
    /// Those with which it went on after waits in queues.
    pub(super) followed: Chain,
    pub(super) plan: &'a ListenerPlan,
    pub(super) settings: &'a HttpSettings,
    pub(super) arrival: &'a Arrival,
    pub(super) received: Rc<Received>,
    /// Time when the request was complete; decisions without waiting use this time.
    pub(super) now: Instant,
    pub(super) turn: MoreRequests,
}

impl RequestContext<'_> {
    pub(super) fn current(&self) -> &Current {
        self.followed.newest(self.first)
    }

    /// Returns the client that the request comes from, behind trusted proxies. `None` if they do not tell it.
    pub(super) fn client_behind_proxies(&self) -> Option<Peer> {
        let Received { head, request } = &*self.received;
        forward::client_behind(head, request, self.arrival.peer, &self.settings.trusted_proxies)
    }

    /// Counts the request at its source. Returns how long the source must wait if it has sent too many.
    pub(super) fn count_at_source(&self, rate: Rate) -> Result<(), Duration> {
        let client = self.client_behind_proxies().unwrap_or(self.arrival.peer);
        let Some(address) = client.ip() else { return Ok(()) };
        let state = &self.worker.front.state;
        let source = state.account.sources.key(address);
        self.plan.state.request_rates.take(source, rate, self.now.saturating_duration_since(state.started))
    }

    /// Limits of bytes a second for the request.
    pub(super) fn limits(&self, bandwidth: Bandwidth) -> Limits {
        let client = self.client_behind_proxies().unwrap_or(self.arrival.peer);
        limits(self.worker, &self.plan.state, bandwidth, client)
    }

    /// Returns the PROXY header for the backends of `pool`; empty if they get none.
    pub(super) fn proxy_header(&self, pool: &PoolPlan, client: &Stream) -> Vec<u8> {
        let Some(version) = pool.settings.send_proxy else { return Vec::new() };
        let arrival = Arrival { local: self.arrival.local_of(client), ..self.arrival.clone() };
        proxy_header(version, &arrival)
    }
}

/// Whether more requests may follow on this connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MoreRequests {
    More,
    Last,
}

/// Decides whether the client's connection stays open after a response. `behind` holds what the client sent after its
/// request.
pub(super) fn persistence(session: &RequestContext<'_>, behind: &[u8]) -> Persistence {
    let request = &session.received.request;
    // The bytes after a refused upgrade were meant for another protocol and must never be read as a request.
    let is_upgrade_data = request.upgrade.is_some() && !behind.is_empty();
    match session.turn {
        _ if is_upgrade_data || session.worker.is_draining() => Persistence::Close,
        MoreRequests::Last => Persistence::Close,
        MoreRequests::More => request.persistence,
    }
}

/// Width of the backend's connection for this client, if it is HTTP/2.
pub(super) fn width(client: &Stream, plan: &BackendPlan) -> Width {
    match plan.http2 {
        Some(_) => client.width(),
        None => Width::Wide,
    }
}
