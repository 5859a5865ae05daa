//! A request about to be answered, the client's side of its connection, and what becomes of that.

use std::rc::Rc;
use std::time::Instant;

use config::types::HttpSettings;
use logic::http1::request::Persistence;

use crate::arrival::Arrival;
use crate::ending::Received;
use crate::snapshot::ListenerPlan;
use crate::stream::Stream;
use crate::timer::Timer;
use crate::worker::{Control, Current, Worker};

/// The client's side of a connection.
pub(super) struct Client {
    pub(super) stream: Stream,
    /// Read and not yet used: part of a head, or what came behind it.
    pub(super) buffer: Vec<u8>,
    /// For every wait of this connection.
    pub(super) timer: Timer,
}

/// What becomes of the client's connection after an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// The next request may come.
    KeepAlive,
    /// It is closed, in order: what the client still sends is read for a while.
    Close,
    /// It is closed at once: the client said that it would send nothing more (RFC 9112 section 9.6), and has not.
    HangUp,
    /// It is dropped: the client is gone, or must see a cut.
    Drop,
}

/// A request about to be answered, and all that is known around it.
pub(super) struct Session<'a> {
    pub(super) worker: &'a Rc<Worker>,
    /// The client's connection, and what it may use of backends.
    pub(super) control: &'a Rc<Control>,
    pub(super) current: &'a Current,
    pub(super) plan: &'a ListenerPlan,
    pub(super) settings: &'a HttpSettings,
    pub(super) arrival: &'a Arrival,
    pub(super) received: Rc<Received>,
    /// When the request was there: what is decided at once goes by this clock.
    pub(super) now: Instant,
    /// Whether this is the last request that the connection may carry.
    pub(super) turn: Turn,
}

/// Whether more requests may follow on this connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    More,
    Last,
}

/// Whether the client's connection may go on after an answer. `behind` is what the client sent behind its request.
pub(super) fn persistence(session: &Session<'_>, behind: &[u8]) -> Persistence {
    let request = &session.received.request;
    // What follows a refused upgrade was meant for another protocol: it must never be read as a request.
    let is_upgrade_data = request.upgrade.is_some() && !behind.is_empty();
    match session.turn {
        _ if is_upgrade_data || session.worker.is_draining() => Persistence::Close,
        Turn::Last => Persistence::Close,
        Turn::More => request.persistence,
    }
}
