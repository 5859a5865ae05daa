//! A client connection once it is accepted: what is known of it, and what a session begins with.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use logic::peers::Peer;

use crate::admission::Admitted;
use crate::snapshot::ListenerPlan;
use crate::stream::Stream;
use crate::tls::Session;
use crate::worker::{Current, Worker};

/// What is known of a client connection once it may speak.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The client: from the PROXY header, or the other end of the connection.
    pub peer: Peer,
    /// Where it wanted to go: from the PROXY header, or our end. `None` for Unix sockets, and where it was not asked for.
    pub local: Option<SocketAddr>,
    /// TLS version, if any.
    pub tls: Option<&'static str>,
    /// What backends are told of its TLS, if there is anything.
    pub session: Option<Rc<Session>>,
}

impl Arrival {
    /// Where it wanted to go, asked of its connection if that was not done before.
    pub fn local_of(&self, stream: &Stream) -> Option<SocketAddr> {
        self.local.or_else(|| stream.local_addr().map(canonical))
    }
}

/// A client that may speak now.
pub struct Guest {
    /// Its connection, TLS taken off.
    pub stream: Stream,
    /// Bytes that were read behind a PROXY header.
    pub early: Vec<u8>,
    /// What is known of it.
    pub arrival: Arrival,
}

/// What a session begins with besides its guest.
pub struct Entry {
    /// Where it is served.
    pub worker: Rc<Worker>,
    /// The snapshot that accepted it.
    pub current: Current,
    /// Its listener there.
    pub plan: Arc<ListenerPlan>,
    /// Its place among the connections.
    pub admitted: Admitted,
}

/// An IPv4 client of a socket that takes both families is an IPv4 client.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
