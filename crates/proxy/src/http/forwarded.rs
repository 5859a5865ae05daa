//! The head of a request as backends get it. It is written for each attempt when a connection is open, and freed when it
//! is sent: a request that waits for its response holds its head once, as the client sent it.

use std::net::SocketAddr;
use std::sync::Arc;

use logic::http1::forward::{self, Scheme, Trust, Via};
use logic::route::HeaderEdits;

use super::RequestId;
use super::heads::HeadBuffer;
use super::session::RequestContext;
use crate::snapshot::PoolPlan;
use crate::sticky_cookie;

/// What a forwarded head is written from, beside the pool.
pub(super) struct ForwardedHead<'a> {
    pub(super) session: &'a RequestContext<'a>,
    pub(super) edits: [&'a HeaderEdits; 2],
    pub(super) request_id: RequestId,
    pub(super) trust: Trust,
    /// See [`Via::local`].
    pub(super) local: Option<SocketAddr>,
    /// Pools that the request fell back from: the next one does not see their cookies either.
    pub(super) left: Vec<&'a Arc<PoolPlan>>,
}

impl ForwardedHead<'_> {
    /// Writes the head for backends of `pool`; always the same for one pool.
    pub(super) fn write(&self, pool: &PoolPlan) -> HeadBuffer {
        let session = self.session;
        let (received, settings) = (&*session.received, session.settings);
        let identity = session.arrival.session.as_ref().and_then(|session| session.identity.as_ref());
        let id_header = settings.request_id_header.as_deref();
        let via = Via {
            peer: session.arrival.peer,
            local: self.local,
            scheme: if session.arrival.tls.is_some() { Scheme::Https } else { Scheme::Http },
            trust: self.trust,
            request_id: id_header.map(|name| (name, self.request_id.as_bytes())),
            forwarded: settings.forwarded_headers,
            client_certificate: identity.map_or(&[], |identity| &identity.fields),
        };
        let mut message = HeadBuffer::take();
        forward::write_request(&mut message, &received.head, &received.request, &via, &self.edits);
        for left in &self.left {
            sticky_cookie::strip(left.cookie.as_ref(), &mut message);
        }
        sticky_cookie::strip(pool.cookie.as_ref(), &mut message);
        message
    }
}
