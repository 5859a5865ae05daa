//! Facts about an accepted client connection, with which a session begins.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use logic::acl::Verdict;
use logic::peers::Peer;
use tls::{ClientFacts, Issuer};

use crate::admission::Admitted;
use crate::snapshot::ListenerPlan;
use crate::stream::Stream;
use crate::worker::{Current, Worker};

/// Facts about a client connection after PROXY header and TLS handshake.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// Address of the client: from the PROXY header, or of the connection.
    pub peer: Peer,
    /// Address that the client connected to: from the PROXY header, or ours. `None` for Unix sockets, or if not
    /// determined yet.
    pub local: Option<SocketAddr>,
    /// `TLSv1.3` or `TLSv1.2`. `None` without TLS.
    pub tls: Option<&'static str>,
    /// Whether this system trusts the issuer of our certificate. [`Issuer::Unknown`] without TLS.
    pub issuer: Issuer,
    /// What the access list of the listener said of the client when it came.
    pub standing: Verdict,
    /// TLS facts for backends. `None` if there are none.
    pub session: Option<Rc<ClientFacts>>,
}

impl Arrival {
    /// Returns the address that the client connected to; asks the kernel if it was not determined before.
    pub fn local_of(&self, stream: &Stream) -> Option<SocketAddr> {
        self.local.or_else(|| stream.local_addr().map(canonical))
    }
}

/// A client connection after PROXY header and TLS handshake.
pub struct ClientConnection {
    /// The connection, decrypted.
    pub stream: Stream,
    /// Bytes that were read after a PROXY header.
    pub early: Vec<u8>,
    pub arrival: Arrival,
}

/// Facts with which a session begins, other than the client.
pub struct Entry {
    pub worker: Rc<Worker>,
    /// Snapshot under which the client was accepted.
    pub current: Current,
    pub plan: Arc<ListenerPlan>,
    pub standing: Verdict,
    pub admitted: Admitted,
}

/// Converts an IPv4-mapped IPv6 address (from a dual-stack socket) to the IPv4 address.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
