//! A session that another process goes on with, at an upgrade: what that process is told, and how both agree.
//!
//! The process before offers a session: its two connections, which both then have, and a [`Carried`]. It moves no byte of it
//! any more. The next process takes it ([`Answer::Taken`]) and moves bytes from then on, or declines, and the one before goes
//! on. So a session has one process that moves its bytes, and is lost with none: not when descriptors run out, and not when
//! one of the two ends in between.
//!
//! `crates/proxy/src/worker/giving.rs` offers, `crates/proxy/src/tcp/given.rs` adopts, `crates/serve/src/upgrade` carries the messages.
//! A session may have begun as a request (`crates/proxy/src/given/request.rs`): a process of a version that does not know that would
//! log it as TCP, so it gets none.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub mod place;
pub mod request;

use place::Place;
use request::CarriedRequest;

/// What the next process is told of a session. It may be of another version: fields that one of them does not know are ignored.
/// The half-close of a direction is not among them: the kernel tells it again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Carried {
    pub listener: String,
    /// `None` for a client of a Unix socket.
    pub client: Option<SocketAddr>,
    /// Address that the client connected to, if it is known.
    pub local: Option<SocketAddr>,
    /// Server name in the ClientHello, if the TLS of the client is passed through.
    pub server_name: Option<String>,
    pub passes_tls_through: bool,
    pub age: Duration,
    pub pool: String,
    pub backend: String,
    pub bytes_up: u64,
    pub bytes_down: u64,
    /// Neither side has sent anything: the session may go to another backend.
    pub is_unsent: bool,
    pub idle_timeout: Duration,
    /// For how long no byte has moved.
    pub silent: Duration,
    pub fast_close: String,
    pub attempts: u32,
    pub moved: u16,
    pub queued: Option<Duration>,
    pub connect: Option<Duration>,
    /// Of a session that is not TCP from its beginning. Only for a process that [knows it](NextProcess::takes_requests).
    pub request: Option<CarriedRequest>,
}

/// A session's number in the process that offers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OfferId {
    pub worker: usize,
    pub number: u64,
}

/// What became of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    Taken,
    Declined,
}

/// The next process.
pub trait NextProcess: Send + Sync {
    /// Offers it a session: the connections of the client and to the backend. Never waits.
    fn offer(&self, id: OfferId, session: &Carried, connections: [BorrowedFd<'_>; 2]) -> Offered;

    /// Whether it can go on with sessions that began as requests.
    fn takes_requests(&self) -> bool;
}

/// Whether an offer is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offered {
    Sent,
    /// There is no room for it now.
    Later,
    /// The next process has ended.
    Gone,
}

/// What a worker still has, while it gives sessions to the next process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Sessions that may still be given, by the reason why they are not yet: bytes of theirs are on the way.
    pub pending: BTreeMap<&'static str, usize>,
    /// The sessions that stay, by the reason.
    pub staying: BTreeMap<&'static str, usize>,
}

impl Standing {
    /// Adds the numbers of another worker.
    pub fn add(&mut self, other: Self) {
        for (all, others) in [(&mut self.pending, other.pending), (&mut self.staying, other.staying)] {
            for (why, count) in others {
                *all.entry(why).or_default() += count;
            }
        }
    }
}

/// A session of the process before, for a worker.
pub struct Adoption {
    pub session: Carried,
    pub place: Place,
    /// The connection of the client, and the one to the backend.
    pub connections: [OwnedFd; 2],
    pub reply: Reply,
}

/// Tells the process before whether this one takes the session. Declines it when it is dropped.
pub struct Reply {
    id: OfferId,
    before: Option<Arc<dyn PreviousProcess>>,
}

/// The process before.
pub trait PreviousProcess: Send + Sync {
    /// Says what becomes of a session. Returns false if that process goes on with it, because that cannot be said. Never waits.
    fn answer(&self, id: OfferId, answer: Answer) -> bool;
}

impl Reply {
    pub fn new(id: OfferId, before: Arc<dyn PreviousProcess>) -> Self {
        Self { id, before: Some(before) }
    }

    /// Takes the session. Returns false if it stays with the process before.
    #[must_use]
    pub(crate) fn take(mut self) -> bool {
        self.before.take().is_some_and(|before| before.answer(self.id, Answer::Taken))
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(before) = self.before.take() {
            // If it cannot be said, the process before ends, or learns from the end of this one.
            let _ = before.answer(self.id, Answer::Declined);
        }
    }
}
